"""Compiled loops of the noise: numpy's normals and the arithmetic of recurrences, to the last bit.

No product is fused with a sum, and sums follow the order of the vectors, as in numpy's operations.
"""

import math

import numpy as np

from factorize.numbers.compiling import kernel, part

_TILE = 1024  # The entries whose vectors stay in the nearest cache.
_TAIL = 3.6541528853610087963519472518  # The lowest layer of the ziggurat ends here.
_INVERSE_TAIL = 0.27366123732975827203338247596


@part()
def _next(a, b, c, count):
    """Return a word of SFC64 and the next state of the generator."""
    word = a + b + count
    turned = (c << np.uint64(24)) | (c >> np.uint64(40))
    return word, b ^ (b >> np.uint64(11)), c + (c << np.uint64(3)), turned + word, count + np.uint64(1)


@part()
def _unit(word):
    """Return a number in [0, 1) of 53 bits."""
    return np.float64(word >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel()
def fill_normals(words, limits, widths, heights, out):
    """Fill a vector with the numbers that `numpy.random.Generator(SFC64).standard_normal` draws.

    Args:
        words: state of SFC64, shape (4,), uint64.
        limits: limits of the ziggurat's layers, shape (256,), uint64; smaller integers are inside.
        widths: widths of the layers times 2^-52, shape (256,).
        heights: heights of the density where the layers end, shape (256,).
        out: the vector, shape (entries,), float64.

    Reference:
        Doornik 2005, An improved ziggurat method to generate normal random samples.
    """
    a, b, c, count = words[0], words[1], words[2], words[3]
    place = 0
    while place < len(out):
        word, a, b, c, count = _next(a, b, c, count)
        layer = word & np.uint64(0xFF)
        size = (word >> np.uint64(9)) & np.uint64(0x000FFFFFFFFFFFFF)
        x = np.float64(size) * widths[layer]
        if (word >> np.uint64(8)) & np.uint64(1):
            x = -x
        accepted = size < limits[layer]
        if not accepted and layer > 0:
            word, a, b, c, count = _next(a, b, c, count)
            drop = heights[layer - np.uint64(1)] - heights[layer]
            accepted = drop * _unit(word) + heights[layer] < math.exp(-0.5 * x * x)
        elif not accepted:
            beyond, square = 1.0, 0.0
            while not square > beyond * beyond:
                word, a, b, c, count = _next(a, b, c, count)
                beyond = -_INVERSE_TAIL * math.log1p(-_unit(word))
                word, a, b, c, count = _next(a, b, c, count)
                square = -2.0 * math.log1p(-_unit(word))
            x = -(_TAIL + beyond) if (size >> np.uint64(8)) & np.uint64(1) else _TAIL + beyond
            accepted = True
        if accepted:
            out[place] = x
            place += 1


@kernel()
def add_noise(sums, noise, divisor, out):
    """Overwrite sums by (sum + noise) / divisor, and write it to `out` rounded.

    Args:
        sums: shape (entries,), float64.
        noise: shape (entries,), float32.
        divisor: a float.
        out: shape (entries,), float32.
    """
    for j in range(len(noise)):
        sums[j] = (sums[j] + np.float64(noise[j])) / divisor
        out[j] = sums[j]


@kernel()
def advance_vectors(z, factor, before, reads, decays, loads, scale, state, first, out):
    """Turn normals into a row of C^-1 Z, and bring the state's vectors to the next step.

    Args:
        z: normals, shape (entries,), float64, overwritten.
        factor: factor of the normals.
        before: factor of each vector before it is read, shape (vectors,).
        reads: share of each vector that is subtracted from the row, shape (vectors,).
        decays: factor of each vector from step to step, shape (vectors,).
        loads: share of the row that each vector gets, shape (vectors,); one with decay 1 and load 0 is not written.
        scale: factor of the row, once the vectors have taken it in.
        state: the vectors, shape (vectors, entries or more).
        first: entry of the state that belongs to the first of z.
        out: the row, shape (entries,), float32.
    """
    vectors = len(reads)
    for low in range(0, len(z), _TILE):
        high = min(low + _TILE, len(z))
        x, row, start, stop, r = z[low:high], out[low:high], first + low, first + high, 0
        for j in range(len(x)):
            x[j] *= factor
        while r + 4 <= vectors:  # The row is read and written once for four vectors.
            d, e, f, g = before[r], before[r + 1], before[r + 2], before[r + 3]
            k, m, p, q = reads[r], reads[r + 1], reads[r + 2], reads[r + 3]
            s, t = state[r][start:stop], state[r + 1][start:stop]
            u, v = state[r + 2][start:stop], state[r + 3][start:stop]
            for j in range(len(x)):
                value = (x[j] - d * np.float64(s[j]) * k) - e * np.float64(t[j]) * m
                x[j] = (value - f * np.float64(u[j]) * p) - g * np.float64(v[j]) * q
            r += 4
        while r < vectors:
            d, k, s = before[r], reads[r], state[r][start:stop]
            for j in range(len(x)):
                x[j] -= d * np.float64(s[j]) * k
            r += 1
        for r in range(vectors):
            decay, load, s = decays[r], loads[r], state[r][start:stop]
            if decay != 1.0 or load != 0.0:
                for j in range(len(x)):
                    s[j] = decay * np.float64(s[j]) + x[j] * load
        for j in range(len(x)):
            row[j] = x[j] * scale
