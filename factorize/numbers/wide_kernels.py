"""Compiled recurrences over wide numbers. Imported on first use, since numba is heavy."""

from __future__ import annotations

import numba
import numpy as np

from factorize.numbers.compiling import assign
from factorize.numbers.double_double import add, multiply

_FLOOR = 1e-290  # far above what a product loses below the normal range; times the numbers that this is multiplied by
_ROOT_FLOOR = 1e-150  # its square does not underflow


@numba.njit(cache=True, nogil=True)
def best_selection(high, low, separation, most):
    """Return the largest sum of at most `most` numbers at least `separation` apart: high, low, and what was lost."""
    n = len(high)
    before_high, before_low = np.zeros(n + separation), np.zeros(n + separation)
    after_high, after_low = np.zeros(n + separation), np.zeros(n + separation)
    lost = 0.0
    for _ in range(most):
        best_high, best_low, worst = 0.0, 0.0, 0.0
        for i in range(n - 1, -1, -1):
            j = i + separation
            lows = abs(low[i]) + abs(before_low[j])
            h, rest = add(high[i], low[i], before_high[j], before_low[j])
            if lows != 0.0 or rest != 0.0:
                worst = max(worst, 2.0**-98 * h)
            if h > best_high or (h == best_high and rest > best_low):
                best_high, best_low = h, rest
            after_high[i], after_low[i] = best_high, best_low
        lost += worst
        assign(before_high, after_high)
        assign(before_low, after_low)
    return before_high[0], before_low[0], lost * 1.0001


@numba.njit(cache=True, nogil=True)
def add_squares(lower, high, low, error):
    """Add the squares of each column of a lower-triangular matrix, bit by bit as `wide.squares` and `wide.add_into`."""
    for i in range(len(lower)):
        for j in range(i + 1):
            value = lower[i, j]
            moved = value * 134_217_729.0
            upper = moved - (moved - value)
            rest = value - upper
            square = value * value
            cut = (((upper * upper - square) + upper * rest) + rest * upper) + rest * rest
            if abs(value) < 1e-130 and value != 0.0:
                error[j] += 1e-290
            total = high[j] + square
            shifted = total - high[j]
            lows = low[j] + cut
            back = ((high[j] - (total - shifted)) + (square - shifted)) + lows
            high[j] = total + back
            shifted = high[j] - total
            low[j] = (total - (high[j] - shifted)) + (back - shifted)
            error[j] += 2.0**-51 * (abs(lows) + abs(back))


@numba.njit(cache=True, nogil=True)
def best_selections(high, low, separation, most, best_high, best_low, lost):
    """Write the best selection within each row."""
    for i in range(len(high)):
        best_high[i], best_low[i], lost[i] = best_selection(high[i], low[i], separation, most)


