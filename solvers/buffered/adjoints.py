"""Derivatives of the loss of a buffered strategy: the adjoints of the recursions in `kernels`.

An adjoint runs against its recursion, from the marks that this one left: a segment's matrices P or Z are recomputed
before they are used, so that memory is O(n buffers) and a segment stays in the cache.  ``x_bar`` is the derivative of
the loss by x.  Matrices and lines that are passed are scratch, zero at
first.  Checked by finite differences in the tests.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.buffered.kernels import EVERY, error_step, factor_step
from factorize.solvers.methods.compiled import compiled
from factorize.solvers.methods.lanes import WIDTH, load, reciprocal, spread, store, total

Array = NDArray[np.float64]


@compiled
def error_adjoint(
    m: int,
    ratio: Array,
    inputs: Array,
    outputs: Array,
    diagonal: Array,
    marks: Array,
    ratio_bar: Array,
    inputs_bar: Array,
    outputs_bar: Array,
    diagonal_bar: Array,
    kept: Array,
    cov: Array,
    bar: Array,
    lines: Array,
) -> None:
    """Fill the derivatives of the loss by log ratio, inputs, outputs and diagonal through recursion 3.

    What stands in the columns from m on is no derivative.
    """
    n, width = ratio.shape
    rows, size = width // WIDTH, m + 1
    image, turned, row = lines[0], lines[1], lines[2]
    for segment in range(marks.shape[0] - 1, -1, -1):
        first, last = segment * EVERY, min(n, (segment + 1) * EVERY)
        assign(cov, marks[segment])
        for i in range(first, last):
            error_step(m, i, ratio, inputs, outputs, diagonal, cov, kept[i - first], image)
        for i in range(last - 1, first - 1, -1):
            z, at = kept[i - first], i * rows
            inverse = 1.0 / diagonal[i]
            bar[m * width + m] += 1.0
            inner, onto = spread(0.0), spread(0.0)
            for w in range(rows):
                x, y = spread(0.0), spread(0.0)
                for a in range(size):
                    x = x + spread(outputs[i, a]) * load(z, a * rows + w)
                    y = y + spread(inputs[i, a]) * load(bar, a * rows + w)
                r, x = load(outputs, at + w) * spread(-inverse), x * spread(-inverse)
                store(row, w, r)
                store(image, w, x)
                store(turned, w, y)
                inner, onto = inner + x * r, onto + y * load(inputs, at + w)
            noise, whole = inverse * inverse + total(inner), total(onto)
            of_row = spread(0.0)
            for w in range(rows):
                through, by_row = spread(noise) * load(turned, w), spread(whole) * load(image, w)
                for a in range(size):
                    through = through + spread(image[a]) * load(bar, a * rows + w)
                    by_row = by_row + spread(turned[a]) * load(z, a * rows + w)
                store(inputs_bar, at + w, spread(2.0) * through)
                store(outputs_bar, at + w, spread(-2.0 * inverse) * by_row)
                of_row = of_row + by_row * load(row, w)
            diagonal_bar[i] = -2.0 * inverse * (whole * inverse * inverse + total(of_row))
            for w in range(rows):
                t, y, r, along = load(ratio, at + w), load(turned, w), load(row, w), spread(0.0)
                for a in range(size):
                    grown = load(bar, a * rows + w) + (spread(row[a]) * y + spread(turned[a] + whole * row[a]) * r)
                    along = along + grown * load(z, a * rows + w)
                    store(bar, a * rows + w, grown * (spread(ratio[i, a]) * t))
                store(ratio_bar, at + w, spread(2.0) * along)


@compiled
def factor_adjoint(
    m: int,
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
    kept: Array,
    gram: Array,
    bar: Array,
    lines: Array,
) -> None:
    """Carry the derivatives back through recursion 2: add to ratio's and inputs'; ``outputs_bar`` becomes that by h.

    Columns from m on are zero in ``inputs`` and ``outputs_bar``. ``outputs`` is written again, with what it holds.
    """
    n, width = ratio.shape
    rows, now, image_bar = width // WIDTH, lines[0], lines[1]
    for segment in range(marks.shape[0]):
        first, last = segment * EVERY, min(n, (segment + 1) * EVERY)
        assign(gram, marks[segment])
        for i in range(last - 1, first - 1, -1):
            assign(kept[i - first + 1], gram)
            factor_step(m, i, ratio, inputs, targets, own, gram, outputs)
        assign(kept[0], gram)
        for i in range(first, last):
            after, before, at = kept[i - first], kept[i - first + 1], i * rows
            inverse = 1.0 / diagonal[i]
            of_square = spread(0.0)
            for w in range(rows):
                r, along, sums = load(ratio, at + w), spread(0.0), spread(0.0)
                for a in range(m):
                    held = load(bar, a * rows + w)
                    along = along + held * load(after, a * rows + w)
                    mixed = held * (spread(ratio[i, a]) * r)
                    store(bar, a * rows + w, mixed)
                    sums = sums + spread(outputs[i, a]) * mixed
                store(ratio_bar, at + w, load(ratio_bar, at + w) + spread(2.0) * along)
                x = spread(inverse) * (load(outputs_bar, at + w) + spread(2.0) * sums)
                store(now, w, x)
                of_square = of_square + x * load(outputs, at + w)
            square_bar = 0.5 * inverse * (diagonal_bar[i] - total(of_square))
            diagonal_bar[i] = square_bar
            for w in range(rows):
                x = load(now, w) + spread(square_bar) * load(inputs, at + w)
                store(outputs_bar, at + w, x)
                store(image_bar, w, spread(-1.0) * x)
            for w in range(rows):
                g, back = load(inputs, at + w), load(image_bar, w)
                image, pulled = load(targets, at + w), load(inputs_bar, at + w)
                for a in range(m):
                    gram_row = load(before, a * rows + w)
                    image = image - spread(inputs[i, a]) * gram_row
                    pulled = pulled + spread(image_bar[a]) * gram_row
                    pair = spread(0.5 * image_bar[a]) * g + spread(0.5 * inputs[i, a]) * back
                    store(bar, a * rows + w, load(bar, a * rows + w) + pair)
                store(inputs_bar, at + w, pulled + spread(square_bar) * image)


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
    lines: Array,
) -> None:
    """Carry the derivatives back through recursion 1.

    ``ratio_bar`` becomes the derivative by log tau, ``outputs_bar`` that by log scale; ``inputs_bar`` is used up.
    What stands beside the buffers is no derivative, and ``outputs_bar`` is zero there.
    """
    n, rows = tau.shape[0], tau.shape[1] // WIDTH
    kappa, carried, by_tau = lines[0], lines[1], lines[2]
    for i in range(n):
        sums, of_root = spread(0.0), spread(0.0)
        for w in range(rows):
            at = i * rows + w
            k, d = reciprocal(load(above, at) + (load(held, at) - load(tau, at))), load(scale, at)
            store(kappa, w, k)
            sums = sums + d * d * k
            of_root = of_root + d * (load(outputs_bar, at) + k * load(inputs_bar, at))
        size = extra[i] + total(sums)
        root = 1.0 / math.sqrt(size)
        by_root = total(of_root) + 2.0 * extra[i] * root * own_bar[i]
        by_total = -0.5 * by_root * root / size
        own_bar[i] = extra[i] * (root * root * own_bar[i] + by_total)
        for w in range(rows):
            at = i * rows + w
            k, d, of = load(kappa, w), load(scale, at), load(inputs_bar, at)
            of_scale = spread(root) * (load(outputs_bar, at) + k * of) + spread(2.0 * by_total) * (d * k)
            store(outputs_bar, at, d * of_scale)
            store(inputs_bar, at, spread(-1.0) * d * (spread(root) * of + spread(by_total) * d) * (k * k))
    for i in range(n):
        for w in range(rows):
            # held_i = tau_i + below_i; the ratio and the pivot below_{i-1} depend on it
            at, of_held = i * rows + w, load(carried, w)
            if i > 0:
                by = reciprocal(spread(q2[i]) + load(held, at))
                of_held = spread(q2[i]) * (of_held * (by * by)) - load(ratio_bar, at) * by
            store(ratio_bar, at, of_held)
            store(carried, w, (of_held + load(inputs_bar, at)) * spread(p2[i]))
    for i in range(n - 1, -1, -1):
        for w in range(rows):
            at = i * rows + w
            of_above = load(by_tau, w) + load(inputs_bar, at)
            store(ratio_bar, at, (load(ratio_bar, at) + of_above) * load(tau, at))
            if i > 0:
                by = reciprocal(spread(p2[i - 1]) + load(above, at - rows))
                store(by_tau, w, of_above * spread(q2[i] * p2[i - 1]) * (by * by))
