"""The trace of the inverse of a shifted tridiagonal matrix, from positive numbers alone; compiled."""

from __future__ import annotations

import numba
import numpy as np


def trace(a: np.ndarray, b: np.ndarray, shift: float) -> tuple[float, float]:
    """Return tr (L^T L + shift)^-1 and its error; L lower bidiagonal, squared diagonal a and sub-diagonal b (n - 1).

    Factored from above and from below, s and r are what is left of the pivots without b and a, and the diagonal of the
    inverse is 1 / (s - shift + r); nothing is ever subtracted. Relative errors are carried along in units of 2^-53:
    those of what came before are damped by b / (b + s), a / (a + r) and by adding the shift.
    """
    total, error = _trace(a, b, shift, np.empty(len(a)), np.zeros(len(a)))
    return total, error


@numba.njit(cache=True, nogil=True)
def _trace(a, b, shift, below, errors):
    n = len(a)
    r, e = shift, 0.0
    below[n - 1] = r
    for i in range(n - 2, -1, -1):
        part = b[i] * (r / (a[i + 1] + r))
        e = (e * a[i + 1] / (a[i + 1] + r) + 3.0) * part / (shift + part) + 1.0
        r = shift + part
        below[i], errors[i] = r, e
    grown, e = a[0], 0.0
    total, rest, lost = 0.0, 0.0, 0.0
    for i in range(n):
        size = grown + below[i]
        term = 1.0 / size
        lost += term * ((e * grown + errors[i] * below[i]) / size + 4.0)
        moved = total + term
        rest += (total - moved) + term
        total = moved
        if i + 1 < n:
            s = grown + shift
            ratio = b[i] / (b[i] + s)
            e = (e * grown / s + 1.0) * ratio + 3.0
            grown = a[i + 1] * (s / (b[i] + s))
    return total + rest, lost * 2.0**-53 * (1 + 1e-6) + total * n * 2.0**-104
