"""Lower bounds within a class: matrices with at most `bands` diagonals and equal column norms.

Toeplitz classes have theirs in `lower_bounds/toeplitz_bounds.py`.

Let X = C^T C with X_ij = 0 for |i - j| >= bands, M = T^T T for the target T, f = tr(M X^-1), W = X^-1 M X^-1, E be W in
the band, without its diagonal, and P = E - Delta with any diagonal Delta >= 0. V = W - P is a dual matrix of the class:
for every Y of the class with unit diagonal, tr(V Y) = tr V. With Q = (M^1/2 W M^1/2)^1/2, so that tr Q = f, and
D = M^1/2 P M^1/2,

    tr(M Y^-1) >= N^2 / sum_i V_ii,     N = tr (Q^2 - D)^1/2                             (docs/solvers/banded.md)

To first order N is f - <X, P> / 2 = (f + sum_i V_ii X_ii) / 2. For the second, let eta < 1 be at least the largest
eigenvalue of P W^-1, so that Q^2 - t D >= (1 - t eta) Q^2. The second derivative of tr sqrt is, by its integral
representation, a negative multiple of the integral of lambda^-1/2 tr(R D R D), R = (Q^2 - t D + lambda)^-1; that only
grows if Q^2 - t D is replaced by the smaller (1 - t eta) Q^2, and is homogeneous of degree -3/2; at Q^2 it is
at most tr(P W^-1 P X) / 4. Hence N >= (f + sum_i V_ii X_ii) / 2 - g / 2 with

    g = (1 - eta)^-3/2 |C P X M^-1/2|_F^2 / 4,      W^-1 = X M^-1 X,

and since (a + y / 2)^2 / y >= 2 a for every y > 0, with y = sum_i V_ii X_ii >= min_i X_ii sum_i V_ii,

    tr(M Y^-1) >= min_i X_ii (f - g)                      for every Y of the class with diagonal at most 1.

The bound is quadratic in P, holds for any X of the band, and needs no unit diagonal. It needs no evidence but C.

Delta is zero near the optimum, where every row i of |E| |W^-1| s is below `_LARGEST_RATIO` s_i, s the roots of W's
diagonal. Elsewhere it takes all pairs of E with a step i whose row is above `_CALM_RATIO` s_i: Delta_i is the sum of
|E_ik| over them, which leaves them negative semidefinite, and eta is what the other pairs need. Since Delta costs
nothing to first order, a search that was stopped early keeps a bound.

What it allows for. g is evaluated with every entry of W off by `_ENTRY_ERROR` sqrt(W_ii W_jj), or by sixteen times the
defect of tr(W X) = f if that is larger: an allowance above all errors that we measured, not a proven one. f is lowered
by the proven relative error of substitution, 2 (bands + 2) u | |C| |C^-1| |_2, with the norm bounded through the
smallest eigenvalue of X; beyond n = 2048, where f comes from a recursion of covariances, that figure is not proven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from factorize.errors import ConditionNotMet
from factorize.lower_bounds.bounds import LowerBound
from factorize.lower_bounds.toeplitz_bounds import toeplitz_lower_bound
from factorize.mechanisms import Banded, BandedToeplitz, Toeplitz
from factorize.numbers.rounding import UNIT
from factorize.participation import AnyParticipation, FixedEpochs, MinSep
from factorize.spec import Spec
from factorize.structures.banded import BandedMatrix
from factorize.structures.matrix import Matrix
from factorize.structures.toeplitz import ToeplitzMatrix
from factorize.workloads.forms import BidiagonalInverse

BAND_RULE = "second-order dual of the band, over matrices with these bands and equal column norms"
_ENTRY_ERROR = 1e-11
_LARGEST_DENSE = 2048
_LARGEST_RATIO = 0.5
_CALM_RATIO = 0.1  # costs as little as Delta there
_MARGIN = 1e-12  # above the rounding of sums of positive terms
_SMALLEST_EIGENVALUE = 2.0**-40
_SMALLEST_PIVOT = 1e-10


@dataclass(frozen=True)
class BandGap:
    """How far a banded matrix can be from the best of its class.

    Attributes:
        loss: f = tr(M X^-1), shared by the terms below.
        excess: g.
        least_norm: smallest squared column norm.
        rounding: relative error of f that is allowed for.
    """

    loss: float
    excess: float
    least_norm: float
    rounding: float

    @property
    def lower(self) -> float:
        """The bound on tr(M Y^-1) over Y with diagonal at most 1."""
        return self.least_norm * (self.loss * (1 - self.rounding) - self.excess) * (1 - 8 * UNIT)


def class_lower_bound(
    spec: Spec, strategy: Matrix, objective: float, dual: Mapping[str, np.ndarray] | None = None
) -> LowerBound | None:
    """Return a bound on the objective over the mechanism's class, or None where none is known.

    Args:
        spec: canonical spec.
        strategy: C.
        objective: of C at sensitivity 1, as the certificate computed it.
        dual: evidence, which Toeplitz columns that can overlap need.
    """
    if spec.optimize_for is not None:
        return None
    if isinstance(spec.mechanism, (Toeplitz, BandedToeplitz)) and isinstance(strategy, ToeplitzMatrix):
        return toeplitz_lower_bound(spec, strategy, dual or {})
    if not isinstance(spec.mechanism, Banded) or not isinstance(strategy, BandedMatrix):
        return None
    bands = spec.mechanism.bands
    if spec.objective.kind == "max" or strategy.bandwidth() > bands:
        return None
    try:
        count = squared_sensitivity(spec.participation, spec.workload.n, bands)
    except ConditionNotMet:
        return None
    scale = spec.objective.scale(spec.workload.m)
    gap = band_gap(spec, strategy, objective / scale)
    if gap is None or not gap.lower > 0:
        return None
    return LowerBound(count * scale * gap.lower, BAND_RULE)


def squared_sensitivity(participation: AnyParticipation, n: int, bands: int) -> int:
    """Return the squared sensitivity of a banded matrix with unit columns: the number of participations (C.7).

    Raises:
        ConditionNotMet: two steps of one user could overlap in the band.
    """
    if isinstance(participation, MinSep):
        name, separation, count = "min_sep", participation.min_sep, participation.count(n)
    elif isinstance(participation, FixedEpochs):
        name, separation, count = "n / epochs", n // participation.epochs, participation.epochs
    else:
        return 1
    if bands > separation:
        raise ConditionNotMet(
            f"bands={bands} exceeds {name}={separation}, so two steps of one user would overlap and the closed form "
            f"for the sensitivity would not hold; use bands <= {separation}",
            field="/mechanism/bands",
        )
    return count


def band_gap(spec: Spec, strategy: BandedMatrix, loss: float) -> BandGap | None:
    """Return the terms of the bound for the spec's workload and objective, or None where they cannot be computed.

    Args:
        spec: canonical spec with a banded mechanism.
        strategy: C.
        loss: f.
    """
    assert isinstance(spec.mechanism, Banded)
    rows = _rows(strategy, min(spec.mechanism.bands, strategy.n))
    inverse = spec.workload.bidiagonal_inverse()
    inverse = None if inverse is None else spec.objective.weighted_inverse(inverse)
    if inverse is None and max(spec.workload.m, strategy.n) > _LARGEST_DENSE:
        return None
    gram = _gram(rows)
    rounding = _rounding(rows, gram)
    if rounding is None:
        return None
    if inverse is not None:
        excess = _excess_by_bands(rows, gram, inverse, loss)
    else:
        excess = _excess_dense(strategy.dense(), spec.objective.weigh(spec.workload.dense()), rows.shape[1], loss)
    return None if excess is None else BandGap(loss, excess, float(strategy.column_norms_squared().min()), rounding)


def _rows(strategy: BandedMatrix, bands: int) -> np.ndarray:
    """C[i, i - d] at [i, d], shape (n, bands)."""
    rows = np.zeros((strategy.n, bands))
    for d in range(strategy.bandwidth()):
        rows[d:, d] = strategy.bands[d, : strategy.n - d]
    return rows


def _gram(rows: np.ndarray) -> np.ndarray:
    """X[i, i - d] at [i, d]."""
    from factorize.lower_bounds.band_recurrences import gram

    out = np.zeros_like(rows)
    gram(rows, out)
    return out


def _rounding(rows: np.ndarray, gram: np.ndarray) -> float | None:
    """Relative error of f, or None for an X that is numerically singular."""
    from factorize.structures.banded_recurrences import band_cholesky

    n, bands = rows.shape
    least = 0.25
    while least > _SMALLEST_EIGENVALUE:
        shifted = gram[::-1].copy()  # by columns, of X read backwards, which has the same eigenvalues
        shifted[:, 0] -= least + 64 * bands * UNIT * gram[:, 0].max()
        if not band_cholesky(shifted):
            least /= 4
            continue
        down, across = np.zeros(n), np.zeros(n)
        for d in range(bands):
            magnitude = np.abs(rows[d:, d])
            across[d:] += magnitude
            down[: n - d] += magnitude
        norm = float(np.sqrt(across.max() * down.max()))
        return 2 * (bands + 2) * UNIT * norm / least**0.5
    return None


def _excess_by_bands(rows: np.ndarray, gram: np.ndarray, inverse: BidiagonalInverse, loss: float) -> float | None:
    """Return g in O(n bands^2)."""
    from factorize.lower_bounds import band_recurrences

    p, q = np.ascontiguousarray(inverse.p), np.ascontiguousarray(inverse.q)
    change = np.zeros_like(rows)
    band_recurrences.decoder_gram(rows, p, q, change)
    if not (np.isfinite(change).all() and (change[:, 0] > 0).all()):
        return None
    scale, entry = np.sqrt(change[:, 0]), _entry_error(change, gram, loss)
    change[:, 0] = 0.0  # E
    within = np.zeros(len(rows))
    band_recurrences.inner_magnitude(gram, p, q, scale, within)

    def pairs(x: np.ndarray, marked: np.ndarray) -> np.ndarray:
        out = np.zeros(len(rows))
        band_recurrences.dominated(change, entry, scale, x, marked, out)
        return out

    added, eta = _added(scale, within, pairs)
    change[:, 0] = -added
    moved = float(np.sqrt(band_recurrences.moved_square(rows, change, gram, p, q)))
    return _excess(moved, scale, entry * (2 * rows.shape[1] - 1), loss, within, eta)


Pairs = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From x and marks of steps to sum_k (|E_ik| + its error) x_k over the pairs with a marked step, for each step i."""


