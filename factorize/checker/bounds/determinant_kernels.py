"""Determinants of I + t G G^T from below, G a recursion of few states, by a filter whose covariance is never too large.

The process y = G u, u white, is observed with noise of variance 1 / t: det(I + t G G^T) is the product of 1 + t s_i^2,
s_i^2 the variance of y_i given the observations before. The filter's step P <- S P S^T + N, P <- P - P e e^T P /
(P_ee + 1 / t) is monotone in P, in the order of semidefinite matrices, also where P is not semidefinite as long as
P_ee + 1 / t > 0: the second is the least (I - k e^T) P (I - k e^T)^T + k k^T / t over all k. So it is enough to make P
smaller after each statement by a diagonal matrix that covers what was rounded. An entry (a, c) that is off by at most
E is covered by E z_a / z_c at a and E z_c / z_a at c, for any positive z; with roots of the variances as z every state
is kept relative to its own size, whatever its unit.
"""

from __future__ import annotations

import math

from factorize.checker.arithmetic.compiled import kernel, part
from factorize.checker.losses.variance_kernels import _plus, _times

STEP = 2.0**-92
"""Above the relative error of a statement or an observation of up to 4 terms: at most 20 operations within 2^-100."""
_OWN = 2.0**-97  # of a diagonal entry: what subtracting from it rounds
_FLOOR = 1e-280  # added to every error: what underflow loses
_SMALLEST = 1e-140  # of a root of a variance
_LARGEST = 1e140
_SCALE = 2.0**-400


@part(error_model="numpy")
def _lower(high, low, c, less):
    """Make a diagonal entry smaller, by what its own rounding takes as well."""
    less += _OWN * abs(high[c, c])
    high[c, c], low[c, c] = _plus(high[c, c], low[c, c], -less, 0.0)


@part(error_model="numpy")
def _root(value):
    return (math.sqrt(value) if value > 0.0 else 0.0) + _SMALLEST


@part(error_model="numpy")
def _statement(k, target, sources, count, i, program, high, low, work):
    """Carry out statement k, a state <- sum of coefficients times states, of step i; the last row of `work` is z."""
    m = len(high)
    for c in range(m):
        th, tl, size = 0.0, 0.0, 0.0
        for s in range(count):
            entry = high[1 + sources[k, s], c]
            if entry != 0.0:
                ph, pl = _times(program[i, k, s, 0], program[i, k, s, 1], entry, low[1 + sources[k, s], c])
                th, tl = _plus(th, tl, ph, pl)
                size += abs(program[i, k, s, 0]) * abs(entry)
        work[0, c], work[1, c], work[2, c] = th, tl, size
    dh, dl, size = 0.0, 0.0, 0.0
    for s in range(count):
        source = 1 + sources[k, s]
        ph, pl = _times(program[i, k, s, 0], program[i, k, s, 1], work[0, source], work[1, source])
        dh, dl = _plus(dh, dl, ph, pl)
        size += abs(program[i, k, s, 0]) * work[2, source]
    for c in range(m):
        high[target, c] = high[c, target] = work[0, c]
        low[target, c] = low[c, target] = work[1, c]
    high[target, target], low[target, target] = dh, dl
    work[3, target] = _root(dh)
    less = STEP * size + _FLOOR
    for c in range(m):
        if c != target and work[2, c] != 0.0:
            error = STEP * work[2, c] + _FLOOR
            less += error * (work[3, target] / work[3, c])
            _lower(high, low, c, error * (work[3, c] / work[3, target]))
    _lower(high, low, target, less)
    return size < _LARGEST and abs(dh) < _LARGEST  # both are false for NaN


@part(error_model="numpy")
def _observe(o, shift, high, low, work):
    """Condition on the observation of state o with noise of variance 1 / shift; return 1 + shift P_oo as a pair.

    Nothing is conditioned where that is not between 1/2 and 1e140.
    """
    m = len(high)
    xh, xl = _times(shift, 0.0, high[o, o], low[o, o])
    xh, xl = _plus(xh, xl, 1.0, 0.0)
    if not 0.5 <= xh < _LARGEST:
        return xh, xl
    guess = 1.0 / xh
    eh, el = _times(xh, xl, guess, 0.0)
    eh, el = _plus(1.0, 0.0, -eh, -el)
    eh, el = _times(eh, el, guess, 0.0)
    ih, il = _plus(guess, 0.0, eh, el)
    for c in range(m):
        work[0, c], work[1, c] = _times(ih, il, high[o, c], low[o, c])
        work[2, c] = 0.0
    for a in range(m):
        if a != o and high[a, o] != 0.0:
            sh, sl = _times(shift, 0.0, high[a, o], low[a, o])
            for c in range(a, m):
                if c != o and high[c, o] != 0.0:
                    ph, pl = _times(sh, sl, work[0, c], work[1, c])
                    error = STEP * (abs(high[a, c]) + abs(ph)) + _FLOOR
                    high[a, c], low[a, c] = _plus(high[a, c], low[a, c], -ph, -pl)
                    high[c, a], low[c, a] = high[a, c], low[a, c]
                    if a == c:
                        work[2, a] += error
                    else:
                        work[2, a] += error * (work[3, a] / work[3, c])
                        work[2, c] += error * (work[3, c] / work[3, a])
    for c in range(m):
        if work[0, c] != 0.0:
            error = STEP * abs(work[0, c]) + _FLOOR
            high[o, c] = high[c, o] = work[0, c]
            low[o, c] = low[c, o] = work[1, c]
            work[2, o] += error * (work[3, o] / work[3, c])
            if c != o:
                work[2, c] += error * (work[3, c] / work[3, o])
    for c in range(m):
        if work[2, c] != 0.0:
            _lower(high, low, c, work[2, c])
        work[3, c] = _root(high[c, c])
    return xh, xl


@kernel(error_model="numpy")
def determinant(shift, inputs, weights, targets, sources, counts, program, output, high, low, work):
    """Return det(I + shift G G^T) from below as (high, low, places): (high + low) 2^(400 places), 0 if unknown.

    Of the product's own rounding it may still be too large by the relative error n 2^-94. G is diag(sqrt weights) A
    diag(sqrt inputs), A by the statements as losses/variances.py writes them; shift is a power of two. Of the input
    and the states, high and low are covariances, all zero, and work is scratch, four rows.
    """
    m, o = len(high), 1 + output
    ph, pl, places = 1.0, 0.0, 0
    for c in range(m):
        work[3, c] = _SMALLEST
    for i in range(len(inputs)):
        for c in range(m):
            high[0, c] = high[c, 0] = low[0, c] = low[c, 0] = 0.0
        high[0, 0] = inputs[i]
        work[3, 0] = _root(inputs[i])
        row = i if len(program) > 1 else 0
        for k in range(len(targets)):
            if not _statement(k, 1 + targets[k], sources, counts[k], row, program, high, low, work):
                return 0.0, 0.0, 0
        if weights[i] == 0.0:
            continue
        xh, xl = _observe(o, shift * weights[i], high, low, work)
        if not 0.5 <= xh < _LARGEST:
            return 0.0, 0.0, 0
        if xh >= 1.0 and (xh > 1.0 or xl > 0.0):
            ph, pl = _times(ph, pl, xh, xl)
            while ph > 1.0 / _SCALE:
                ph, pl, places = ph * _SCALE, pl * _SCALE, places + 1
    return ph, pl, places
