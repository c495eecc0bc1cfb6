"""Lower bounds within a class: matrices with at most `bands` diagonals and equal column norms.

Toeplitz classes have theirs in `lower_bounds/toeplitz_bounds.py`.

Let X = C^T C with X_ij = 0 for |i - j| >= bands, M = T^T T for the target T, f = tr(M X^-1), W = X^-1 M X^-1, and
let E be W in the band, without its diagonal. W - E is a dual matrix of the class: for every Y of the class with unit
diagonal, tr((W - E) Y) = tr W. With Q = (M^1/2 W M^1/2)^1/2, so that tr Q = f, and D = M^1/2 E M^1/2,

    tr(M Y^-1) >= N^2 / sum_i W_ii,     N = tr (Q^2 - D)^1/2                                   (mathematics F.3, banded)

To first order N is f - <X, E> / 2 = (f + sum_i W_ii X_ii) / 2. For the second, let eta < 1 be at least the largest
eigenvalue of E W^-1, so that Q^2 - t D >= (1 - t eta) Q^2. The second derivative of tr sqrt is, by its integral
representation, a negative multiple of the integral of lambda^-1/2 tr(R D R D), R = (Q^2 - t D + lambda)^-1; that only
grows if Q^2 - t D is replaced by the smaller (1 - t eta) Q^2, and is homogeneous of degree -3/2; at Q^2 it is
at most tr(E W^-1 E X) / 4. Hence N >= (f + sum_i W_ii X_ii) / 2 - g / 2 with

    g = (1 - eta)^-3/2 |C E X M^-1/2|_F^2 / 4,      W^-1 = X M^-1 X,

and since (a + y / 2)^2 / y >= 2 a for every y > 0, with y = sum_i W_ii X_ii >= min_i X_ii sum_i W_ii,

    tr(M Y^-1) >= min_i X_ii (f - g)                      for every Y of the class with diagonal at most 1.

The bound is quadratic in E, holds for any X of the band, and needs no unit diagonal. It needs no evidence but C.

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
from factorize.workloads.base import BidiagonalInverse

BAND_RULE = "second-order dual of the band, over matrices with these bands and equal column norms"
_ENTRY_ERROR = 1e-11
_LARGEST_DENSE = 2048
_LARGEST_ETA = 0.5
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
    bands = np.zeros((min(spec.mechanism.bands, strategy.n), strategy.n))
    bands[: strategy.bandwidth()] = strategy.bands[: strategy.bandwidth()]
    inverse = spec.workload.bidiagonal_inverse()
    inverse = None if inverse is None else spec.objective.weighted_inverse(inverse)
    rounding = _rounding(bands)
    if rounding is None:
        return None
    if inverse is not None:
        excess = _excess_by_bands(bands, inverse, loss)
    elif max(spec.workload.m, strategy.n) <= _LARGEST_DENSE:
        excess = _excess_dense(strategy.dense(), spec.objective.weigh(spec.workload.dense()), len(bands), loss)
    else:
        return None
    return None if excess is None else BandGap(loss, excess, float((bands**2).sum(axis=0).min()), rounding)


def _rounding(bands: np.ndarray) -> float | None:
    """Relative error of f, or None for an X that is numerically singular."""
    from factorize.structures.banded_recurrences import band_cholesky

    gram = _gram_offsets(bands)
    least = 0.25
    while least > _SMALLEST_EIGENVALUE:
        shifted = np.ascontiguousarray(gram.T)
        shifted[:, 0] -= least + 64 * len(bands) * UNIT * gram[0].max()
        if not band_cholesky(shifted):
            least /= 4
            continue
        magnitude = np.abs(bands)
        rows = np.zeros(bands.shape[1])
        for d, band in enumerate(magnitude):
            rows[d:] += band[: len(rows) - d]
        norm = float(np.sqrt(rows.max() * magnitude.sum(axis=0).max()))
        return 2 * (len(bands) + 2) * UNIT * norm / least**0.5
    return None


def _gram_offsets(bands: np.ndarray) -> np.ndarray:
    """X[j + d, j] at [d, j], as LAPACK stores a symmetric band."""
    b, n = bands.shape
    out = np.zeros((b, n))
    for d in range(b):
        for e in range(b - d):
            out[d, : n - d] += bands[d + e, : n - d] * bands[e, d:]
    return out


def _both_halves(offsets: np.ndarray) -> np.ndarray:
    """A symmetric band from its lower half: entry (i, k) at [i, k - i + below]."""
    b, n = offsets.shape
    out = np.zeros((n, 2 * b - 1))
    for d, band in enumerate(offsets):
        out[d:, b - 1 - d] = band[: n - d]
        out[: n - d, b - 1 + d] = band[: n - d]
    return out


def _excess_by_bands(bands: np.ndarray, inverse: BidiagonalInverse, loss: float) -> float | None:
    """Return g in O(n bands^2): W from the Cholesky factor of W^-1 = U U^T, U = X G, G = T^-1 bidiagonal."""
    from factorize.structures.banded_recurrences import band_cholesky, inverse_band

    b, n = bands.shape
    gram = _gram_offsets(bands)
    root = _times_bidiagonal(_both_halves(gram), inverse)
    inner = _product(root, b, _transposed(root, b), b - 1)  # W^-1, with 2b - 1 diagonals on each side
    width = min(2 * b - 1, n - 1)
    lower = np.zeros((n, width + 1))
    for d in range(width + 1):
        lower[: n - d, d] = inner[d:, 2 * b - 1 - d]
    if not band_cholesky(lower):
        return None
    weights = np.zeros((n, 2 * width + 1))
    inverse_band(lower, weights)
    offsets = np.zeros((b, n))
    for d in range(b):
        offsets[d, : n - d] = weights[: n - d, width + d]
    scale, entry = np.sqrt(offsets[0]), _entry_error(offsets, gram, loss)
    offsets[0] = 0.0
    error = _both_halves(offsets)
    columns = np.zeros((n, b))
    for d, band in enumerate(bands):
        columns[d:, b - 1 - d] = band[: n - d]
    moved = _product(_product(columns, b - 1, error, b - 1), 2 * b - 2, root, b)
    magnitude = np.abs(root)
    back = _transposed(magnitude, b)

    def inner_magnitude(x: np.ndarray) -> np.ndarray:
        return _apply(magnitude, b, _apply(back, b - 1, x))

    def error_magnitude(x: np.ndarray) -> np.ndarray:
        around = _apply(np.ones_like(error), b - 1, scale * x)
        return _apply(np.abs(error), b - 1, x) + entry * scale * around

    return _excess(float(np.linalg.norm(moved)), scale, entry * (2 * b - 1), loss, inner_magnitude, error_magnitude)


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
    inner = np.abs(root @ root.T)
    spread = np.abs(error) + entry * np.outer(scale, scale) * near
    factor = np.linalg.cholesky(gram)
    norm = float(np.linalg.norm(factor.T @ error @ root))
    return _excess(norm, scale, entry * (2 * b - 1), loss, lambda x: inner @ x, lambda x: spread @ x)


def _excess(
    norm: float,
    scale: np.ndarray,
    entry_norm: float,
    loss: float,
    inner_magnitude: Callable[[np.ndarray], np.ndarray],
    error_magnitude: Callable[[np.ndarray], np.ndarray],
) -> float | None:
    """Return g from its norm, with the errors of W's entries added; None unless eta is well below 1.

    With W's error D^1/2 N D^1/2, D its diagonal: |C D^1/2| is the root of f, |N| at most `entry_norm`, and the norm of
    D^1/2 X M^-1 X D^1/2, like eta, is bounded by the largest ratio of |A| x to x (Collatz and Wielandt).

    Args:
        norm: |C E X M^-1/2|_F.
        scale: roots of W's diagonal.
        entry_norm: bound on |N|.
        loss: f.
        inner_magnitude: product with |W^-1|.
        error_magnitude: product with |E| and its error.
    """
    spread = float((scale * inner_magnitude(scale)).max())
    eta = float((error_magnitude(inner_magnitude(scale)) / scale).max())
    if not eta < _LARGEST_ETA:
        return None
    return 0.25 * (1 - eta) ** -1.5 * (norm + entry_norm * (loss * spread) ** 0.5) ** 2


def _entry_error(weights: np.ndarray, gram: np.ndarray, loss: float) -> float:
    defect = float(np.vdot(weights[0], gram[0]) + 2 * np.vdot(weights[1:], gram[1:])) / loss - 1
    return max(_ENTRY_ERROR, 16 * abs(defect))


def _times_bidiagonal(gram: np.ndarray, inverse: BidiagonalInverse) -> np.ndarray:
    """X G: b diagonals below the main one and b - 1 above it."""
    n, width = gram.shape
    out = np.zeros((n, width + 1))
    columns = np.arange(n)[:, None] + np.arange(width) - width // 2
    inside = (columns >= 0) & (columns < n)
    columns = np.where(inside, columns, 0)
    out[:, 1:] += gram * inverse.p[columns]
    out[:, :-1] -= gram * np.where(columns > 0, inverse.q[columns], 0.0)
    return out


def _transposed(band: np.ndarray, below: int) -> np.ndarray:
    n, width = band.shape
    out = np.zeros_like(band)
    for place in range(width):
        offset = place - below
        rows = slice(max(0, -offset), min(n, n - offset))
        out[max(0, offset) : min(n, n + offset), width - 1 - place] = band[rows, place]
    return out


def _product(a: np.ndarray, below_a: int, b: np.ndarray, below_b: int) -> np.ndarray:
    from factorize.structures.banded_recurrences import band_product

    out = np.empty((len(a), a.shape[1] + b.shape[1] - 1))
    band_product(a, below_a, b, below_b, out)
    return out


def _apply(band: np.ndarray, below: int, x: np.ndarray) -> np.ndarray:
    """Multiply a banded matrix and a vector."""
    width = band.shape[1]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, (below, width - 1 - below)), width)
    return np.einsum("ij,ij->i", band, windows)
