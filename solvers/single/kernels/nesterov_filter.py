"""Kernels of `nesterov`: the two filters and the closed loop.

Variables are named as in the formulas at the head of `nesterov`.  ``steps`` holds mu, eta, lam and kappa, shape
(4, n).  Arrays with one row per step have the poles last, for the vector units; ``state`` is scratch for six rows.

The differences y and q lose digits where
they are small, but then ``eta r`` and ``eta rho`` are not, and the loss is that of six roundings of r or rho.
"""

import numpy as np

from factorize.solvers.methods.compiled import Array, Index, compiled, inlined

Three = tuple[float, float, float]


@inlined
def _backward(p: Three, tau: float, after: float, mu: float, eta: float, lam: float, kappa: float) -> Three:
    """One step of the filter from the end; (a, r, c) in and out, ``after`` the rate of the step that p belongs to."""
    a, r, c = p
    seen = a / (1.0 + tau * a)
    u, y, g = mu + kappa * r, 1.0 - r * after, (1.0 + mu) * eta
    new = seen * u * u + c * kappa * kappa + g * g
    inverse = 1.0 / new
    return (
        new,
        (seen * u * lam * r + c * kappa * lam + g) * inverse,
        mu * mu * (seen * (c * lam * lam + y * y) + c * after * after) * inverse,
    )


@inlined
def _forward(p: Three, tau: float, mu: float, eta: float, lam: float) -> Three:
    """One step of the filter from the start, the observation first; (e, d, rho) in and out."""
    e, d, rho = p
    k, q = 1.0 + rho * eta, mu - rho * eta
    whole = eta * eta * (tau * (1.0 + mu) * (1.0 + mu) + e) + d * k * k
    gamma = eta * (tau * mu * (1.0 + mu) + e) + d * rho * k
    inverse = 1.0 / whole
    return (
        mu * mu * (e * d + tau * (e * eta * eta + d * q * q)) * inverse,
        lam * lam * whole / (1.0 + whole),
        mu / lam * gamma * inverse,
    )


@inlined
def _posterior(p: Three, f: Three, tau: float, mu: float, eta: float) -> tuple[float, float, float]:
    """``(K^-1)[i, i]``, its covariance with the second state, and the weight of w^2 without its cancellation."""
    a, r, c = p
    e, d, rho = f[0] / (mu * mu), f[1] / (mu * mu), f[2]
    q, y = mu - rho * eta, 1.0 - r * eta
    w = rho + r * q
    both = 1.0 + c * (e * eta * eta + d * q * q)
    scale = a / ((1.0 + a * tau) * both + a * (e * y * y + d * w * w + c * e * d * mu * mu))
    return scale * both, scale * (r + c * (e * eta - d * rho * q)), scale * d * abs(w) * (rho + r * abs(q))


@compiled
def predict(steps: Array, v: Array, t: Array, back: Index, state: Array, filtered: Array) -> None:
    """Filter from the end: (a, r, c) of every step, shape (n, 3 or more, poles)."""
    n, count = v.size, t.size
    a, r, c = state[0], state[1], state[2]
    g = (1.0 + steps[0, n - 1]) * steps[1, n - 1]
    for j in range(count):
        a[j], r[j], c[j] = g * g, 1.0 / g, 0.0
        filtered[n - 1, 0, j], filtered[n - 1, 1, j], filtered[n - 1, 2, j] = a[j], r[j], c[j]
    for step in range(1, n):
        i = back[step]
        mu, eta, lam, kappa, after = steps[0, i], steps[1, i], steps[2, i], steps[3, i], steps[1, i + 1]
        for j in range(count):
            a[j], r[j], c[j] = _backward((a[j], r[j], c[j]), t[j] * v[i + 1], after, mu, eta, lam, kappa)
            filtered[i, 0, j], filtered[i, 1, j], filtered[i, 2, j] = a[j], r[j], c[j]


@compiled
def combine(steps: Array, v: Array, t: Array, w: Array, state: Array, filtered: Array, x: Array) -> None:
    """Filter from the start, adding ``sum_j w_j s1`` of every step to ``x``."""
    e, d, rho = state[0], state[1], state[2]
    for j in range(t.size):
        e[j] = d[j] = rho[j] = 0.0
    for i in range(v.size):
        mu, eta, lam = steps[0, i], steps[1, i], steps[2, i]
        total = 0.0
        for j in range(t.size):
            now, tau = (e[j], d[j], rho[j]), t[j] * v[i]
            p = (filtered[i, 0, j], filtered[i, 1, j], filtered[i, 2, j])
            total += w[j] * _posterior(p, now, tau, mu, eta)[0]
            e[j], d[j], rho[j] = _forward(now, tau, mu, eta, lam)
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
        mu, eta, lam = steps[0, i], steps[1, i], steps[2, i]
        after = steps[1, i + 1] if i + 1 < v.size else 0.0
        for j in range(t.size):
            now, tau = (e[j], d[j], rho[j]), t[j] * v[i]
            s1, s2, _ = _posterior((loops[i, 0, j], loops[i, 1, j], loops[i, 2, j]), now, tau, mu, eta)
            k, q = 1.0 + rho[j] * eta, mu - rho[j] * eta
            gamma = eta * (tau * mu * (1.0 + mu) + e[j]) + d[j] * rho[j] * k
            h = 1.0 / (1.0 + eta * eta * (tau * (1.0 + mu) * (1.0 + mu) + e[j]) + d[j] * k * k)
            kept = mu + d[j] * q * k - e[j] * eta * eta
            loops[i, 0, j] = h * kept
            loops[i, 1, j] = h * (lam * (1.0 + mu) * eta - after * kept)
            loops[i, 2, j] = -h * gamma
            loops[i, 3, j] = h * (lam + after * gamma)
            root = np.sqrt(squares[j])
            loops[i, 4, j], loops[i, 5, j] = root * s1, root * s2
            e[j], d[j], rho[j] = _forward(now, tau, mu, eta, lam)
