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

Here w_t is the sum of the objective's row weights from row t on. S = tr(R K), with K the Gram matrix of the columns 0,
b, 2b, ... of one pattern, R a correlation matrix: contributions that are correlated like R are allowed, so S is never
above sens^2. R = I is exact for one participation and for bands <= separation, where S = sum_t m_t c_t^2, m_t counting
the columns longer than t. Beyond that R and the c that minimises E S for it are evidence, and there is a gap.

What is computed: l from c, in whatever rounding, since any l certifies; l . a exactly rounded; and s from above, either
by a Cholesky factorization of s^2 M - H^T W^-1 H (M may be any quadratic form), or, for long columns and l >= 0, by the
largest ratio of (N x)_i to x_i, N = M^-1 H^T W^-1 H (Collatz and Wielandt), after some power steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from factorize.certificate.lower_bounds.bounds import LowerBound
from factorize.errors import CertificateError
from factorize.numbers.rounding import UNIT
from factorize.numbers.series import series_quotient
from factorize.spec import Spec
from factorize.structures.toeplitz import ToeplitzMatrix

TOEPLITZ_RULE = "Hankel dual, over Toeplitz matrices with this many diagonals"
LARGEST_DENSE = 2048  # columns that are factorized
LARGEST = 1 << 17  # columns that are multiplied by FFTs
_WORK = 1 << 34  # multiplications of a dense bound
_LANCZOS = 64  # sizes above which it is used
_LEAST_METRIC = 1e-6  # smallest eigenvalue of a metric that is divided by
_MARGINS = tuple(10.0**e for e in range(-12, 0))
_FLOORS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3)
_POWER_STEPS = 40
_SPREAD = 1e-10
_FAINT = 1e-13  # of the largest multiplier


def toeplitz_lower_bound(spec: Spec, strategy: ToeplitzMatrix, dual: Mapping[str, np.ndarray]) -> LowerBound | None:
    """Return a bound on the objective over the mechanism's class, or None where none is known.

    Args:
        spec: canonical spec with a Toeplitz mechanism.
        strategy: C; where its columns cannot overlap, the closer it is to the optimum, the better the bound.
        dual: where they can, `class_column`, shape (n,) with a positive start, and `class_signs`, shape
            (participations, r): a factor of R whose rows are scaled to norm 1 here.

    Raises:
        CertificateError: that evidence has the wrong shape, is not finite or starts with zeros.
    """
    workload, weights = spec.workload.coefficients, _error_weights(spec)
    n = spec.workload.n
    bands = int(getattr(spec.mechanism, "bands", n))
    if workload is None or weights is None or not (weights > 0).all() or len(strategy.column) > bands:
        return None
    separation, count, _ = spec.participation.spread(n)
    column, metric = strategy.coefficients(), column_counts(separation, count, n)[:bands]
    if count > 1 and bands > separation:
        if not {"class_column", "class_signs"} <= dual.keys():
            return None
        column, metric = _evidence(dual, separation, count, n)
        metric = metric[:bands, :bands]
    with np.errstate(all="ignore"):
        multipliers = _multipliers(workload, weights, column)
        if multipliers is None:
            return None
        if metric.ndim == 1 and bands > LARGEST_DENSE:
            multipliers, column = _without_noise(multipliers), np.maximum(column, UNIT * column.max())
        product = _product_below(multipliers, workload)
        squared = _squared_norm(multipliers, weights, metric, column[:bands])
    if squared is None or not product > 0:
        return None
    return LowerBound(spec.objective.scale(spec.workload.m) * product**2 / squared * (1 - 64 * UNIT), TOEPLITZ_RULE)


def column_counts(separation: int, count: int, n: int) -> np.ndarray:
    """Return m_t, how many columns of the pattern are longer than t, shape (n,)."""
    lengths = np.sort(n - separation * np.arange(count))
    return np.asarray(count - np.searchsorted(lengths, np.arange(n), side="right"), dtype=np.float64)