def _added(scale: np.ndarray, within: np.ndarray, pairs: Pairs) -> tuple[np.ndarray, float]:
    """Return the diagonal Delta and eta.

    Args:
        scale: roots s of W's diagonal.
        within: |W^-1| s.
        pairs: products with parts of |E|.
    """
    ratio = pairs(within, np.ones(len(scale), dtype=bool)) / scale
    near = bool((ratio <= _LARGEST_RATIO).all())
    marked = ~(ratio <= (_LARGEST_RATIO if near else _CALM_RATIO))
    added = pairs(np.ones(len(scale)), marked) * (1 + _MARGIN)
    return added, float(ratio[~marked].max(initial=0.0))


def _excess_dense(whole: np.ndarray, target: np.ndarray, b: int, loss: float) -> float | None:
    """Return g by dense algebra, for a target of full column rank once its zero columns are left out.

    A zero column costs nothing: the block of Y^-1 over the others is at least the inverse of that block of Y.
    """
    kept = np.asarray(target.any(axis=0))
    gram = (whole.T @ whole)[np.ix_(kept, kept)]
    triangle: np.ndarray = np.linalg.qr(target[:, kept], mode="r")  # type: ignore[assignment]  # the stub ignores mode
    pivots = np.abs(np.diagonal(triangle))
    if len(pivots) < len(gram) or pivots.min() <= _SMALLEST_PIVOT * pivots.max():
        return None
    decoder = np.linalg.solve(gram, target[:, kept].T).T
    weights = decoder.T @ decoder
    root = np.linalg.solve(triangle.T, gram).T  # X R^-1
    scale = np.sqrt(np.diagonal(weights))
    steps = np.flatnonzero(kept)
    near = np.abs(steps[:, None] - steps) < b
    entry = max(_ENTRY_ERROR, 16 * abs(float(np.vdot(weights, gram)) / loss - 1))
    error = np.where(near, weights, 0.0) - np.diag(scale**2)
    spread = (np.abs(error) + entry * np.outer(scale, scale)) * near * ~np.eye(len(steps), dtype=bool)
    within = np.abs(root @ root.T) @ scale
    either = np.logical_or.outer
    added, eta = _added(scale, within, lambda x, marked: (spread * either(marked, marked)) @ x)
    factor = np.linalg.cholesky(gram)
    norm = float(np.linalg.norm(factor.T @ (error - np.diag(added)) @ root))
    return _excess(norm, scale, entry * (2 * b - 1), loss, within, eta)


