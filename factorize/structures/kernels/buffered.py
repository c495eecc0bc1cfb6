"""Compiled recurrences behind structured matrices and their certificates. Imported on first use, since numba is heavy.

A structured matrix has entries X[i, j] = output[i] . transition[i] ... transition[j+1] input[j] below the diagonal. Its
states come in groups that do not mix, so a transition is stored as (groups, states, states) blocks: one state per group
for plain buffers, two for momentum, one group for a full transition.
"""

from __future__ import annotations

import numba
import numpy as np

from factorize.numbers.compiling import assign

LANES = 8  # rows that a sweep serves at once: one instruction where registers have 512 bits


@numba.njit(cache=True, nogil=True)
def fill_rows(diagonal, transition, inputs, outputs, start, out):
    """Write rows start, start + 1, ... of X into `out`, shape (r, n): one backward sweep per `LANES` rows, O(n) each.

    A row joins the sweep left of its diagonal; until then its lane carries zeros.
    """
    groups, states = inputs.shape[1], inputs.shape[2]
    carried, stepped, entry = np.empty((groups, states, LANES)), np.empty((states, LANES)), np.empty(LANES)
    for first in range(0, out.shape[0], LANES):
        last = min(first + LANES, out.shape[0])
        for r in range(first, last):
            out[r, start + r + 1 :] = 0.0
            out[r, start + r] = diagonal[start + r]
        carried[:] = 0.0
        for j in range(start + last - 2, -1, -1):
            joining = j + 1 - start - first
            if joining >= 0:
                for g in range(groups):
                    for a in range(states):
                        carried[g, a, joining] = outputs[j + 1, g, a]
            entry[:] = 0.0
            for g in range(groups):
                stepped[:] = 0.0
                for b in range(states):
                    for a in range(states):
                        for k in range(LANES):
                            stepped[b, k] += transition[j + 1, g, a, b] * carried[g, a, k]
                for b in range(states):
                    for k in range(LANES):
                        carried[g, b, k] = stepped[b, k]
                        entry[k] += stepped[b, k] * inputs[j, g, b]
            for k in range(max(joining, 0), last - first):
                out[first + k, j] = entry[k]


@numba.njit(cache=True, nogil=True, error_model="numpy")  # divisors are positive
def solve_rows(diagonal, transition, inputs, outputs, block, out):
    """Solve y X = b for each row b of `block`, from the last column to the first, `LANES` rows at a time; O(n) each.

    Zeros to the right of all the rows' entries stay zeros and are passed over.
    """
    n, groups, states = inputs.shape
    carried, stepped = np.empty((groups, states, LANES)), np.empty((states, LANES))
    known, y = np.zeros(LANES), np.zeros(LANES)
    for first in range(0, block.shape[0], LANES):
        last = min(first + LANES, block.shape[0])
        width = 0
        for r in range(first, last):
            right = n
            while right > width and block[r, right - 1] == 0.0:
                right -= 1
            width = max(width, right)
        for r in range(first, last):
            out[r, width:] = 0.0
        carried[:] = 0.0
        for j in range(width - 1, -1, -1):
            for k in range(last - first):
                known[k] = block[first + k, j]
            for g in range(groups):
                for a in range(states):
                    for k in range(LANES):
                        known[k] -= carried[g, a, k] * inputs[j, g, a]
            for k in range(LANES):
                y[k] = known[k] / diagonal[j]
            for k in range(last - first):
                out[first + k, j] = y[k]
            for g in range(groups):
                stepped[:] = 0.0
                for b in range(states):
                    for a in range(states):
                        for k in range(LANES):
                            stepped[b, k] += transition[j, g, a, b] * (carried[g, a, k] + outputs[j, g, a] * y[k])
                for b in range(states):
                    for k in range(LANES):
                        carried[g, b, k] = stepped[b, k]


