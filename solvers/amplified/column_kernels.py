"""Sums over the pairs of columns of a Toeplitz strategy, compiled."""

import numba
import numpy as np


@numba.njit(cache=True)
def column_products(column, out):
    """Fill <column i, column j> of the lower-triangular Toeplitz matrix of a column, shape (n, n)."""
    n = len(column)
    for lag in range(n):
        total = 0.0
        for s in range(n - lag):
            total += column[s] * column[s + lag]
            j = n - 1 - s
            out[j - lag, j] = total
            out[j, j - lag] = total


@numba.njit(cache=True)
def row_products(column, out):
    """Fill <row i, row j> of the same matrix, shape (n, n)."""
    n = len(column)
    for lag in range(n):
        total = 0.0
        for s in range(n - lag):
            total += column[s] * column[s + lag]
            out[s, s + lag] = total
            out[s + lag, s] = total


@numba.njit(cache=True)
def through_bins(products, form, factors, out):
    """Fill sum_j D_{i mod b, j mod b} <column i, column j> f_j: half the derivative of <D, G> by the factors.

    Args:
        products: shape (n, n), symmetric.
        form: D, shape (b, b), symmetric.
        factors: f, shape (n,).
        out: filled, shape (n,).
    """
    n, bins = len(factors), len(form)
    for i in range(n):
        total, weights, j = 0.0, form[i % bins], 0
        while j < n:
            stop = min(bins, n - j)
            for k in range(stop):
                total += weights[k] * products[i, j + k] * factors[j + k]
            j += stop
        out[i] = total


def gram_of(products: np.ndarray, factors: np.ndarray, bins: int) -> np.ndarray:
    """Return the Gram matrix of the bins of the scaled columns in plain doubles, shape (b, b)."""
    n = len(factors)
    count = -(-n // bins)
    scaled = np.zeros((count * bins, count * bins))
    scaled[:n, :n] = factors[:, None] * products * factors
    return scaled.reshape(count, bins, count, bins).sum(axis=(0, 2))
