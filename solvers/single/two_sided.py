"""Newton's method for the dual of the max-error objective: weights on both sides of the workload.

For a workload A of shape (m, n) and weights u, v >= 0 that each sum to 1, with ``N(u, v) = ||diag(sqrt u) A
diag(sqrt v)||_*``,

    lower bound   N^2
    upper bound   max_i e_i max_j x_j,   x = diag(X),  e = diag(A X^-1 A^T)

of the minimum over C of ``max_j ||C[:, j]||^2 max_i ||(A C^-1)[i, :]||^2``: the dual of D22 with weights for the rows
as well. X is the matrix that belongs to (u, v), and sum_i u_i e_i = sum_j v_j x_j = N, so the bounds meet where e and x
are constant wherever their weights are not zero. N is the minimum over X of ``(sum u_i e_i + sum v_j x_j) / 2``, hence
concave in (u, v) together. In one vector, w = (u, v) and h = (u_i e_i / N, v_j x_j / N).

Rows and columns whose constraint is not tight end with weight zero. A logarithmic barrier keeps all weights positive
and in proportion: maximise ``2 log N + mu sum(log w)``, so that w - h = mu, with the sum of all mu below the gap. A
step solves

    (Z + diag(max(w - h, mu))) dlog w = h + mu - w

    Z dlog w = (  diag(P [(F - G) o Phi] P^T),  diag(Q [(G - F) o Phi] Q^T)  ),   Phi_ab = s_a s_b / (s_a + s_b),
    F = P^T diag(dlog u) P,  G = Q^T diag(dlog v) Q,   diag(sqrt u) A diag(sqrt v) = N P diag(s) Q^T.

In sqrt(w) dlog w the spectrum of Z lies in [0, 1], so conjugate gradients need no preconditioner beyond the diagonal.
Its null vector, all entries 1, only scales the weights; a term of rank one takes it out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from factorize.solvers.methods.compiled import Array, Product
from factorize.solvers.methods.search import End, conjugate_gradients, run
from factorize.solvers.problem import StepReport

_MAX_STEPS = 80
_MAX_PRODUCTS = 400
_MIN_CURVE = 1e-14
_POWER_STEPS = 2
_STALL_STEPS = 10  # after this many steps without a better gap rounding is what is missing, not work
_MAX_RISE, _MAX_FALL = 3.5, 0.97  # a weight grows to 4.5 times itself at most and falls to a thirtieth
_CENTRE, _ORDER = 0.1, 1.5  # the barrier follows the gap: a tenth of it at first, then its power
_LAST_BARRIER = 0.3  # the last barrier over the tolerance
_PROXIMAL_SHARE = 0.1
"""This part of the largest violation is added to Z to hold back directions that hardly change the bound."""


@dataclass(frozen=True)
class Pair:
    """Dual weights on both sides, and what belongs to them.

    Attributes:
        u: row weights, positive, sum 1, shape (m,).
        v: column weights, positive, sum 1, shape (n,).
        e: squared row norms of B, divided by N, shape (m,).
        x: squared column norms of C, divided by N, shape (n,).
        value: N.
        gap: relative gap between the bounds, as far as the evaluation can tell.
        error: relative error of N.
        solve: a function from the diagonal d and the right-hand side r to y with
            (Z + diag(w d) + w w^T / 2) y = w r, all of shape (m + n,).
    """

    u: Array
    v: Array
    e: Array
    x: Array
    value: float
    gap: float
    error: float
    solve: Callable[[Array, Array], Array]


class TwoSided(Protocol):
    """A workload as the method needs to know it."""

    def start(self) -> tuple[Array, Array]:
        """Row and column weights to start from, positive, of any scale."""

    def evaluate(self, u: Array, v: Array, error: float) -> Pair:
        """Return what belongs to weights that sum to 1, with this relative error if there is a choice."""


def maximise(workload: TwoSided, *, tolerance: float, report: StepReport) -> End[Pair]:
    """Maximise the dual bound until the gap is at most the tolerance or rounding stops progress.

    Args:
        workload: the workload, which says how to evaluate.
        tolerance: relative gap to reach, positive.
        report: told the gap after each step; what it raises ends the solve.
    """
    search = _Barrier(workload, tolerance)
    first = search.held(*workload.start(), 1e-3)
    return run(search, first, enough=tolerance, most=_MAX_STEPS, stall=_STALL_STEPS, lower=_certain, report=report)


def _certain(at: Pair) -> float:
    return at.value * (1 - 4 * at.error)


class _Barrier:
    """Steps of Newton's method with a barrier that follows the gap, the first ones power steps."""

    def __init__(self, workload: TwoSided, tolerance: float) -> None:
        self._workload, self._tolerance, self._barrier = workload, tolerance, np.inf

    def gap(self, at: Pair) -> float:
        return at.gap

    def step(self, at: Pair, number: int) -> Pair:
        """Shorten the step until the barrier's objective does not fall; power steps at first and if that fails."""
        error = max(1e-15, 1e-2 * self._tolerance, min(1e-3, 1e-2 * at.gap * max(at.gap, 1e-3)))
        least = max(_LAST_BARRIER * self._tolerance, _CENTRE * min(at.gap, at.gap**_ORDER))
        self._barrier = min(self._barrier, least / (at.u.size + at.v.size))
        if number > _POWER_STEPS + 1:
            direction, length = _direction(at, self._barrier), 1.0
            for _ in range(4):
                growth = _growth(length * direction)
                trial = self.held(at.u * growth[: at.u.size], at.v * growth[at.u.size :], error)
                if self._merit(trial) >= self._merit(at) - 4 * (at.error + trial.error):
                    return trial
                length *= 0.3
        # The power step on each side in turn: N is convex in sqrt(u) and in sqrt(v), so neither lowers it.
        at = self.held(at.u * at.e**2, at.v, error)
        return self.held(at.u, at.v * at.x**2, error)

    def held(self, u: Array, v: Array, error: float) -> Pair:
        """Evaluate at weights that sum to 1, none of them far below where the last barrier holds it."""
        floor = 0.1 * self._tolerance / (u.size + v.size)
        u, v = np.maximum(u / u.sum(), floor), np.maximum(v / v.sum(), floor)
        return self._workload.evaluate(u / u.sum(), v / v.sum(), error)

    def _merit(self, at: Pair) -> float:
        return 2 * float(np.log(at.value)) + self._barrier * float(np.log(at.u).sum() + np.log(at.v).sum())


