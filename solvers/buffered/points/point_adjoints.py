"""Derivatives at eight points at a time: the adjoints of the recursions in `point_recursions`.

As in solvers/buffered/adjoints.py, against the recursions and from their marks; ``x_bar`` is the derivative of the loss
by x.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.buffered.points.point_recursions import SEGMENT, copy, covariance_step, gram_step, times
from factorize.solvers.methods.compiled import compiled
from factorize.solvers.methods.lane_algebra import vectors
from factorize.solvers.methods.lanes import WIDTH, load, spread, store

Array = NDArray[np.float64]
Places = NDArray[np.int64]


@compiled
def losses_adjoint(
    size: int,
    ratio: Array,
    inputs: Array,
    outputs: Array,
    inverse: Array,
    marks: Array,
    ratio_bar: Array,
    inputs_bar: Array,
    outputs_bar: Array,
    diagonal_bar: Array,
) -> None:
    """Fill the derivatives of the losses by log ratio, inputs, outputs and diagonal through recursion 3.

    What stands in the columns of the decoder is no derivative.
    """
    n, entries = inverse.size // WIDTH, size * size
    kept, cov, bar = vectors(SEGMENT * entries), vectors(entries), vectors(entries)
    image, row, turned, half = vectors(size), vectors(size), vectors(size), vectors(size)
    for segment in range(-(-n // SEGMENT) - 1, -1, -1):
        first, end = segment * SEGMENT, min(n, (segment + 1) * SEGMENT)
        copy(marks, segment * entries, cov, 0, entries)
        for i in range(first, end):
            covariance_step(size, i, ratio, inputs, outputs, inverse, cov, kept, (i - first) * entries, image)
        for i in range(end - 1, first - 1, -1):
            at, z, by = i * size, (i - first) * entries, load(inverse, i)
            minus, noise, whole = spread(-1.0) * by, by * by, spread(0.0)
            store(bar, entries - 1, load(bar, entries - 1) + spread(1.0))
            for a in range(size):
                r = minus * load(outputs, at + a)
                c, y = minus * times(size, kept, z, outputs, at, a), times(size, bar, 0, inputs, at, a)
                store(row, a, r)
                store(image, a, c)
                store(turned, a, y)
                noise, whole = noise + c * r, whole + y * load(inputs, at + a)
            of_row = spread(0.0)
            for a in range(size):
                through = noise * load(turned, a) + times(size, bar, 0, image, 0, a)
                by_row = whole * load(image, a) + times(size, kept, z, turned, 0, a)
                store(inputs_bar, at + a, spread(2.0) * through)
                store(outputs_bar, at + a, spread(2.0) * minus * by_row)
                of_row = of_row + by_row * load(row, a)
                store(half, a, load(turned, a) + spread(0.5) * whole * load(row, a))
            store(diagonal_bar, i, spread(2.0) * minus * (whole * by * by + of_row))
            for a in range(size):
                r, y, t, along = load(row, a), load(half, a), load(ratio, at + a), spread(0.0)
                for b in range(size):
                    entry = a * size + b
                    grown = load(bar, entry) + (r * load(half, b) + y * load(row, b))
                    along = along + grown * load(kept, z + entry)
                    store(bar, entry, grown * (t * load(ratio, at + b)))
                store(ratio_bar, at + a, spread(2.0) * along)


@compiled
def factors_adjoint(
    m: int,
    ratio: Array,
    inputs: Array,
    targets: Array,
    inverse: Array,
    outputs: Array,
    marks: Array,
    ratio_bar: Array,
    inputs_bar: Array,
    outputs_bar: Array,
    diagonal_bar: Array,
) -> None:
    """Carry the derivatives back through recursion 2.

    Adds to ratio's and inputs'; ``outputs_bar`` becomes that by h, ``diagonal_bar`` that by the diagonal term.
    """
    n, entries = inverse.size // WIDTH, m * m
    kept, bar = vectors((SEGMENT + 1) * entries), vectors(entries)
    image_bar, now = vectors(m), vectors(m)
    for segment in range(-(-n // SEGMENT)):
        first, end = segment * SEGMENT, min(n, (segment + 1) * SEGMENT)
        copy(marks, segment * entries, kept, (end - first) * entries, entries)
        for i in range(end - 1, first - 1, -1):
            place = (i - first) * entries
            gram_step(m, i, ratio, outputs, kept, place + entries, kept, place)
        for i in range(first, end):
            at, after, by, of_square = i * (m + 1), (i - first) * entries, load(inverse, i), spread(0.0)
            before = after + entries
            for a in range(m):
                r, along, sums = load(ratio, at + a), spread(0.0), spread(0.0)
                for b in range(m):
                    entry = a * m + b
                    held = load(bar, entry)
                    along = along + held * load(kept, after + entry)
                    mixed = held * (r * load(ratio, at + b))
                    store(bar, entry, mixed)
                    sums = sums + mixed * load(outputs, at + b)
                store(ratio_bar, at + a, load(ratio_bar, at + a) + spread(2.0) * along)
                x = by * (load(outputs_bar, at + a) + spread(2.0) * sums)
                store(now, a, x)
                of_square = of_square + x * load(outputs, at + a)
            square_bar = spread(0.5) * by * (load(diagonal_bar, i) - of_square)
            store(diagonal_bar, i, square_bar)
            for a in range(m):
                x = load(now, a) + square_bar * load(inputs, at + a)
                store(outputs_bar, at + a, x)
                store(image_bar, a, spread(-1.0) * x)
            for a in range(m):
                back, g = spread(0.5) * load(image_bar, a), spread(0.5) * load(inputs, at + a)
                image, pulled = load(targets, at + a), load(inputs_bar, at + a)
                for b in range(m):
                    entry = a * m + b
                    held, of = load(kept, before + entry), load(image_bar, b)
                    image = image - held * load(inputs, at + b)
                    pulled = pulled + held * of
                    store(bar, entry, load(bar, entry) + (back * load(inputs, at + b) + g * of))
                store(inputs_bar, at + a, pulled + square_bar * image)


@compiled
def generators_adjoint(
    m: int, kappa: Array, scale: Array, extra: Array, by: Array, inputs_bar: Array, outputs_bar: Array, own_bar: Array
) -> None:
    """Turn ``inputs_bar`` into the derivative by 1 / kappa, ``outputs_bar`` into that by log scale."""
    size = m + 1
    for i in range(extra.size):
        root_of, of_root = load(by, i), spread(0.0)
        for at in range(i * size, i * size + m):
            of_root = of_root + load(scale, at) * (load(outputs_bar, at) + load(kappa, at) * load(inputs_bar, at))
        of_root = of_root + spread(2.0 * extra[i]) * root_of * load(own_bar, i)
        of_total = spread(-0.5) * of_root * root_of * root_of * root_of
        for at in range(i * size, i * size + m):
            k, d, g_bar = load(kappa, at), load(scale, at), load(inputs_bar, at)
            of_scale = root_of * (load(outputs_bar, at) + k * g_bar) + spread(2.0) * of_total * d * k
            store(outputs_bar, at, d * of_scale)
            store(inputs_bar, at, spread(-1.0) * d * (root_of * g_bar + of_total * d) * k * k)


@compiled
def sweeps_adjoint(
    m: int, p2: Array, q2: Array, tau: Array, above: Array, below: Array, pivots_bar: Array, ratio_bar: Array
) -> None:
    """Turn ``ratio_bar`` into the derivative by log tau; ``pivots_bar`` is that by e + h - tau, which is 1 / kappa."""
    n, size = p2.size, m + 1
    carried, by_tau = vectors(m), vectors(m)
    for i in range(n):
        for j in range(m):
            # h_i = tau_i + below_i; the ratio and the pivot below_{i-1} depend on it
            at = i * size + j
            by = load(below, at)
            of_pivot = load(carried, j) * spread(q2[i]) * by * by
            if i > 0:
                of_pivot = of_pivot - load(ratio_bar, at) * by
            store(ratio_bar, at, of_pivot)
            store(carried, j, (of_pivot + load(pivots_bar, at)) * spread(p2[i]))
    for i in range(n - 1, -1, -1):
        for j in range(m):
            at = i * size + j
            by = load(above, at)
            of_above = load(by_tau, j) * spread(p2[i]) * by * by + load(pivots_bar, at)
            store(ratio_bar, at, (load(ratio_bar, at) + of_above) * load(tau, at))
            store(by_tau, j, of_above * spread(q2[i]))


@compiled
def by_splines(m: int, first: Places, weights: Array, bar: Array, out: Array) -> None:
    """Sum derivatives by profiles to those by their coefficients, spline by spline, each m vectors."""
    for k in range(out.size // WIDTH):
        store(out, k, spread(0.0))
    for i in range(first.size):
        for s in range(weights.shape[1]):
            for j in range(m):
                to = (first[i] + s) * m + j
                store(out, to, load(out, to) + spread(weights[i, s]) * load(bar, i * (m + 1) + j))
