"""Anderson's extrapolation, compiled, for long vectors on busy machines.

The same method as `factorize.solvers.methods.anderson`, whose least squares go through a threaded linear algebra
library: at ten columns its threads are awake only when the work is done.  Here the newest difference comes first and
Gram-Schmidt takes the others as far as they add something.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]

_DEPTH = 10
_CUT = 1e-7  # a difference that keeps less than this of its length is noise


class Extrapolation:
    """Remembers the last iterates x and their images g(x), and proposes the next x.

    Args:
        size: length of the vectors.
    """

    def __init__(self, size: int) -> None:
        self._iterates, self._images = np.empty((2, _DEPTH + 1, size))
        self._count = 0

    def forget(self) -> None:
        """Start afresh: the last proposal was refused."""
        self._count = 0

    def mix(self, iterate: Array, image: Array, importance: Array) -> Array | None:
        """Return the combination of the remembered images whose residual g(x) - x is smallest, or None at first.

        Args:
            iterate: x, shape (size,).
            image: g(x), shape (size,).
            importance: weights of the residual's entries in the least squares, shape (size,).
        """
        at = self._count % (_DEPTH + 1)
        self._iterates[at], self._images[at] = iterate, image
        self._count += 1
        known = min(self._count, _DEPTH + 1)
        if known < 2:
            return None
        order = (at - np.arange(known)) % (_DEPTH + 1)
        mixed = np.empty_like(image)
        _combine(self._iterates, self._images, importance, order, mixed)
        return mixed if np.isfinite(mixed).all() else None


@compiled
def _combine(iterates: Array, images: Array, importance: Array, order: NDArray[np.int64], mixed: Array) -> None:
    """Newest first in ``order``: subtract multiples of the differences so that the weighted residual shrinks most."""
    size, count = mixed.size, order.size - 1
    basis, triangle = np.empty((count, size)), np.zeros((count, count))
    residual, shares = np.empty(size), np.zeros(count)
    used = np.zeros(count)
    newest = order[0]
    for x in range(size):
        residual[x] = (images[newest, x] - iterates[newest, x]) * importance[x]
    for c in range(count):
        new, old = order[c], order[c + 1]
        length = 0.0
        for x in range(size):
            value = (images[new, x] - iterates[new, x] - images[old, x] + iterates[old, x]) * importance[x]
            basis[c, x] = value
            length += value * value
        for d in range(c):
            if used[d] > 0.0:
                triangle[d, c] = _dot(basis[d], basis[c])
                for x in range(size):
                    basis[c, x] -= triangle[d, c] * basis[d, x]
        left = math.sqrt(_dot(basis[c], basis[c]))
        if left > _CUT * math.sqrt(length):
            used[c], triangle[c, c] = 1.0, left
            for x in range(size):
                basis[c, x] /= left
            shares[c] = _dot(basis[c], residual)
    for c in range(count - 1, -1, -1):
        if used[c] > 0.0:
            for d in range(c + 1, count):
                shares[c] -= triangle[c, d] * shares[d]
            shares[c] /= triangle[c, c]
    assign(mixed, images[newest])
    for c in range(count):
        new, old = order[c], order[c + 1]
        for x in range(size):
            mixed[x] -= shares[c] * (images[new, x] - images[old, x])


@compiled
def _dot(a: Array, b: Array) -> float:
    value = 0.0
    for x in range(a.size):
        value += a[x] * b[x]
    return value