@numba.njit(cache=True, nogil=True)
def column_norms(diagonal, transition, inputs, outputs, norms):
    """Write the squared column norms: diagonal^2 + input . Q input, Q <- T^T (output output^T + Q) T backwards."""
    n, groups, states = inputs.shape
    m = groups * states
    gram = np.zeros((m, m))
    half = np.empty((m, m))
    for j in range(n - 1, -1, -1):
        into, out = inputs[j].reshape(m), outputs[j].reshape(m)
        total = diagonal[j] * diagonal[j]
        for a in range(m):
            for b in range(m):
                total += into[a] * gram[a, b] * into[b]
        norms[j] = total
        for a in range(m):
            for h in range(groups):
                for b in range(states):
                    entry = 0.0
                    for c in range(states):
                        k = h * states + c
                        entry += (gram[a, k] + out[a] * out[k]) * transition[j, h, c, b]
                    half[a, h * states + b] = entry
        for g in range(groups):
            for a in range(states):
                for b in range(m):
                    entry = 0.0
                    for c in range(states):
                        entry += transition[j, g, c, a] * half[g * states + c, b]
                    gram[g * states + a, b] = entry


@numba.njit(cache=True, nogil=True)
def output_variances(diagonal, transition, inputs, outputs, follow, feed, read, through, variances):
    """Write the variance of each output of a workload driven by C^-1 times unit noise; shape (n,).

    x_i = (y_i - output_i . T_i s) / diagonal_i, s <- T_i s + input_i x_i are the rows of C^-1 y; the workload takes x:
    o_i = read_i . u + through_i x_i, u <- follow_i u + feed_i x_i. The covariance of (s, u) is carried along. With x =
    row . (s, u) + y / diagonal and F both transitions it becomes F S F^T plus terms of rank one: O(states) per entry.
    """
    n, groups, states = inputs.shape
    m, q = groups * states, feed.shape[1]
    size = m + q
    cov = np.zeros((size, size))
    half = np.empty((size, size))
    gain = np.zeros(size)
    row = np.zeros(size)
    load = np.zeros(size)
    image = np.zeros(size)
    for i in range(n):
        row[:] = 0.0
        for g in range(groups):
            for a in range(states):
                for b in range(states):
                    row[g * states + b] -= outputs[i, g, a] * transition[i, g, a, b] / diagonal[i]
        assign(load[:m], inputs[i].reshape(m))
        assign(load[m:], feed[i])
        for a in range(size):
            gain[a] = through[i] * row[a] + (read[i, a - m] if a >= m else 0.0)
        total = (through[i] / diagonal[i]) ** 2
        inner = 1.0 / (diagonal[i] * diagonal[i])
        for a in range(size):
            image[a] = 0.0
            onto = 0.0
            for b in range(size):
                image[a] += cov[a, b] * row[b]
                onto += cov[a, b] * gain[b]
            inner += row[a] * image[a]
            total += gain[a] * onto
        variances[i] = total
        _transform(transition[i], follow[i], cov, half, image)
        for a in range(size):
            for b in range(a + 1):
                entry = cov[a, b] + load[a] * image[b] + (image[a] + inner * load[a]) * load[b]
                cov[a, b] = entry
                cov[b, a] = entry


