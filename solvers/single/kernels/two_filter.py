"""Kernels of `momentum`: the two filters, their rounding errors, and the closed loop.

Variables are named as in the formulas at the head of `momentum`.  ``steps`` holds beta, eta and lam, shape
(3, n).  Arrays with one row per step have the poles last, for the vector units.

Tracked errors are those of `factorize.solvers.methods.rounding_errors`, with derivatives by hand: complex steps would
cost more than the solve.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factorize.numbers.compiling import assign
from factorize.solvers.methods.compiled import compiled
from factorize.solvers.methods.rounding_errors import OWN, reach, spread

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Three = tuple[float, float, float]


@compiled
def interval(steps: Array, v: Array) -> tuple[float, float]:
    """Bounds on the largest eigenvalue of ``T^-1`` and on that of T."""
    beta, eta, lam = steps
    n = v.size
    root = np.sqrt(v)
    columns, largest_row = np.zeros(n), 0.0
    for i in range(n):
        row = 1.0 / (eta[i] * root[i])
        columns[i] += row
        if i > 0:
            entry = (lam[i - 1] / eta[i] + beta[i - 1] / eta[i - 1]) / root[i]
            columns[i - 1] += entry
            row += entry
        if i > 1:
            entry = beta[i - 1] * lam[i - 2] / (eta[i - 1] * root[i])
            columns[i - 2] += entry
            row += entry
        largest_row = max(largest_row, row)
    x = root / root.max()
    ratio = 0.0
    for _ in range(2):
        y = root * x
        momentum, total = 0.0, 0.0
        for i in range(n):
            momentum = y[i] + (beta[i - 1] * momentum if i > 0 else 0.0)
            total = eta[i] * momentum + (lam[i - 1] * total if i > 0 else 0.0)
            y[i] = total
        momentum, total = 0.0, 0.0
        for i in range(n - 1, -1, -1):
            total = y[i] + lam[i] * total
            momentum = eta[i] * total + beta[i] * momentum
            y[i] = momentum
        y *= root
        ratio = (y / x).max()
        x = np.maximum(y / y.max(), 1e-150)  # any positive vector gives a bound
    return ratio, largest_row * columns.max()


@compiled
def _backward(p: Three, tau: float, beta: float, eta: float, lam: float) -> Three:
    """One step of the filter from the end; (a, r, c) in and out."""
    a, r, c = p
    seen = a / (1.0 + tau * a)
    u = beta + eta * lam * r
    c1 = 1.0 + lam * lam * c
    new = seen * u * u + eta * eta * c1
    inverse = 1.0 / new
    return new, (lam * r * seen * u + eta * c1) * inverse, beta * beta * seen * c1 * inverse


@compiled
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


@compiled
def _posterior(p: Three, q: Three) -> float:
    """``(K^-1)[i, i]``."""
    a, r, c = p
    e, d, rho = q
    both = 1.0 + c * d
    return a * both / ((1.0 + a * e) * both + a * d * (rho + r) * (rho + r))


@compiled
def predict(steps: Array, v: Array, t: Array, back: Index, filtered: Array) -> None:
    """Filter from the end: (a, r, c) of every step, shape (n, 3 or more, poles)."""
    n, count = v.size, t.size
    a, r, c = np.zeros(count), np.zeros(count), np.zeros(count)
    a[:], r[:] = steps[1, n - 1] * steps[1, n - 1], 1.0 / steps[1, n - 1]
    for j in range(count):
        filtered[n - 1, 0, j], filtered[n - 1, 1, j], filtered[n - 1, 2, j] = a[j], r[j], c[j]
    for step in range(1, n):
        i = back[step]
        beta, eta, lam = steps[0, i], steps[1, i], steps[2, i]
        for j in range(count):
            a[j], r[j], c[j] = _backward((a[j], r[j], c[j]), t[j] * v[i + 1], beta, eta, lam)
            filtered[i, 0, j], filtered[i, 1, j], filtered[i, 2, j] = a[j], r[j], c[j]


@compiled
def combine(steps: Array, v: Array, t: Array, w: Array, filtered: Array, x: Array) -> None:
    """Filter from the start, adding ``sum_j w_j s1`` of every step to ``x``."""
    e, d, rho = np.zeros(t.size), np.zeros(t.size), np.zeros(t.size)
    for i in range(v.size):
        beta, eta, lam = steps[0, i], steps[1, i], steps[2, i]
        total = 0.0
        for j in range(t.size):
            now = (e[j] + t[j] * v[i], d[j], rho[j])
            total += w[j] * _posterior((filtered[i, 0, j], filtered[i, 1, j], filtered[i, 2, j]), now)
            e[j], d[j], rho[j] = _forward(now, beta, eta, lam)
        x[i] += total


@compiled
def _differentiate_backward(p: Three, tau: float, beta: float, eta: float, lam: float, out: Array) -> None:
    """Logarithmic derivatives of `_backward`: rows and columns for (a, r, c)."""
    a, r, c = p
    free = 1.0 / (1.0 + tau * a)
    u, c1 = beta + eta * lam * r, 1.0 + lam * lam * c
    of_u, of_c1 = eta * lam * r / u, lam * lam * c / c1
    through, cross = a * free * u * u, lam * r * a * free * u
    first, second = through / (through + eta * eta * c1), cross / (cross + eta * c1)
    out[0, 0], out[0, 1], out[0, 2] = (first * free, 2.0 * first * of_u, (1.0 - first) * of_c1)
    out[1, 0], out[1, 1], out[1, 2] = (
        (second - first) * free,
        second * (1.0 + of_u) - 2.0 * first * of_u,
        (first - second) * of_c1,
    )
    out[2, 0], out[2, 1], out[2, 2] = ((1.0 - first) * free, -2.0 * first * of_u, first * of_c1)


@compiled
def _differentiate_forward(p: Three, eta: float, out: Array) -> None:
    """Logarithmic derivatives of `_forward`: rows and columns for (e, d, rho)."""
    e, d, rho = p
    k = 1.0 + rho * eta
    of_k, delta = rho * eta / k, e * eta * eta + d * k * k
    first, second = d * k * k / delta, d * rho * k / (e * eta + d * rho * k)
    h = 1.0 / (1.0 + delta)
    out[0, 0], out[0, 1], out[0, 2] = (first, 1.0 - first, -2.0 * first * of_k)
    out[1, 0], out[1, 1], out[1, 2] = (h * (1.0 - first), h * first, h * 2.0 * first * of_k)
    out[2, 0], out[2, 1], out[2, 2] = (first - second, second - first, second * (1.0 + of_k) - 2.0 * first * of_k)


@compiled
def _differentiate_posterior(p: Three, q: Three, out: Array) -> None:
    """Logarithmic derivatives of `_posterior`: rows for the two filters."""
    a, r, c = p
    e, d, rho = q
    both = (1.0 + a * e) * (1.0 + c * d)
    last = a * d * (rho + r) * (rho + r)
    share, of_e, of_cd = last / (both + last), a * e / (1.0 + a * e), c * d / (1.0 + c * d)
    out[0, 0], out[0, 1], out[0, 2] = ((1.0 - share) * (1.0 - of_e), -2.0 * share * r / (rho + r), share * of_cd)
    out[1, 0], out[1, 1], out[1, 2] = (-(1.0 - share) * of_e, -share * (1.0 - of_cd), -2.0 * share * rho / (rho + r))


@compiled
def predict_tracked(steps: Array, v: Array, t: Array, back: Index, filtered: Array) -> None:
    """As `predict`, with the ellipsoid of the errors behind the three numbers, shape (n, 12, poles)."""
    predict(steps, v, t, back, filtered)
    n = v.size
    derivative, moved, ellipsoid = np.zeros((3, 3)), np.empty((3, 3)), np.empty((3, 3))
    for j in range(t.size):
        ellipsoid[:], derivative[:] = 0.0, 0.0
        spread(ellipsoid, derivative, moved)
        assign(filtered[n - 1, 3:, j], ellipsoid.ravel())
        for step in range(1, n):
            i = back[step]
            p = (filtered[i + 1, 0, j], filtered[i + 1, 1, j], filtered[i + 1, 2, j])
            _differentiate_backward(p, t[j] * v[i + 1], steps[0, i], steps[1, i], steps[2, i], derivative)
            spread(ellipsoid, derivative, moved)
            assign(filtered[i, 3:, j], ellipsoid.ravel())


@compiled
def combine_tracked(steps: Array, v: Array, t: Array, w: Array, filtered: Array, x: Array, x_error: Array) -> None:
    """As `combine`, adding ``sum_j w_j s1 error`` of every step to ``x_error``."""
    combine(steps, v, t, w, filtered, x)
    derivative, moved, ellipsoid = np.zeros((3, 3)), np.empty((3, 3)), np.empty((3, 3))
    slope, state = np.empty((2, 3)), np.empty(3)
    for j in range(t.size):
        state[:], ellipsoid[:] = 0.0, 0.0
        for i in range(v.size):
            beta, eta, lam = steps[0, i], steps[1, i], steps[2, i]
            before = state[0]
            state[0] += t[j] * v[i]
            for k in range(3):
                ellipsoid[0, k] *= before / state[0]
            for k in range(3):
                ellipsoid[k, 0] *= before / state[0]
            p, e = (filtered[i, 0, j], filtered[i, 1, j], filtered[i, 2, j]), (state[0], state[1], state[2])
            _differentiate_posterior(p, e, slope)
            _differentiate_forward(e, eta, derivative)
            x_error[i] += w[j] * _posterior(p, e) * (reach(3, slope, filtered, i, j, ellipsoid) + OWN)
            spread(ellipsoid, derivative, moved)
            state[0], state[1], state[2] = _forward(e, beta, eta, lam)


@compiled
def close(steps: Array, v: Array, t: Array, squares: Array, back: Index, loops: Array) -> None:
    """Closed loop of every step, shape (n, 6, poles): Phi row by row, then (s1, s2) times the root of ``squares``."""
    predict(steps, v, t, back, loops)
    e, d, rho = np.zeros(t.size), np.zeros(t.size), np.zeros(t.size)
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
