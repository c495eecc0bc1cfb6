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
def through_bins(products, forms, factors, out):
    """Fill sum_j D_{i mod b, j mod b} <column i, column j> f_j of each form: half the derivative of <D, G> by f.

    The steps of a bin are added first, whatever the form: then each form meets b numbers.

    Args:
        products: shape (n, n), symmetric.
        forms: D, shape (forms, b, b), each symmetric.
        factors: f, shape (n,).
        out: filled, shape (forms, n).
    """
    n, bins = len(factors), forms.shape[1]
    of_bins = np.empty(bins)
    for i in range(n):
        of_bins[:] = 0.0
        for j in range(0, n, bins):
            row, weights = products[i, j : j + bins], factors[j : j + bins]
            for k in range(len(row)):  # indices from 0: many terms at once
                of_bins[k] += row[k] * weights[k]
        for each in range(len(forms)):
            total = 0.0
            for k in range(bins):
                total += forms[each, i % bins, k] * of_bins[k]
            out[each, i] = total


def gram_of(products: np.ndarray, factors: np.ndarray, bins: int) -> np.ndarray:
    """Return the Gram matrix of the bins of the scaled columns in plain doubles, shape (b, b)."""
    n = len(factors)
    count = -(-n // bins)
    scaled = np.zeros((count * bins, count * bins))
    scaled[:n, :n] = factors[:, None] * products * factors
    return scaled.reshape(count, bins, count, bins).sum(axis=(0, 2))
