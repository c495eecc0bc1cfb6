"""Lower bounds over all Toeplitz strategies with at most `bands` diagonals: what proves a Toeplitz optimum global.

Let a be the first column of a Toeplitz workload, c that of C, and b = a / c modulo x^n that of B. Over all c the
product

    E(c) S(c),     E = sum_t w_t b_t^2,     S = sum_t m_t c_t^2 <= sens(C)^2,     b c = a mod x^n

is to be minimised: not convex in c, but bilinear. For any numbers l_0..l_{n-1}, with H_ij = l_{i+j} (zero beyond n),

    sum_t l_t a_t = sum_ij l_{i+j} b_i c_j = b^T H c <= s sqrt(E S),     s = |W^-1/2 H M^-1/2|,

hence E(c) S(c) >= (l . a)^2 / s^2 for every Toeplitz C (this is the dual of minimising |W^1/2 Z M^1/2|_* over all Z
whose antidiagonals sum to a; Z = b c^T is one). At a stationary point of E S the choice H c = W b makes (W^1/2 b,
M^1/2 c) a singular pair, and if it is that of the largest singular value the bound is attained: the point is a global
optimum. It is where l, b and c are positive (Perron and Frobenius), and was in every case that we have computed. The
error of the bound is quadratic in that of c. We know of no publication of this bound.

Here w_t is the sum of the objective's row weights from row t on, and m_t counts the columns 0, b, 2b, ... of a pattern
that are longer than t: S = sum_t m_t c_t^2 for one participation and for bands <= separation. Columns that can overlap
have no bound here.

What is computed: l from c, in whatever rounding, since any l certifies; l . a exactly rounded; and s from above, either
by a Cholesky factorization of s^2 M - H^T W^-1 H, or, for long columns and l >= 0, by the largest ratio of (N x)_i to
x_i, N = M^-1 H^T W^-1 H (Collatz and Wielandt), after some power steps.
"""

from __future__ import annotations

import math

import numpy as np

from factorize.certificate.lower_bounds.bounds import LowerBound
from factorize.numbers.rounding import UNIT
from factorize.numbers.series import series_quotient
from factorize.spec import Spec
from factorize.structures.toeplitz import ToeplitzMatrix

TOEPLITZ_RULE = "Hankel dual, over Toeplitz matrices with this many diagonals"
_LARGEST_DENSE = 2048  # columns that are factorized
_LARGEST = 1 << 17  # columns that are multiplied by FFTs
_WORK = 1 << 34  # multiplications of a dense bound
_LANCZOS = 64  # sizes above which it is used
_MARGINS = tuple(10.0**e for e in range(-12, 0))
_FLOORS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3)
_POWER_STEPS = 40
_SPREAD = 1e-10
_FAINT = 1e-13  # of the largest multiplier


def toeplitz_lower_bound(spec: Spec, strategy: ToeplitzMatrix) -> LowerBound | None:
    """Return a bound on the objective over the mechanism's class, or None where none is known.

    Args:
        spec: canonical spec with a Toeplitz mechanism.
        strategy: C; the closer it is to the optimum, the better the bound.
    """
    workload, weights = spec.workload.coefficients, _error_weights(spec)
    n = spec.workload.n
    bands = int(getattr(spec.mechanism, "bands", n))
    if workload is None or weights is None or not (weights > 0).all() or len(strategy.column) > bands:
        return None
    separation, count, _ = spec.participation.spread(n)
    if count > 1 and bands > separation:
        return None
    column, counts = strategy.coefficients(), column_counts(separation, count, n)[:bands]
    with np.errstate(all="ignore"):
        multipliers = _multipliers(workload, weights, column)
        if multipliers is None:
            return None
        if bands > _LARGEST_DENSE:
            multipliers, column = _without_noise(multipliers), np.maximum(column, UNIT * column.max())
        product = _product_below(multipliers, workload)
        squared = _squared_norm(multipliers, weights, counts, column[:bands])
    if squared is None or not product > 0:
        return None
    return LowerBound(spec.objective.scale(spec.workload.m) * product**2 / squared * (1 - 64 * UNIT), TOEPLITZ_RULE)


def column_counts(separation: int, count: int, n: int) -> np.ndarray:
    """Return m_t, how many columns of the pattern are longer than t, shape (n,)."""
    lengths = np.sort(n - separation * np.arange(count))
    return np.asarray(count - np.searchsorted(lengths, np.arange(n), side="right"), dtype=np.float64)


def _error_weights(spec: Spec) -> np.ndarray | None:
    """Weights of the squares of b in the objective at sensitivity 1, without its scale."""
    weights = spec.objective.series_weights(spec.workload.n)
    if weights is None or not spec.objective.quadratic:
        return weights
    return weights * (1 - spec.workload.n * UNIT)  # they are sums that were rounded


def _multipliers(workload: np.ndarray, weights: np.ndarray, column: np.ndarray) -> np.ndarray | None:
    """Solve H c = W b from the last equation to the first: l_{n-1-t} are the coefficients of a quotient of series."""
    trimmed = np.trim_zeros(column, "b")
    decoder = series_quotient(workload, trimmed)
    found = series_quotient((weights * decoder)[::-1], trimmed)[::-1]
    largest = float(np.abs(found).max())
    return found / largest if 0 < largest < math.inf else None


