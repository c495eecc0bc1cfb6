"""Loss of a buffered strategy by three recursions, O(buffers^2) per step.

The strategy is the factor C of ``X = C^T C = E + sum_j D_j (G G^T + T_j)^-1 D_j`` with two diagonals T_j, D_j > 0 per
buffer and one more diagonal E >= 0, scaled to ``X_ii = 1``; G = (W A)^-1 is lower bidiagonal.  Its loss is
``||G^-1 C^-1||_F^2``.

1. *Sweeps* (solvers/single/bidiagonal.py): ``ratio`` and ``kappa_i = (K_j^-1)_ii`` of every ``K_j = G G^T + T_j``;
positive
   numbers only.  Then ``X_ik = h_i . R_i ... R_{k+1} g_k`` for i > k with ``h = d / sqrt(c)``,
   ``g = d kappa / sqrt(c)``, ``c_i = E_i + sum_j d_j^2 kappa_j``, so that the columns of C have norm 1.
2. *Factor* (streaming.py): backwards, ``delta^2 = E / c + h . g - g . P g``, ``eta = (h - P g) / delta``,
   ``P <- R (eta eta^T + P) R``.
3. *Error*: forwards, the covariance S of the buffers and of the decoder's state u under ``x = C^-1 y``,
   ``u <- (q u + x) / p``.  With ``Z = T S T``, ``a = (-eta / delta, 0)``, ``l = (g, 1 / p)``:
   ``S <- Z + l c^T + c l^T + (a . c + 1 / delta^2) l l^T``, ``c = Z a``; the loss is the sum of ``S_uu``.

Each leaves marks, its matrix at every `EVERY`-th step, for its adjoint (adjoints.py).

All matrices are symmetric, so that every product with a vector is a sum of rows, and a row is one vector of eight or
a few (solvers/methods/lanes.py).  Arrays of shape (n, m) therefore have `width_of(m)` columns: m of the buffers, one of
the decoder's state in recursion 3, and zeros.  Matrices are flat, one padded row after the other.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.methods.compiled import compiled, part
from factorize.solvers.methods.lanes import WIDTH, load, reciprocal, spread, store, total

Array = NDArray[np.float64]

EVERY = 256


def width_of(buffers: int) -> int:
    """Return the columns of a row of buffers and the decoder's state, whole vectors."""
    return -(-(buffers + 1) // WIDTH) * WIDTH


@compiled
def sweep(
    p2: Array,
    q2: Array,
    root: Array,
    tau: Array,
    scale: Array,
    extra: Array,
    above: Array,
    held: Array,
    ratio: Array,
    inputs: Array,
    outputs: Array,
    own: Array,
) -> None:
    """Fill what X with unit diagonal consists of: ratios, g and h, shape (n, width), and the diagonal term, shape (n,).

    Pivots from above e, and those from below with their own term h, stay for the adjoint. ``root[i] = q[i] p[i-1]``;
    ``scale`` is zero beside the buffers, and so are g and h.
    """
    n, rows = tau.shape[0], tau.shape[1] // WIDTH
    for w in range(rows):
        at = (n - 1) * rows + w
        store(held, at, load(tau, at) + spread(p2[n - 1]))
        store(above, w, load(tau, w))
        store(ratio, w, spread(0.0))
    for i in range(n - 2, -1, -1):
        for at in range(i * rows, (i + 1) * rows):
            below = load(held, at + rows)
            by = reciprocal(spread(q2[i + 1]) + below)
            store(held, at, load(tau, at) + spread(p2[i]) * (below * by))
            store(ratio, at + rows, spread(root[i + 1]) * by)
    for i in range(n):
        sums = spread(0.0)
        for at in range(i * rows, (i + 1) * rows):
            if i > 0:
                before = load(above, at - rows)
                store(above, at, load(tau, at) + spread(q2[i]) * (before * reciprocal(spread(p2[i - 1]) + before)))
            of = load(scale, at) * reciprocal(load(above, at) + (load(held, at) - load(tau, at)))
            store(inputs, at, of)
            sums = sums + of * load(scale, at)
        size = 1.0 / math.sqrt(extra[i] + total(sums))
        for at in range(i * rows, (i + 1) * rows):
            store(inputs, at, load(inputs, at) * spread(size))
            store(outputs, at, load(scale, at) * spread(size))
        own[i] = extra[i] * size * size


@part
def factor_step(
    m: int, i: int, ratio: Array, inputs: Array, targets: Array, own: Array, gram: Array, outputs: Array
) -> float:
    """Step i of recursion 2 in place; return delta^2, and eta in ``outputs[i]``."""
    rows = ratio.shape[1] // WIDTH
    at = i * rows
    along = spread(0.0)
    for w in range(rows):
        now = load(targets, at + w)
        for a in range(m):
            now = now - spread(inputs[i, a]) * load(gram, a * rows + w)
        store(outputs, at + w, now)
        along = along + now * load(inputs, at + w)
    square = own[i] + total(along)
    if not square > 0.0:
        return square
    size = spread(1.0 / math.sqrt(square))
    for w in range(rows):
        store(outputs, at + w, size * load(outputs, at + w))
    for w in range(rows):
        now, r = load(outputs, at + w), load(ratio, at + w)
        for a in range(m):
            entry = a * rows + w
            store(gram, entry, (load(gram, entry) + spread(outputs[i, a]) * now) * (spread(ratio[i, a]) * r))
    return square


@compiled
def factor(
    m: int,
    ratio: Array,
    inputs: Array,
    targets: Array,
    own: Array,
    diagonal: Array,
    outputs: Array,
    marks: Array,
    gram: Array,
) -> int:
    """Recursion 2: fill ``diagonal`` (n,), ``outputs`` (n, m) and the marks; return the step that failed, or -1.

    ``marks[k]`` is P before step ``min(n, (k + 1) EVERY) - 1``, shape (ceil(n / EVERY), (m + 1) width).
    ``gram`` is P, zero at first.
    """
    n = ratio.shape[0]
    for i in range(n - 1, -1, -1):
        if i == n - 1 or i % EVERY == EVERY - 1:
            assign(marks[i // EVERY], gram)
        square = factor_step(m, i, ratio, inputs, targets, own, gram, outputs)
        if not square > 0.0:
            return i
        diagonal[i] = math.sqrt(square)
    return -1


@part
def error_step(
    m: int,
    i: int,
    ratio: Array,
    inputs: Array,
    outputs: Array,
    diagonal: Array,
    cov: Array,
    moved: Array,
    image: Array,
) -> None:
    """Step i of recursion 3 on ``cov`` in place; Z is left in ``moved``, which may be ``cov``."""
    rows, size = ratio.shape[1] // WIDTH, m + 1
    at = i * rows
    inverse = 1.0 / diagonal[i]
    along = spread(0.0)
    for w in range(rows):
        t, sums = load(ratio, at + w), spread(0.0)
        for a in range(size):
            z = load(cov, a * rows + w) * (spread(ratio[i, a]) * t)
            store(moved, a * rows + w, z)
            sums = sums + spread(outputs[i, a]) * z
        sums = sums * spread(-inverse)
        store(image, w, sums)
        along = along + sums * load(outputs, at + w)
    inner = inverse * (inverse - total(along))
    for w in range(rows):
        through, by = load(image, w), load(inputs, at + w)
        for a in range(size):
            own = spread(image[a] + inner * inputs[i, a])
            z = load(moved, a * rows + w)
            store(cov, a * rows + w, z + (spread(inputs[i, a]) * through + own * by))


@compiled
def error(
    m: int, ratio: Array, inputs: Array, outputs: Array, diagonal: Array, marks: Array, cov: Array, lines: Array
) -> float:
    """Recursion 3: return the loss and fill the marks, S before every step that `EVERY` divides.

    Column m of ``ratio`` and ``inputs`` is q / p and 1 / p of the decoder, that of ``outputs`` 0.  ``cov`` is S, zero
    at first, and ``lines`` are scratch.
    """
    n, width = ratio.shape
    loss, image = 0.0, lines[0]
    for i in range(n):
        if i % EVERY == 0:
            assign(marks[i // EVERY], cov)
        error_step(m, i, ratio, inputs, outputs, diagonal, cov, cov, image)
        loss += float(cov[m * width + m])
    return loss
