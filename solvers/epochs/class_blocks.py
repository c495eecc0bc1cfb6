"""Algebra of `blocks` class by class: the power step, what an iterate proves, its spectrum.

All arrays have one k x k block per class: the dual W (with a constant diagonal w_j in each block, summing to 1), X and
``Y = sum w t K^-1`` within the classes.
"""

import math

import numpy as np

from factorize.solvers.methods.bidiagonal_systems import solve
from factorize.solvers.methods.compiled import Array

_CORRELATION_IMPORTANCE = 0.2
"""Correlations get this part of the weights' importance: they are many, and the weights are what is slow."""
_MIN_PIVOT = 1e-12  # pivots of a correlation matrix are at least this, which keeps its factor invertible


def power_step(dual: Array, x: Array) -> tuple[Array, Array]:
    """Return the dual most aligned with the gradient: weights, shape (b,), summing to 1, and correlations (b, k, k).

    Raises:
        FloatingPointError: W is not definite in double precision.
    """
    aligned = x @ factors(dual)
    norms = np.sqrt(np.einsum("cij,cij->ci", aligned, aligned))
    aligned /= norms[:, :, None]
    correlations = aligned @ aligned.transpose(0, 2, 1)
    np.einsum("cii->ci", correlations)[:] = 1.0
    weights = norms.sum(axis=1) ** 2
    return weights / weights.sum(), correlations


def factors(dual: Array) -> Array:
    """Return the Cholesky factors of all blocks, shape (b, k, k).

    Raises:
        FloatingPointError: a block is not definite in double precision.
    """
    try:
        return np.asarray(np.linalg.cholesky(dual), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise FloatingPointError("a block of the dual is not definite in double precision") from None


def measure(dual: Array, x: Array, y: Array, sum_of_residues: float) -> tuple[float, float, float]:
    """Return N = sum_j tr(W_j X_j), a relative gap that is proven, and one that is right to second order.

    *Proven*: X divided by max_j lambda_max(corr X_j) tr X_j is feasible and loses N times that; the bound is N^2.
    *Second order*: with D_j = diag(X_j) / tr X_j - X_j / N the matrix X / N + D is feasible, and costs more than N^2 by
    N^3 tr(W D X^-1 D) up to the third order, since the first one vanishes; (X^-1)_jj = W_j sum w - W_j Y_j W_j.
    """
    norm = float(np.vdot(dual, x))
    diagonal = np.einsum("cii->ci", x)
    trace, root = diagonal.sum(axis=1), np.sqrt(diagonal)
    overlap = (np.abs(x) / (root[:, :, None] * root[:, None, :])).sum(axis=2).max(axis=1)
    defect = x / -norm
    np.einsum("cii->ci", defect)[:] += diagonal / trace[:, None]
    inverse = dual * sum_of_residues - dual @ y @ dual
    second = float(np.vdot(dual @ defect, defect @ inverse))
    return norm, float((overlap * trace).max()) / norm - 1.0, norm * second


def unpack(vector: Array, classes: int, epochs: int) -> Array | None:
    """Return W of packed unknowns, with sum_j w_j = 1, or None unless every correlation matrix is safely definite."""
    rows, columns = np.tril_indices(epochs, -1)
    dual = np.empty((classes, epochs, epochs))
    dual[:, rows, columns] = dual[:, columns, rows] = vector[classes:].reshape(classes, -1)
    np.einsum("cii->ci", dual)[:] = 1.0
    try:
        roots = np.einsum("cii->ci", np.linalg.cholesky(dual))
    except np.linalg.LinAlgError:
        return None
    if not roots.min() > math.sqrt(_MIN_PIVOT):
        return None
    weights = np.exp(vector[:classes] - vector[:classes].max())
    dual *= (weights / weights.sum())[:, None, None]
    return dual


def importance(dual: Array) -> Array:
    """Return weights of the unknowns in Anderson's least squares: the root of their class's share, less for others."""
    roots = np.sqrt(dual[:, 0, 0])
    pairs = dual.shape[1] * (dual.shape[1] - 1) // 2
    return np.concatenate([roots, np.repeat(_CORRELATION_IMPORTANCE * roots, pairs)])


def column_norms(p: Array, q: Array) -> Array:
    """Return ``(A^T A)_ii`` in order of the steps, shape (n,)."""
    return solve(p * p, q[1:] ** 2, np.ones_like(p), transposed=True)


def interval(p: Array, q: Array, dual: Array) -> tuple[float, float]:
    """Return an interval that contains the spectrum of ``W^-1/2 G G^T W^-1/2``; p and q by steps, shape (n,)."""
    diagonal = diagonal_above(p, q)
    return left_end(p, q, dual, diagonal), right_end(dual, diagonal.reshape(dual.shape[1], -1).T)


def diagonal_above(p: Array, q: Array) -> Array:
    """Return ``D^1/2`` of a diagonal D above G G^T (Gershgorin after scaling its diagonal to one), shape (n,)."""
    own = np.hypot(p, q)
    coupled = np.zeros(p.size + 1)
    coupled[1:-1] = p[:-1] / own[:-1] * (q[1:] / own[1:])
    return np.asarray(own * np.sqrt(1.0 + coupled[:-1] + coupled[1:]))


def right_end(dual: Array, diagonal: Array) -> float:
    """Return a number above ``D^1/2 W_j^-1 D^1/2``: its largest absolute row sum, D^1/2 by class and epoch."""
    inverse = np.abs(np.linalg.inv(dual))
    return float(((inverse @ diagonal[:, :, None])[:, :, 0] * diagonal).max())


def left_end(p: Array, q: Array, dual: Array, diagonal: Array) -> float:
    """Return a number below the spectrum, from the spectral radius of A^T A W: at most that of A^T A |W|.

    That is at most the largest row sum of diag(diagonal) A^T A |W| diag(diagonal)^-1. Rows of W may be zero.
    """
    x = (1.0 / diagonal).reshape(dual.shape[1], -1).T
    y = np.ascontiguousarray((np.abs(dual) @ x[:, :, None])[:, :, 0].T).ravel()
    return 1.0 / float((diagonal * solve(p, q[1:], solve(p, q[1:], y), transposed=True)).max())
