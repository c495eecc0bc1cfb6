"""Lower bounds within a mechanism's class, from C alone: banded with equal column norms, and Toeplitz.

Banded. For any F and every Y of the class with unit diagonal, tr(M Y^-1) + tr(F F^T Y) >= 2 tr(Q^T T F) / |Q|_2, with
M = T^T T and any Q. Y is zero outside the band and at most 1 inside, so tr(F F^T Y) is at most the trace of F F^T plus
its absolute entries in the band. F is near the root of W = X^-1 M X^-1 without its entries in the band, which the
optimum makes zero. Sums and products are computed without rounding; F and Q may be wrong and only weaken the bound.

Toeplitz. sum_t l_t a_t = b^T H c <= s sqrt(E S) with H_ij = l_{i+j} (lower_bounds/toeplitz_bounds.py has the notation).
For l >= 0 and any x > 0, s^2 <= max_j (M^-1 H^T W^-1 H x)_j / x_j (Collatz and Wielandt), by exact products of series.
For other l, t M - H^T W^-1 H is factored for a guess t of s^2, or for the largest that supports a claim
(doubles/hankel_forms.py); columns that can overlap have another M, of evidence (bounds/overlaps.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any

import numpy as np

from factorize.exact.arithmetic import series
from factorize.exact.arithmetic.integers import Numbers, integers, limbs, product, split
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.bounds import overlaps
from factorize.exact.bounds.bound import Piece, defect, polar, rows_of, trace, weigh
from factorize.exact.doubles.hankel_forms import require_below
from factorize.exact.losses.residual import approximation
from factorize.exact.participation import Allowed, allowed
from factorize.exact.sensitivity import square_root_up
from factorize.exact.spec import Weighing, weighing_of
from factorize.exact.strategy import LARGEST_WHOLE, Strategy

_GRID = 54  # places of F below its largest entry
_PLACES = 120
_POWER_STEPS = 40
_SMALLEST = 1e-15
_NEGATIVE = 1e-12  # below the largest: what rounding makes of 0
_FARTHEST = 1 << 1000  # times what is wanted: what is attained with multipliers of at most 1 is far below
_FAINT = 1e-14  # of the largest: what a transform makes of 0 is below it


def class_bound(
    spec: Mapping[str, Any],
    strategy: Strategy,
    workload: Numbers | None,
    column: Numbers | None,
    dual: Mapping[str, np.ndarray],
    wanted: float = 0.0,
) -> Fraction:
    """Return a bound on the objective over the mechanism's class.

    Args:
        spec: canonical spec.
        strategy: C.
        workload: A, shape (m, n), or None where it is too long for whole matrices.
        column: its first column where A is Toeplitz.
        dual: evidence, which Toeplitz columns that can overlap need (bounds/overlaps.py).
        wanted: a bound that is large enough; 0 for the largest.

    Raises:
        CertificateError: the evidence has the wrong shape or is not finite.
        NotEnclosed: the class, or this size of it, is not evaluated here.
    """
    kind, form = spec["mechanism"]["kind"], allowed(spec["participation"], strategy.n)
    if kind == "banded" and strategy.reading.by_diagonals and workload is not None:
        return _banded(spec, strategy, workload, form)
    if kind in ("toeplitz", "banded_toeplitz") and strategy.column is not None and column is not None:
        return _toeplitz(spec, strategy.column, column, form, dual, wanted)
    raise NotEnclosed(f"the class {kind} is not evaluated for n={strategy.n} and this workload")


def _banded(spec: Mapping[str, Any], strategy: Strategy, workload: Numbers, form: Allowed) -> Fraction:
    bands, m = int(spec["mechanism"]["bands"]), len(workload.values)
    weighing = weighing_of(spec["objective"], m)
    rows = rows_of(weighing, {})
    if rows is None or strategy.bandwidth > bands or bands > form.separation:
        raise NotEnclosed("these bands can overlap, or the objective has no bound of this kind")
    scales, divisor = rows
    references = weighing.references
    target = weigh(approximation(workload), scales, references)
    root = _root(approximation(strategy.numbers()), target, bands)
    piece = Piece(np.arange(strategy.n), root)
    guess = polar(target, [piece])
    cost = _cost_in_band(root, bands)
    found = max(trace(guess, scales, references, [piece], workload), Fraction(0))
    return form.most * found**2 / ((1 + defect(guess)) * cost * divisor)


def _root(whole: np.ndarray, target: np.ndarray, bands: int) -> np.ndarray:
    """F on a grid."""
    from scipy.linalg import solve_triangular

    decoder = solve_triangular(whole, target.T, trans="T", lower=True)  # C^-T T^T
    decoder = solve_triangular(whole, decoder, lower=True)
    weights = decoder @ decoder.T
    n = len(weights)
    near = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) < bands
    weights[near & ~np.eye(n, dtype=bool)] = 0.0
    for jitter in (0.0, 1e-15, 1e-13, 1e-11):
        try:
            root = np.linalg.cholesky(weights + jitter * weights.max() * np.eye(n))
        except np.linalg.LinAlgError:
            continue
        return _on_grid(root)
    raise NotEnclosed("C is too far from the best of its class for a bound of this kind")


def _cost_in_band(root: np.ndarray, bands: int) -> Fraction:
    gram = product(limbs(root), limbs(root).transpose())
    total = 0
    for d in range(min(bands, len(root))):
        offsets = abs(np.diagonal(gram.values, -d)) + gram.radius
        total += int(offsets.sum()) * (2 if d else 1)
    return gram.fraction(total)


def _toeplitz(
    spec: Mapping[str, Any],
    column: np.ndarray,
    workload: Numbers,
    form: Allowed,
    dual: Mapping[str, np.ndarray],
    wanted: float,
) -> Fraction:
    n, kind = len(column), spec["objective"]["kind"]
    bands = int(spec["mechanism"].get("bands", n))
    weights, divisor = _error_weights(weighing_of(spec["objective"], n))
    if weights is None or column[bands:].any() or n > series.LARGEST:
        raise NotEnclosed(f"n={n}, more diagonals than the class has, or the objective {kind}, has no bound here")
    if not (approximation(weights) > 0).all():
        raise NotEnclosed("the last rows have no weight")
    if form.most > 1 and bands > form.separation:
        if n > LARGEST_WHOLE or not {"class_column", "class_signs"} <= dual.keys():
            raise NotEnclosed(f"Toeplitz columns that can overlap need evidence, and n at most {LARGEST_WHOLE}")
        given, metric = overlaps.evidence(dual, form, n, bands)
        multipliers = _on_grid(_multipliers(approximation(workload), approximation(weights), given))
        attained = _attained(multipliers, workload) / divisor
        return attained / _largest(multipliers, weights, metric, form.separation, attained, wanted)
    lengths = np.sort(n - form.separation * np.arange(form.most))
    counts = (form.most - np.searchsorted(lengths, np.arange(bands), side="right")).astype(object)
    multipliers = _multipliers(approximation(workload), approximation(weights), column)
    if multipliers.min() >= -_NEGATIVE:
        multipliers = _without_noise(multipliers)
        vector = _vector(multipliers, approximation(weights), counts, column[:bands])
        return _attained(multipliers, workload) / (_largest_ratio(multipliers, weights, counts, vector) * divisor)
    if n > LARGEST_WHOLE:
        raise NotEnclosed(f"multipliers of both signs are evaluated up to n={LARGEST_WHOLE}")
    multipliers = _on_grid(multipliers)
    attained = _attained(multipliers, workload) / divisor
    return attained / _largest(multipliers, weights, Numbers(np.diag(counts), 0), n, attained, wanted)


def _largest(
    multipliers: np.ndarray, weights: Numbers, metric: Numbers, stride: int, attained: Fraction, wanted: float
) -> Fraction:
    """At least s^2: in doubles if that is enough, else the least that integers prove."""
    if wanted > 0 and attained < Fraction(wanted) * _FARTHEST:
        limit = math.nextafter(float(attained / Fraction(wanted)), 0.0)
        with suppress(NotEnclosed):
            require_below(multipliers, weights, metric, stride, limit)
            return Fraction(limit)
    return overlaps.largest_eigenvalue(_gram(multipliers, weights, len(metric.values)), metric)


def _attained(multipliers: np.ndarray, workload: Numbers) -> Fraction:
    """The square of l . a, from below."""
    exact = integers(multipliers)
    lost = workload.radius * int(abs(exact.values).sum())
    units = max(int((exact.values * workload.values).sum()) - lost, 0)
    return (Fraction(units) * Fraction(2) ** (exact.exponent + workload.exponent)) ** 2


def _error_weights(weighing: Weighing) -> tuple[Numbers | None, Fraction]:
    """Weights of the squares of b, without the divisor of the objective."""
    if weighing.tau is not None:
        return None, Fraction(1)
    if weighing.weights is None:  # the last row is the longest
        return Numbers(np.full(weighing.rows, 1, dtype=object), 0), Fraction(1)
    if weighing.divisor is not None:
        return Numbers(np.arange(weighing.rows, 0, -1).astype(object), 0), Fraction(weighing.divisor)
    each = integers(weighing.doubles)
    return each._replace(values=np.cumsum(each.values[::-1])[::-1]), Fraction(1)


def _multipliers(workload: np.ndarray, weights: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Multipliers l with H c = W b, nearly; any others would do."""
    inverse = series.approximate_inverse(column)
    decoder = series.approximate_product(workload, inverse)
    found = series.approximate_product((weights * decoder)[::-1], inverse)[::-1]
    largest = float(np.abs(found).max())
    if not (np.isfinite(found).all() and largest > 0):
        raise NotEnclosed("the inverse of C grows too much for a bound of this kind")
    return np.asarray(found / largest)


