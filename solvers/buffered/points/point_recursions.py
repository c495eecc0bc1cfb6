"""The recursions of `kernels` (solvers/buffered/kernels.py) at eight points at a time, for a Hessian by differences.

A vector holds one number at eight points, where `kernels` has eight entries of a row at one point: nothing waits for
the sum over a row, and a row is as long as it is.  Arrays lie flat, entry (i, j) of m buffers at ``i (m + 1) + j``;
column m is that of the decoder's state in recursion 3.  Matrices lie row by row.  `point_adjoints` has the derivatives.

A point where C is lost to rounding gets a loss that is no number, and so do its derivatives.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import compiled
from factorize.solvers.methods.lane_algebra import vectors
from factorize.solvers.methods.lanes import WIDTH, load, reciprocal, root, spread, store

Array = NDArray[np.float64]
Places = NDArray[np.int64]

SEGMENT = 16
"""Steps between two marks: few, since eight points take eight times the cache of one."""


@compiled
def displace(base: Array, first: Places, weights: Array, step: float, moved: Places, out: Array) -> None:
    """Write exp(profiles) at eight points, each of which moves one coefficient by `step`, or none.

    Args:
        base: the same at the point between, shape (n, m).
        first: of the splines that are not zero at each step, shape (n,).
        weights: their values, shape (n, splines that are not zero).
        step: how far.
        moved: coefficient at each point, spline by spline, below zero for none, shape (8,).
        out: n (m + 1) vectors; those of the decoder are left alone.
    """
    n, m = base.shape
    for i in range(n):
        for j in range(m):
            store(out, i * (m + 1) + j, spread(base[i, j]))
    for point in range(WIDTH):
        spline, j = moved[point] // m, moved[point] % m
        if moved[point] >= 0:
            for i in range(n):
                at = spline - first[i]
                if 0 <= at < weights.shape[1]:
                    out[(i * (m + 1) + j) * WIDTH + point] *= math.exp(step * weights[i, at])


@compiled
def sweeps(
    m: int, p2: Array, q2: Array, roots: Array, tau: Array, above: Array, below: Array, kappa: Array, ratio: Array
) -> None:
    """Recursion 1: fill the ratios and ``kappa``, and what was divided by.

    With pivots e from above and h from below, these with their own term, ``above[i]`` is 1 / (p[i]^2 + e[i]) and
    ``below[i]`` is 1 / (q[i]^2 + h[i]); ``roots[i] = q[i] p[i-1]``.
    """
    n, size = p2.size, m + 1
    for j in range(m):
        store(kappa, (n - 1) * size + j, spread(p2[n - 1]))
    for i in range(n - 1, -1, -1):
        for at in range(i * size, i * size + m):
            # kappa holds h - tau until the pivots from above are there
            pivot = load(tau, at) + load(kappa, at)
            by = reciprocal(spread(q2[i]) + pivot)
            store(below, at, by)
            store(ratio, at, spread(roots[i]) * by)
            if i > 0:
                store(kappa, at - size, spread(p2[i - 1]) * pivot * by)
    before = vectors(m)
    for i in range(n):
        for j in range(m):
            at = i * size + j
            pivot = load(tau, at) + spread(q2[i]) * load(before, j)
            by = reciprocal(spread(p2[i]) + pivot)
            store(above, at, by)
            store(before, j, pivot * by)
            store(kappa, at, reciprocal(pivot + load(kappa, at)))


@compiled
def generators(m: int, kappa: Array, scale: Array, extra: Array, inputs: Array, targets: Array, by: Array) -> None:
    """Fill g and h, and 1 / sqrt(c) of each step."""
    size = m + 1
    for i in range(extra.size):
        total = spread(extra[i])
        for at in range(i * size, i * size + m):
            d = load(scale, at)
            total = total + d * d * load(kappa, at)
        root_of = reciprocal(root(total))
        for at in range(i * size, i * size + m):
            h = load(scale, at) * root_of
            store(inputs, at, h * load(kappa, at))
            store(targets, at, h)
        store(by, i, root_of)


@compiled
def times(m: int, matrix: Array, start: int, vector: Array, at: int, a: int) -> Any:
    """Row a of a matrix, which begins at `start`, times the vector that begins at `at`."""
    found, row = spread(0.0), start + a * m
    for b in range(m):
        found = found + load(matrix, row + b) * load(vector, at + b)
    return found


@compiled
def gram_step(m: int, i: int, ratio: Array, outputs: Array, gram: Array, start: int, out: Array, to: int) -> None:
    """P <- R (eta eta^T + P) R, from where it begins in ``gram`` to where it begins in ``out``."""
    at = i * (m + 1)
    for a in range(m):
        eta, r, row = load(outputs, at + a), load(ratio, at + a), a * m
        for b in range(m):
            grown = load(gram, start + row + b) + eta * load(outputs, at + b)
            store(out, to + row + b, grown * (r * load(ratio, at + b)))


@compiled
def factors(
    m: int,
    ratio: Array,
    inputs: Array,
    targets: Array,
    extra: Array,
    by: Array,
    inverse: Array,
    outputs: Array,
    marks: Array,
) -> None:
    """Recursion 2: fill ``inverse``, 1 / delta at each step, ``outputs`` and the marks, P before the last of each."""
    n, entries = extra.size, m * m
    gram = vectors(entries)
    for i in range(n - 1, -1, -1):
        if i == n - 1 or i % SEGMENT == SEGMENT - 1:
            copy(gram, 0, marks, i // SEGMENT * entries, entries)
        at, square = i * (m + 1), spread(extra[i]) * load(by, i) * load(by, i)
        for a in range(m):
            now = load(targets, at + a) - times(m, gram, 0, inputs, at, a)
            store(outputs, at + a, now)
            square = square + now * load(inputs, at + a)
        size = reciprocal(root(square))
        store(inverse, i, size)
        for a in range(m):
            store(outputs, at + a, load(outputs, at + a) * size)
        gram_step(m, i, ratio, outputs, gram, 0, gram, 0)


@compiled
def covariance_step(
    size: int,
    i: int,
    ratio: Array,
    inputs: Array,
    outputs: Array,
    inverse: Array,
    cov: Array,
    moved: Array,
    to: int,
    image: Array,
) -> None:
    """Step i of recursion 3 on ``cov`` in place; Z is left in ``moved``, from ``to`` on, c in ``image``.

    Rows of ``ratio``, ``inputs`` and ``outputs`` are of `size`, the buffers and the decoder.
    """
    at, by = i * size, load(inverse, i)
    minus, inner = spread(-1.0) * by, by
    for a in range(size):
        r, row, sums = load(ratio, at + a), a * size, spread(0.0)
        for b in range(size):
            z = load(cov, row + b) * (r * load(ratio, at + b))
            store(moved, to + row + b, z)
            sums = sums + z * load(outputs, at + b)
        c = minus * sums
        store(image, a, c)
        inner = inner - c * load(outputs, at + a)
    inner = inner * by
    for a in range(size):
        g, row = load(inputs, at + a), a * size
        c = load(image, a) + inner * g
        for b in range(size):
            store(cov, row + b, load(moved, to + row + b) + (g * load(image, b) + c * load(inputs, at + b)))


@compiled
def losses(size: int, ratio: Array, inputs: Array, outputs: Array, inverse: Array, marks: Array, out: Array) -> None:
    """Recursion 3: write the eight losses and the marks, S before the first step of each segment."""
    entries = size * size
    cov, moved, image = vectors(entries), vectors(entries), vectors(size)
    loss = spread(0.0)
    for i in range(inverse.size // WIDTH):
        if i % SEGMENT == 0:
            copy(cov, 0, marks, i // SEGMENT * entries, entries)
        covariance_step(size, i, ratio, inputs, outputs, inverse, cov, moved, 0, image)
        loss = loss + load(cov, entries - 1)
    store(out, 0, loss)


@compiled
def copy(source: Array, start: int, out: Array, to: int, entries: int) -> None:
    """Copy vectors."""
    for k in range(entries):
        store(out, to + k, load(source, start + k))
