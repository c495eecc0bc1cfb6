"""Traces of inverses of shifted tridiagonal matrices, for one shift after the other as far as they are asked for.

Compiled code takes one shift at a time; to load it costs a new process most of a second. Where nothing has loaded it
and the matrix is short, numpy carries many shifts along the steps together: the same operations in the same order, so
that every bit of the answers agrees.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

LARGEST_TOGETHER = 4096
"""Steps up to which numpy is quicker than loading compiled code."""
_TOGETHER = 128
_UNIT = 2.0**-53


def traces(a: np.ndarray, b: np.ndarray, shifts: Iterable[float]) -> Iterator[tuple[float, float]]:
    """Yield tr (L^T L + shift)^-1 and its error, see `factorize.exact.bounds.resolvent_kernels.trace`.

    Args:
        a: squared diagonal of L, shape (n,).
        b: squared sub-diagonal, shape (n - 1,).
        shifts: positive; as many are read ahead as are carried together.
    """
    if "numba" in sys.modules or len(a) > LARGEST_TOGETHER:
        from factorize.exact.bounds.resolvent_kernels import trace

        for shift in shifts:
            value, error = trace(a, b, shift)
            yield float(value), float(error)
        return
    waiting = iter(shifts)
    while some := list(islice(waiting, _TOGETHER)):
        values, errors = traces_together(a, b, np.array(some))
        yield from zip(values.tolist(), errors.tolist(), strict=True)


@np.errstate(all="ignore")
def traces_together(a: np.ndarray, b: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the traces and their errors for many shifts, each of their shape; see `traces`."""
    n = len(a)
    below, errors = np.empty((n, len(shift))), np.zeros((n, len(shift)))
    r, e = shift, np.zeros(len(shift))
    below[n - 1] = r
    for i in range(n - 2, -1, -1):
        whole = a[i + 1] + r
        part = b[i] * (r / whole)
        r = shift + part
        e = (e * a[i + 1] / whole + 3.0) * part / r + 1.0
        below[i], errors[i] = r, e
    grown, e = np.full(len(shift), a[0]), np.zeros(len(shift))
    total, rest, lost = (np.zeros(len(shift)) for _ in range(3))
    for i in range(n):
        size = grown + below[i]
        term = 1.0 / size
        lost += term * ((e * grown + errors[i] * below[i]) / size + 4.0)
        moved = total + term
        rest += (total - moved) + term
        total = moved
        if i + 1 < n:
            s = grown + shift
            whole = b[i] + s
            e = (e * grown / s + 1.0) * (b[i] / whole) + 3.0
            grown = a[i + 1] * (s / whole)
    return total + rest, lost * _UNIT * (1 + 1e-6) + total * n * 2.0**-104
