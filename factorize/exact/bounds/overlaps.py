"""The Hankel dual of Toeplitz columns that can overlap: evidence R for contributions that are correlated.

Contributions of one user with norms of at most 1 and inner products R, a semidefinite matrix with a diagonal of at
most 1, are allowed, so sens^2 >= tr(R K) = c^T M c for the Gram matrix K of the columns 0, b, 2b, ... (columns p and q
have their entries c_{t - pb} and c_{t - qb} in row t). M takes the place of the counts m_t in bounds/classes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from factorize.errors import CertificateError
from factorize.exact.arithmetic.integers import Numbers, integers, limbs, product
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.losses.residual import approximation
from factorize.exact.participation import Allowed
from factorize.exact.sensitivity import square_root_up

_GRID = 50  # binary places of the factors of R
_LEAST_LEFT, _LEFT = 2.0**-40, 2.0**-50  # by what rows are shrunk: at least, and for each entry of a factor of R
_ROOT_BITS = 72
_MARGINS = (1e-12, 1e-11, 1e-10, 1e-9, 1e-8)


def evidence(dual: Mapping[str, np.ndarray], form: Allowed, n: int, bands: int) -> tuple[np.ndarray, Numbers]:
    """Return the column from which multipliers are made, and M over the first `bands` coefficients, exactly.

    Args:
        dual: `class_column` (n,), and `class_signs` (participations, r), whose rows are scaled to norms below 1 here.
        form: participations.
        n: of C.
        bands: diagonals.

    Raises:
        CertificateError: the evidence has the wrong shape, is not finite, or starts with a zero or holds a zero row.
    """
    column, signs = dual["class_column"], dual["class_signs"]
    if column.shape != (n,) or signs.ndim != 2 or len(signs) != form.most:
        raise CertificateError(f"dual.class_column and dual.class_signs must have shapes ({n},) and ({form.most}, r)")
    norms = np.linalg.norm(signs, axis=1, keepdims=True) if signs.size else np.zeros(1)
    if not (np.isfinite(column).all() and np.isfinite(norms).all() and column[0] > 0 and (norms > 0).all()):
        raise CertificateError("dual.class_column must be finite, with a positive start; class_signs without zero rows")
    return column, _metric(_correlations(signs / norms), form, n, bands)


def _correlations(rows: np.ndarray) -> Numbers:
    """R = S S^T, exactly, for rows cut to a grid and shrunk; what its diagonal has left to 1 keeps M from zero."""
    shrunk = 1 - max(_LEAST_LEFT, _LEFT * (rows.shape[1] + 4) * len(rows))
    units = limbs(np.trunc(np.ldexp(rows * shrunk, _GRID)))
    found = product(units, units.transpose()).at(0).values
    if max(np.diagonal(found)) > 1 << 2 * _GRID:
        raise CertificateError("the rows of dual.class_signs cannot be scaled to norms of at most 1")
    np.fill_diagonal(found, 1 << 2 * _GRID)
    return Numbers(found, -2 * _GRID)


def _metric(correlations: Numbers, form: Allowed, n: int, bands: int) -> Numbers:
    """M at (s, s + lag b): the sum of R's diagonal `lag` over the columns that reach row s + p b < n."""
    found = np.full((bands, bands), 0, dtype=object)
    for lag in range(form.most):
        sums = np.cumsum(np.diagonal(correlations.values, -lag))
        s = np.arange(max(bands - lag * form.separation, 0))
        last = np.minimum(form.most - 1, (n - 1 - s) // form.separation) - lag
        found[s, s + lag * form.separation] = found[s + lag * form.separation, s] = sums[last]
    return correlations._replace(values=found)


def largest_eigenvalue(gram: Numbers, metric: Numbers) -> Fraction:
    """Return at least the largest eigenvalue of N relative to M.

    With a guess t, a shift d and a triangle L, t M - N = L L^T + d I + D, and D >= -|D|_F I is computed exactly.

    Raises:
        NotEnclosed: no guess near the eigenvalue can be proved.
    """
    from scipy.linalg import eigh

    nearly, form = approximation(gram), approximation(metric)
    size = len(nearly)
    least = float(np.linalg.eigvalsh(form)[0])
    if not least > 0:
        raise NotEnclosed("the correlated columns do not tell all coefficients apart")
    top = float(eigh(nearly, form, eigvals_only=True, subset_by_index=[size - 1, size - 1])[0])
    for margin in _MARGINS:
        guess, shift = top * (1 + margin), 0.5 * margin * top * least
        try:
            root = np.linalg.cholesky(guess * form - nearly - shift * np.eye(size))
        except np.linalg.LinAlgError:
            continue
        triangle = limbs(root, _ROOT_BITS)._replace(radius=0)
        rest = _scaled(metric, guess).minus(gram).minus(product(triangle, triangle.transpose()))
        rest = rest.minus(_unit(shift, size))
        error = int(((abs(rest.values) + rest.radius) ** 2).sum())
        if square_root_up(rest.fraction(1) ** 2 * error) <= shift:
            return Fraction(guess)
    raise NotEnclosed("the largest eigenvalue of the Hankel form is not enclosed")


def _scaled(numbers: Numbers, factor: float) -> Numbers:
    exact = integers(np.array([factor]))
    return Numbers(numbers.values * int(exact.values[0]), numbers.exponent + exact.exponent)


def _unit(factor: float, size: int) -> Numbers:
    return _scaled(Numbers(np.eye(size, dtype=np.int64).astype(object), 0), factor)