def _excess(
    norm: float, scale: np.ndarray, entry_norm: float, loss: float, within: np.ndarray, eta: float
) -> float | None:
    """Return g from its norm, with the errors of W's entries added; None if it is not finite.

    With W's error D^1/2 N D^1/2, D its diagonal: |C D^1/2| is the root of f, |N| at most `entry_norm`, and the norm of
    D^1/2 X M^-1 X D^1/2, like eta, is bounded by the largest ratio of |A| x to x (Collatz and Wielandt).

    Args:
        norm: |C P X M^-1/2|_F.
        scale: roots of W's diagonal.
        entry_norm: bound on |N|.
        loss: f.
        within: |W^-1| times `scale`.
        eta: as above.
    """
    spread = float((scale * within).max())
    excess = 0.25 * (1 - eta) ** -1.5 * (norm + entry_norm * (loss * spread) ** 0.5) ** 2
    return excess if np.isfinite(excess) else None


def _entry_error(weights: np.ndarray, gram: np.ndarray, loss: float) -> float:
    """Return the allowance for an entry of W; both halves of bands by rows, the diagonal first."""
    traced = float(np.vdot(weights[:, 0], gram[:, 0]))
    traced += 2 * sum(float(weights[:, d] @ gram[:, d]) for d in range(1, weights.shape[1]))
    return max(_ENTRY_ERROR, 16 * abs(traced / loss - 1))