def _without_noise(multipliers: np.ndarray) -> np.ndarray:
    """Replace by 0 what is of the size that a transform makes of 0: a workload that fades has short multipliers.

    Returns them unchanged where some are truly negative.
    """
    largest = multipliers.max()
    if multipliers.min() < -_FAINT * largest:
        return multipliers
    return np.where(multipliers > _FAINT * largest, multipliers, 0.0)


def _product_below(multipliers: np.ndarray, workload: np.ndarray) -> float:
    terms = multipliers * workload
    return math.fsum(terms) - 4 * UNIT * math.fsum(np.abs(terms))


def _squared_norm(multipliers: np.ndarray, weights: np.ndarray, counts: np.ndarray, column: np.ndarray) -> float | None:
    """Return a number not below s^2, or None where none can be had."""
    n, bands = len(multipliers), len(counts)
    if bands > _LARGEST_DENSE:  # H is zero beyond its last multiplier, in rows and in columns
        last = int(np.flatnonzero(multipliers)[-1]) + 1
        multipliers, weights, counts, column = multipliers[:last], weights[:last], counts[:last], column[:last]
        n, bands = last, min(last, bands)
    if bands <= _LARGEST_DENSE and n * bands**2 <= _WORK:
        return _by_cholesky(_hankel(multipliers, bands) / np.sqrt(weights)[:, None] / np.sqrt(counts))
    if bands == n <= _LARGEST and (multipliers >= 0).all() and (column > 0).all():
        return _by_ratios(multipliers, weights, counts, column)
    return None


def _hankel(multipliers: np.ndarray, bands: int) -> np.ndarray:
    padded = np.concatenate([multipliers, np.zeros(bands)])
    return np.lib.stride_tricks.sliding_window_view(padded, bands)[: len(multipliers)]


def _by_cholesky(scaled: np.ndarray) -> float | None:
    """Return s^2 with N = scaled^T scaled <= s^2 I, in the order of forms.

    If the factorization of A = s^2 I - N - t I runs to its end, A + E = R^T R with |E| <= (size + 2) u |R|^T |R|,
    whose norm is at most the product of the largest row and column sums; t has to cover that and the rounding of N.
    """
    gram = scaled.T @ scaled
    size = len(gram)
    top = _largest_eigenvalue(gram)
    rounding = (len(scaled) + 12) * UNIT * float(np.vdot(scaled, scaled)) + 8 * UNIT * top
    needed = 0.0
    for margin in _MARGINS:
        squared = (top + 2 * rounding) * (1 + margin)
        allowed = 2 * rounding + 0.5 * margin * top
        if allowed < needed:
            continue
        try:
            root = np.abs(np.linalg.cholesky((squared - allowed) * np.eye(size) - gram))
        except np.linalg.LinAlgError:
            continue
        backward = (size + 4) * UNIT * float(root.sum(axis=0).max() * root.sum(axis=1).max())
        if rounding + backward + 4 * UNIT * squared <= allowed:
            return squared
        needed = 0.5 * (rounding + backward)  # the next factor is nearly the same
    return None


def _largest_eigenvalue(gram: np.ndarray) -> float:
    """Return it nearly: it only says which s^2 to try. Lanczos' iteration takes a few products where eigh takes n^3."""
    from scipy.sparse.linalg import eigsh

    if len(gram) > _LANCZOS:
        return float(eigsh(gram, k=1, which="LA", v0=np.ones(len(gram)), return_eigenvectors=False)[0])
    return float(np.linalg.eigvalsh(gram)[-1])


def _by_ratios(multipliers: np.ndarray, weights: np.ndarray, counts: np.ndarray, column: np.ndarray) -> float:
    """Return max_i (N x)_i / x_i for H >= 0 and some x > 0, the error of FFTs added; any x > 0 gives a bound."""
    vector = column / np.linalg.norm(column)
    for _ in range(_POWER_STEPS):
        moved = _twice(multipliers, weights, vector, 0.0) / counts
        ratios = moved / vector
        vector = np.maximum(moved, UNIT * moved.max()) / np.linalg.norm(moved)
        if ratios.max() <= ratios.min() * (1 + _SPREAD):
            break
    found = []
    for floor in _FLOORS:  # where x is tiny the error of an FFT is not, and raising x there hardly changes N x
        raised = np.maximum(vector, floor * vector.max())
        found.append(float((_twice(multipliers, weights, raised, 1.0) / (counts * raised)).max()) * (1 + 16 * UNIT))
    return min(found)


def _twice(multipliers: np.ndarray, weights: np.ndarray, vector: np.ndarray, allowance: float) -> np.ndarray:
    """Return H W^-1 H x, from above if `allowance` is 1."""
    once = (_hankel_product(multipliers, vector, allowance)) / weights
    return _hankel_product(multipliers, np.maximum(once, 0.0), allowance)


def _hankel_product(multipliers: np.ndarray, vector: np.ndarray, allowance: float) -> np.ndarray:
    """Return H x by FFTs, plus their largest possible error times `allowance`.

    That is about 13 u log2(size) |l| |x| for transforms of radix 2 (Brent, Percival and Zimmermann 2007); 64 covers
    other radices and transforms of real numbers.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    size = next_fast_len(2 * len(vector), real=True)
    product = irfft(rfft(multipliers, size) * rfft(vector, size).conj(), size)[: len(vector)]
    error = 64 * UNIT * math.log2(size) * float(np.linalg.norm(multipliers) * np.linalg.norm(vector))
    return np.asarray(product + allowance * error)
