"""Derivatives of the loss of few states under fixed epochs: the adjoints of `epoch_kernels`.

``x_bar`` is the derivative of the loss by x. Checked by finite differences in the tests.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.buffered.epoch_kernels import (
    add,
    add_product_transposed,
    identity,
    load_step,
    product,
    transposed_product,
)
from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]


@compiled
def error_adjoint(
    transition: Array, inputs: Array, outputs: Array, diagonal: Array,
    follow: Array, feed: Array, read: Array, roots: Array, before: Array,
    transition_bar: Array, inputs_bar: Array, outputs_bar: Array, diagonal_bar: Array, roots_bar: Array,
) -> None:  # fmt: skip
    """Fill the derivatives of the loss by all that recursion 3 reads, from the covariances that it left."""
    n, m = inputs.shape
    size = m + feed.shape[1]
    whole, half, z = np.zeros((size, size)), np.zeros((size, size)), np.zeros((size, size))
    bar, z_bar = np.zeros((size, size)), np.zeros((size, size))
    image, load, row, turned = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size)
    for i in range(n - 1, -1, -1):
        load_step(i, transition, inputs, outputs, diagonal, follow, feed, roots[i], whole, load, row)
        product(whole, before[i], half)
        z[:] = 0.0
        add_product_transposed(half, whole, z)
        for a in range(size - m):
            for c in range(size - m):
                bar[m + a, m + c] += read[i, a] * read[i, c]
        roots_bar[i] = 0.0
        inner, onto = 1.0 / (diagonal[i] * diagonal[i]), 0.0
        for a in range(size):
            image[a], turned[a] = 0.0, 0.0
            for c in range(size):
                image[a] += z[a, c] * row[c]
                turned[a] += bar[a, c] * load[c]
            inner += image[a] * row[a]
            onto += turned[a] * load[a]
        of_diagonal = -2.0 * onto / (diagonal[i] * diagonal[i] * diagonal[i])
        for a in range(size):
            by_load, by_row = inner * turned[a], onto * image[a]
            for c in range(size):
                by_load += bar[a, c] * image[c]
                by_row += z[a, c] * turned[c]
            if a < m:
                inputs_bar[i, a] = 2.0 * by_load
                outputs_bar[i, a] = -2.0 * by_row / diagonal[i]
                of_diagonal -= 2.0 * by_row * row[a] / diagonal[i]
            else:
                roots_bar[i] += 2.0 * by_load * feed[i, a - m]
        diagonal_bar[i] = of_diagonal
        for a in range(size):
            for c in range(size):
                z_bar[a, c] = bar[a, c] + row[a] * turned[c] + (turned[a] + onto * row[a]) * row[c]
        product(z_bar, half, z)
        for a in range(m):
            for c in range(m):
                transition_bar[i, a, c] = 2.0 * z[a, c]
        product(z_bar, whole, z)
        transposed_product(whole, z, bar)


@compiled
def classes_adjoint(
    inputs: Array, diagonal: Array, epochs: int, below: Array, through: Array, reach: Array, onto: Array,
    kink: float, entries: Array, sums_bar: Array,
    below_bar: Array, reach_bar: Array, onto_bar: Array, epochs_bar: Array, inputs_bar: Array, diagonal_bar: Array,
) -> None:  # fmt: skip
    """Carry the derivatives by the s_j back: fill those by Q, reach, onto and whole epochs, add to the others."""
    n, m = inputs.shape
    b = n // epochs
    states, carried, new = np.zeros((epochs, m)), np.zeros(m), np.zeros(m)
    epochs_bar[:] = 0.0
    onto_bar[:] = 0.0
    for j in range(b):
        for s in range(epochs):
            first = s * b + j
            diagonal_bar[first] += 2.0 * sums_bar[j] * diagonal[first]
            for a in range(m):
                image = 0.0
                for c in range(m):
                    image += below[first, a, c] * inputs[first, c]
                    below_bar[first, a, c] = sums_bar[j] * inputs[first, a] * inputs[first, c]
                inputs_bar[first, a] += 2.0 * sums_bar[j] * image
            assign(states[s], reach[first])
            for t in range(s + 1, epochs - 1):
                for a in range(m):
                    states[t, a] = 0.0
                    for c in range(m):
                        states[t, a] += through[t * b + b - 1, a, c] * states[t - 1, c]
            carried[:] = 0.0
            for t in range(epochs - 1, s, -1):
                i, last = t * b + j, t * b + b - 1
                entry = entries[j, t, s]
                size = math.sqrt(entry * entry + kink * kink)
                of_entry = 2.0 * sums_bar[j] * (entry / size if size > 0.0 else 0.0)
                for c in range(m):
                    new[c] = of_entry * onto[i, c]
                    for a in range(m):
                        new[c] += through[last, a, c] * carried[a]
                        epochs_bar[t, a, c] += carried[a] * states[t - 1, c]
                    onto_bar[i, c] += of_entry * states[t - 1, c]
                assign(carried, new)
            assign(reach_bar[first], carried)


@compiled
def epochs_adjoint(
    transition: Array, inputs: Array, epochs: int, y: Array, through: Array,
    reach_bar: Array, onto_bar: Array, epochs_bar: Array, transition_bar: Array, inputs_bar: Array, y_bar: Array,
) -> None:  # fmt: skip
    """Carry the derivatives back through recursion 2: fill that by y, add to those by transitions and inputs."""
    n, m = inputs.shape
    b = n // epochs
    bar, half, rest = np.zeros((m, m)), np.zeros((m, m)), np.zeros((b, m, m))
    for i in range(n - 1, -1, -1):
        if i % b == b - 1:
            assign(bar, epochs_bar[i // b])
        for a in range(m):
            y_bar[i, a] = 0.0
            for c in range(m):
                bar[a, c] += y[i, a] * onto_bar[i, c]
                y_bar[i, a] += through[i, a, c] * onto_bar[i, c]
        if i % b == 0:
            add(bar, transition_bar[i])
        else:
            add_product_transposed(bar, through[i - 1], transition_bar[i])
            transposed_product(transition[i], bar, half)
            assign(bar, half)
    for epoch in range(epochs):
        first = epoch * b
        identity(rest[b - 1])
        for j in range(b - 1, 0, -1):
            product(rest[j], transition[first + j], rest[j - 1])
        bar[:] = 0.0
        for j in range(b):
            i = first + j
            if j > 0:
                transposed_product(rest[j], bar, half)
                add(half, transition_bar[i])
                half[:] = 0.0
                add_product_transposed(bar, transition[i], half)
                assign(bar, half)
            for c in range(m):
                for a in range(m):
                    bar[a, c] += reach_bar[i, a] * inputs[i, c]
                    inputs_bar[i, c] += rest[j, a, c] * reach_bar[i, a]


@compiled
def gram_adjoint(
    transition: Array, inputs: Array, outputs: Array, diagonal: Array, below: Array, below_bar: Array, y_bar: Array,
    transition_bar: Array, inputs_bar: Array, outputs_bar: Array, diagonal_bar: Array,
) -> None:  # fmt: skip
    """Carry the derivatives back through recursion 1: add to those by transitions, inputs, outputs and diagonal."""
    n, m = inputs.shape
    bar, half, whole, whole_bar = np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m)), np.zeros((m, m))
    for i in range(n):
        product(transition[i], bar, half)
        whole_bar[:] = 0.0
        add_product_transposed(half, transition[i], whole_bar)
        for a in range(m):
            for c in range(m):
                whole[a, c] = 2.0 * (below[i, a, c] + outputs[i, a] * outputs[i, c])
        product(whole, half, bar)
        add(bar, transition_bar[i])
        for a in range(m):
            by_output, by_input = diagonal[i] * y_bar[i, a], 0.0
            for c in range(m):
                by_output += 2.0 * whole_bar[a, c] * outputs[i, c]
                by_input += below[i, c, a] * y_bar[i, c]
                bar[a, c] = whole_bar[a, c] + below_bar[i, a, c]
                bar[a, c] += 0.5 * (y_bar[i, a] * inputs[i, c] + y_bar[i, c] * inputs[i, a])
            diagonal_bar[i] += y_bar[i, a] * outputs[i, a]
            outputs_bar[i, a] += by_output
            inputs_bar[i, a] += by_input
