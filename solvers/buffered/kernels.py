"""Loss of a buffered strategy by three recursions, O(buffers^2) per step.

The strategy is the factor C of ``X = C^T C = E + sum_j D_j (G G^T + T_j)^-1 D_j`` with two diagonals T_j, D_j > 0 per
buffer and one more diagonal E >= 0, scaled to ``X_ii = 1``; G = (W A)^-1 is lower bidiagonal.  Its loss is
``||G^-1 C^-1||_F^2``.

1. *Sweeps* (solvers/single/bidiagonal.py): ``ratio`` and ``kappa_i = (K_j^-1)_ii`` of every ``K_j = G G^T + T_j``;
   positive numbers only.  Then ``X_ik = h_i . R_i ... R_{k+1} g_k`` for i > k with ``h = d / sqrt(c)``,
   ``g = d kappa / sqrt(c)``, ``c_i = E_i + sum_j d_j^2 kappa_j``, so that the columns of C have norm 1.
2. *Factor* (streaming.py): backwards, ``delta^2 = E / c + h . g - g . P g``, ``eta = (h - P g) / delta``,
   ``P <- R (eta eta^T + P) R``.
3. *Error*: forwards, the covariance S of the buffers and of the decoder's state u under ``x = C^-1 y``,
   ``u <- (q u + x) / p``.  With ``Z = T S T``, ``a = (-eta / delta, 0)``, ``l = (g, 1 / p)``:
   ``S <- Z + l c^T + c l^T + (a . c + 1 / delta^2) l l^T``, ``c = Z a``; the loss is the sum of ``S_uu``.

The last two run over segments of `SEGMENT_STEPS`. Their caller marks the matrix at the beginning of each, so that the
adjoints have those of all steps in between by running it once more.

All matrices are symmetric, so that every product with a vector is a sum of rows, and a row is one vector of eight or
a few (solvers/methods/lanes.py).  Arrays of shape (n, m) therefore have `width_of(m)` columns: m of the buffers, one of
the decoder's state in recursion 3, and zeros.  A *chain* is ratio, inputs and targets; a *state* is ratio, inputs,
outputs and diagonal, and *bars* are the derivatives by these four.

Derivatives of the loss come by the adjoints of the recursions. An adjoint runs against its recursion over a segment of
steps, whose matrices P or Z were kept when the recursion ran again from its mark, so that memory is O(n buffers) and a
segment stays in the cache.  ``x_bar`` is the derivative of the loss by x, and ``bar`` that by the matrix, carried from
segment to segment.  Checked by finite differences in the tests.
"""

import math

from factorize.solvers.methods.compiled import WIDTH, Array, FourArrays, ThreeArrays, compiled
from factorize.solvers.methods.lanes import load, load_at, reciprocal, spread, store, store_at, total

SEGMENT_STEPS = 256
Chain = ThreeArrays
State = FourArrays


