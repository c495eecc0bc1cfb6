"""Loss of a strategy with few states under fixed epochs, by recursions of O(states^3) per step.

The strategy is a recurrence with full transitions,

    Z_i = A_i S_{i-1},   S_i = Z_i + g_i e_i^T,   C_i. = h_i . Z_i + d_i e_i^T,   X = C^T C

What it loses is ``||T C^-1 diag(r)||_F^2`` with r_i^2 = s_j for step i of class j,

    s_j = sum_{s,t} |X_{j+sb, j+tb}|

which is at least the squared sensitivity to class j, and equal to it where the entries are not negative. So the columns
of each class are divided by the root of s_j, and every class is tight.

1. *Gram* (backwards): ``N = Q_i + h h^T``, ``Q_{i-1} = A_i^T N A_i``, ``y_i = d_i h_i + Q_i g_i``. Then
   ``X_ii = d_i^2 + g_i . Q_i g_i`` and ``X_il = y_i . A_i ... A_{l+1} g_l`` for i > l.
2. *Epochs*: a product over more than an epoch is split at epochs' ends: ``reach_l = A_end ... A_{l+1} g_l``,
   ``onto_i = (A_i ... A_first)^T y_i`` and whole epochs between them. Products only, nothing is inverted.
3. *Error* (forwards): the covariance of the states and of the decoder's states u under ``x = C^-1 y``, as in
   `kernels`, with u fed by ``r_i x_i``.

Where |X_st| has its kink, ``sqrt(X_st^2 + e^2) - e`` takes its place in the search; what is certified never has it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]


@compiled
def product(a: Array, b: Array, out: Array) -> None:
    """``out = a b``."""
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = 0.0
        for k in range(a.shape[1]):
            factor = a[i, k]
            for j in range(b.shape[1]):
                out[i, j] += factor * b[k, j]


@compiled
def transposed_product(a: Array, b: Array, out: Array) -> None:
    """``out = a^T b``."""
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            out[i, j] = 0.0
    for k in range(a.shape[0]):
        for i in range(a.shape[1]):
            factor = a[k, i]
            for j in range(b.shape[1]):
                out[i, j] += factor * b[k, j]


@compiled
def add_product_transposed(a: Array, b: Array, out: Array) -> None:
    """``out += a b^T``."""
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            total = 0.0
            for k in range(a.shape[1]):
                total += a[i, k] * b[j, k]
            out[i, j] += total


@compiled
def add(a: Array, out: Array) -> None:
    """``out += a``."""
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[i, j] += a[i, j]


@compiled
def identity(out: Array) -> None:
    """``out = I``."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = 1.0 if i == j else 0.0


@compiled
def gram(
    transition: Array, inputs: Array, outputs: Array, diagonal: Array, epochs: int,
    below: Array, y: Array, through: Array, reach: Array, onto: Array,
) -> None:  # fmt: skip
    """Recursions 1 and 2: fill Q (n, m, m), y (n, m), products from each epoch's start (n, m, m), reach and onto."""
    n, m = inputs.shape
    b = n // epochs
    now, whole, half, rest = np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m))
    for i in range(n - 1, -1, -1):
        assign(below[i], now)
        if i % b == b - 1:
            identity(rest)
        for a in range(m):
            image, far = 0.0, 0.0
            for c in range(m):
                image += now[a, c] * inputs[i, c]
                far += rest[a, c] * inputs[i, c]
                whole[a, c] = now[a, c] + outputs[i, a] * outputs[i, c]
            y[i, a] = diagonal[i] * outputs[i, a] + image
            reach[i, a] = far
        product(whole, transition[i], half)
        transposed_product(transition[i], half, now)
        product(rest, transition[i], half)
        assign(rest, half)
    for i in range(n):
        if i % b == 0:
            assign(through[i], transition[i])
        else:
            product(transition[i], through[i - 1], through[i])
        for a in range(m):
            total = 0.0
            for c in range(m):
                total += through[i, c, a] * y[i, c]
            onto[i, a] = total


@compiled
def classes(
    inputs: Array, diagonal: Array, epochs: int, below: Array, through: Array, reach: Array, onto: Array,
    kink: float, entries: Array, sums: Array,
) -> None:  # fmt: skip
    """Fill X within the classes, lower triangles of shape (b, k, k), and the smoothed s_j, shape (b,)."""
    n, m = inputs.shape
    b = n // epochs
    state, new = np.zeros(m), np.zeros(m)
    for j in range(b):
        sums[j] = 0.0
        for s in range(epochs):
            first = s * b + j
            own = diagonal[first] * diagonal[first]
            for a in range(m):
                for c in range(m):
                    own += inputs[first, a] * below[first, a, c] * inputs[first, c]
            entries[j, s, s] = own
            sums[j] += own
            assign(state, reach[first])
            for t in range(s + 1, epochs):
                entry = 0.0
                for a in range(m):
                    entry += onto[t * b + j, a] * state[a]
                entries[j, t, s] = entry
                sums[j] += 2.0 * (math.sqrt(entry * entry + kink * kink) - kink)
                last = t * b + b - 1
                for a in range(m):
                    new[a] = 0.0
                    for c in range(m):
                        new[a] += through[last, a, c] * state[c]
                assign(state, new)


@compiled
def load_step(
    i: int, transition: Array, inputs: Array, outputs: Array, diagonal: Array, follow: Array, feed: Array, root: float,
    whole: Array, load: Array, row: Array,
) -> None:  # fmt: skip
    """Gather one step of recursion 3: both transitions, the loads of x_i, and x_i's row of the states."""
    m = inputs.shape[1]
    for a in range(m):
        load[a] = inputs[i, a]
        row[a] = -outputs[i, a] / diagonal[i]
        for c in range(m):
            whole[a, c] = transition[i, a, c]
    for a in range(feed.shape[1]):
        load[m + a], row[m + a] = root * feed[i, a], 0.0
        for c in range(feed.shape[1]):
            whole[m + a, m + c] = follow[i, a, c]


@compiled
def error(
    transition: Array, inputs: Array, outputs: Array, diagonal: Array,
    follow: Array, feed: Array, read: Array, roots: Array, before: Array,
) -> float:  # fmt: skip
    """Recursion 3: return the loss and fill the covariance before every step, shape (n, m + q, m + q).

    The decoder is ``u <- follow_i u + feed_i r_i x_i`` with q states, and its output ``read_i . u``.
    """
    n, m = inputs.shape
    size = m + feed.shape[1]
    whole, half, cov = np.zeros((size, size)), np.zeros((size, size)), np.zeros((size, size))
    image, load, row = np.zeros(size), np.zeros(size), np.zeros(size)
    total = 0.0
    for i in range(n):
        assign(before[i], cov)
        load_step(i, transition, inputs, outputs, diagonal, follow, feed, roots[i], whole, load, row)
        product(whole, cov, half)
        cov[:] = 0.0
        add_product_transposed(half, whole, cov)
        inner = 1.0 / (diagonal[i] * diagonal[i])
        for a in range(size):
            image[a] = 0.0
            for c in range(size):
                image[a] += cov[a, c] * row[c]
            inner += image[a] * row[a]
        for a in range(size):
            for c in range(size):
                cov[a, c] += load[a] * image[c] + (image[a] + inner * load[a]) * load[c]
        for a in range(size - m):
            for c in range(size - m):
                total += read[i, a] * read[i, c] * cov[m + a, m + c]
    return total
