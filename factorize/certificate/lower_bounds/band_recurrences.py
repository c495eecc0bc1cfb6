"""Compiled recurrences behind the class bound of banded matrices. Imported on first use.

A banded triangle, and the lower half of a symmetric band, is stored by rows read leftwards: A[i, i-d] at [i, d], shape
(n, b). The workload has the inverse G with diagonal p and sub-diagonal -q, so that its output is its only state:
o_i = (q_i o_{i-1} + x_i) / p_i. Windows of a few hundred rows move over the steps; what is kept for all is O(n b).
"""

from __future__ import annotations

import numba
import numpy as np

from factorize.numbers.compiling import assign

_SUMS = {"reassoc", "contract", "nsz"}  # sums may be reordered, so that they use vector instructions
_ROOM = 5  # rows of a window that moves, in numbers of bands


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def gram(rows, out):
    """Write the lower half of C^T C."""
    n, b = rows.shape
    column = np.zeros((2, b))
    for i in range(n):
        _column(rows, i, column[0])
        for d in range(min(b, i + 1)):
            _column(rows, i - d, column[1])
            total = 0.0
            for e in range(b - d):
                total += column[0, e] * column[1, d + e]
            out[i, d] = total


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS, inline="always")
def _column(rows, i, out):
    n, b = rows.shape
    for e in range(b):
        out[e] = rows[i + e, e] if i + e < n else 0.0


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def decoder_gram(rows, p, q, out):
    """Write the lower half of W = X^-1 T^T T X^-1 = C^-1 (T C^-1)^T (T C^-1) C^-T, T = G^-1, in the band of C.

    With x = C^-1 y, y unit noise, the variance of all outputs from step i on is a form in the last b - 1 x and o_{i-1};
    theta is its row i before x_i is substituted. From the first step on, the covariance of the x then gives
    (C W)[i, k] = Cov(theta_i . (x, o), x_k) / C[i, i], and substitution gives W.
    """
    n, b = rows.shape
    theta = np.zeros((n, b))
    theta_o = np.zeros(n)
    _form(rows, p, q, theta, theta_o)
    height = _ROOM * b
    cov = np.zeros((height, 2 * b - 1))
    both = np.zeros((height, 2 * b - 1))
    lagged = np.zeros(n)  # Cov(o_{i-1}, x_k)
    c = np.zeros(b)
    g = np.zeros(b)
    t = np.zeros(b)
    h = np.zeros(b)
    z = np.zeros(b)
    base = 0
    for i in range(n):
        if i - base == height:
            assign(cov[: b - 1], cov[height - b + 1 :])
            assign(both[: b - 1], both[height - b + 1 :])
            cov[b - 1 :] = 0.0
            both[b - 1 :] = 0.0
            base = i - b + 1
        size = min(i, b - 1)
        first = i - size
        for k in range(size + 1):
            c[k] = rows[i, size - k]
            g[k] = theta[i, size - k]
        t[:] = 0.0
        h[:] = 0.0
        z[:] = 0.0
        for j in range(0, size - 1, 2):
            r0, r1 = cov[first + j - base, b - 1 - j :], cov[first + j + 1 - base, b - 2 - j :]
            w0, w1 = both[first + j - base, b - 1 - j :], both[first + j + 1 - base, b - 2 - j :]
            c0, c1, g0, g1 = c[j], c[j + 1], g[j], g[j + 1]
            for k in range(size):
                t[k] += c0 * r0[k] + c1 * r1[k]
                h[k] += g0 * r0[k] + g1 * r1[k]
                z[k] += c0 * w0[k] + c1 * w1[k]
        for j in range(size // 2 * 2, size):
            r0, w0 = cov[first + j - base, b - 1 - j :], both[first + j - base, b - 1 - j :]
            for k in range(size):
                t[k] += c[j] * r0[k]
                h[k] += g[j] * r0[k]
                z[k] += c[j] * w0[k]
        inverse = 1.0 / c[size]
        own = 1.0
        with_o = 0.0
        for k in range(size):
            own += c[k] * t[k]
            with_o += c[k] * lagged[first + k]
            t[k] *= -inverse
        own *= inverse * inverse
        lagged[i] = -inverse * with_o
        crossed = g[size] * own + theta_o[i] * lagged[i]
        for k in range(size):
            crossed += g[k] * t[k]
            h[k] += g[size] * t[k] + theta_o[i] * lagged[first + k]
        last = crossed * inverse
        row = i - base
        for k in range(size):
            entry = (h[k] * inverse - z[k]) * inverse
            last -= c[k] * entry
            out[i, size - k] = entry
            both[row, b - 1 - size + k] = entry
            both[first + k - base, b - 1 + size - k] = entry
            cov[row, b - 1 - size + k] = t[k]
            cov[first + k - base, b - 1 + size - k] = t[k]
        last *= inverse
        out[i, 0] = last
        both[row, b - 1] = last
        cov[row, b - 1] = own
        follow, feed = q[i] / p[i], 1.0 / p[i]
        for k in range(size):
            lagged[first + k] = follow * lagged[first + k] + feed * t[k]
        lagged[i] = follow * lagged[i] + feed * own


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def _form(rows, p, q, theta, theta_o):
    n, b = rows.shape
    height = _ROOM * b
    form = np.zeros((height, b))
    mixed = np.zeros(n)  # of x_k with o
    alone = 0.0  # of o with itself
    a = np.zeros(b)
    w = np.zeros(b)
    base = n - height
    for i in range(n - 1, -1, -1):
        if i - b + 1 < base:
            fresh = i - height + 1
            for k in range(i, max(base, i - b + 1) - 1, -1):
                assign(form[k - fresh], form[k - base])
            form[: max(base, i - b + 1) - fresh] = 0.0
            base = fresh
        size = min(i, b - 1)
        follow, feed = q[i] / p[i], 1.0 / p[i]
        alone += 1.0
        own = form[i - base, 0] + feed * (2.0 * mixed[i] + feed * alone)
        with_o = follow * (mixed[i] + feed * alone)
        theta[i, 0] = own
        theta_o[i] = with_o
        inverse = -1.0 / rows[i, 0]
        for d in range(1, size + 1):
            entry = form[i - base, d] + feed * mixed[i - d]
            theta[i, d] = entry
            a[d] = rows[i, d] * inverse
            w[d] = entry + 0.5 * own * a[d]
        for d in range(1, size + 1):
            target, ad, wd = form[i - d - base], a[d], w[d]
            for e in range(d, size + 1):
                target[e - d] += ad * w[e] + wd * a[e]
            mixed[i - d] = follow * mixed[i - d] + ad * with_o
        alone *= follow * follow


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS, inline="always")
def _both_halves(half, i, out):
    """Write row i of a symmetric band: entry (i, k) to [k - i + b - 1], shape (2 b - 1,)."""
    n, b = half.shape
    for d in range(b):
        out[b - 1 - d] = half[i, d] if i >= d else 0.0
        out[b - 1 + d] = half[i + d, d] if i + d < n else 0.0


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS, inline="always")
def _root(gram, p, q, i, both, out):
    """Write row i of U = X G: entry (i, k) to [k - i + b], shape (2 b,)."""
    n, b = gram.shape
    _both_halves(gram, i, both)
    for c in range(2 * b):
        k = i - b + c
        entry = 0.0
        if 0 <= k < n:
            if c > 0:
                entry += both[c - 1] * p[k]
            if c < 2 * b - 1 and k + 1 < n:
                entry -= both[c] * q[k + 1]
        out[c] = entry


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def inner_magnitude(gram, p, q, x, out):
    """Write |U| |U|^T x, U U^T = W^-1."""
    n, b = gram.shape
    both = np.zeros(2 * b - 1)
    row = np.zeros(2 * b)
    between = np.zeros(n)
    for i in range(n):
        _root(gram, p, q, i, both, row)
        for k in range(max(0, i - b), min(n, i + b)):
            between[k] += abs(row[k - i + b]) * x[i]
    for i in range(n):
        _root(gram, p, q, i, both, row)
        total = 0.0
        for k in range(max(0, i - b), min(n, i + b)):
            total += abs(row[k - i + b]) * between[k]
        out[i] = total


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def dominated(half, error, scale, x, marked, out):
    """Write sum_k (|E_ik| + error s_i s_k) x_k off the diagonal, over the pairs with i or k marked, for each i."""
    n, b = half.shape
    out[:] = 0.0
    for i in range(n):
        for d in range(1, min(b, i + 1)):
            if marked[i] or marked[i - d]:
                size = abs(half[i, d]) + error * scale[i] * scale[i - d]
                out[i] += size * x[i - d]
                out[i - d] += size * x[i]


