"""Loss of a banded Gram matrix and its gradient, O(n bands (bands + states)): three passes over the steps.

With X = C^T C and x = C^-1 y for unit noise y, the loss tr(T^T T X^-1) is the sum of the variances of the outputs o of
the workload (a recursion with few states u) driven by x:

    C[i, i] x_i = y_i - sum_{k < i} C[i, k] x_k
    o_i = read_i . u_i + through_i x_i,   u_{i+1} = follow_i u_i + feed_i x_i

1. Factor X, from the last row to the first (gram_descent.py).
2. Backwards: the variance of all outputs from step i on is a quadratic form in (x_{i-1}, ..., x_{i-bands+1}, u_i).
   A step back substitutes x_i and adds a matrix of rank two. theta_i is row i of the form before that. What the form
   has of u alone depends on the workload only, and is known before.
3. Forwards: the covariance of x in a window of `bands` steps, and of u with it. With theta it gives a row of

    (C W)[i, k] = Cov(theta_i . (x, u), x_k) / C[i, i],   W = X^-1 T^T T X^-1,

   and substitution gives that row of W itself. The gradient of the loss, tr(W X), with respect to X is -W.

Rows of banded arrays are stored from left to right: a[i, k - i + b - 1] for k = i - b + 1, ..., i. The window b may be
wider than the band of C: then W and the covariance are known beyond the band too.
"""

from factorize.solvers.methods.compiled import Array, TwoArrays, compiled


@compiled
def backward(
    rows: Array, system: TwoArrays, own_parts: TwoArrays, thetas: TwoArrays, forms: TwoArrays, lines: Array
) -> None:
    """Write theta_i: theta[i] for the x_k of the window, shape (n, b), and theta_u[i] for u_i, shape (n, states).

    Its parts from u alone are of_x[i] of x_i, shape (n,), and of_u[i]. The form's lower half, stored like rows, and
    its part of x_k with the states, shape (n, states), are zero at first; ``lines`` is scratch, shape (3, b + states).
    """
    (follow, feed), (of_x, of_u), (theta, theta_u), (form, mixed) = system, own_parts, thetas, forms
    (n, b), q = rows.shape, feed.shape[1]
    held, a, w = lines[0], lines[1], lines[2]
    for i in range(n - 1, -1, -1):
        size = i if i < b else b - 1
        first, at = i - size, b - 1 - size
        own = form[i, b - 1] + of_x[i]
        for s in range(q):
            entry = of_u[i, s]
            for t in range(q):
                entry += follow[i, t, s] * mixed[i, t]
            theta_u[i, s] = entry
            own += 2.0 * feed[i, s] * mixed[i, s]
        theta[i, b - 1] = own
        inverse = -1.0 / rows[i, b - 1]
        for k in range(size):
            entry = form[i, at + k]
            a[k] = rows[i, at + k] * inverse
            for s in range(q):
                entry += feed[i, s] * mixed[first + k, s]
                held[s] = a[k] * theta_u[i, s]
                for t in range(q):
                    held[s] += follow[i, t, s] * mixed[first + k, t]
            for s in range(q):
                mixed[first + k, s] = held[s]
            theta[i, at + k] = entry
            w[k] = entry + 0.5 * own * a[k]
        for j in range(size):
            aj, wj = a[j], w[j]
            target = form[first + j, b - 1 - j :]
            for k in range(j + 1):
                target[k] += aj * w[k] + wj * a[k]


@compiled
def forward(rows: Array, system: TwoArrays, thetas: TwoArrays, bands: TwoArrays, lagged: Array, lines: Array) -> None:
    """Write W and Cov(x) in the band.

    Both are stored with both halves: entry (j, k) at [j, k - j + b - 1], shape (n, 2 b - 1). Cov(u_i, x_k), shape
    (states, n), is zero at first; ``lines`` as in `backward`.
    """
    (follow, feed), (theta, theta_u), (gram, cov) = system, thetas, bands
    (n, b), q = rows.shape, feed.shape[1]
    new, held = lines[0], lines[1]
    for i in range(n):
        size = i if i < b else b - 1
        first, at = i - size, b - 1 - size
        c, g = rows[i, at:], theta[i, at:]
        inverse = 1.0 / c[size]
        own, crossed, last = 1.0, 0.0, 0.0
        for j in range(size):
            s0, w0 = cov[first + j, b - 1 - j :], gram[first + j, b - 1 - j :]
            x, y, z = 0.0, 0.0, 0.0
            for k in range(size):
                x += c[k] * s0[k]
                y += g[k] * s0[k]
                z += c[k] * w0[k]
            own += c[j] * x
            x *= -inverse
            crossed += g[j] * x
            for s in range(q):
                u = lagged[s, first + j]
                lagged[s, i] -= c[j] * inverse * u
                y += theta_u[i, s] * u
            z = ((y + g[size] * x) * inverse - z) * inverse
            last -= c[j] * z
            new[j] = x
            gram[i, at + j] = gram[first + j, b - 1 + size - j] = z
        new[size] = own * inverse * inverse
        for s in range(q):
            crossed += theta_u[i, s] * lagged[s, i]
        gram[i, b - 1] = ((crossed + g[size] * new[size]) * inverse + last) * inverse
        for k in range(size + 1):
            cov[i, at + k] = cov[first + k, b - 1 + size - k] = new[k]
            for s in range(q):
                held[s] = feed[i, s] * new[k]
                for e in range(q):
                    held[s] += follow[i, s, e] * lagged[e, first + k]
            for s in range(q):
                lagged[s, first + k] = held[s]