def _evidence(dual: Mapping[str, np.ndarray], separation: int, count: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return c and the form tr(R K), shape (n, n); R is shrunk by more than rounding can have made it too large."""
    column, signs = dual["class_column"], dual["class_signs"]
    if column.shape != (n,) or signs.ndim != 2 or len(signs) != count or n > LARGEST_DENSE:
        raise CertificateError(f"dual.class_column and dual.class_signs must have shapes ({n},) and ({count}, r)")
    # Squares of numbers near 1e-160 have no digits left.
    signs = np.ldexp(signs, -np.frexp(np.abs(signs).max(axis=1, initial=0.0, keepdims=True))[1])
    norms = np.linalg.norm(signs, axis=1, keepdims=True) if signs.size else np.zeros(1)
    if not (np.isfinite(column).all() and np.isfinite(norms).all() and column[0] > 0 and (norms > 0).all()):
        raise CertificateError(
            "dual.class_column must be finite and start above zero, dual.class_signs without zero rows"
        )
    correlations = (signs / norms) @ (signs / norms).T
    slack = 8 * (signs.shape[1] + 4) * count * UNIT
    correlations = (np.tril(correlations) + np.tril(correlations, -1).T + slack * np.eye(count)) / (1 + 2 * slack)
    form = np.zeros((n, n))
    for lag in range(count):
        sums = np.cumsum(np.diagonal(correlations, -lag))
        s = np.arange(n - lag * separation)
        entries = sums[np.minimum(count - 1, (n - 1 - s) // separation) - lag]
        form[s, s + lag * separation] = form[s + lag * separation, s] = entries
    return column, form


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


def _squared_norm(multipliers: np.ndarray, weights: np.ndarray, metric: np.ndarray, column: np.ndarray) -> float | None:
    """Return a number not below s^2, or None where none can be had; M is a diagonal or a matrix."""
    n, bands = len(multipliers), len(metric)
    if metric.ndim == 1 and bands > LARGEST_DENSE:  # H is zero beyond its last multiplier, in rows and in columns
        last = int(np.flatnonzero(multipliers)[-1]) + 1
        multipliers, weights, metric, column = multipliers[:last], weights[:last], metric[:last], column[:last]
        n, bands = last, min(last, bands)
    if bands <= LARGEST_DENSE and n * bands**2 <= _WORK:
        scale = np.sqrt(metric if metric.ndim == 1 else np.diagonal(metric))
        scaled = _hankel(multipliers, bands) / np.sqrt(weights)[:, None] / scale
        return _by_cholesky(scaled, np.eye(bands) if metric.ndim == 1 else metric / np.outer(scale, scale))
    if metric.ndim == 1 and bands == n <= LARGEST and (multipliers >= 0).all() and (column > 0).all():
        return _by_ratios(multipliers, weights, metric, column)
    return None


def _hankel(multipliers: np.ndarray, bands: int) -> np.ndarray:
    padded = np.concatenate([multipliers, np.zeros(bands)])
    return np.lib.stride_tricks.sliding_window_view(padded, bands)[: len(multipliers)]


def _by_cholesky(scaled: np.ndarray, metric: np.ndarray) -> float | None:
    """Return s^2 with scaled^T scaled <= s^2 metric, a matrix with ones on its diagonal, in the order of forms.

    If the factorization of A = s^2 metric - N - t I runs to its end, A + E = R^T R with |E| <= (size + 2) u |R|^T |R|,
    whose norm is at most the product of the largest row and column sums; t has to cover that and the rounding of N.
    """
    gram = scaled.T @ scaled
    size = len(gram)
    top, least = _extremes(gram, metric)
    spread = float(np.abs(metric).sum(axis=0).max())
    rounding = (len(scaled) + 12) * UNIT * float(np.vdot(scaled, scaled)) + 8 * UNIT * top * spread
    needed = 0.0
    for margin in _MARGINS:
        squared = (top + 2 * rounding / least) * (1 + margin)
        allowed = 2 * rounding + 0.5 * margin * top * least
        if allowed < needed:
            continue
        try:
            root = np.abs(np.linalg.cholesky(squared * metric - gram - allowed * np.eye(size)))
        except np.linalg.LinAlgError:
            continue
        backward = (size + 4) * UNIT * float(root.sum(axis=0).max() * root.sum(axis=1).max())
        if rounding + backward + 4 * UNIT * squared * spread <= allowed:
            return squared
        needed = 0.5 * (rounding + backward)  # the next factor is nearly the same
    return None


def _extremes(gram: np.ndarray, metric: np.ndarray) -> tuple[float, float]:
    """Return, nearly, the largest eigenvalue of gram relative to the metric and the smallest of the metric, at most 1.

    They only say which s^2 to try. Lanczos' iteration needs a few products where eigh takes n^3, and the metric ties
    steps together that are a multiple of the separation apart, so that it falls into small blocks.
    """
    from scipy.linalg import eigh
    from scipy.sparse.linalg import eigsh

    size = len(gram)
    if size > _LANCZOS and (metric == np.eye(size)).all():
        return float(eigsh(gram, k=1, which="LA", v0=np.ones(size), return_eigenvectors=False)[0]), 1.0
    blocks = _blocks(metric)
    least = min(float(np.linalg.eigvalsh(metric[np.ix_(block, block)])[0]) for block in blocks)
    if size > _LANCZOS and least > _LEAST_METRIC:
        moved = gram.copy()
        roots = [np.linalg.cholesky(metric[np.ix_(block, block)]) for block in blocks]
        for half in (moved, moved.T):  # L^-1 G L^-T, metric = L L^T
            for block, root in zip(blocks, roots, strict=True):
                half[block] = np.linalg.solve(root, half[block])
        return float(eigsh(moved, k=1, which="LA", v0=np.ones(size), return_eigenvectors=False)[0]), min(least, 1.0)
    top = float(eigh(gram, metric, eigvals_only=True, subset_by_index=[size - 1, size - 1])[0])
    return top, min(max(least, UNIT), 1.0)


def _blocks(metric: np.ndarray) -> list[np.ndarray]:
    """Return the steps of each block: 0, b, 2b, ... and those beside them, b the first step that is tied to step 0."""
    tied = np.flatnonzero(metric[0])
    stride = int(tied[1]) if len(tied) > 1 else len(metric)
    steps = np.arange(len(metric))
    blocks = [steps[start::stride] for start in range(stride)]
    inside = sum(np.count_nonzero(metric[np.ix_(block, block)]) for block in blocks)
    return blocks if inside == np.count_nonzero(metric) else [steps]


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
