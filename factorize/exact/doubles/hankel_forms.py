"""Hankel forms N = H^T W^-1 H below t M, in doubles: a triangle L with t M - N - d I near L L^T, and what that leaves.

With r >= W^-1/2 and G = r H, N is at most G^T G, so that t M - N >= d - |t M - d I - G^T G - L L^T| is not negative
where d is at least that norm. It is bounded by the norm of what products leave of it and of all that they round. L is
a guess, whatever computed it. bounds/classes.py says what follows for strategies.
"""

from __future__ import annotations

import math

import numpy as np

from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.machine import check_products
from factorize.exact.doubles.polar_bound import whole_gram
from factorize.exact.doubles.roundings import SLACK, TINY, UNIT, column_norms, finite, gamma, norm_of
from factorize.exact.doubles.triangles import roundings_of
from factorize.exact.doubles.workload_rows import Near, nearly

_TRIALS = 3
_ROOM = 16.0
"""How many times what must be covered without a triangle d is at first; that of the triangle is seen afterwards."""


def require_below(multipliers: np.ndarray, weights: Numbers, metric: Numbers, stride: int, limit: float) -> None:
    """Return if H^T W^-1 H is at most `limit` M.

    Args:
        multipliers: l, shape (n,); H_ij = l_{i+j}, zero beyond n.
        weights: the diagonal of W, shape (n,), positive.
        metric: M, symmetric, shape (bands, bands), zero but on diagonals that are multiples of `stride` away.
        stride: see above.
        limit: t.

    Raises:
        NotEnclosed: it is not, or not by enough for doubles to tell, or those of this machine cannot be relied on.
    """
    check_products()
    with np.errstate(all="ignore"):
        scaled = _scaled(multipliers, weights, len(metric.values))
        near = _by_diagonals(metric, stride)
        gram = whole_gram(scaled)
        found = limit * near.values - gram
        lost = _lost_by_squares(scaled) + limit * _norm(near.errors) * (1 + SLACK)
        lost += UNIT * (limit * _norm(near.values) * (1 + SLACK) + _norm(found))
        finite(lost)
        _require_positive(found, lost * (1 + SLACK))


def _require_positive(found: np.ndarray, lost: float) -> None:
    """Return if the least eigenvalue of a symmetric matrix is at least `lost`."""
    places, shift = np.diag_indices(len(found)), _ROOM * lost
    for _ in range(_TRIALS):
        moved = found.copy()
        moved[places] -= shift
        try:
            root = np.linalg.cholesky(moved)
        except np.linalg.LinAlgError:
            break
        rest = found - whole_gram(np.ascontiguousarray(root.T))
        rounded = _lost_by_squares(root.T) + UNIT * _norm(rest)
        rest[places] -= shift
        needed = (lost + rounded + norm_of(column_norms(rest))) * (1 + SLACK)
        if needed <= shift:
            return
        shift = 2 * needed
    raise NotEnclosed("doubles do not tell the Hankel form from what it is to be below")


def _scaled(multipliers: np.ndarray, weights: Numbers, bands: int) -> np.ndarray:
    """G, whose entries are off by one rounding each."""
    near = nearly(weights)
    lowest = near.values - near.errors
    if not (lowest > 0).all():
        raise NotEnclosed("the last rows have no weight that doubles tell from 0")
    roots = (1 + SLACK) / np.sqrt(lowest)
    padded = np.concatenate([multipliers, np.zeros(bands)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, bands)[: len(multipliers)]
    return np.asarray(roots[:, None] * windows)


def _by_diagonals(metric: Numbers, stride: int) -> Near:
    """M and what its entries are off by."""
    size = len(metric.values)
    values, errors = np.zeros((size, size)), np.zeros((size, size))
    for lag in range(0, size, stride):
        own = nearly(metric._replace(values=np.diagonal(metric.values, lag)))
        places = np.arange(size - lag)
        for array, entries in ((values, own.values), (errors, own.errors)):
            array[places, places + lag] = array[places + lag, places] = entries
    return Near(values, errors)


def _lost_by_squares(array: np.ndarray) -> float:
    """At least the norm of what products make of X^T X, where entries of X may be off by a rounding, less the truth."""
    sizes = np.abs(array)
    columns, rows = float(sizes.sum(axis=0).max()), float(sizes.sum(axis=1).max())
    square = min(columns * rows, math.fsum(np.einsum("ij,ij->i", array, array).tolist()))
    rounded = gamma(roundings_of(len(array)) + 4) * square * (1 + gamma(sum(array.shape) + 4))
    return (rounded + array.shape[1] * (1 + float(sizes.max())) * TINY) * (1 + SLACK)


def _norm(array: np.ndarray) -> float:
    """At least the norm of a matrix that is as far from zero as this symmetric one, entry by entry."""
    return float(np.abs(array).sum(axis=0).max()) * (1 + gamma(len(array) + 4))