def _without_noise(multipliers: np.ndarray) -> np.ndarray:
    """No negative number, and none behind the last that a transform tells from 0."""
    last = int(np.flatnonzero(multipliers > _FAINT)[-1])
    return np.where(np.arange(len(multipliers)) <= last, np.maximum(multipliers, 0.0), 0.0)


def _vector(multipliers: np.ndarray, weights: np.ndarray, counts: np.ndarray, column: np.ndarray) -> np.ndarray:
    """A vector x near the leading one of N; any positive one would do."""
    divisors, n = counts.astype(np.float64), len(multipliers)
    vector = np.maximum(column / np.linalg.norm(column), _SMALLEST)
    scales = _scales(multipliers)
    for _ in range(_POWER_STEPS):
        once = np.maximum(_hankel(multipliers, scales, vector, n), 0.0) / weights
        moved = np.maximum(_hankel(multipliers, scales, once, len(vector)), 0.0) / divisors
        ratios = moved / vector
        vector = np.maximum(moved / np.linalg.norm(moved), _SMALLEST)
        if ratios.max() <= ratios.min() * (1 + 1e-12):
            break
    return vector


def _scales(multipliers: np.ndarray) -> np.ndarray:
    """Powers r^k that fall about as the multipliers do, so that a transform rounds each relative to itself."""
    last = int(np.flatnonzero(multipliers)[-1])
    ratio = min(float(multipliers[last] / multipliers.max()) ** (1 / max(last, 1)), 1.0)
    return np.asarray(ratio ** np.minimum(np.arange(len(multipliers)), last))


