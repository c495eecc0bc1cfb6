"""Kernels of `solvers.momentum`: the two filters, their rounding errors, and the Hessian product.

Variables are named as in the formulas at the head of `solvers.momentum`.  ``steps`` holds beta, eta and lam, shape
(3, n).  Arrays with one row per step have the poles last, for the vector units.

Tracked errors are those of `solvers.rounding`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.kernels import compiled
from solvers.rounding import OWN, STEP, record, spread

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Three = tuple[Any, ...]  # of floats, or of complex numbers for derivatives


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
def _posterior(p: Three, q: Three) -> Any:
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
    filtered[n - 1, 0], filtered[n - 1, 1], filtered[n - 1, 2] = a, r, c
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
def _turned(p: Array, j: int, k: int) -> Three:
    """Column j of p with entry k moved by the complex step, relative to its size."""
    step = complex(1.0, STEP)
    return (
        p[0, j] * (step if k == 0 else complex(1.0)),
        p[1, j] * (step if k == 1 else complex(1.0)),
        p[2, j] * (step if k == 2 else complex(1.0)),
    )


@compiled
def predict_tracked(steps: Array, v: Array, t: Array, back: Index, filtered: Array) -> None:
    """As `predict`, with the ellipsoid of the errors behind the three numbers, shape (n, 12, poles)."""
    predict(steps, v, t, back, filtered)
    n = v.size
    derivative, moved, ellipsoid = np.zeros((3, 3)), np.empty((3, 3)), np.empty((3, 3))
    for j in range(t.size):
        ellipsoid[:], derivative[:] = 0.0, 0.0
        spread(ellipsoid, derivative, moved)
        filtered[n - 1, 3:, j] = ellipsoid.ravel()
        for step in range(1, n):
            i = back[step]
            for k in range(3):
                turned = _turned(filtered[i + 1], j, k)
                record(_backward(turned, t[j] * v[i + 1], steps[0, i], steps[1, i], steps[2, i]), k, derivative)
            spread(ellipsoid, derivative, moved)
            filtered[i, 3:, j] = ellipsoid.ravel()


@compiled
def combine_tracked(steps: Array, v: Array, t: Array, w: Array, filtered: Array, x: Array, x_error: Array) -> None:
    """As `combine`, adding ``sum_j w_j s1 error`` of every step to ``x_error``."""
    combine(steps, v, t, w, filtered, x)
    derivative, moved, ellipsoid = np.zeros((3, 3)), np.empty((3, 3)), np.empty((3, 3))
    slope, state = np.empty((2, 3)), np.empty((3, 1))
    for j in range(t.size):
        state[:], ellipsoid[:] = 0.0, 0.0
        for i in range(v.size):
            beta, eta, lam = steps[0, i], steps[1, i], steps[2, i]
            before = state[0, 0]
            state[0, 0] += t[j] * v[i]
            ellipsoid[0] *= before / state[0, 0]
            ellipsoid[:, 0] *= before / state[0, 0]
            p, e = _turned(filtered[i], j, -1), _turned(state, 0, -1)
            for k in range(3):
                moving = _posterior(_turned(filtered[i], j, k), e)
                slope[0, k] = moving.imag / STEP / moving.real
                turned = _turned(state, 0, k)
                moving = _posterior(p, turned)
                slope[1, k] = moving.imag / STEP / moving.real
                record(_forward(turned, beta, eta, lam), k, derivative)
            first, second = 0.0, 0.0
            for a in range(3):
                for b in range(3):
                    first += slope[0, a] * filtered[i, 3 + 3 * a + b, j] * slope[0, b]
                    second += slope[1, a] * ellipsoid[a, b] * slope[1, b]
            x_error[i] += w[j] * _posterior(p, e).real * (np.sqrt(max(first, 0.0)) + np.sqrt(max(second, 0.0)) + OWN)
            spread(ellipsoid, derivative, moved)
            for m, entry in enumerate(_forward(e, beta, eta, lam)):
                state[m, 0] = entry.real


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


@compiled
def product_above(loops: Array, back: Index, x: Array, y: Array) -> None:
    """``y[i] = sum over k > i``: first entry of ``Q = Phi[i] M[i+1] Phi[i]^T``, ``M[i] = Q + x[i] sigma sigma^T``."""
    n, _, count = loops.shape
    m11, m12, m22 = np.zeros(count), np.zeros(count), np.zeros(count)
    for step in range(n):
        i = back[step]
        total = 0.0
        for j in range(count):
            f11, f12, f21, f22 = loops[i, 0, j], loops[i, 1, j], loops[i, 2, j], loops[i, 3, j]
            a1, a2 = f11 * m11[j] + f12 * m12[j], f11 * m12[j] + f12 * m22[j]
            b1, b2 = f21 * m11[j] + f22 * m12[j], f21 * m12[j] + f22 * m22[j]
            first = a1 * f11 + a2 * f12
            s1, s2 = loops[i, 4, j], loops[i, 5, j]
            m11[j] = first + x[i] * s1 * s1
            m12[j] = a1 * f21 + a2 * f22 + x[i] * s1 * s2
            m22[j] = b1 * f21 + b2 * f22 + x[i] * s2 * s2
            total += first
        y[i] = total


@compiled
def product_below(loops: Array, x: Array, y: Array) -> None:
    """``y[i] = sum over k <= i``: ``sigma^T N sigma``, ``N = Z[i] + x[i] e1 e1^T``, ``Z[i+1] = Phi[i]^T N Phi[i]``."""
    n, _, count = loops.shape
    z11, z12, z22 = np.zeros(count), np.zeros(count), np.zeros(count)
    for i in range(n):
        total = 0.0
        for j in range(count):
            s1, s2 = loops[i, 4, j], loops[i, 5, j]
            m11, m12, m22 = z11[j] + x[i], z12[j], z22[j]
            total += s1 * (m11 * s1 + 2.0 * m12 * s2) + m22 * s2 * s2
            f11, f12, f21, f22 = loops[i, 0, j], loops[i, 1, j], loops[i, 2, j], loops[i, 3, j]
            a1, a2 = f11 * m11 + f21 * m12, f11 * m12 + f21 * m22
            b1, b2 = f12 * m11 + f22 * m12, f12 * m12 + f22 * m22
            z11[j] = a1 * f11 + a2 * f21
            z12[j] = a1 * f12 + a2 * f22
            z22[j] = b1 * f12 + b2 * f22
        y[i] = total
