"""Derivatives of the loss of a buffered strategy: the adjoints of the recursions in `kernels`.

An adjoint runs against its recursion over a segment of steps, whose matrices P or Z were kept when the recursion ran
again from its mark, so that memory is O(n buffers) and a segment stays in the cache.  ``x_bar`` is the derivative of
the loss by x, and ``bar`` that by the matrix, carried from segment to segment.  Checked by finite differences in the
tests.
"""

from factorize.solvers.methods.compiled import WIDTH, Array, compiled
from factorize.solvers.methods.lanes import load, load_at, reciprocal, spread, store, store_at, total


@compiled
def error_adjoint(
    m: int,
    first: int,
    last: int,
    ratio: Array,
    inputs: Array,
    outputs: Array,
    diagonal: Array,
    moved: Array,
    ratio_bar: Array,
    inputs_bar: Array,
    outputs_bar: Array,
    diagonal_bar: Array,
    bar: Array,
    lines: Array,
) -> None:
    """Fill the derivatives of the loss by log ratio, inputs, outputs and diagonal through recursion 3.

    What stands in the columns from m on is no derivative.
    """
    rows, size = ratio.shape[1] // WIDTH, m + 1
    image, turned, row = lines[0], lines[1], lines[2]
    for i in range(last - 1, first - 1, -1):
        z, inverse = moved[i - first], 1.0 / diagonal[i]
        bar[m, m] += 1.0
        inner, onto = spread(0.0), spread(0.0)
        for w in range(rows):
            x, y = spread(0.0), spread(0.0)
            for a in range(size):
                x = x + outputs[i, a] * load_at(z, a, w)
                y = y + inputs[i, a] * load_at(bar, a, w)
            r, x = -inverse * load_at(outputs, i, w), -inverse * x
            store(row, w, r)
            store(image, w, x)
            store(turned, w, y)
            inner, onto = inner + x * r, onto + y * load_at(inputs, i, w)
        noise, whole = inverse * inverse + total(inner), total(onto)
        of_row = spread(0.0)
        for w in range(rows):
            through, by_row = noise * load(turned, w), whole * load(image, w)
            for a in range(size):
                through = through + image[a] * load_at(bar, a, w)
                by_row = by_row + turned[a] * load_at(z, a, w)
            store_at(inputs_bar, i, w, 2.0 * through)
            store_at(outputs_bar, i, w, -2.0 * inverse * by_row)
            of_row = of_row + by_row * load(row, w)
        diagonal_bar[i] = -2.0 * inverse * (whole * inverse * inverse + total(of_row))
        for w in range(rows):
            t, y, r, along = load_at(ratio, i, w), load(turned, w), load(row, w), spread(0.0)
            for a in range(size):
                grown = load_at(bar, a, w) + (row[a] * y + (turned[a] + whole * row[a]) * r)
                along = along + grown * load_at(z, a, w)
                store_at(bar, a, w, grown * (ratio[i, a] * t))
            store_at(ratio_bar, i, w, 2.0 * along)


@compiled
def factor_adjoint(
    m: int,
    first: int,
    last: int,
    ratio: Array,
    inputs: Array,
    targets: Array,
    diagonal: Array,
    outputs: Array,
    grams: Array,
    ratio_bar: Array,
    inputs_bar: Array,
    outputs_bar: Array,
    diagonal_bar: Array,
    bar: Array,
    lines: Array,
) -> None:
    """Carry the derivatives back through recursion 2: add to ratio's and inputs'; ``outputs_bar`` becomes that by h.

    Columns from m on are zero in ``inputs`` and ``outputs_bar``.
    """
    rows, now, image_bar = ratio.shape[1] // WIDTH, lines[0], lines[1]
    for i in range(first, last):
        after, before = grams[i - first], grams[i - first + 1]
        inverse = 1.0 / diagonal[i]
        of_square = spread(0.0)
        for w in range(rows):
            r, along, sums = load_at(ratio, i, w), spread(0.0), spread(0.0)
            for a in range(m):
                held = load_at(bar, a, w)
                along = along + held * load_at(after, a, w)
                mixed = held * (ratio[i, a] * r)
                store_at(bar, a, w, mixed)
                sums = sums + outputs[i, a] * mixed
            store_at(ratio_bar, i, w, load_at(ratio_bar, i, w) + 2.0 * along)
            x = inverse * (load_at(outputs_bar, i, w) + 2.0 * sums)
            store(now, w, x)
            of_square = of_square + x * load_at(outputs, i, w)
        square_bar = 0.5 * inverse * (diagonal_bar[i] - total(of_square))
        diagonal_bar[i] = square_bar
        for w in range(rows):
            x = load(now, w) + square_bar * load_at(inputs, i, w)
            store_at(outputs_bar, i, w, x)
            store(image_bar, w, -1.0 * x)
        for w in range(rows):
            g, back = load_at(inputs, i, w), load(image_bar, w)
            image, pulled = load_at(targets, i, w), load_at(inputs_bar, i, w)
            for a in range(m):
                gram_row = load_at(before, a, w)
                image = image - inputs[i, a] * gram_row
                pulled = pulled + image_bar[a] * gram_row
                pair = 0.5 * image_bar[a] * g + 0.5 * inputs[i, a] * back
                store_at(bar, a, w, load_at(bar, a, w) + pair)
            store_at(inputs_bar, i, w, pulled + square_bar * image)


@compiled
def pivots_adjoint(
    p2: Array, q2: Array, tau: Array, above: Array, held: Array, sizes_bar: Array, ratio_bar: Array, lines: Array
) -> None:
    """Carry the derivatives back through recursion 1: ``ratio_bar`` becomes that by log tau.

    ``sizes_bar`` is the derivative by the diagonal of K_j, e + h - tau.  ``lines`` are zero.
    """
    n, rows = tau.shape[0], tau.shape[1] // WIDTH
    carried, by_tau = lines[0], lines[1]
    for i in range(n):
        for w in range(rows):
            # held_i = tau_i + below_i; the ratio and the pivot below_{i-1} depend on it
            of_held = load(carried, w)
            if i > 0:
                by = reciprocal(spread(q2[i]) + load_at(held, i, w))
                of_held = q2[i] * (of_held * (by * by)) - load_at(ratio_bar, i, w) * by
            store_at(ratio_bar, i, w, of_held)
            store(carried, w, p2[i] * (of_held + load_at(sizes_bar, i, w)))
    for i in range(n - 1, -1, -1):
        for w in range(rows):
            of_above = load(by_tau, w) + load_at(sizes_bar, i, w)
            store_at(ratio_bar, i, w, (load_at(ratio_bar, i, w) + of_above) * load_at(tau, i, w))
            if i > 0:
                by = reciprocal(spread(p2[i - 1]) + load_at(above, i - 1, w))
                store(by_tau, w, q2[i] * p2[i - 1] * (of_above * (by * by)))