@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_SUMS)
def moved_square(rows, change, gram, p, q):
    """Return |C P U|_F^2 for the symmetric band P of which `change` is the lower half."""
    n, b = rows.shape
    height = _ROOM * b + 8
    steps = np.zeros((height, 2 * b - 1))  # rows of P from i - b + 1 on
    roots = np.zeros((height + 2 * b, 2 * b))  # rows of U from i - 2 b + 2 on
    both = np.zeros(2 * b - 1)
    product = np.zeros(3 * b - 2)  # columns i - 2 b + 2 to i + b - 1
    out = np.zeros(5 * b - 2)  # columns i - 3 b + 2 on
    base, low = -b + 1, -2 * b + 2
    for k in range(min(n, b - 1)):
        _root(gram, p, q, k, both, roots[k - low])
    total = 0.0
    for i in range(n):
        if i - base == height:
            assign(steps[: b - 1], steps[height - b + 1 :])
            base = i - b + 1
        if i + b - 1 - low == len(roots):
            assign(roots[: 3 * b - 3], roots[len(roots) - 3 * b + 3 :])
            low = i - 2 * b + 2
        _both_halves(change, i, steps[i - base])
        if i + b - 1 < n:
            _root(gram, p, q, i + b - 1, both, roots[i + b - 1 - low])
        product[:] = 0.0
        for d in range(min(b, i + 1)):
            here, source = rows[i, d], steps[i - d - base]
            target = product[b - 1 - d :]
            for e in range(2 * b - 1):
                target[e] += here * source[e]
        out[:] = 0.0
        for c in range(3 * b - 2):
            k = i - 2 * b + 2 + c
            if 0 <= k < n:
                here, source = product[c], roots[k - low]
                target = out[c:]
                for e in range(2 * b):
                    target[e] += here * source[e]
        for c in range(5 * b - 2):
            total += out[c] * out[c]
    return total
