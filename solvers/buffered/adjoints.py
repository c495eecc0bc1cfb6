"""Derivatives of the loss of a buffered strategy: the adjoints of the recursions in `kernels`.

An adjoint runs against its recursion, from the marks that this one left: a segment's matrices P or Z are recomputed
before they are used, so that memory is O(n buffers) and a segment stays in the cache.  ``x_bar`` is the derivative of
the loss by x.  Checked by finite differences in the tests.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.buffered.kernels import EVERY, error_step, factor_step, read_step
from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]


@compiled
def error_adjoint(
    ratio: Array,
    follow: Array,
    feed: Array,
    inputs: Array,
    outputs: Array,
    diagonal: Array,
    marks: Array,
    ratio_bar: Array,
    inputs_bar: Array,
    outputs_bar: Array,
    diagonal_bar: Array,
) -> None:
    """Fill the derivatives of the loss by log ratio, inputs, outputs and diagonal through recursion 3."""
    n, m = ratio.shape
    size = m + 1
    kept = np.empty((EVERY, size, size))
    cov, image = np.zeros((size, size)), np.zeros(size)
    t, load, row = np.zeros(size), np.zeros(size), np.zeros(size)
    bar, turned = np.zeros((size, size)), np.zeros(size)
    for segment in range(marks.shape[0] - 1, -1, -1):
        first, last = segment * EVERY, min(n, (segment + 1) * EVERY)
        assign(cov, marks[segment])
        for i in range(first, last):
            read_step(i, ratio, follow, feed, inputs, outputs, diagonal, t, load, row)
            for a in range(size):
                for b in range(size):
                    kept[i - first, a, b] = cov[a, b] * (t[a] * t[b])
            if i + 1 < last:
                error_step(t, load, row, 1.0 / (diagonal[i] * diagonal[i]), cov, image)
        for i in range(last - 1, first - 1, -1):
            read_step(i, ratio, follow, feed, inputs, outputs, diagonal, t, load, row)
            z = kept[i - first]
            d = diagonal[i]
            bar[m, m] += 1.0
            inner, onto = 1.0 / (d * d), 0.0
            for a in range(size):
                image[a], turned[a] = 0.0, 0.0
                for b in range(size):
                    image[a] += z[a, b] * row[b]
                    turned[a] += bar[a, b] * load[b]
                inner += image[a] * row[a]
                onto += turned[a] * load[a]
            of_diagonal = -2.0 * onto / (d * d * d)
            for a in range(m):
                through, by_row = inner * turned[a], onto * image[a]
                for b in range(size):
                    through += bar[a, b] * image[b]
                    by_row += z[a, b] * turned[b]
                inputs_bar[i, a] = 2.0 * through
                outputs_bar[i, a] = -2.0 * by_row / d
                of_diagonal -= 2.0 * by_row * row[a] / d
            diagonal_bar[i] = of_diagonal
            for a in range(size):
                along = 0.0
                for b in range(size):
                    bar[a, b] += row[a] * turned[b] + (turned[a] + onto * row[a]) * row[b]
                    along += bar[a, b] * z[a, b]
                    bar[a, b] *= t[a] * t[b]
                if a < m:
                    ratio_bar[i, a] = 2.0 * along


@compiled
def factor_adjoint(
    ratio: Array,
    inputs: Array,
    targets: Array,
    own: Array,
    diagonal: Array,
    outputs: Array,
    marks: Array,
    ratio_bar: Array,
    inputs_bar: Array,
    outputs_bar: Array,
    diagonal_bar: Array,
) -> None:
    """Carry the derivatives back through recursion 2: add to ratio's and inputs'; ``outputs_bar`` becomes that by h."""
    n, m = ratio.shape
    kept = np.empty((EVERY + 1, m, m))
    gram, now, image_bar = np.zeros((m, m)), np.zeros(m), np.zeros(m)
    bar, mixed = np.zeros((m, m)), np.zeros((m, m))
    for segment in range(marks.shape[0]):
        first, last = segment * EVERY, min(n, (segment + 1) * EVERY)
        assign(gram, marks[segment])
        for i in range(last - 1, first - 1, -1):
            assign(kept[i - first + 1], gram)
            factor_step(ratio[i], inputs[i], targets[i], own[i], gram, now)
        assign(kept[0], gram)
        for i in range(first, last):
            after, before = kept[i - first], kept[i - first + 1]
            d = diagonal[i]
            for a in range(m):
                along = 0.0
                for b in range(m):
                    along += bar[a, b] * after[a, b]
                    mixed[a, b] = bar[a, b] * (ratio[i, a] * ratio[i, b])
                ratio_bar[i, a] += 2.0 * along
            square_bar = diagonal_bar[i]
            for a in range(m):
                total = outputs_bar[i, a]
                for b in range(m):
                    total += 2.0 * mixed[a, b] * outputs[i, b]
                now[a] = total / d
                square_bar -= now[a] * outputs[i, a]
            square_bar /= 2.0 * d
            diagonal_bar[i] = square_bar
            for a in range(m):
                image_bar[a] = -now[a] - square_bar * inputs[i, a]
            for a in range(m):
                image, pulled = 0.0, 0.0
                for b in range(m):
                    image += before[a, b] * inputs[i, b]
                    pulled += before[a, b] * image_bar[b]
                inputs_bar[i, a] += square_bar * (targets[i, a] - image) + pulled
                outputs_bar[i, a] = now[a] + square_bar * inputs[i, a]
                for b in range(m):
                    bar[a, b] = mixed[a, b] + 0.5 * (image_bar[a] * inputs[i, b] + inputs[i, a] * image_bar[b])


@compiled
def sweep_adjoint(
    p2: Array,
    q2: Array,
    tau: Array,
    above: Array,
    held: Array,
    ratio: Array,
    scale: Array,
    extra: Array,
    inputs_bar: Array,
    outputs_bar: Array,
    ratio_bar: Array,
    own_bar: Array,
) -> None:
    """Carry the derivatives back through recursion 1.

    ``ratio_bar`` becomes the derivative by log tau, ``outputs_bar`` that by log scale; ``inputs_bar`` is used up.
    """
    n, m = tau.shape
    for i in range(n):
        total, by_root = extra[i], 0.0
        for j in range(m):
            kappa = 1.0 / (above[i, j] + (held[i, j] - tau[i, j]))
            total += scale[i, j] * scale[i, j] * kappa
            by_root += scale[i, j] * (outputs_bar[i, j] + kappa * inputs_bar[i, j])
        root = 1.0 / math.sqrt(total)
        by_root += 2.0 * extra[i] * root * own_bar[i]
        by_total = -0.5 * by_root * root / total
        own_bar[i] = extra[i] * (root * root * own_bar[i] + by_total)
        for j in range(m):
            d = scale[i, j]
            kappa = 1.0 / (above[i, j] + (held[i, j] - tau[i, j]))
            of_scale = root * (outputs_bar[i, j] + kappa * inputs_bar[i, j]) + 2.0 * by_total * d * kappa
            outputs_bar[i, j] = d * of_scale
            inputs_bar[i, j] = -(root * d * inputs_bar[i, j] + by_total * d * d) * kappa * kappa
    carried, by_tau = np.zeros(m), np.zeros(m)
    for i in range(n):
        for j in range(m):
            # held_i = tau_i + below_i; the ratio and the pivot below_{i-1} depend on it
            of_held = carried[j]
            if i > 0:
                of_held -= ratio_bar[i, j] / (q2[i] + held[i, j])
            of_below = of_held + inputs_bar[i, j]
            ratio_bar[i, j] = of_held
            if i + 1 < n:
                sum_below = q2[i + 1] + held[i + 1, j]
                carried[j] = of_below * p2[i] * q2[i + 1] / (sum_below * sum_below)
    for i in range(n - 1, -1, -1):
        for j in range(m):
            of_above = by_tau[j] + inputs_bar[i, j]
            ratio_bar[i, j] = (ratio_bar[i, j] + of_above) * tau[i, j]
            if i > 0:
                sum_above = p2[i - 1] + above[i - 1, j]
                by_tau[j] = of_above * q2[i] * p2[i - 1] / (sum_above * sum_above)
