"""Kernels of `blocks` that work class by class: the power step, what an iterate proves, its spectrum.

All arrays have one k x k block per class: the dual W (with a constant diagonal w_j in each block, summing to 1), X and
``Y = sum w t K^-1`` within the classes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]

_OF_CORRELATIONS = 0.2  # of the weights' importance: they are many, and the weights are what is slow
_LEAST_PIVOT = 1e-12  # of a correlation matrix; keeps its factor invertible


@compiled
def factor(a: Array, lower: Array) -> float:
    """Write the Cholesky factor; return the smallest pivot, stopping at one that is not positive."""
    k = a.shape[0]
    least = np.inf
    lower[:] = 0.0
    for i in range(k):
        for j in range(i + 1):
            value = a[i, j]
            for s in range(j):
                value -= lower[i, s] * lower[j, s]
            if i == j:
                least = min(least, value)
                if not value > 0.0:
                    return value
                lower[i, i] = math.sqrt(value)
            else:
                lower[i, j] = value / lower[j, j]
    return least


@compiled
def factors(dual: Array, out: Array) -> None:
    """Cholesky factors of all blocks, shape (b, k, k)."""
    for c in range(dual.shape[0]):
        factor(dual[c], out[c])


@compiled
def power_step(dual: Array, x: Array, weights: Array, correlations: Array) -> None:
    """Write the dual most aligned with the gradient: weights, shape (b,), summing to 1, and correlations (b, k, k)."""
    b, k = x.shape[0], x.shape[1]
    lower, aligned = np.empty((k, k)), np.empty((k, k))
    sum_of_weights = 0.0
    for c in range(b):
        factor(dual[c], lower)
        norms = 0.0
        for i in range(k):
            square = 0.0
            for j in range(k):
                value = 0.0
                for s in range(j, k):
                    value += x[c, i, s] * lower[s, j]
                aligned[i, j] = value
                square += value * value
            norm = math.sqrt(square)
            norms += norm
            for j in range(k):
                aligned[i, j] /= norm
        for i in range(k):
            for j in range(i):
                value = 0.0
                for s in range(k):
                    value += aligned[i, s] * aligned[j, s]
                correlations[c, i, j] = correlations[c, j, i] = value
            correlations[c, i, i] = 1.0
        weights[c] = norms * norms
        sum_of_weights += weights[c]
    weights /= sum_of_weights


@compiled
def measure(dual: Array, x: Array, y: Array, sum_of_residues: float) -> tuple[float, float, float]:
    """Return N = sum_j tr(W_j X_j), a relative gap that is proven, and one that is right to second order.

    *Proven*: X divided by max_j lambda_max(corr X_j) tr X_j is feasible and loses N times that; the bound is N^2.
    *Second order*: with D_j = diag(X_j) / tr X_j - X_j / N the matrix X / N + D is feasible, and costs more than N^2 by
    N^3 tr(W D X^-1 D) up to the third order, since the first one vanishes; (X^-1)_jj = W_j sum w - W_j Y_j W_j.
    """
    b, k = x.shape[0], x.shape[1]
    norm = 0.0
    for c in range(b):
        for i in range(k):
            for j in range(k):
                norm += dual[c, i, j] * x[c, i, j]
    largest, second = 0.0, 0.0
    defect, left, half, inverse = np.empty((k, k)), np.empty((k, k)), np.empty((k, k)), np.empty((k, k))
    for c in range(b):
        trace, overlap = 0.0, 0.0
        for i in range(k):
            trace += x[c, i, i]
        for i in range(k):
            row = 0.0
            for j in range(k):
                row += abs(x[c, i, j]) / math.sqrt(x[c, i, i] * x[c, j, j])
                defect[i, j] = -x[c, i, j] / norm
            defect[i, i] += x[c, i, i] / trace
            overlap = max(overlap, row)
        largest = max(largest, overlap * trace)
        _multiply(dual[c], y[c], half)
        _multiply(half, dual[c], inverse)
        for i in range(k):
            for j in range(k):
                inverse[i, j] = dual[c, i, j] * sum_of_residues - inverse[i, j]
        _multiply(dual[c], defect, left)
        _multiply(defect, inverse, half)
        for i in range(k):
            for j in range(k):
                second += left[i, j] * half[i, j]
    return norm, largest / norm - 1.0, norm * second


@compiled
def _multiply(a: Array, b: Array, out: Array) -> None:
    k = a.shape[0]
    out[:] = 0.0
    for i in range(k):
        for s in range(k):
            for j in range(k):
                out[i, j] += a[i, s] * b[s, j]


@compiled
def pack(weights: Array, correlations: Array, out: Array) -> None:
    """Write log weights and the correlations below the diagonal, one class after the other."""
    b, k = correlations.shape[0], correlations.shape[1]
    at = b
    for c in range(b):
        out[c] = math.log(weights[c])
        for i in range(k):
            for j in range(i):
                out[at] = correlations[c, i, j]
                at += 1


@compiled
def unpack(vector: Array, dual: Array) -> bool:
    """Write W for packed unknowns, with sum_j w_j = 1; return whether every correlation matrix is safely definite."""
    b, k = dual.shape[0], dual.shape[1]
    lower = np.empty((k, k))
    top = vector[:b].max()
    whole = np.exp(vector[:b] - top).sum()
    at = b
    for c in range(b):
        for i in range(k):
            for j in range(i):
                dual[c, i, j] = dual[c, j, i] = vector[at]
                at += 1
            dual[c, i, i] = 1.0
        if not factor(dual[c], lower) > _LEAST_PIVOT:
            return False
        share = math.exp(vector[c] - top) / whole
        for i in range(k):
            for j in range(k):
                dual[c, i, j] *= share
    return True


@compiled
def importance(dual: Array, out: Array) -> None:
    """Weights of the unknowns in Anderson's least squares: the root of their class's share, less for correlations."""
    b, k = dual.shape[0], dual.shape[1]
    pairs = k * (k - 1) // 2
    for c in range(b):
        out[c] = math.sqrt(dual[c, 0, 0])
        out[b + c * pairs : b + (c + 1) * pairs] = _OF_CORRELATIONS * out[c]


@compiled
def column_norms(p: Array, q: Array) -> Array:
    """``(A^T A)_ii`` in order of the steps, from the end."""
    out = np.empty_like(p)
    carried = 0.0
    for i in range(p.size - 1, -1, -1):
        out[i] = (1.0 + carried) / p[i] ** 2
        carried = q[i] ** 2 * out[i]
    return out


@compiled
def interval(p: Array, q: Array, dual: Array) -> tuple[float, float]:
    """An interval that contains the spectrum of ``W^-1/2 G G^T W^-1/2``; p and q in order of the steps, shape (n,)."""
    b, k = dual.shape[0], dual.shape[1]
    diagonal = diagonal_above(p, q)
    blocks = np.empty((b, k))
    for c in range(b):
        for i in range(k):
            blocks[c, i] = diagonal[i * b + c]
    return left_end(p, q, dual, diagonal), right_end(dual, blocks)


@compiled
def diagonal_above(p: Array, q: Array) -> Array:
    """``D^1/2`` of a diagonal D above G G^T (Gershgorin after scaling its diagonal to one), shape (n,)."""
    n = p.size
    diagonal = np.empty(n)
    left = 0.0
    for i in range(n):
        own = math.hypot(p[i], q[i])
        right = p[i] * q[i + 1] / (own * math.hypot(p[i + 1], q[i + 1])) if i + 1 < n else 0.0
        diagonal[i] = own * math.sqrt(1.0 + left + right)
        left = right
    return diagonal


@compiled
def right_end(dual: Array, diagonal: Array) -> float:
    """Above ``D^1/2 W_j^-1 D^1/2``: its largest absolute row sum, D^1/2 by class and epoch, zero where a step lacks."""
    b, k = dual.shape[0], dual.shape[1]
    lower, inverse = np.empty((k, k)), np.empty((k, k))
    upper = 0.0
    for c in range(b):
        factor(dual[c], lower)
        _invert_from(lower, inverse)
        for i in range(k):
            row = 0.0
            for j in range(k):
                row += abs(inverse[i, j]) * diagonal[c, j]
            upper = max(upper, row * diagonal[c, i])
    return upper


@compiled
def left_end(p: Array, q: Array, dual: Array, diagonal: Array) -> float:
    """Below the spectrum: the spectral radius of A^T A W is at most that of the non-negative A^T A |W|.

    That one is bounded by Collatz and Wielandt after a few power steps; rows of W may be zero.
    """
    n, b, k = p.size, dual.shape[0], dual.shape[1]
    x = 1.0 / diagonal
    y = np.empty(n)
    ratio = 0.0
    for _ in range(3):
        for c in range(b):
            for i in range(k):
                value = 0.0
                for j in range(k):
                    value += abs(dual[c, i, j]) * x[j * b + c]
                y[i * b + c] = value
        y[0] /= p[0]
        for i in range(1, n):
            y[i] = (y[i] + q[i] * y[i - 1]) / p[i]
        y[n - 1] /= p[n - 1]
        for i in range(n - 2, -1, -1):
            y[i] = (y[i] + q[i + 1] * y[i + 1]) / p[i]
        ratio = (y / x).max()
        x = np.maximum(y / y.max(), 1e-150)  # any positive vector gives a bound
    return 1.0 / ratio


@compiled
def _invert_from(lower: Array, inverse: Array) -> None:
    """``(lower lower^T)^-1``."""
    k = lower.shape[0]
    for column in range(k):
        for i in range(k):
            value = 1.0 if i == column else 0.0
            for s in range(i):
                value -= lower[i, s] * inverse[s, column]
            inverse[i, column] = value / lower[i, i]
        for i in range(k - 1, -1, -1):
            value = inverse[i, column]
            for s in range(i + 1, k):
                value -= lower[s, i] * inverse[s, column]
            inverse[i, column] = value / lower[i, i]