def _growth(step: Array) -> Array:
    """Return the factor of w: linear in the step, as the slack of a constraint that is not tight is mu / w."""
    return 1.0 + np.clip(step, -_MAX_FALL, _MAX_RISE)


def _direction(at: Pair, barrier: float) -> Array:
    weights, tightness = np.concatenate([at.u, at.v]), np.concatenate([at.e, at.x])
    violation = max(float(tightness.max()) - 1, 0.0)
    loose = np.maximum(1 - tightness, barrier / weights) + _PROXIMAL_SHARE * violation
    return at.solve(loose, tightness - 1 + barrier / weights)


def iterate(product: Product, weights: Array, diagonal: Array, wanted: Array, gap: float) -> Array:
    """Solve (Z + diag(weights diagonal) + weights weights^T / 2) y = weights wanted by conjugate gradients.

    The iteration goes on until no entry of the residual, relative to its weight and diagonal, is large compared to the
    largest wanted one: entries of tiny weight count as much as others.

    Args:
        product: y -> Z y.
        weights: w, positive, sum 2, shape (m + n,).
        diagonal: positive, shape (m + n,).
        wanted: shape (m + n,).
        gap: the gap of the ascent so far; the closer, the more accurate the step.
    """
    root = np.sqrt(weights)

    def apply(y: Array) -> Array:
        return root * (product(y / root) / weights) + diagonal * y + 0.5 * float(root @ y) * root

    enough = min(0.1, max(1e-2, gap**0.5)) * min(float(np.abs(wanted).max()), 1.0)
    scaling = 1.0 / (1.0 + diagonal)  # a weight far below its barrier has a large diagonal

    def ended(_y: Array, residual: Array) -> bool:
        return float(np.abs(scaling * residual / root).max()) <= enough

    y, _, _ = conjugate_gradients(
        apply, root * wanted, scaling * root * wanted, ended=ended, most=_MAX_PRODUCTS, scaling=scaling, flat=_MIN_CURVE
    )
    return y / root
