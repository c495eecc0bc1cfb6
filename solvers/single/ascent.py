"""The dual of the optimum for single participation, and its ascent by decompositions of T D.

The dual of minimising ||T C^-1||_F^2 over C with column norms at most 1 is ||T D||_*^2 / sum(v) with D = diag(sqrt(v)),
maximal over v >= 0 (D22; docs/notes/method.md). With T D = U diag(s) Q^T:

    H = Q diag(s) Q^T,   X = D^-1 H D^-1,   X_ii = h_i / v_i,   h_i = sum_a Q_ia^2 s_a,   N = sum(s) = sum(h)

Newton in log v solves Z dlog v = h - v, where Z is positive semidefinite and

    Z x = diag(Q [(Q^T diag(x) Q) o Phi] Q^T),   Phi_ab = s_a s_b / (s_a + s_b).

In y = sqrt(v) dlog v the spectrum lies in [0, 1/2], so conjugate gradients need no preconditioner. C is the QL factor
of diag(sqrt(s)) Q^T D^-1, whose Gram matrix is X: this never squares a condition number and never fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from factorize.errors import SolveFailed
from factorize.solution import Outcome
from factorize.solvers.methods.conjugate_gradients import conjugate_gradients
from factorize.solvers.problem import StepReport

_UNIT = 2.0**-52
_MOST_STEPS = 120
_MOST_PRODUCTS = 80
_POWER_STEPS = 2
_SMOOTHING_STEPS = 6
_STALL = 6  # steps without a clearly better gap after which rounding, not work, is what is missing
_LONGEST_STEP = 1.5  # in log v
_SMALLEST_WEIGHT = 1e-60  # of the largest: below that a weight is as good as zero and squares would underflow
_WELL_CONDITIONED = 1e-14  # ratio of singular values down to which scaling X's diagonal is trusted
_SAFETY = 0.3  # the solver stops this far below the tolerance, so that the certificate's own allowances fit in


def scaled(target: np.ndarray) -> np.ndarray:
    """Return the target times the power of two that brings its largest entry to [0.5, 1); no optimum depends on it."""
    _, exponent = np.frexp(np.abs(target).max())
    return np.ldexp(target, -int(exponent))


@dataclass(frozen=True)
class Iterate:
    """Dual weights and the decomposition of T D.

    Attributes:
        target: T, shape (m, n), without zero columns.
        v: dual weights, shape (n,), scaled so that sum(v) = sum(h).
        s: singular values of T D, shape (r,).
        q: right singular vectors, shape (n, r).
        h: diagonal of H, shape (n,).
    """

    target: np.ndarray
    v: np.ndarray
    s: np.ndarray
    q: np.ndarray
    h: np.ndarray

    @property
    def lower(self) -> float:
        """The dual bound N^2 / sum(v), which equals N after scaling."""
        return float(self.v.sum())

    @cached_property
    def gap(self) -> float:
        """Gap of the better of two feasible matrices: X / max X_ii, and X with its diagonal scaled to 1.

        The second is quadratically close to the optimum. With x = diag(X) its loss is
        ||T D diag(sqrt(x)) Q diag(s)^-1/2||_F^2; where that cannot be evaluated, X is scaled where x > 1 only, and the
        loss taken to first order.
        """
        x = np.maximum(self.h / self.v, 0.0)
        uniform = float(x.max()) - 1
        if self.s[-1] <= _WELL_CONDITIONED * self.s[0] or len(self.s) < len(x):
            scaled_down = float(np.maximum(self.h - self.v, 0.0).sum()) / self.lower
        else:
            half = (self.target * np.sqrt(self.v * x)) @ (self.q / np.sqrt(self.s))
            scaled_down = float(np.vdot(half, half)) / self.lower - 1
        return max(min(uniform, scaled_down), 0.0) + 16 * len(x) * _UNIT


@dataclass(frozen=True)
class Ascent:
    """How the ascent ended: its best iterate, and why it stopped."""

    best: Iterate
    outcome: Outcome
    steps: int


def maximise(target: np.ndarray, tolerance: float, report: StepReport, *, start: Ascent | None = None) -> Ascent:
    """Maximise the dual bound until the gap is safely below the tolerance or rounding stops progress.

    Args:
        target: T, shape (m, n), no zero column.
        tolerance: relative gap asked for.
        report: told the gap after each step.
        start: an ascent to go on from.
    """
    if start is not None:
        current, step = start.best, start.steps + 1
    else:
        current, step = evaluate(target, _start(target)), 1
    best, first = current, step
    highest, best_step = current.lower, step
    while True:
        report(step, current.gap)
        if current.gap < 0.9 * best.gap or current.lower > highest * (1 + 0.1 * tolerance + 1e-13):
            best_step = step
        highest = max(highest, current.lower)
        if current.gap < best.gap:
            best = current
        if best.gap <= _SAFETY * tolerance:
            return Ascent(best, Outcome.CONVERGED, step)
        if step >= best_step + _STALL:
            return Ascent(best, Outcome.ROUNDING_LIMIT, step)
        if step >= first + _MOST_STEPS:
            return Ascent(best, Outcome.ITERATION_LIMIT, step)
        current = _power(current) if step <= _POWER_STEPS else _newton(current)
        step += 1


def evaluate(target: np.ndarray, v: np.ndarray) -> Iterate:
    """Decompose T diag(sqrt(v)) and scale v so that sum(v) is the nuclear norm."""
    v = np.maximum(v, _SMALLEST_WEIGHT * float(v.max()))
    s, q = right_singular(target * np.sqrt(v))
    factor = float(s.sum()) / float(v.sum())
    v, s = v * factor**2, s * factor
    return Iterate(target, v, s, q, np.einsum("ia,a,ia->i", q, s, q))


def right_singular(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return singular values, descending, and right singular vectors as columns.

    Raises:
        SolveFailed: the matrix left the range of double precision, or LAPACK gave up.
    """
    try:
        _, s, vt = np.linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        raise SolveFailed(
            "the singular values did not converge; rescale the workload so that its entries lie near 1"
        ) from None
    if not 0 < float(s.sum()) < np.inf:
        raise SolveFailed(f"the dual value is {s.sum()}; rescale the workload so that its entries lie near 1")
    return s, vt.T