@numba.njit(cache=True, nogil=True)
def _transform(transition, follow, cov, half, image):
    """Replace cov by F cov F^T and image by F image, F block diagonal: groups of a transition, then `follow`."""
    groups, states = transition.shape[0], transition.shape[1]
    m, q = groups * states, follow.shape[0]
    size = m + q
    half[:] = 0.0
    stepped = np.zeros(size)
    for a in range(size):
        first = a // states * states if a < m else m
        for c in range(states if a < m else q):
            factor = transition[a // states, a - first, c] if a < m else follow[a - m, c]
            stepped[a] += factor * image[first + c]
            for b in range(size):
                half[a, b] += factor * cov[first + c, b]
    assign(image, stepped)
    for a in range(size):
        for b in range(a + 1):
            first = b // states * states if b < m else m
            entry = 0.0
            for c in range(states if b < m else q):
                entry += (transition[b // states, b - first, c] if b < m else follow[b - m, c]) * half[a, first + c]
            cov[a, b] = entry
            cov[b, a] = entry


@numba.njit(cache=True, nogil=True)
def multiply_rows(diagonal, transition, inputs, outputs, block, out):
    """Write b X for each row b of `block`, from the last column to the first, `LANES` rows at a time; O(n) per row.

    Zeros to the right of all the rows' entries stay zeros and are passed over.
    """
    n, groups, states = inputs.shape
    carried, stepped = np.empty((groups, states, LANES)), np.empty((states, LANES))
    entry, given = np.empty(LANES), np.zeros(LANES)
    for first in range(0, block.shape[0], LANES):
        last = min(first + LANES, block.shape[0])
        width = 0
        for r in range(first, last):
            right = n
            while right > width and block[r, right - 1] == 0.0:
                right -= 1
            width = max(width, right)
        for r in range(first, last):
            out[r, width:] = 0.0
        carried[:] = 0.0
        given[:] = 0.0
        for j in range(width - 1, -1, -1):
            for k in range(last - first):
                given[k] = block[first + k, j]
            for k in range(LANES):
                entry[k] = given[k] * diagonal[j]
            for g in range(groups):
                for a in range(states):
                    for k in range(LANES):
                        entry[k] += carried[g, a, k] * inputs[j, g, a]
            for k in range(last - first):
                out[first + k, j] = entry[k]
            for g in range(groups):
                stepped[:] = 0.0
                for b in range(states):
                    for a in range(states):
                        for k in range(LANES):
                            stepped[b, k] += transition[j, g, a, b] * (carried[g, a, k] + outputs[j, g, a] * given[k])
                for b in range(states):
                    for k in range(LANES):
                        carried[g, b, k] = stepped[b, k]


@numba.njit(cache=True, nogil=True)
def resolvent_trace(p, q, weights, shift):
    """Return sum_i weights_i (K^-1)_ii and a bound on its relative error in units of 2^-53.

    K = G G^T + shift diag(weights), G bidiagonal with diagonal p and -q below it. Only positive numbers are added,
    multiplied and divided. Pivots from above, e_i = s_i + q_i^2 e_{i-1} / (p_{i-1}^2 + e_{i-1}), and from below,
    f_i = p_i^2 h_{i+1} / (q_{i+1}^2 + h_{i+1}) with h_i = s_i + f_i, s = shift * weights; (K^-1)_ii = 1 / (e_i + f_i).

    The error bound runs along: eight roundings a step, and the errors of the step before times the derivative
    d log e_i / d log e_{i-1}, which is below 1. The sum is compensated.
    """
    n = p.shape[0]
    below = np.empty(n)
    below_error = np.empty(n)
    below[n - 1] = p[n - 1] * p[n - 1]
    below_error[n - 1] = 1.0
    for i in range(n - 2, -1, -1):
        held = shift * weights[i + 1] + below[i + 1]
        coupling = q[i + 1] * q[i + 1]
        below[i] = p[i] * p[i] * (held / (coupling + held))
        passed = coupling / (coupling + held) * (below[i + 1] / held)
        below_error[i] = 8.0 + passed * below_error[i + 1] * (1.0 + 1e-15)
    total = 0.0
    compensation = 0.0
    worst = 0.0
    above = shift * weights[0]
    above_error = 1.0
    for i in range(n):
        if i > 0:
            square = p[i - 1] * p[i - 1]
            through = q[i] * q[i] * (above / (square + above))
            following = shift * weights[i] + through
            passed = square / (square + above) * (through / following) if following > 0.0 else 0.0
            above_error = 8.0 + passed * above_error * (1.0 + 1e-15)
            above = following
        term = weights[i] / (above + below[i])
        worst = max(worst, above_error, below_error[i])
        adjusted = term - compensation
        added = total + adjusted
        compensation = (added - total) - adjusted
        total = added
    return total, worst + 6.0


@numba.njit(cache=True, nogil=True, error_model="numpy")
def carried_sums(diagonal, transition, inputs, outputs, start, states, out):
    """Write rows start, start + 1, ... of the column sums per bin of a buffered C without negative numbers.

    `states`, shape (bins, groups, s), carries the sum of the states that the columns of each bin have left behind.
    """
    bins, groups, size = states.shape
    moved = np.empty(size)
    for r in range(out.shape[0]):
        t = start + r
        for j in range(bins):
            total = 0.0
            for g in range(groups):
                for a in range(size):
                    moved[a] = 0.0
                    for c in range(size):
                        moved[a] += transition[t, g, a, c] * states[j, g, c]
                for a in range(size):
                    states[j, g, a] = moved[a]
                    total += outputs[t, g, a] * moved[a]
            out[r, j] = total
        j = t % bins
        out[r, j] += diagonal[t]
        for g in range(groups):
            for a in range(size):
                states[j, g, a] += inputs[t, g, a]
