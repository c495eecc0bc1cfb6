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
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]

EVERY = 256


@compiled
def sweep(p2: Array, q2: Array, root: Array, tau: Array, above: Array, held: Array, ratio: Array) -> None:
    """Fill the pivots from above e, those from below with their own term h, and the ratios; all of shape (n, m).

    ``root[i] = q[i] p[i-1]``.
    """
    n, m = tau.shape
    for j in range(m):
        held[n - 1, j] = tau[n - 1, j] + p2[n - 1]
        above[0, j] = tau[0, j]
        ratio[0, j] = 0.0
    for i in range(n - 2, -1, -1):
        for j in range(m):
            held[i, j] = tau[i, j] + p2[i] * held[i + 1, j] / (q2[i + 1] + held[i + 1, j])
    for i in range(1, n):
        for j in range(m):
            above[i, j] = tau[i, j] + q2[i] * above[i - 1, j] / (p2[i - 1] + above[i - 1, j])
            ratio[i, j] = root[i] / (q2[i] + held[i, j])


@compiled
def generate(
    tau: Array, above: Array, held: Array, scale: Array, extra: Array, inputs: Array, outputs: Array, own: Array
) -> None:
    """Fill g and h, shape (n, m), and the diagonal term, shape (n,), of X with unit diagonal."""
    n, m = tau.shape
    for i in range(n):
        total = extra[i]
        for j in range(m):
            inputs[i, j] = scale[i, j] / (above[i, j] + (held[i, j] - tau[i, j]))
            total += inputs[i, j] * scale[i, j]
        total = 1.0 / math.sqrt(total)
        for j in range(m):
            inputs[i, j] *= total
            outputs[i, j] = scale[i, j] * total
        own[i] = extra[i] * total * total


@compiled
def factor_step(ratio: Array, g: Array, h: Array, own: float, gram: Array, now: Array) -> float:
    """One step of recursion 2 in place; return delta^2, and eta in ``now``."""
    m = g.size
    square = own
    for a in range(m):
        image = 0.0
        for b in range(m):
            image += gram[a, b] * g[b]
        now[a] = h[a] - image
        square += now[a] * g[a]
    if not square > 0.0:
        return square
    size = 1.0 / math.sqrt(square)
    for a in range(m):
        now[a] *= size
    for a in range(m):
        for b in range(m):
            gram[a, b] = (gram[a, b] + now[a] * now[b]) * (ratio[a] * ratio[b])
    return square


@compiled
def factor(
    ratio: Array, inputs: Array, targets: Array, own: Array, diagonal: Array, outputs: Array, marks: Array
) -> int:
    """Recursion 2: fill ``diagonal`` (n,), ``outputs`` (n, m) and the marks; return the step that failed, or -1.

    ``marks[k]`` is P before step ``min(n, (k + 1) EVERY) - 1``, shape (ceil(n / EVERY), m, m).
    """
    n, m = ratio.shape
    gram, now = np.zeros((m, m)), np.zeros(m)
    for i in range(n - 1, -1, -1):
        if i == n - 1 or i % EVERY == EVERY - 1:
            assign(marks[i // EVERY], gram)
        square = factor_step(ratio[i], inputs[i], targets[i], own[i], gram, now)
        if not square > 0.0:
            return i
        diagonal[i] = math.sqrt(square)
        assign(outputs[i], now)
    return -1


@compiled
def error_step(t: Array, load: Array, row: Array, noise: float, cov: Array, image: Array) -> None:
    """One step of recursion 3 in place, from ``T = diag(t)``, l, a and ``1 / delta^2``."""
    size = t.size
    for a in range(size):
        for b in range(size):
            cov[a, b] *= t[a] * t[b]
    inner = noise
    for a in range(size):
        image[a] = 0.0
        for b in range(size - 1):
            image[a] += cov[a, b] * row[b]
        inner += image[a] * row[a]
    for a in range(size):
        for b in range(size):
            cov[a, b] += load[a] * image[b] + (image[a] + inner * load[a]) * load[b]


@compiled
def read_step(
    i: int,
    ratio: Array,
    follow: Array,
    feed: Array,
    inputs: Array,
    outputs: Array,
    diagonal: Array,
    t: Array,
    load: Array,
    row: Array,
) -> None:
    """Gather one step's T, l and a."""
    m = ratio.shape[1]
    for j in range(m):
        t[j] = ratio[i, j]
        load[j] = inputs[i, j]
        row[j] = -outputs[i, j] / diagonal[i]
    t[m], load[m], row[m] = follow[i], feed[i], 0.0


@compiled
def error(
    ratio: Array, follow: Array, feed: Array, inputs: Array, outputs: Array, diagonal: Array, marks: Array
) -> float:
    """Recursion 3: return the loss and fill the marks, S before every step that `EVERY` divides."""
    n, m = ratio.shape
    size = m + 1
    cov, image = np.zeros((size, size)), np.zeros(size)
    t, load, row = np.zeros(size), np.zeros(size), np.zeros(size)
    total = 0.0
    for i in range(n):
        if i % EVERY == 0:
            assign(marks[i // EVERY], cov)
        read_step(i, ratio, follow, feed, inputs, outputs, diagonal, t, load, row)
        error_step(t, load, row, 1.0 / (diagonal[i] * diagonal[i]), cov, image)
        total += float(cov[m, m])
    return total