def _hankel(multipliers: np.ndarray, scales: np.ndarray, vector: np.ndarray, count: int) -> np.ndarray:
    """The first `count` entries of H x, nearly: l_{i+j} is r^i (l_{i+j} / r^{i+j}) r^j."""
    padded = np.concatenate([scales[: len(vector)] * vector, np.zeros(len(multipliers) - len(vector))])
    return scales[:count] * series.approximate_product((multipliers / scales)[::-1], padded)[::-1][:count]


def _on_grid(array: np.ndarray) -> np.ndarray:
    """Cut to a grid, so that few limbs hold the numbers."""
    exponent = int(np.frexp(np.abs(array).max())[1]) - _GRID
    return np.asarray(np.ldexp(np.rint(np.ldexp(array, -exponent)), exponent))


def _gram(multipliers: np.ndarray, weights: Numbers, bands: int) -> Numbers:
    """N = H^T W^-1 H, with roots of 1 / W that are rounded up."""
    padded = np.concatenate([multipliers, np.zeros(bands)])
    whole = integers(np.array([padded[i : i + bands] for i in range(len(multipliers))]))
    inside = np.array([square_root_up(1 / weights.fraction(int(w))) for w in weights.values])
    scaled = split(whole.scaled(integers(inside[:, None])))
    return product(scaled.transpose(), scaled)


def _largest_ratio(multipliers: np.ndarray, weights: Numbers, counts: np.ndarray, vector: np.ndarray) -> Fraction:
    """At least the largest (N x)_j / x_j: every division is rounded up."""
    n, bands, first = len(multipliers), len(vector), integers(multipliers[::-1])
    given = integers(vector)
    once = _above(series.product(first, _padded(given, n)))
    shift = max(_PLACES + weights.exponent, 0)
    divided = -(-(once.values[::-1] << shift) // weights.values)
    middle = Numbers(divided, once.exponent - shift - weights.exponent)
    twice = _above(series.product(first, middle))
    tops = twice.values[::-1][:bands]
    ratios = [Fraction(int(top), int(below)) for top, below in zip(tops, counts * given.values, strict=True)]
    return max(ratios) * Fraction(2) ** (twice.exponent - given.exponent)


def _above(numbers: Numbers) -> Numbers:
    return Numbers(np.maximum(numbers.values + numbers.radius, 0), numbers.exponent)


def _padded(numbers: Numbers, n: int) -> Numbers:
    more = np.full(n - len(numbers.values), 0, dtype=object)
    return numbers._replace(values=np.concatenate([numbers.values, more]))
