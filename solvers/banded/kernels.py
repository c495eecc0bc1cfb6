"""Loss of a banded Gram matrix and its gradient, O(n bands (bands + states)): three passes over the steps.

With X = C^T C and x = C^-1 y for unit noise y, the loss tr(T^T T X^-1) is the sum of the variances of the outputs o of
the workload (a recursion with few states u) driven by x:

    C[i, i] x_i = y_i - sum_{k < i} C[i, k] x_k
    o_i = read_i . u_i + through_i x_i,   u_{i+1} = follow_i u_i + feed_i x_i

1. Factor X, from the last row to the first; nothing but this says whether X is positive definite.
2. Backwards: the variance of all outputs from step i on is a quadratic form in (x_{i-1}, ..., x_{i-bands+1}, u_i).
   A step back substitutes x_i and adds a matrix of rank two. theta_i is row i of the form before that.
3. Forwards: the covariance of x in a window of `bands` steps, and of u with it. With theta it gives a row of

    (C W)[i, k] = Cov(theta_i . (x, u), x_k) / C[i, i],   W = X^-1 T^T T X^-1,

   and substitution gives that row of W itself. The gradient of the loss with respect to X is -W.

Rows of banded arrays are stored from left to right: a[i, k - i + b - 1] for k = i - b + 1, ..., i. The window b may be
wider than the band of C: then W and the covariance are known beyond the band too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.methods.compiled import compiled

Array = NDArray[np.float64]


@compiled
def factor(offsets: Array, rows: Array) -> bool:
    """Write C with C^T C = X to rows; False if X is not positive definite.

    Args:
        offsets: X[j + d, j] at offsets[d - 1, j], d >= 1, shape (bands - 1, n); X has ones on its diagonal.
        rows: shape (n, b), b >= bands.
    """
    n, b = rows.shape
    rows[:] = 0.0
    for d in range(1, offsets.shape[0] + 1):
        for j in range(n - d):
            rows[j + d, b - 1 - d] = offsets[d - 1, j]
    for i in range(n - 1, -1, -1):
        first = max(0, i - b + 1)
        row = rows[i]
        row[b - 1] = 1.0
        for t in range(i + 1, min(n, i + b)):
            low = max(first, t - b + 1)
            here = rows[t, i - t + b - 1]
            source = rows[t, low - t + b - 1 :]
            target = row[low - i + b - 1 :]
            for k in range(i - low + 1):
                target[k] -= here * source[k]
        if not row[b - 1] > 0.0:
            return False
        root = np.sqrt(row[b - 1])
        for k in range(b - 1):
            row[k] /= root
        row[b - 1] = root
    return True


@compiled
def backward(
    rows: Array,
    follow: Array,
    feed: Array,
    read: Array,
    through: Array,
    theta: Array,
    theta_u: Array,
    form: Array,
    mixed: Array,
    squares: Array,
    lines: Array,
) -> None:
    """Write theta_i: theta[i] for the x_k of the window, shape (n, b), and theta_u[i] for u_i, shape (n, states).

    The form's lower half, stored like rows, and its part of x_k with the states, shape (n, states), are zero at first,
    as are two squares of the states; ``lines`` is scratch, shape (3, b + states).
    """
    n, b = rows.shape
    q = feed.shape[1]
    states, half, held, a, w = squares[0], squares[1], lines[0], lines[1], lines[2]
    for i in range(n - 1, -1, -1):
        first = max(0, i - b + 1)
        size = i - first
        own = form[i, b - 1] + through[i] * through[i]
        for s in range(q):
            held[s] = 0.0
            for t in range(q):
                held[s] += states[s, t] * feed[i, t]
            own += feed[i, s] * (2.0 * mixed[i, s] + held[s])
        out = theta[i, b - 1 - size :]
        given = form[i, b - 1 - size :]
        for k in range(size):
            entry = given[k]
            for s in range(q):
                entry += feed[i, s] * mixed[first + k, s]
            out[k] = entry
        out[size] = own
        for s in range(q):
            entry = through[i] * read[i, s]
            for t in range(q):
                entry += follow[i, t, s] * (mixed[i, t] + held[t])
            theta_u[i, s] = entry
        inverse = -1.0 / rows[i, b - 1]
        for k in range(size):
            a[k] = rows[i, b - 1 - size + k] * inverse
            w[k] = out[k] + 0.5 * own * a[k]
        for j in range(size):
            aj, wj = a[j], w[j]
            target = form[first + j, b - 1 - j :]
            for k in range(j + 1):
                target[k] += aj * w[k] + wj * a[k]
        for k in range(size):
            for s in range(q):
                held[s] = a[k] * theta_u[i, s]
                for t in range(q):
                    held[s] += follow[i, t, s] * mixed[first + k, t]
            for s in range(q):
                mixed[first + k, s] = held[s]
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
    gram: Array,
    cov: Array,
    lagged: Array,
    squares: Array,
    lines: Array,
) -> float:
    """Write W and Cov(x) in the band and return the loss.

    Both are stored with both halves: entry (j, k) at [j, k - j + b - 1], shape (n, 2 b - 1). Cov(u_i, x_k), shape
    (states, n), and two squares of the states are zero at first; ``lines`` as in `backward`.
    """
    n, b = rows.shape
    q = feed.shape[1]
    spread, half, t, h, z = squares[0], squares[1], lines[0], lines[1], lines[2]
    loss = 0.0
    for i in range(n):
        first = max(0, i - b + 1)
        size = i - first
        c = rows[i, b - 1 - size :]
        g = theta[i, b - 1 - size :]
        t[:] = 0.0
        h[:] = 0.0
        z[:] = 0.0
        for j in range(size):
            s0, w0 = cov[first + j, b - 1 - j :], gram[first + j, b - 1 - j :]
            for k in range(size):
                t[k] += c[j] * s0[k]
                h[k] += g[j] * s0[k]
                z[k] += c[j] * w0[k]
        inverse = 1.0 / c[size]
        own = 1.0
        crossed = 0.0
        new = cov[i, b - 1 - size :]
        for k in range(size):
            own += c[k] * t[k]
            entry = -inverse * t[k]
            new[k] = entry
            crossed += g[k] * entry
            h[k] += g[size] * entry
        own *= inverse * inverse
        new[size] = own
        crossed += g[size] * own
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
        out = gram[i, b - 1 - size :]
        last = crossed * inverse
        for k in range(size):
            entry = (h[k] * inverse - z[k]) * inverse
            out[k] = entry
            last -= c[k] * entry
        out[size] = last * inverse
        for k in range(size):
            cov[first + k, b - 1 + size - k] = new[k]
            gram[first + k, b - 1 + size - k] = out[k]
        for s in range(q):
            for r in range(q):
                half[s, r] = feed[i, r] * lagged[s, i]
                for e in range(q):
                    half[s, r] += spread[s, e] * follow[i, r, e]
        for k in range(first, i + 1):
            for s in range(q):
                t[s] = feed[i, s] * new[k - first]
                for e in range(q):
                    t[s] += follow[i, s, e] * lagged[e, k]
            for s in range(q):
                lagged[s, k] = t[s]
        for s in range(q):
            for r in range(q):
                entry = feed[i, s] * lagged[r, i]
                for e in range(q):
                    entry += follow[i, s, e] * half[e, r]
                spread[s, r] = entry
    return loss
