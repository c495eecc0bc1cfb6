"""Conjugate gradients in place, without a linear algebra library.

At the sizes of the solvers a dot product is over before the threads of such a library have woken up; on a busy machine
waiting for them took four fifths of a solve.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]

_MOST_PRODUCTS = 60


def conjugate_gradients(
    apply: Callable[[Array], Array], right: Array, y: Array, enough: float, longest: float
) -> tuple[Array, Array, int]:
    """Solve ``apply(y) = right`` for a symmetric positive definite map.

    Args:
        apply: the map.
        right: right-hand side, shape (n,).
        y: start, overwritten.
        enough: squared norm of the residual at which to stop; so do 60 products.
        longest: squared norm of y at which to stop: a map that is nearly singular is not followed to its end.

    Returns:
        (y, residual, number of products).
    """
    residual = right - apply(y)
    along = residual.copy()
    norm, used = dot(residual, residual), 1
    while norm > enough and used < _MOST_PRODUCTS and dot(y, y) < longest:
        image = apply(along)
        used += 1
        norm = _advance(y, residual, along, image, norm)
    return y, residual, used


@compiled
def dot(a: Array, b: Array) -> float:
    """Without the threads of a linear algebra library, whose start costs more than the sum."""
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@compiled
def _advance(y: Array, residual: Array, along: Array, image: Array, norm: float) -> float:
    """One step of conjugate gradients in place; return the squared norm of the new residual."""
    length = norm / dot(along, image)
    new = 0.0
    for i in range(y.size):
        y[i] += length * along[i]
        residual[i] -= length * image[i]
        new += residual[i] * residual[i]
    for i in range(y.size):
        along[i] = residual[i] + new / norm * along[i]
    return new
