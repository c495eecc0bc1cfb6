"""Lower bounds within a class of matrices, from C alone: Toeplitz ones whose columns cannot overlap, and bands.

Toeplitz. The optimum b = a / c has multipliers l with H c = W b, H_ij = l_{i+j}, and sum_t l_t a_t = b^T H c <= s
sqrt(E S), with E the errors, S the squared sensitivity and M its counts of columns. Any l proves something. For l >= 0
and any x > 0, s^2 <= max_j (M^-1 H^T W^-1 H x)_j / x_j (Collatz and Wielandt), by products of series in balls; for
other l see docs/notes/checker.md, "Hankel forms".

Bands. The class is of matrices C with these bands, at sensitivity s. For Y = C^T C / s^2 the sum of Y_ii over a pattern
is at most 1. Columns of one *group* have equal norms: one, or those of a block of steps of which a pattern has at most
one. Each group has an *owner*: a pattern of several disjoint ones, all that there is, or itself where Y_ii <= 1 is
used.

For T = W A, any F and every such Y, tr(T^T T Y^-1) + tr(F F^T Y) >= 2 |T F|_* >= 2 tr(T F). Y is zero outside the band
and |Y_ij| <= (Y_ii + Y_jj) / 2 inside: tr(F F^T Y) is at most the sum of Y_ii c_i, c_i the diagonal entry of F F^T plus
the absolute entries of its row in the band, and that is at most the sum over the owners of a group's largest sum of
c_i. So tr(T^T T Y^-1) is at least (tr(T F))^2 over this cost. For X = C^T C of the best of the class and F = X^-1 T^T,
the entries of F F^T in the band are zero off the diagonal, their sums over the groups of one owner are the same, and
T F = T X^-1 T^T is positive semidefinite: all inequalities are equalities. A C near the best leaves a small rest E of
these entries, which F + G X T^-1 for G + G^T = E has not to first order; T G X T^-1 is nearly symmetric for
g_ij = e_ij t_jj^2 / (t_ii^2 + t_jj^2). Nothing that F is made from needs to be exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb, arb_series, ctx

from factorize.checker.arithmetic.balls import Balls, ends, errors_of, nearest, of_doubles
from factorize.checker.arithmetic.machine import check_products
from factorize.checker.arithmetic.near import SLACK, TINY, UNIT, NotEnclosed, finite, gamma, norm_of, row_norms
from factorize.checker.bounds.nuclear_norms import WeightedTarget
from factorize.checker.losses import series
from factorize.checker.losses.products import gram, roundings_of
from factorize.checker.losses.whole_matrices import norm_above
from factorize.checker.participation import Allowed
from factorize.checker.spec.objectives import Weighing, weighing_of
from factorize.checker.strategy import MAX_N_COMPUTED

_PLACES = 128  # the binary places of balls
_POWER_STEPS = 40
_MIN_ENTRY = 1e-15  # A guess of the leading vector is kept positive by it, relative to the vector's norm.
_NEGATIVE_NOISE = 1e-12  # A multiplier that rounding makes of 0 is no lower than that, relative to the largest.
_EIGENVALUE_MARGIN = 1e-11  # A guess exceeds the eigenvalue by this share, so that there is a factorization.
_TRANSFORM_NOISE = 1e-14  # A transform makes less than that of 0, relative to the largest multiplier.


def toeplitz_bound(spec: Mapping[str, Any], column: np.ndarray, workload: Balls, form: Allowed) -> Fraction:
    """Return a bound on the objective over Toeplitz matrices with the diagonals of the mechanism.

    `column` is the first column of C, shape (n,), and `workload` that of A.

    Raises:
        NotEnclosed: columns can overlap, or the objective has no bound of this kind.
    """
    n, kind = len(column), spec["objective"]["kind"]
    bands = int(spec["mechanism"].get("bands", n))
    weights, divisor = _error_weights(weighing_of(spec["objective"], n))
    if weights is None or column[bands:].any():
        raise NotEnclosed(f"no bound is known here for more diagonals than the class has, or for the objective {kind}")
    if not (nearest(weights) > 0).all():
        raise NotEnclosed("the last rows have no weight")
    if form.most > 1 and bands > form.separation:
        raise NotEnclosed("Toeplitz columns that can overlap have no bound within their class here")
    lengths = np.sort(n - form.separation * np.arange(form.most))
    counts = (form.most - np.searchsorted(lengths, np.arange(bands), side="right")).astype(object)
    multipliers = _multipliers(nearest(workload), nearest(weights), column)
    if multipliers.min() < -_NEGATIVE_NOISE:
        return _attain(multipliers, workload) / (_largest_of_both_signs(multipliers, weights, counts) * divisor)
    multipliers = _without_noise(multipliers)
    vector = _vector(multipliers, nearest(weights), counts, column[:bands])
    return _attain(multipliers, workload) / (_largest_ratio(multipliers, weights, counts, vector) * divisor)


def _attain(multipliers: np.ndarray, workload: Balls) -> Fraction:
    """Return the square of l . a, from below."""
    with ctx.workprec(_PLACES):
        products = (own * each for own, each in zip(of_doubles(multipliers), workload, strict=True))
        return max(ends(sum(products, arb(0)))[0], Fraction(0)) ** 2


def _error_weights(weighing: Weighing) -> tuple[Balls | None, Fraction]:
    """Return the weights of the squares of b, without the divisor of the objective, and that divisor."""
    if weighing.tau is not None:
        return None, Fraction(1)
    if weighing.weights is None:  # The last row has the largest error.
        return [arb(1)] * weighing.rows, Fraction(1)
    if weighing.divisor is not None:
        return [arb(count) for count in range(weighing.rows, 0, -1)], Fraction(weighing.divisor)
    with ctx.workprec(_PLACES):
        return list(itertools.accumulate(of_doubles(weighing.doubles[::-1])))[::-1], Fraction(1)


def _multipliers(workload: np.ndarray, weights: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Return multipliers l with H c = W b, nearly; any others would prove something."""
    inverse = series.approximate_inverse(column)
    decoder = series.approximate_product(workload, inverse)
    multipliers = series.approximate_product((weights * decoder)[::-1], inverse)[::-1]
    largest = float(np.abs(multipliers).max())
    if not (np.isfinite(multipliers).all() and largest > 0):
        raise NotEnclosed("the inverse of C grows too much for a bound of this kind")
    return np.asarray(multipliers / largest)


