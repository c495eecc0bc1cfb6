"""Kernels of `momentum`: the two filters and the closed loop.

Variables are named as in the formulas at the head of `momentum`.  ``steps`` holds beta, eta and lam, shape
(3, n).  Arrays with one row per step have the poles last, for the vector units; ``state`` is scratch for six rows.
"""

import numpy as np

from factorize.solvers.methods.compiled import Array, Index, compiled, inlined

Three = tuple[float, float, float]


@inlined
def _backward(p: Three, tau: float, beta: float, eta: float, lam: float) -> Three:
    """One step of the filter from the end; (a, r, c) in and out."""
    a, r, c = p
    seen = a / (1.0 + tau * a)
    u = beta + eta * lam * r
    c1 = 1.0 + lam * lam * c
    new = seen * u * u + eta * eta * c1
    inverse = 1.0 / new
    return new, (lam * r * seen * u + eta * c1) * inverse, beta * beta * seen * c1 * inverse


@inlined
def _forward(p: Three, beta: float, eta: float, lam: float) -> Three:
    """One step of the filter from the start; (e, d, rho) in and out, the observation in e."""
    e, d, rho = p
    k = 1.0 + rho * eta
    delta = e * eta * eta + d * k * k
    inverse = 1.0 / delta
    return (
        beta * beta * e * d * inverse,
        lam * lam * delta / (1.0 + delta),
        beta / lam * (e * eta + d * rho * k) * inverse,
    )


@inlined
def _posterior(p: Three, q: Three) -> float:
    """``(K^-1)[i, i]``."""
    a, r, c = p
    e, d, rho = q
    both = 1.0 + c * d
    return a * both / ((1.0 + a * e) * both + a * d * (rho + r) * (rho + r))


@compiled
def predict(steps: Array, v: Array, t: Array, back: Index, state: Array, filtered: Array) -> None:
    """Filter from the end: (a, r, c) of every step, shape (n, 3, poles)."""
    n, count = v.size, t.size
    a, r, c = state[0], state[1], state[2]
    eta = steps[1, n - 1]
    for j in range(count):
        a[j], r[j], c[j] = eta * eta, 1.0 / eta, 0.0
        filtered[n - 1, 0, j], filtered[n - 1, 1, j], filtered[n - 1, 2, j] = a[j], r[j], c[j]
    for step in range(1, n):
        i = back[step]
        beta, eta, lam = steps[0, i], steps[1, i], steps[2, i]
        for j in range(count):
            a[j], r[j], c[j] = _backward((a[j], r[j], c[j]), t[j] * v[i + 1], beta, eta, lam)
            filtered[i, 0, j], filtered[i, 1, j], filtered[i, 2, j] = a[j], r[j], c[j]


@compiled
def combine(steps: Array, v: Array, t: Array, w: Array, state: Array, filtered: Array, x: Array) -> None:
    """Filter from the start, adding ``sum_j w_j s1`` of every step to ``x``."""
    e, d, rho = state[0], state[1], state[2]
    for j in range(t.size):
        e[j] = d[j] = rho[j] = 0.0
    for i in range(v.size):
        beta, eta, lam = steps[0, i], steps[1, i], steps[2, i]
        total = 0.0
        for j in range(t.size):
            now = (e[j] + t[j] * v[i], d[j], rho[j])
            total += w[j] * _posterior((filtered[i, 0, j], filtered[i, 1, j], filtered[i, 2, j]), now)
            e[j], d[j], rho[j] = _forward(now, beta, eta, lam)
        x[i] += total


@compiled
def close(steps: Array, v: Array, t: Array, squares: Array, back: Index, state: Array, loops: Array) -> None:
    """Closed loop of every step, shape (n, 6, poles): Phi row by row, then (s1, s2) times the root of ``squares``."""
    predict(steps, v, t, back, state, loops)
    e, d, rho = state[0], state[1], state[2]
    for j in range(t.size):
        e[j] = d[j] = rho[j] = 0.0
    for step in range(v.size):
        i = back[v.size - 1 - step]
        beta, eta, lam = steps[0, i], steps[1, i], steps[2, i]
        for j in range(t.size):
            a, r, c = loops[i, 0, j], loops[i, 1, j], loops[i, 2, j]
            seen = e[j] + t[j] * v[i]
            both, sum_ = 1.0 + c * d[j], rho[j] + r
            scale = np.sqrt(squares[j]) * a / ((1.0 + a * seen) * both + a * d[j] * sum_ * sum_)
            k = 1.0 + rho[j] * eta
            gam = seen * eta + d[j] * rho[j] * k
            delta = seen * eta * eta + d[j] * k * k
            h = 1.0 / (1.0 + delta)
            loops[i, 0, j] = beta * h * (1.0 + d[j] * k)
            loops[i, 1, j] = eta * lam * h
            loops[i, 2, j] = -beta * h * gam
            loops[i, 3, j] = lam * h
            loops[i, 4, j] = scale * both
            loops[i, 5, j] = scale * (r - c * d[j] * rho[j])
            e[j] = beta * beta * seen * d[j] / delta
            rho[j] = beta / lam * gam / delta
            d[j] = lam * lam * delta * h