@numba.njit(cache=True, nogil=True)
def selected_sums(values, separation, most, out):
    """Write the best selection within each row of non-negative doubles; what is added is rounded as it comes."""
    n = values.shape[1]
    best = np.empty(n + separation)
    for r in range(len(values)):
        best[:] = 0.0
        for _ in range(min(most, (n + separation - 1) // separation)):
            for i in range(n):  # from below: entry i needs what is `separation` later, from one choice less
                best[i] = values[r, i] + best[i + separation]
            for i in range(n - 2, -1, -1):
                best[i] = max(best[i], best[i + 1])
        out[r] = best[0]


@numba.njit(cache=True, nogil=True)
def best_positions(values, separation, most):
    """Return the positions of a best selection, in double precision."""
    n = len(values)
    best = np.zeros((most + 1, n + separation))
    for k in range(1, most + 1):
        for i in range(n - 1, -1, -1):
            best[k, i] = max(best[k, i + 1] if i + 1 < n else 0.0, values[i] + best[k - 1, i + separation])
    chosen = np.empty(most, dtype=np.int64)
    count, start = 0, 0
    for k in range(most, 0, -1):
        if start >= n or best[k, start] <= 0.0:
            break
        while start + 1 < n and best[k, start + 1] == best[k, start]:
            start += 1
        chosen[count] = start
        count += 1
        start += separation
    return chosen[:count]


@numba.njit(cache=True, nogil=True)
def pattern_sums(given_high, given_low, given_error, separation, most, high, low, error):
    """Write c_t + c_{t-b} + ... of at most `most` terms: the sum b steps before, one term more and one less."""
    for t in range(len(given_high)):
        h, rest, lost = given_high[t], given_low[t], given_error[t]
        if t >= separation:
            s = t - separation
            size = abs(high[s]) + abs(h)
            rounded = low[s] != 0.0 or rest != 0.0
            h, rest = add(high[s], low[s], h, rest)
            lost += error[s]
            if rounded or rest != 0.0:
                lost += 2.0**-98 * size
        if t >= separation * most:
            s = t - separation * most
            size = abs(given_high[s]) + abs(h)
            rounded = given_low[s] != 0.0 or rest != 0.0
            h, rest = add(h, rest, -given_high[s], -given_low[s])
            lost += given_error[s]
            if rounded or rest != 0.0:
                lost += 2.0**-98 * size
        high[t], low[t], error[t] = h, rest, lost


@numba.njit(cache=True, nogil=True)
def fill(diagonal, transition, inputs, outputs, high, low, error):
    """Write all of C: one backward sweep per row, as in structures/kernels/buffered.py.

    `sizes` carries the same products without signs. Each step loses at most (32 + 8 states) u^2 of them in its products
    and sums, and the sum over the buffers (32 + 8 buffers) u^2, u = 2^-53; what is below the normal range is less than
    the 1e-150 that is added.

    Where transitions rotate, products without signs grow while those with signs do not. So a second bound is kept, and
    the smaller one counts: what step k loses, a vector d_k of known size, reaches the entry as d_k . g_k, with
    g_k = transition[k] ... transition[j+1] input[j]. By Cauchy and Schwarz the sum is at most the root of sum |d_k|^2,
    which the sweep adds up, times the root of sum |g_k|^2 = input . Q input (`_reach`).
    """
    reach = _reach(transition, inputs)
    n, groups, states = inputs.shape
    carried, stepped = np.zeros((groups, states, 2)), np.zeros((states, 2))
    sizes, after = np.zeros((groups, states)), np.zeros(states)
    for i in range(n):
        high[i, i] = diagonal[i]
        assign(carried[:, :, 0], outputs[i])
        carried[:, :, 1] = 0.0
        assign(sizes, np.abs(outputs[i]))
        lost = 0.0
        for j in range(i - 1, -1, -1):
            h, rest, size, last = 0.0, 0.0, 0.0, 0.0
            for g in range(groups):
                for b in range(states):
                    sh, sl, after[b], local = 0.0, 0.0, 0.0, 1e-150
                    for a in range(states):
                        th, tl = multiply(carried[g, a, 0], carried[g, a, 1], transition[j + 1, g, a, b], 0.0)
                        sh, sl = add(sh, sl, th, tl)
                        after[b] += sizes[g, a] * abs(transition[j + 1, g, a, b])
                        local += abs(carried[g, a, 0]) * abs(transition[j + 1, g, a, b])
                    stepped[b, 0], stepped[b, 1] = sh, sl
                    lost += ((32 + 8 * states) * 2.0**-106 * (1 + 1e-6) * local + _ROOT_FLOOR) ** 2
                for b in range(states):
                    assign(carried[g, b], stepped[b])
                    sizes[g, b] = after[b] + 1e-150 if sizes[g].any() else 0.0
                    th, tl = multiply(stepped[b, 0], stepped[b, 1], inputs[j, g, b], 0.0)
                    h, rest = add(h, rest, th, tl)
                    if sizes[g, b] != 0.0 and inputs[j, g, b] != 0.0:
                        size += sizes[g, b] * abs(inputs[j, g, b]) + 1e-150
                    last += abs(stepped[b, 0] * inputs[j, g, b]) + 1e-150
            high[i, j], low[i, j] = h, rest
            end = 32 + 8 * groups * states
            unsigned = ((i - j) * (32 + 8 * states) + end) * 2.0**-106 * (1 + 1e-6) * size
            signed = np.sqrt(lost) * (1 + 1e-6) * reach[j] + end * 2.0**-106 * (1 + 1e-6) * last
            error[i, j] = signed if signed < unsigned or np.isnan(unsigned) else unsigned


@numba.njit(cache=True, nogil=True)
def _reach(transition, inputs):
    """Return roots of sum_k |transition[k] ... transition[j+1] input[j]|^2 for every j, from above.

    Q <- I + T^T Q T backwards, in double precision. Its roundings are below I / 2 in every step, which is checked, so
    twice Q is above what it stands for, in the order of positive semidefinite matrices; infinity where they are not.
    """
    n, groups, states = inputs.shape
    found = np.empty(n)
    gram = np.zeros((groups, states, states))
    for g in range(groups):
        assign(gram[g], np.eye(states))
    for j in range(n - 1, -1, -1):
        total = 0.0
        for g in range(groups):
            feed = inputs[j, g].copy()
            total += 2.0 * (1 + 1e-6) * (feed @ (gram[g] @ feed))
            total += 2.0**-40 * (feed @ feed + _FLOOR) * np.abs(gram[g]).sum()
        found[j] = np.sqrt(total) * (1 + 1e-6)
        for g in range(groups):
            block = transition[j, g].copy()
            spread, widest = np.abs(block).sum(), np.abs(gram[g]).sum()
            if not (states + 4) * 2.0**-50 * spread**2 * widest < 0.5:
                found[:j] = np.inf
                return found
            moved = block.T.copy() @ (gram[g] @ block)
            assign(gram[g], 0.5 * (moved + moved.T) + np.eye(states))
    return found


@numba.njit(cache=True, nogil=True)
def column_norms(diagonal, transition, inputs, outputs, high, low, error):
    """Write diagonal^2 + input . P input, P <- T^T (P + output output^T) T backwards; return whether it is enclosed.

    What one step loses is a matrix between -d I and d I, and it moves on as P does. So R <- T^T R T + d I bounds what
    all steps have lost, in the order of positive semidefinite matrices, however the transitions rotate. R itself is in
    double precision: its own roundings must be below a quarter of the d I of their step, so that twice R covers them.
    """
    n, groups, states = inputs.shape
    m = groups * states
    gram_high, gram_low, bound = np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m))
    half_high, half_low, half = np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m))
    rounding = (states * states + 8) * 2.0**-98
    for j in range(n - 1, -1, -1):
        feed, out = inputs[j].copy().reshape(m), outputs[j].copy().reshape(m)
        h, rest = multiply(diagonal[j], 0.0, diagonal[j], 0.0)
        size, slack, slack_size, entries = h, 0.0, 0.0, 1.0
        for a in range(m):
            for b in range(m):
                fh, fl = multiply(feed[a], 0.0, feed[b], 0.0)
                th, tl = multiply(fh, fl, gram_high[a, b], gram_low[a, b])
                h, rest = add(h, rest, th, tl)
                size += abs(th)
                entries += abs(gram_high[a, b]) + abs(feed[b])
                slack += feed[a] * bound[a, b] * feed[b]
                slack_size += abs(feed[a] * bound[a, b] * feed[b])
        high[j], low[j] = h, rest
        error[j] = 2.0 * (abs(slack) + (m * m + 8) * 2.0**-52 * slack_size)
        if j < n - 1 and feed.any():  # the square of the diagonal alone has no error
            error[j] += (m * m + 8) * 2.0**-97 * size + _FLOOR * entries
        largest, spread, widest = 0.0, 0.0, 0.0
        for a in range(m):
            for b in range(m):
                ph, pl = multiply(out[a], 0.0, out[b], 0.0)
                largest = max(largest, abs(gram_high[a, b]) + abs(ph))
                gram_high[a, b], gram_low[a, b] = add(gram_high[a, b], gram_low[a, b], ph, pl)
                widest = max(widest, abs(bound[a, b]))
        for g in range(groups):
            for b in range(states):
                column = 0.0
                for c in range(states):
                    column += abs(transition[j, g, c, b])
                spread = max(spread, column)
        if not (spread < 1e100 and largest < 1e100 and widest < 1e100):
            return False
        _move(transition[j], gram_high, gram_low, half_high, half_low)
        _move_doubles(transition[j], bound, half)
        lost = (m * rounding * largest + 1e-280) * max(spread, 1.0) ** 2
        for a in range(m):
            bound[a, a] += lost
        if not m * (states * states + 8) * 2.0**-52 * widest * max(spread, 1.0) ** 2 < 0.25 * lost:
            return False
    return True


