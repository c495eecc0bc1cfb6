"""Determinants of I + t G G^T from below, G a recursion of few states, by a filter whose covariance is never too large.

The process y = G u, u white, is observed with noise of variance 1 / t: det(I + t G G^T) is the product of 1 + t s_i^2,
s_i^2 the variance of y_i given the observations before. The filter's step P <- S P S^T + N, P <- P - P e e^T P /
(P_ee + 1 / t) is monotone in P, in the order of semidefinite matrices, also where P is not semidefinite as long as
P_ee + 1 / t > 0: the second is the least (I - k e^T) P (I - k e^T)^T + k k^T / t over all k. So it is enough to make P
smaller after each statement by a diagonal matrix that covers what was rounded. An entry (a, c) that is off by at most
E z_a z_c is covered by E z_a^2 at a and E z_c^2 at c, for any positive z, and so E may be the sum over all entries.
With roots of the variances as z every state is kept relative to its own size, whatever its unit.
"""

import math

from factorize.checker.arithmetic.compiled import kernel, part
from factorize.checker.losses.variance_kernels import _plus, _times

STEP = 2.0**-49
"""Above the relative error of a statement or an observation of up to 4 terms: at most 12 roundings."""
_SMALLEST = 1e-140  # of a root of a variance
_LARGEST = 1e140
_SCALE = 2.0**-400


@part(error_model="numpy")
def _lower(p, z, sizes):
    """Make the diagonal smaller for rounded entries, whose sizes over z_a z_c are summed; z becomes its roots."""
    for c in range(len(p)):
        p[c, c] -= STEP * (sizes + STEP) * z[c] * z[c] + 2.0**-52 * abs(p[c, c])
        z[c] = math.sqrt(abs(p[c, c])) + _SMALLEST


@part(error_model="numpy")
def _statement(k, target, sources, count, program, p, z, row, size):
    """Carry out statement k of a step, a state <- sum of coefficients times states."""
    own = whole = sizes = 0.0
    for c in range(len(p)):
        row[c] = size[c] = 0.0
        for s in range(count):
            entry = program[k, s, 0] * p[1 + sources[k, s], c]
            row[c] += entry
            size[c] += abs(entry)
    for s in range(count):
        own += program[k, s, 0] * row[1 + sources[k, s]]
        whole += abs(program[k, s, 0]) * size[1 + sources[k, s]]
    row[target], size[target], z[target] = own, whole, math.sqrt(whole) + _SMALLEST
    for c in range(len(p)):
        p[target, c] = p[c, target] = row[c]
        sizes += size[c] / (z[target] * z[c])
    _lower(p, z, sizes)


@part(error_model="numpy")
def _observe(o, shift, p, z, row, size):
    """Condition on the observation of state o with noise of variance 1 / shift."""
    sizes = 0.0
    for c in range(len(p)):
        size[c] = shift * p[o, c]
    for c in range(len(p)):
        row[c] = p[o, c] / (1.0 + size[o])
    z[o] = math.sqrt(abs(row[o])) + _SMALLEST
    for a in range(len(p)):
        for c in range(a + 1):
            before, moved = p[a, c], size[a] * row[c]
            if a == o or c == o:
                before, moved = row[a + c - o], 0.0
            p[a, c] = p[c, a] = before - moved
            sizes += (abs(before) + abs(moved)) / (z[a] * z[c])
    _lower(p, z, sizes)


@kernel(error_model="numpy")
def determinant(shift, inputs, weights, targets, sources, counts, program, output, p, work):
    """Return det(I + shift G G^T) from below as (high, low, places): (high + low) 2^(400 places), 0 if unknown.

    Of the product's own rounding it may still be too large by the relative error n 2^-94. G is diag(sqrt weights) A
    diag(sqrt inputs), A by the statements as losses/variances.py writes them; shift is a power of two. Of the input
    and the states, p is the covariance, all zero, and work is scratch, three rows of zeros.
    """
    z, row, size, o = work[0], work[1], work[2], 1 + output
    ph, pl, places = 1.0, 0.0, 0
    for i in range(len(inputs)):
        for c in range(len(p)):
            p[0, c] = p[c, 0] = 0.0
            z[c] += _SMALLEST
        p[0, 0], z[0] = inputs[i], math.sqrt(inputs[i]) + _SMALLEST
        for k in range(len(targets)):
            _statement(k, 1 + targets[k], sources, counts[k], program[i if len(program) > 1 else 0], p, z, row, size)
        gain = shift * weights[i] * p[o, o]
        if not -0.5 <= gain < _LARGEST:
            return 0.0, 0.0, 0
        if weights[i] > 0.0:
            _observe(o, shift * weights[i], p, z, row, size)
        if gain > 0.0:
            xh, xl = _plus(1.0, 0.0, gain * (1.0 - 2.0**-52), 0.0)
            ph, pl = _times(ph, pl, xh, xl)
            while ph > 1.0 / _SCALE:
                ph, pl, places = ph * _SCALE, pl * _SCALE, places + 1
    return ph, pl, places
