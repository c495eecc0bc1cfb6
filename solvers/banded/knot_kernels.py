"""The three passes of kernels.py for very many steps: X is interpolated between knots, and windows move over the steps.

The same recurrences; what differs is what is kept. C and theta are kept for all steps, C[i, i - d] at [i, d]. X comes
from its columns at the knots, interpolated where they are needed, and what goes back to them is the gradient with
respect to these: a sum over the columns that they take part in. W and Cov(x) are kept at the knots only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]
Places = NDArray[np.int32]

_ROOM = 5  # rows of a window that moves, in numbers of bands


@compiled
def column_of(columns: Array, weights: Array, unit: int, place: int, stride: int, out: Array) -> None:
    """Interpolate one column of X below its diagonal: from the knots at place, place + stride, ..."""
    for d in range(out.size):
        out[d] = 0.0
    for m in range(4):
        weight = weights[unit, m]
        if weight != 0.0:
            source = columns[place + m * stride]
            for d in range(out.size):
                out[d] += weight * source[d]


@compiled
def factor(columns: Array, weights: Array, unit: Places, place: Places, rows: Array) -> bool:
    """Write C with C^T C = X to rows; False if X is not positive definite.

    Args:
        columns: X[j + d, j] at [j, d - 1] for the columns j at the knots, shape (knots * bands, bands - 1).
        weights: of the four knots around each unit of columns, shape (units, 4).
        unit: of each column, shape (n,).
        place: of each column in the first of its four knots, shape (n,).
        rows: shape (n, b), b >= bands.
    """
    n, b = rows.shape
    bands = columns.shape[1] + 1
    ring = np.zeros((bands, bands - 1))
    for k in range(max(0, n - bands + 1), n):
        column_of(columns, weights, unit[k], place[k], bands, ring[k % bands])
    for i in range(n - 1, -1, -1):
        row = rows[i]
        row[:] = 0.0
        if i - bands + 1 >= 0:
            k = i - bands + 1
            column_of(columns, weights, unit[k], place[k], bands, ring[k % bands])
        row[0] = 1.0
        size = min(i, bands - 1)
        for d in range(1, size + 1):
            row[d] = ring[(i - d) % bands, d - 1]
        for t in range(i + 1, min(n, i + bands)):
            here, source = rows[t, t - i], rows[t, t - i :]
            for d in range(min(size, bands - 1 - t + i) + 1):
                row[d] -= here * source[d]
        if not row[0] > 0.0:
            return False
        root = np.sqrt(row[0])
        for d in range(1, size + 1):
            row[d] /= root
        row[0] = root
    return True


@compiled
def backward(
    rows: Array, follow: Array, feed: Array, read: Array, through: Array, theta: Array, theta_u: Array
) -> None:
    """Write theta_i: theta[i, d] for x_{i-d}, shape (n, b), and theta_u[i] for u_i, shape (n, states)."""
    n, b = rows.shape
    q = feed.shape[1]
    height = _ROOM * b
    form = np.zeros((height, b))
    mixed = np.zeros((n, q))
    states = np.zeros((q, q))
    held = np.zeros(q)
    half = np.zeros((q, q))
    a = np.zeros(b)
    w = np.zeros(b)
    base = n - height
    for i in range(n - 1, -1, -1):
        low = i - b + 1
        if low < base:
            fresh = i - height + 1
            kept = max(base, low)
            for k in range(i, kept - 1, -1):
                assign(form[k - fresh], form[k - base])
            form[: kept - fresh] = 0.0
            base = fresh
        size = min(i, b - 1)
        own = form[i - base, 0] + through[i] * through[i]
        for s in range(q):
            held[s] = 0.0
            for t in range(q):
                held[s] += states[s, t] * feed[i, t]
            own += feed[i, s] * (2.0 * mixed[i, s] + held[s])
        theta[i, 0] = own
        inverse = -1.0 / rows[i, 0]
        for d in range(1, size + 1):
            entry = form[i - base, d]
            for s in range(q):
                entry += feed[i, s] * mixed[i - d, s]
            theta[i, d] = entry
            a[d] = rows[i, d] * inverse
            w[d] = entry + 0.5 * own * a[d]
        for s in range(q):
            entry = through[i] * read[i, s]
            for t in range(q):
                entry += follow[i, t, s] * (mixed[i, t] + held[t])
            theta_u[i, s] = entry
        for d in range(1, size + 1):
            target, ad, wd = form[i - d - base], a[d], w[d]
            for e in range(d, size + 1):
                target[e - d] += ad * w[e] + wd * a[e]
        for d in range(1, size + 1):
            for s in range(q):
                held[s] = a[d] * theta_u[i, s]
                for t in range(q):
                    held[s] += follow[i, t, s] * mixed[i - d, t]
            for s in range(q):
                mixed[i - d, s] = held[s]
        for s in range(q):
            for t in range(q):
                half[s, t] = 0.0
                for r in range(q):
                    half[s, t] += states[s, r] * follow[i, r, t]
        for s in range(q):
            for t in range(q):
                entry = read[i, s] * read[i, t]
                for r in range(q):
                    entry += follow[i, r, s] * half[r, t]
                states[s, t] = entry


@compiled
def forward(
    rows: Array,
    follow: Array,
    feed: Array,
    read: Array,
    through: Array,
    theta: Array,
    theta_u: Array,
    weights: Array,
    unit: Places,
    place: Places,
    knot: Places,
    gradient: Array,
    gram: Array,
    cov: Array,
) -> float:
    """Return the loss; add its gradient with respect to the columns at the knots; write W and Cov(x) there.

    Args:
        rows: C, shape (n, b), b = bands + 1.
        follow: of the workload, as the next three.
        feed: see above.
        read: see above.
        through: see above.
        theta: of `backward`.
        theta_u: of `backward`.
        weights: as in `factor`.
        unit: as in `factor`.
        place: as in `factor`.
        knot: where each column is among those at the knots, or -1, shape (n,).
        gradient: laid out like the columns.
        gram: W[j + d, j] at [j, d], shape (knots * bands, b).
        cov: the same of Cov(x).
    """
    n, b = rows.shape
    q = feed.shape[1]
    bands = b - 1
    height = _ROOM * b
    covs = np.zeros((height, 2 * b - 1))
    both = np.zeros((height, 2 * b - 1))
    below = np.zeros((2, b, b))  # columns of W and Cov(x) that are not complete
    lagged = np.zeros((q, n))  # Cov(u_i, x_k)
    spread = np.zeros((q, q))
    half = np.zeros((q, q))
    moved = np.zeros(q)
    c = np.zeros(b)
    g = np.zeros(b)
    t = np.zeros(b)
    h = np.zeros(b)
    z = np.zeros(b)
    base = 0
    loss = 0.0
    for i in range(n):
        if i - base == height:
            assign(covs[:bands], covs[height - bands :])
            assign(both[:bands], both[height - bands :])
            covs[bands:] = 0.0
            both[bands:] = 0.0
            base = i - bands
        size = min(i, bands)
        first = i - size
        for k in range(size + 1):
            c[k] = rows[i, size - k]
            g[k] = theta[i, size - k]
        t[:] = 0.0
        h[:] = 0.0
        z[:] = 0.0
        for j in range(0, size - 1, 2):
            r0, r1 = covs[first + j - base, bands - j :], covs[first + j + 1 - base, bands - 1 - j :]
            w0, w1 = both[first + j - base, bands - j :], both[first + j + 1 - base, bands - 1 - j :]
            c0, c1, g0, g1 = c[j], c[j + 1], g[j], g[j + 1]
            for k in range(size):
                t[k] += c0 * r0[k] + c1 * r1[k]
                h[k] += g0 * r0[k] + g1 * r1[k]
                z[k] += c0 * w0[k] + c1 * w1[k]
        for j in range(size // 2 * 2, size):
            r0, w0 = covs[first + j - base, bands - j :], both[first + j - base, bands - j :]
            for k in range(size):
                t[k] += c[j] * r0[k]
                h[k] += g[j] * r0[k]
                z[k] += c[j] * w0[k]
        inverse = 1.0 / c[size]
        own = 1.0
        for k in range(size):
            own += c[k] * t[k]
            t[k] *= -inverse
        own *= inverse * inverse
        crossed = g[size] * own
        for k in range(size):
            crossed += g[k] * t[k]
            h[k] += g[size] * t[k]
        loss += through[i] * through[i] * own
        for s in range(q):
            u = lagged[s, first:]
            with_x = 0.0
            for k in range(size):
                with_x += c[k] * u[k]
                h[k] += theta_u[i, s] * u[k]
            u[size] = -inverse * with_x
            crossed += theta_u[i, s] * u[size]
            loss += 2.0 * through[i] * read[i, s] * u[size]
            for r in range(q):
                loss += read[i, s] * spread[s, r] * read[i, r]
        last = crossed * inverse
        row = i - base
        for k in range(size):
            entry = (h[k] * inverse - z[k]) * inverse
            last -= c[k] * entry
            both[row, bands - size + k] = entry
            both[first + k - base, bands + size - k] = entry
            covs[row, bands - size + k] = t[k]
            covs[first + k - base, bands + size - k] = t[k]
            below[0, (first + k) % b, size - k] = entry
            below[1, (first + k) % b, size - k] = t[k]
        last *= inverse
        both[row, bands] = last
        covs[row, bands] = own
        below[0, i % b, 0] = last
        below[1, i % b, 0] = own
        if i >= bands:
            _finish(below, i - bands, weights, unit, place, knot, gradient, gram, cov)
            below[:, (i - bands) % b] = 0.0
        for s in range(q):
            for r in range(q):
                half[s, r] = feed[i, r] * lagged[s, i]
                for e in range(q):
                    half[s, r] += spread[s, e] * follow[i, r, e]
        for k in range(first, i + 1):
            with_k = own if k == i else t[k - first]
            for s in range(q):
                moved[s] = feed[i, s] * with_k
                for e in range(q):
                    moved[s] += follow[i, s, e] * lagged[e, k]
            for s in range(q):
                lagged[s, k] = moved[s]
        for s in range(q):
            for r in range(q):
                entry = feed[i, s] * lagged[r, i]
                for e in range(q):
                    entry += follow[i, s, e] * half[e, r]
                spread[s, r] = entry
    for k in range(max(0, n - bands), n):
        _finish(below, k, weights, unit, place, knot, gradient, gram, cov)
    return loss


@compiled
def _finish(
    below: Array,
    k: int,
    weights: Array,
    unit: Places,
    place: Places,
    knot: Places,
    gradient: Array,
    gram: Array,
    cov: Array,
) -> None:
    """Give the column k of W to the knots that it was interpolated from."""
    b = below.shape[2]
    column = below[0, k % b]
    for m in range(4):
        weight = -2.0 * weights[unit[k], m]
        if weight != 0.0:
            target = gradient[place[k] + m * (b - 1)]
            for d in range(b - 2):
                target[d] += weight * column[d + 1]
    if knot[k] >= 0:
        assign(gram[knot[k]], column)
        assign(cov[knot[k]], below[1, k % b])
