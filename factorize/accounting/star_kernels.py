"""Compiled inner loops of the star sampler: normals, picks of tuples, shifts. Imported on first use."""

from __future__ import annotations

import math

import numba
import numpy as np


@numba.njit(cache=True, nogil=True, error_model="numpy")
def fill_middle(words, out, places, tails):
    """Write the normal of each word of 64 bits that is in the middle of the distribution; return how many are not.

    63 bits choose a tail probability, the last one the sign. The quantile is that of Wichura 1988 (algorithm AS 241,
    PPND16), to about 16 digits, between the midpoints of 2^63 cells: a draw is off by 2^-64 over the density, and the
    largest one is 9.2.

    Args:
        words: shape (k,).
        out: written, shape (k,); what is not in the middle has to be overwritten.
        places: written, shape (k,): indices of what is not in the middle.
        tails: written, shape (k,): its tail probabilities.
    """
    for i in range(words.shape[0]):
        q = 0.5 - _tail(words[i])
        r = 0.180625 - q * q
        top = 2.5090809287301226727e3 * r + 3.3430575583588128105e4
        top = ((top * r + 6.7265770927008700853e4) * r + 4.5921953931549871457e4) * r + 1.3731693765509461125e4
        top = ((top * r + 1.9715909503065514427e3) * r + 1.3314166789178437745e2) * r + 3.3871328727963666080e0
        low = 5.2264952788528545610e3 * r + 2.8729085735721942674e4
        low = ((low * r + 3.9307895800092710610e4) * r + 2.1213794301586595867e4) * r + 5.3941960214247511077e3
        low = ((low * r + 6.8718700749205790830e2) * r + 4.2313330701600911252e1) * r + 1.0
        out[i] = _signed(words[i], q * top / low)
    count = 0
    for i in range(words.shape[0]):  # a loop of its own, so that the one above works on several words at once
        tail = _tail(words[i])
        places[count], tails[count] = i, tail  # kept where it is not in the middle: no branch
        count += 0.5 - tail > 0.425
    return count


@numba.njit(cache=True, nogil=True, error_model="numpy")
def fill_outer(roots, places, words, out):
    """Write the normals that `fill_middle` left out.

    Args:
        roots: sqrt(-log tail), shape (k,).
        places: where they belong, shape (k,).
        words: all words.
        out: written at `places`.
    """
    for place in range(roots.shape[0]):
        r = roots[place]
        if r <= 5.0:
            r -= 1.6
            top = 7.74545014278341407640e-4 * r + 2.27238449892691845833e-2
            top = ((top * r + 2.41780725177450611770e-1) * r + 1.27045825245236838258e0) * r + 3.64784832476320460504e0
            top = ((top * r + 5.76949722146069140550e0) * r + 4.63033784615654529590e0) * r + 1.42343711074968357734e0
            low = 1.05075007164441684324e-9 * r + 5.47593808499534494600e-4
            low = (
                (low * r + 1.51986665636164571966e-2) * r + 1.48103976427480074590e-1
            ) * r + 6.89767334985100004550e-1
            low = ((low * r + 1.67638483018380384940e0) * r + 2.05319162663775882187e0) * r + 1.0
        else:
            r -= 5.0
            top = 2.01033439929228813265e-7 * r + 2.71155556874348757815e-5
            top = (
                (top * r + 1.24266094738807843860e-3) * r + 2.65321895265761230930e-2
            ) * r + 2.96560571828504891230e-1
            top = ((top * r + 1.78482653991729133580e0) * r + 5.46378491116411436990e0) * r + 6.65790464350110377720e0
            low = 2.04426310337993978564e-15 * r + 1.42151175831644588870e-7
            low = (
                (low * r + 1.84631831751005468180e-5) * r + 7.86869131145613259100e-4
            ) * r + 1.48753612908506148525e-2
            low = ((low * r + 1.36929880922735805310e-1) * r + 5.99832206555887937690e-1) * r + 1.0
        out[places[place]] = _signed(words[places[place]], top / low)


@numba.njit(cache=True, nogil=True, inline="always")
def _tail(word):
    return (float(np.int64(word >> np.uint64(1))) + 0.5) * 2.0**-64


@numba.njit(cache=True, nogil=True, inline="always")
def _signed(word, x):
    return x if word & np.uint64(1) else -x


@numba.njit(cache=True, nogil=True, error_model="numpy")
def fill_guides(sums, guides):
    """Write where each pick may start to look: how many running sums are at most k / 2^8, the last index at most.

    Args:
        sums: rows of running sums, shape (rows, b).
        guides: written, shape (rows, 256).
    """
    rows, bins = sums.shape
    for i in range(rows):
        at = 0
        for k in range(guides.shape[1]):
            while at < bins - 1 and sums[i, at] <= k * 2.0**-8:
                at += 1
            guides[i, k] = at


@numba.njit(cache=True, nogil=True, inline="always")
def _pick(sums, guide, word):
    """Return how many entries of the running sums are at most u, the last index at most; some steps from a guide."""
    u = np.float64(word >> np.uint64(11)) * 2.0**-53
    at, last = np.int64(guide[np.int64(word >> np.uint64(56))]), sums.shape[0] - 1
    while at < last and sums[at] <= u:
        at += 1
    return at


@numba.njit(cache=True, nogil=True, error_model="numpy")
def draw_tuples(words, centres, rows, guides, matrix, tuples, log_ratio):
    """Write the tuple of each sample and mean_i A_i - log mean_i exp(A_i), A_i = (m/2) sum_{i' != i} K of the two.

    Args:
        words: shape (samples, m), 64 random bits each.
        centres: running sums of the centre's probabilities, shape (b,).
        rows: running sums of the others' probabilities given the centre, shape (b, b).
        guides: of the rows, and last of the centres, shape (b + 1, 256).
        matrix: K, shape (b, b), symmetric to the last bit.
        tuples: written, shape (samples, m).
        log_ratio: written, shape (samples,).
    """
    samples, m = words.shape
    exponents = np.empty(m)
    for n in range(samples):
        centre = _pick(centres, guides[-1], words[n, 0])
        tuples[n, 0] = centre
        for i in range(1, m):
            tuples[n, i] = _pick(rows[centre], guides[centre], words[n, i])
        exponents[:] = 0.0
        for i in range(1, m):
            row = matrix[tuples[n, i]]
            for other in range(i):  # both of a pair at once: each exponent still adds its terms in their order
                exponents[i] += row[tuples[n, other]]
                exponents[other] += row[tuples[n, other]]
        mean, top = 0.0, -np.inf
        for i in range(m):
            exponents[i] *= m / 2
            mean += exponents[i] / m
            top = max(top, exponents[i])
        spread = 0.0
        for i in range(m):
            spread += math.exp(exponents[i] - top)
        log_ratio[n] = mean - top - math.log(spread / m)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def add_rows(tuples, rows, out):
    """Add to each row of `out` the rows of a matrix that its tuple names: factors L for the drift L^T s, say."""
    samples, m = tuples.shape
    for n in range(samples):
        for i in range(m):
            row = rows[tuples[n, i]]
            for j in range(out.shape[1]):
                out[n, j] += row[j]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def scaled_with_rows(base, scale, tuples, rows, out):
    """Write scale times each row of `base` plus the rows of a matrix that its tuple names."""
    samples, m = tuples.shape
    for n in range(samples):
        for j in range(out.shape[1]):
            out[n, j] = scale * base[n, j]
        for i in range(m):
            row = rows[tuples[n, i]]
            for j in range(out.shape[1]):
                out[n, j] += row[j]
