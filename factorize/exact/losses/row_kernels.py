"""Rows of B C - A for a stored B, a C of bands or buffers and an A of statements, as pairs of doubles; compiled."""

from __future__ import annotations

import numba
import numpy as np

from factorize.exact.losses.variance_kernels import _plus, _times

_ERROR = 2.0**-98
"""Above the relative error of a product and a sum of pairs, each within 2^-100 of the absolute values."""


@numba.njit(cache=True, nogil=True)
def _add(value, k, high, low, size, error):
    """Add to entry k of a vector of pairs, with a bound on its error."""
    value[0, k], value[1, k] = _plus(value[0, k], value[1, k], high, low)
    value[2, k] += error + _ERROR * (abs(value[0, k]) + size)


@numba.njit(cache=True, nogil=True)
def _workload_back(i, output, targets, sources, counts, program, value):
    """What the output owes each state before step i and, in place 0, the input of it: the statements from the end."""
    row = program[i if len(program) > 1 else 0]
    for k in range(len(targets) - 1, -1, -1):
        a = 1 + targets[k]
        high, low, error = value[0, a], value[1, a], value[2, a]
        value[:, a] = 0.0
        for s in range(counts[k]):
            c = abs(row[k, s, 0]) * (1 + 2.0**-50)
            th, tl = _times(row[k, s, 0], row[k, s, 1], high, low)
            _add(value, 1 + sources[k, s], th, tl, c * abs(high), c * error)


@numba.njit(cache=True, nogil=True)
def _buffers_back(b, transition, outputs, value, moved):
    """The states of C owe T^T (value + b output)."""
    groups, s = outputs.shape
    for a in range(groups * s):
        th, tl = _times(outputs[a // s, a % s], 0.0, b, 0.0)
        _add(value, a, th, tl, abs(th), 0.0)
        moved[:, a] = 0.0
    for g in range(groups):
        for a in range(s):
            for c in range(s):
                factor = transition[g, a, c]
                if factor != 0.0:
                    th, tl = _times(factor, 0.0, value[0, g * s + a], value[1, g * s + a])
                    error = abs(factor) * value[2, g * s + a] * (1 + 2.0**-50)
                    _add(moved, g * s + c, th, tl, abs(th), error)
    for a in range(groups * s):
        value[0, a], value[1, a], value[2, a] = moved[0, a], moved[1, a], moved[2, a]


@numba.njit(cache=True, nogil=True)
def residual(stored, bands, buffered, scale, states, targets, sources, counts, program, output, sums):
    """Return the largest |entry| of B C - A and the sum of their squares, both from above; NaN where it is not known.

    `bands` (b, n) holds the diagonals, `buffered` (transition, inputs, outputs) what adds to them (or no group),
    `scale` (n,) the factors of the columns. Absolute column sums of A are added to `sums`.
    """
    transition, inputs, outputs = buffered
    n, width, (groups, s) = bands.shape[1], len(bands), inputs.shape[1:]
    stride = 0 if len(inputs) == 1 else 1
    size = groups * s
    owed, moved, due, entry = np.zeros((3, size)), np.zeros((3, size)), np.zeros((3, 1 + states)), np.zeros((3, 1))
    largest, total = 0.0, 0.0
    for i in range(n):
        owed[:], due[:] = 0.0, 0.0
        due[0, 1 + output] = 1.0
        for j in range(i, -1, -1):
            entry[:] = 0.0
            for d in range(min(width, i + 1 - j)):
                if bands[d, j] != 0.0:
                    th, tl = _times(bands[d, j], 0.0, stored[i, j + d], 0.0)
                    _add(entry, 0, th, tl, abs(th), 0.0)
            for a in range(size):
                factor = inputs[stride * j, a // s, a % s]
                if factor != 0.0:
                    th, tl = _times(factor, 0.0, owed[0, a], owed[1, a])
                    _add(entry, 0, th, tl, abs(th), abs(factor) * owed[2, a] * (1 + 2.0**-50))
            if size:
                _buffers_back(stored[i, j], transition[stride * j], outputs[stride * j], owed, moved)
            th, tl = _times(entry[0, 0], entry[1, 0], scale[j], 0.0)
            error = (entry[2, 0] + _ERROR * abs(entry[0, 0])) * abs(scale[j])
            entry[0, 0], entry[1, 0], entry[2, 0] = th, tl, error
            _workload_back(j, output, targets, sources, counts, program, due)
            _add(entry, 0, -due[0, 0], -due[1, 0], abs(due[0, 0]), due[2, 0])
            sums[j] += abs(due[0, 0])
            due[:, 0] = 0.0
            bound = (abs(entry[0, 0]) + abs(entry[1, 0]) + entry[2, 0]) * (1 + 2.0**-40)
            if not bound < 1e150:
                return np.nan, np.nan
            largest = max(largest, bound)
            total += bound * bound
    return largest, total * (1 + n * n * 2.0**-52)