@numba.njit(cache=True, nogil=True)
def _move(blocks, high, low, half_high, half_low):
    """Replace X by T^T X T for the block-diagonal T."""
    groups, states = blocks.shape[0], blocks.shape[1]
    m = groups * states
    for a in range(m):
        for g in range(groups):
            for b in range(states):
                h, rest = 0.0, 0.0
                for c in range(states):
                    k = g * states + c
                    th, tl = multiply(high[a, k], low[a, k], blocks[g, c, b], 0.0)
                    h, rest = add(h, rest, th, tl)
                half_high[a, g * states + b], half_low[a, g * states + b] = h, rest
    for g in range(groups):
        for b in range(states):
            for a in range(m):
                h, rest = 0.0, 0.0
                for c in range(states):
                    k = g * states + c
                    th, tl = multiply(half_high[k, a], half_low[k, a], blocks[g, c, b], 0.0)
                    h, rest = add(h, rest, th, tl)
                high[g * states + b, a], low[g * states + b, a] = h, rest


@numba.njit(cache=True, nogil=True)
def _move_doubles(blocks, x, half):
    """The same in double precision."""
    groups, states = blocks.shape[0], blocks.shape[1]
    m = groups * states
    for a in range(m):
        for g in range(groups):
            for b in range(states):
                total = 0.0
                for c in range(states):
                    total += x[a, g * states + c] * blocks[g, c, b]
                half[a, g * states + b] = total
    for g in range(groups):
        for b in range(states):
            for a in range(m):
                total = 0.0
                for c in range(states):
                    total += half[g * states + c, a] * blocks[g, c, b]
                x[g * states + b, a] = total


@numba.njit(cache=True, nogil=True)
def fading_column(weights, high, low, error):
    """Write c_0 = 1, c_t = sum_d weights[d] c_{t-d} as pairs of doubles, and what they may be off by.

    No term is negative and the weights from 1 on sum to at most 1. So a relative loss of 32 u^2 for each product and of
    8 u^2 for each sum adds up over the steps, and what is left out below 1e-250 is at most that much more a step.
    """
    bands, n = weights.shape[0], high.shape[0]
    loss = 2.0 * (32.0 + 8.0 * bands) * 2.0**-106
    high[0], low[0], error[0] = 1.0, 0.0, 0.0
    for t in range(1, n):
        h, rest = 0.0, 0.0
        for d in range(1, min(t, bands - 1) + 1):
            if weights[d] != 0.0 and high[t - d] >= 1e-250:
                first, second = multiply(weights[d], 0.0, high[t - d], low[t - d])
                h, rest = add(h, rest, first, second)
        high[t], low[t] = h, rest
        error[t] = t * (loss * h + 2e-250) if bands > 1 else 0.0
