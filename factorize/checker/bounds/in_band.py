"""The lower bound within a band, from C alone.

The class is of matrices C with these bands, at sensitivity s. For Y = C^T C / s^2 the sum of Y_ii over a pattern is at
most 1. Columns of one *group* have equal norms: one, or those of a block of steps of which a pattern has at most one.
Each group has an *owner*: a pattern of several disjoint ones, all that there is, or itself where Y_ii <= 1 is used.

For T = W A, any F and every such Y, tr(T^T T Y^-1) + tr(F F^T Y) >= 2 |T F|_* >= 2 tr(T F). Y is zero outside the band
and |Y_ij| <= (Y_ii + Y_jj) / 2 inside: tr(F F^T Y) is at most the sum of Y_ii c_i, c_i the diagonal entry of F F^T plus
the absolute entries of its row in the band, and that is at most the sum over the owners of a group's largest sum of
c_i. So tr(T^T T Y^-1) is at least (tr(T F))^2 over this cost. For X = C^T C of the best of the class and F = X^-1 T^T,
the entries of F F^T in the band are zero off the diagonal, their sums over the groups of one owner are the same, and
T F = T X^-1 T^T is positive semidefinite: all inequalities are equalities. A C near the best leaves a small rest E of
these entries, which F + G X T^-1 for G + G^T = E has not to first order; T G X T^-1 is nearly symmetric for
g_ij = e_ij t_jj^2 / (t_ii^2 + t_jj^2). Nothing that F is made from needs to be exact.
"""

import math
from fractions import Fraction

import numpy as np

from factorize.checker.arithmetic.near import TINY
from factorize.checker.doubles.nuclear_norms import WeightedTarget
from factorize.checker.doubles.roundings import SLACK, finite, gamma
from factorize.checker.doubles.triangles import gram, roundings_of

_MOST_FACTORS = 4
_SETTLED = 1e-13  # of the trace: entries in the band that another correction need not take back
_BLOCK = 128


def bound_in_band(
    weighted: WeightedTarget, diagonals: np.ndarray, bands: int, groups: np.ndarray, owners: np.ndarray
) -> Fraction:
    """Return a number not above the least |T Y^-1/2|^2 of the class, T = W A.

    `diagonals` are those of C, shape (any, n), as LAPACK has them, `bands` counts those of the class, `groups` has one
    number for each column and `owners` one for each group.

    Raises:
        NotEnclosed: numbers leave the range of doubles.
    """
    from scipy.linalg.lapack import dtbtrs

    best, n = Fraction(0), diagonals.shape[1]
    sizes = np.bincount(groups)
    shares = np.bincount(groups, (diagonals**2).sum(axis=0)) / sizes
    with np.errstate(all="ignore"):
        target = weighted.guess(np.eye(n))
        once = dtbtrs(diagonals, target.T, uplo="L", trans="T")[0]
        factor = np.ascontiguousarray(dtbtrs(diagonals, once, uplo="L")[0])
        for _ in range(_MOST_FACTORS):
            entries = _entries_in_band(factor, bands)
            bound = _trace_below(weighted, factor) ** 2 / _cost_above(entries, groups, owners, factor.shape[1])
            if bound <= best:
                break
            best = bound
            trace, sums = entries[0].sum(), np.bincount(groups, entries[0])
            levels = np.bincount(owners, shares * sums) / np.bincount(owners, shares)
            entries[0] = ((sums - levels[owners]) / sizes)[groups]
            if np.abs(entries).sum() <= _SETTLED * trace:
                break
            factor += _correction(target, diagonals, entries)
            if not np.isfinite(np.einsum("ij->", factor)):
                break
    return best


def _correction(target: np.ndarray, diagonals: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Return G X T^-1, shape (n, m), with 0 for steps that move nothing."""
    from scipy.linalg.blas import dtrsm
    from scipy.sparse import dia_array

    n = diagonals.shape[1]
    strategy = dia_array((diagonals, -np.arange(len(diagonals))), shape=(n, n))
    distances = np.arange(1, len(entries))
    squares = target.diagonal() ** 2
    both = squares + squares[np.minimum(np.arange(n) + distances[:, None], n - 1)]
    share = entries[1:] * squares / np.maximum(both, TINY)
    below, right = (dia_array((part, -distances), shape=(n, n)) for part in (share - entries[1:], -share))  # of G^T
    product = strategy.T @ (strategy @ (below + right.T - dia_array((entries[:1] / 2, [0]), shape=(n, n))))
    still = np.flatnonzero(target.diagonal() == 0)
    target[still, still] = 1.0
    return np.asarray(dtrsm(1.0, target.T, product.toarray(order="F"), overwrite_b=1).T)


def _entries_in_band(factor: np.ndarray, bands: int) -> np.ndarray:
    """Return the products of rows j and j + d of F at [d, j], shape (bands, n)."""
    n = len(factor)
    size, entries = max(bands, _BLOCK), np.zeros((bands, n))
    for start in range(0, n, size):
        products = gram(factor[start : start + size + bands - 1].T)
        for d in range(min(bands, len(products))):
            some = products.diagonal(d)[:size]
            entries[d, start : start + len(some)] = some
    return entries


def _trace_below(weighted: WeightedTarget, factor: np.ndarray) -> Fraction:
    """Return a number not above the trace of T F, or 0."""
    pairs = [(float(row.values[t]), float(row.errors[t])) for t, row in enumerate(weighted.times(factor))]
    values, errors = zip(*pairs, strict=True)
    finite(*values, *errors)
    total, lost = math.fsum(values), math.fsum(errors)
    return max(Fraction(total) - Fraction((lost + abs(total) * 2.0**-52) * (1 + SLACK)), Fraction(0))


def _cost_above(entries: np.ndarray, groups: np.ndarray, owners: np.ndarray, terms: int) -> Fraction:
    """Return at least the sum over the owners of a group's largest sum of c_i; entries are sums of as many terms."""
    costs, largest = entries[0].copy(), np.zeros(len(owners))
    for d, some in enumerate(np.abs(entries[1:]), 1):
        costs += some
        costs[d:] += some[: len(costs) - d]
    np.maximum.at(largest, owners, np.bincount(groups, costs))
    cost, count = math.fsum(largest.tolist()), 2 * len(entries) + int(np.bincount(groups).max()) - 2
    # The magnitudes of an entry are at most the norms of two rows, and these sum to at most the trace (Cauchy).
    rounded = (gamma(roundings_of(terms) + 2) + gamma(count)) * count * math.fsum(entries[0].tolist())
    finite(cost, rounded)
    return Fraction((cost + rounded) * (1 + SLACK)) + terms * entries.size * 2 * Fraction(TINY)