def width_of(buffers: int) -> int:
    """Return the columns of a row of buffers and the decoder's state, whole vectors."""
    return -(-(buffers + 1) // WIDTH) * WIDTH


@compiled
def pivots(p2: Array, q2: Array, root: Array, tau: Array, above: Array, held: Array, ratio: Array) -> None:
    """Run recursion 1: fill the pivots from above e, from below with their own term h, and the ratios, (n, width).

    ``root[i] = q[i] p[i-1]``.
    """
    n, rows = tau.shape[0], tau.shape[1] // WIDTH
    for w in range(rows):
        store_at(above, 0, w, load_at(tau, 0, w))
        store_at(held, n - 1, w, load_at(tau, n - 1, w) + spread(p2[n - 1]))
        store_at(ratio, 0, w, spread(0.0))
    for i in range(1, n):
        for w in range(rows):
            before = load_at(above, i - 1, w)
            now = load_at(tau, i, w) + q2[i] * (before * reciprocal(spread(p2[i - 1]) + before))
            store_at(above, i, w, now)
    for i in range(n - 1, 0, -1):
        for w in range(rows):
            below = load_at(held, i, w)
            by = reciprocal(spread(q2[i]) + below)
            store_at(held, i - 1, w, load_at(tau, i - 1, w) + p2[i - 1] * (below * by))
            store_at(ratio, i, w, root[i] * by)


@compiled
def factor(
    m: int, first: int, last: int, apart: int, chain: Chain, own: Array, diagonal: Array, outputs: Array, grams: Array
) -> int:
    """Run recursion 2 from step last - 1 to first: fill ``diagonal`` and ``outputs``; return the failed step, or -1.

    P before step i is ``grams[i - first + 1]``, and after it ``grams[i - first]``, if matrices are kept `apart`, which
    is 1; if it is 0, all are ``grams[0]``.
    """
    ratio, inputs, targets = chain
    rows = ratio.shape[1] // WIDTH
    for i in range(last - 1, first - 1, -1):
        before, after = grams[(i - first + 1) * apart], grams[(i - first) * apart]
        along = spread(0.0)
        for w in range(rows):
            now = load_at(targets, i, w)
            for a in range(m):
                now = now - inputs[i, a] * load_at(before, a, w)
            store_at(outputs, i, w, now)
            along = along + now * load_at(inputs, i, w)
        square = own[i] + total(along)
        if not square > 0.0:
            return i
        diagonal[i] = math.sqrt(square)
        size = 1.0 / diagonal[i]
        for w in range(rows):
            store_at(outputs, i, w, size * load_at(outputs, i, w))
        for w in range(rows):
            now, r = load_at(outputs, i, w), load_at(ratio, i, w)
            for a in range(m):
                store_at(after, a, w, (load_at(before, a, w) + outputs[i, a] * now) * (ratio[i, a] * r))
    return -1


@compiled
def error(m: int, first: int, last: int, apart: int, state: State, cov: Array, moved: Array, image: Array) -> float:
    """Run recursion 3 from step first to last - 1: return their loss.

    Column m of ``ratio`` and ``inputs`` is q / p and 1 / p of the decoder, that of ``outputs`` 0.  ``cov`` is S; Z of
    step i stays in ``moved[i - first]`` if `apart` is 1; if it is 0, all are ``moved[0]``.  ``image`` is scratch.
    """
    ratio, inputs, outputs, diagonal = state
    rows, loss = ratio.shape[1] // WIDTH, 0.0
    for i in range(first, last):
        kept, inverse, along = moved[(i - first) * apart], 1.0 / diagonal[i], spread(0.0)
        for w in range(rows):
            t, sums = load_at(ratio, i, w), spread(0.0)
            for a in range(m + 1):
                z = load_at(cov, a, w) * (ratio[i, a] * t)
                store_at(kept, a, w, z)
                sums = sums + outputs[i, a] * z
            sums = -inverse * sums
            store(image, w, sums)
            along = along + sums * load_at(outputs, i, w)
        inner = inverse * (inverse - total(along))
        for w in range(rows):
            through, by = load(image, w), load_at(inputs, i, w)
            for a in range(m + 1):
                own = image[a] + inner * inputs[i, a]
                store_at(cov, a, w, load_at(kept, a, w) + (inputs[i, a] * through + own * by))
        loss += cov[m, m]
    return loss


@compiled
def error_adjoint(
    m: int, first: int, last: int, state: State, moved: Array, bars: State, bar: Array, lines: Array
) -> None:
    """Fill the derivatives of the loss by log ratio, inputs, outputs and diagonal through recursion 3.

    What stands in the columns from m on is no derivative.
    """
    (ratio, inputs, outputs, diagonal), (ratio_bar, inputs_bar, outputs_bar, diagonal_bar) = state, bars
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
    chain: Chain,
    diagonal: Array,
    outputs: Array,
    grams: Array,
    bars: State,
    bar: Array,
    lines: Array,
) -> None:
    """Carry the derivatives back through recursion 2: add to ratio's and inputs'; ``outputs_bar`` becomes that by h.

    Columns from m on are zero in ``inputs`` and ``outputs_bar``.
    """
    (ratio, inputs, targets), (ratio_bar, inputs_bar, outputs_bar, diagonal_bar) = chain, bars
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