def _without_noise(multipliers: np.ndarray) -> np.ndarray:
    """Return the multipliers with 0 for negative ones and for those that a transform cannot tell from 0."""
    last = int(np.flatnonzero(multipliers > _TRANSFORM_NOISE)[-1])
    return np.where(np.arange(len(multipliers)) <= last, np.maximum(multipliers, 0.0), 0.0)


def _vector(multipliers: np.ndarray, weights: np.ndarray, counts: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Return a vector x near the leading one of N; any positive one would prove something."""
    divisors, n = counts.astype(np.float64), len(multipliers)
    vector = np.maximum(column / np.linalg.norm(column), _MIN_ENTRY)
    scales = _scales(multipliers)
    for _ in range(_POWER_STEPS):
        once = np.maximum(_hankel(multipliers, scales, vector, n), 0.0) / weights
        moved = np.maximum(_hankel(multipliers, scales, once, len(vector)), 0.0) / divisors
        ratios = moved / vector
        vector = np.maximum(moved / np.linalg.norm(moved), _MIN_ENTRY)
        if ratios.max() <= ratios.min() * (1 + 1e-12):
            break
    return vector


def _scales(multipliers: np.ndarray) -> np.ndarray:
    """Return powers r^k that fall about as the multipliers do, so that a transform rounds each relative to itself."""
    last = int(np.flatnonzero(multipliers)[-1])
    ratio = min(float(multipliers[last] / multipliers.max()) ** (1 / max(last, 1)), 1.0)
    return np.asarray(ratio ** np.minimum(np.arange(len(multipliers)), last))


def _hankel(multipliers: np.ndarray, scales: np.ndarray, vector: np.ndarray, count: int) -> np.ndarray:
    """Return the first `count` entries of H x, nearly: l_{i+j} is r^i (l_{i+j} / r^{i+j}) r^j."""
    padded = np.concatenate([scales[: len(vector)] * vector, np.zeros(len(multipliers) - len(vector))])
    return scales[:count] * series.approximate_product((multipliers / scales)[::-1], padded)[::-1][:count]


def _largest_ratio(multipliers: np.ndarray, weights: Balls, counts: np.ndarray, vector: np.ndarray) -> Fraction:
    """Return an upper bound of the largest (N x)_j / x_j."""
    n, bands = len(multipliers), len(vector)
    with ctx.workprec(_PLACES):
        first = series.series_of(of_doubles(multipliers[::-1]))
        once = first * series.series_of(of_doubles(np.concatenate([vector, np.zeros(n - bands)])))
        twice = first * arb_series([once[n - 1 - i] / weights[i] for i in range(n)], n)
        divisors = [int(count) * arb(own) for count, own in zip(counts, vector.tolist(), strict=True)]
        ratios = [float((twice[n - 1 - j] / divisor).upper()) for j, divisor in enumerate(divisors)]
    if not all(map(math.isfinite, ratios)) or twice.prec < n:
        raise NotEnclosed("the multipliers leave the range of doubles")
    return Fraction(math.nextafter(max(ratios), math.inf))


def _largest_of_both_signs(multipliers: np.ndarray, weights: Balls, counts: np.ndarray) -> Fraction:
    """Return an upper bound of the largest eigenvalue of N, by a Cholesky factorization in doubles and its residual.

    Rows and columns of X may be too long, which makes the eigenvalue larger.
    """
    n, bands = len(multipliers), len(counts)
    if n > MAX_N_COMPUTED:
        raise NotEnclosed(f"multipliers of both signs are evaluated up to n={MAX_N_COMPUTED}")
    check_products()
    near = nearest(weights)
    with np.errstate(all="ignore"):
        windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([multipliers, np.zeros(bands)]), bands)[:n]
        rows = (1 + SLACK) / np.sqrt(near - errors_of(weights, near))
        matrix = rows[:, None] * windows * ((1 + SLACK) / np.sqrt(counts.astype(float)))
        square = gram(matrix)
        finite(float(np.einsum("ij->", square)))
        above = float(np.linalg.eigvalsh(square)[-1]) * (1 + _EIGENVALUE_MARGIN)
        rest = above * np.eye(bands) - square
        try:
            root = np.linalg.cholesky(rest)
        except np.linalg.LinAlgError:
            raise NotEnclosed("the largest eigenvalue of the Hankel form is not enclosed") from None
        lost = UNIT * (above * bands**0.5 + norm_of(row_norms(rest)))
        rest -= gram(root.T)
        lost += norm_of(row_norms(rest)) * (1 + UNIT) + sum(map(_lost_by_squares, (matrix, root.T)))
    finite(lost)
    return Fraction(above) + Fraction(lost * (1 + SLACK))


def _lost_by_squares(matrix: np.ndarray) -> float:
    """Return an upper bound of the norm of the error of X^T X, where entries of X may be off by three roundings."""
    size = norm_above(matrix)  # It bounds the norm of the matrix of |x_ij|, too.
    return gamma(roundings_of(len(matrix)) + 8) * size**2 * (1 + SLACK) + matrix.size * (1 + size) * TINY


_MAX_FACTORS = 4  # The most corrections of F.
_MAX_REST = 1e-13  # Entries left in the band need no other correction up to that share of the trace.
_BLOCK = 128  # The least number of rows of F that are multiplied together.


def bound_in_band(
    weighted: WeightedTarget, diagonals: np.ndarray, bands: int, groups: np.ndarray, owners: np.ndarray
) -> Fraction:
    """Return a number not above the least |T Y^-1/2|^2 of the class, T = W A.

    `diagonals` are those of C, shape (any, n), as LAPACK stores them. `bands` counts the diagonals of the class,
    `groups` has one number for each column and `owners` one for each group.

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
        for _ in range(_MAX_FACTORS):
            entries = _entries_in_band(factor, bands)
            bound = _trace_below(weighted, factor) ** 2 / _cost_above(entries, groups, owners, factor.shape[1])
            if bound <= best:
                break
            best = bound
            trace, sums = entries[0].sum(), np.bincount(groups, entries[0])
            levels = np.bincount(owners, shares * sums) / np.bincount(owners, shares)
            entries[0] = ((sums - levels[owners]) / sizes)[groups]
            if np.abs(entries).sum() <= _MAX_REST * trace:
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
    # These are the parts of G^T below and above its diagonal.
    below, right = (dia_array((part, -distances), shape=(n, n)) for part in (share - entries[1:], -share))
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
    """Return an upper bound of the cost, the sum over the owners of a group's largest sum of c_i.

    Each entry is a sum of `terms` products.
    """
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
