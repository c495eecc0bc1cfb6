"""First-order bounds on the rounding errors of a recursion, carried as an ellipsoid.

The relative errors of a few numbers, in units of the roundoff u, lie in ``{x : x^T Q^-1 x <= 1}``.  A step of the
recursion maps them by its logarithmic derivative J and adds its own roundings.  Intervals would take the absolute
values of J and grow without end where errors cancel; the ellipsoid keeps their signs.  J comes from complex steps: with
a step of 1e-100 the derivative is exact to rounding, and the formulas are written once (where that is fast enough).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import compiled, inlined

Array = NDArray[np.float64]

OWN = 40.0
"""More than the roundings of any one update of any one number, in units of u."""

STEP = 1e-100
"""The complex step, relative to the number."""


@compiled
def spread(ellipsoid: Array, derivative: Array, half: Array) -> None:
    """Carry the matrix Q through one step and add the step's own roundings, in place.

    Own roundings lie in a cube, hence in the ball of radius ``sqrt(d) OWN``.  The sum of two ellipsoids lies in
    ``(1 + p) A + (1 + 1 / p) B`` for every p > 0; this p makes the roots of the traces add.
    """
    count = ellipsoid.shape[0]
    for a in range(count):
        for b in range(count):
            half[a, b] = 0.0
            for c in range(count):
                half[a, b] += derivative[a, c] * ellipsoid[c, b]
    size = 0.0
    for a in range(count):
        for b in range(count):
            ellipsoid[a, b] = 0.0
            for c in range(count):
                ellipsoid[a, b] += half[a, c] * derivative[b, c]
        size += ellipsoid[a, a]
    own = count * OWN * OWN
    ratio = np.sqrt(count * own / size) if size > 0.0 else 1.0
    for a in range(count):
        for b in range(count):
            ellipsoid[a, b] *= 1.0 + ratio
        ellipsoid[a, a] += (1.0 + 1.0 / ratio) * own


@inlined
def reach(count: int, slope: Array, filtered: Array, i: int, j: int, ellipsoid: Array) -> float:
    """Largest relative error of a number that depends on ``count`` numbers from each of two filters.

    Args:
        count: m.
        slope: its logarithmic derivatives, a row for each filter, shape (2, m).
        filtered: the first filter's, with its ellipsoid behind the m numbers of step i and pole j.
        i: step.
        j: pole.
        ellipsoid: the second filter's, shape (m, m).
    """
    first, second = 0.0, 0.0
    for a in range(count):
        for b in range(count):
            first += slope[0, a] * filtered[i, count + count * a + b, j] * slope[0, b]
            second += slope[1, a] * ellipsoid[a, b] * slope[1, b]
    return np.sqrt(max(first, 0.0)) + np.sqrt(max(second, 0.0))


@compiled
def record(new: tuple[Any, ...], column: int, derivative: Array) -> None:
    """Write the logarithmic derivatives of the numbers ``new``, one of whose arguments was turned, into a column."""
    for m, value in enumerate(new):
        derivative[m, column] = value.imag / STEP / value.real if value.real != 0.0 else 0.0