def _start(target: np.ndarray) -> np.ndarray:
    """Column norms of T: the weights that are exact where T is diagonal."""
    return np.sqrt(np.einsum("ij,ij->j", target, target))


def _power(at: Iterate) -> Iterate:
    """The generalised power step v <- v X_ii^2; it never lowers the bound, which is convex in sqrt(v) on a sphere."""
    return evaluate(at.target, at.h**2 / at.v)


def _newton(at: Iterate) -> Iterate:
    """A Newton step in log v, shortened until the bound does not fall; a power step if that fails."""
    direction = _direction(at)
    direction = np.clip(direction, -_LONGEST_STEP, _LONGEST_STEP)
    length = 1.0
    for _ in range(4):
        trial = evaluate(at.target, at.v * np.exp(length * direction))
        if trial.lower >= at.lower * (1 - 1e-14):
            return trial
        length *= 0.3
    return _power(at)


def _direction(at: Iterate) -> np.ndarray:
    """Solve (Z + diag(v - h)+) dlog v = h - v by conjugate gradients in y = sqrt(v) dlog v.

    The exact derivative has v - h on its diagonal; the positive part of it keeps the matrix semidefinite, vanishes
    where all constraints are tight, and lets the weight of a constraint that is not tight (X_ii < 1) fall by a factor e
    a step.
    """
    root = np.sqrt(at.v)
    loose = np.maximum(at.v - at.h, 0.0) / at.v
    sums = at.s[:, None] + at.s
    phi = np.divide(at.s[:, None] * at.s, sums, out=np.zeros_like(sums), where=sums > 0)

    def apply(y: np.ndarray) -> np.ndarray:
        inner = (at.q.T * (y / root)) @ at.q
        inner *= phi
        return np.einsum("ia,ia->i", at.q @ inner, at.q) / root + loose * y

    right = (at.h - at.v) / root
    enough = min(0.05, max(1e-3, at.gap**0.5)) ** 2 * float(right @ right)
    y, _, _ = conjugate_gradients(
        apply, right, 2 * right, ended=lambda _y, residual: float(residual @ residual) <= enough, most=_MOST_PRODUCTS
    )
    for _ in range(_SMOOTHING_STEPS):  # for the entries with tiny weights, which the norm above does not see
        y += (right - apply(y)) / (0.5 + loose)
    return y / root
