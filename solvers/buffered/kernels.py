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

The last two run over segments of `EVERY` steps. Their caller marks the matrix at the beginning of each, so that the
adjoints (adjoints.py) have those of all steps in between by running it once more.

All matrices are symmetric, so that every product with a vector is a sum of rows, and a row is one vector of eight or
a few (solvers/methods/lanes.py).  Arrays of shape (n, m) therefore have `width_of(m)` columns: m of the buffers, one of
the decoder's state in recursion 3, and zeros.
"""

import math

from factorize.solvers.methods.compiled import WIDTH, Array, compiled
from factorize.solvers.methods.lanes import load, load_at, reciprocal, spread, store, store_at, total

EVERY = 256


def width_of(buffers: int) -> int:
    """Return the columns of a row of buffers and the decoder's state, whole vectors."""
    return -(-(buffers + 1) // WIDTH) * WIDTH


@compiled
def pivots(p2: Array, q2: Array, root: Array, tau: Array, above: Array, held: Array, ratio: Array) -> None:
    """Recursion 1: fill the pivots from above e, those from below with their own term h, and the ratios, (n, width).

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
    m: int,
    first: int,
    last: int,
    apart: int,
    ratio: Array,
    inputs: Array,
    targets: Array,
    own: Array,
    diagonal: Array,
    outputs: Array,
    grams: Array,
) -> int:
    """Recursion 2 from step last - 1 to first: fill ``diagonal`` and ``outputs``; return the step that failed, or -1.

    P before step i is ``grams[i - first + 1]``, and after it ``grams[i - first]``, if matrices are kept `apart`, which
    is 1; if it is 0, all are ``grams[0]``.
    """
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
def error(
    m: int,
    first: int,
    last: int,
    apart: int,
    ratio: Array,
    inputs: Array,
    outputs: Array,
    diagonal: Array,
    cov: Array,
    moved: Array,
    image: Array,
) -> float:
    """Recursion 3 from step first to last - 1: return their loss.

    Column m of ``ratio`` and ``inputs`` is q / p and 1 / p of the decoder, that of ``outputs`` 0.  ``cov`` is S; Z of
    step i stays in ``moved[i - first]`` if `apart` is 1; if it is 0, all are ``moved[0]``.  ``image`` is scratch.
    """
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
