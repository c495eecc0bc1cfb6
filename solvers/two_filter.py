"""Kernels of `solvers.momentum`: the two filters, their rounding errors, and the Hessian product.

Variables are named as in the formulas at the head of `solvers.momentum`.  ``steps`` holds beta, eta and lam, shape
(3, n).  Arrays with one row per step have the poles last, for the vector units.

Tracked errors are first-order bounds in units of the roundoff u: each line multiplies the errors of its arguments
with the absolute values of the logarithmic derivatives and adds a count of its own operations, rounded up.  The
derivatives are taken of a whole update of (a, r, c) or (d, rho, e); taken operation by operation, errors that cancel
would add up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solvers.kernels import compiled

Array = NDArray[np.float64]
Index = NDArray[np.int64]

_OWN = 24.0  # more than the roundings of any one update: at most twelve operations in numerator and denominator


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
            seen = a[j] / (1.0 + t[j] * v[i + 1] * a[j])
            u = beta + eta * lam * r[j]
            c1 = 1.0 + lam * lam * c[j]
            a[j] = seen * u * u + eta * eta * c1
            inverse = 1.0 / a[j]
            r[j] = (lam * r[j] * seen * u + eta * c1) * inverse
            c[j] = beta * beta * seen * c1 * inverse
            filtered[i, 0, j], filtered[i, 1, j], filtered[i, 2, j] = a[j], r[j], c[j]


@compiled
def combine(steps: Array, v: Array, t: Array, w: Array, filtered: Array, x: Array) -> None:
    """Filter from the start, adding ``sum_j w_j s1`` of every step to ``x``."""
    e, d, rho = np.zeros(t.size), np.zeros(t.size), np.zeros(t.size)
    for i in range(v.size):
        beta, eta, lam = steps[0, i], steps[1, i], steps[2, i]
        total = 0.0
        for j in range(t.size):
            a, r, c = filtered[i, 0, j], filtered[i, 1, j], filtered[i, 2, j]
            seen = e[j] + t[j] * v[i]
            both = 1.0 + c * d[j]
            sum_ = rho[j] + r
            total += w[j] * a * both / ((1.0 + a * seen) * both + a * d[j] * sum_ * sum_)
            k = 1.0 + rho[j] * eta
            gam = seen * eta + d[j] * rho[j] * k
            delta = seen * eta * eta + d[j] * k * k
            inverse = 1.0 / delta
            e[j] = beta * beta * seen * d[j] * inverse
            rho[j] = beta / lam * gam * inverse
            d[j] = lam * lam * delta / (1.0 + delta)
        x[i] += total


@compiled
def predict_tracked(steps: Array, v: Array, t: Array, back: Index, filtered: Array) -> None:
    """As `predict`, with the errors of (a, r, c) behind them, shape (n, 6, poles)."""
    predict(steps, v, t, back, filtered)
    n = v.size
    filtered[n - 1, 3:] = 1.0
    for step in range(1, n):
        i = back[step]
        beta, eta, lam = steps[0, i], steps[1, i], steps[2, i]
        for j in range(t.size):
            a, r, c = filtered[i + 1, 0, j], filtered[i + 1, 1, j], filtered[i + 1, 2, j]
            error_a, error_r, error_c = filtered[i + 1, 3, j], filtered[i + 1, 4, j], filtered[i + 1, 5, j]
            free = 1.0 / (1.0 + t[j] * v[i + 1] * a)
            u, c1 = beta + eta * lam * r, 1.0 + lam * lam * c
            share_r, share_c = eta * lam * r / u, lam * lam * c / c1
            through = a * free * u * u
            share = through / (through + eta * eta * c1)  # of the first term in a
            cross = lam * r * a * free * u
            part = cross / (cross + eta * c1)  # of the first term in r
            error_a, error_c = free * error_a, share_c * error_c
            apart = abs(part - share)
            filtered[i, 3, j] = share * error_a + 2.0 * share * share_r * error_r + (1.0 - share) * error_c + _OWN
            filtered[i, 4, j] = (
                apart * (error_a + error_c) + abs(part * (1.0 + share_r) - 2.0 * share * share_r) * error_r + _OWN
            )
            filtered[i, 5, j] = (1.0 - share) * error_a + 2.0 * share * share_r * error_r + share * error_c + _OWN


@compiled
def combine_tracked(steps: Array, v: Array, t: Array, w: Array, filtered: Array, x: Array, x_error: Array) -> None:
    """As `combine`, adding ``sum_j w_j s1 error`` of every step to ``x_error``."""
    combine(steps, v, t, w, filtered, x)
    e, d, rho = np.zeros(t.size), np.zeros(t.size), np.zeros(t.size)
    error_e, error_d, error_rho = np.zeros(t.size), np.zeros(t.size), np.zeros(t.size)
    for i in range(v.size):
        beta, eta, lam = steps[0, i], steps[1, i], steps[2, i]
        total = 0.0
        for j in range(t.size):
            a, r, c = filtered[i, 0, j], filtered[i, 1, j], filtered[i, 2, j]
            seen = e[j] + t[j] * v[i]
            error_seen = (e[j] * error_e[j] + (seen - e[j])) / seen + 1.0
            both, sum_ = 1.0 + c * d[j], rho[j] + r
            one, last = (1.0 + a * seen) * both, a * d[j] * sum_ * sum_
            den = one + last
            share, alpha, kappa = last / den, a * seen / (1.0 + a * seen), c * d[j] / both
            error = (
                (1.0 - share) * ((1.0 - alpha) * filtered[i, 3, j] + alpha * error_seen)
                + share * (kappa * filtered[i, 5, j] + (1.0 - kappa) * error_d[j])
                + 2.0 * share * (rho[j] * error_rho[j] + r * filtered[i, 4, j]) / sum_
                + _OWN
            )
            total += w[j] * a * both / den * error
            k = 1.0 + rho[j] * eta
            share_k = rho[j] * eta / k
            left, right = seen * eta, d[j] * rho[j] * k
            part = right / (left + right)
            delta = left * eta + d[j] * k * k
            share = d[j] * k * k / delta
            apart = abs(part - share)
            through_rho = 2.0 * share * share_k * error_rho[j]
            h = 1.0 / (1.0 + delta)
            error_e[j], error_rho[j], error_d[j] = (
                share * error_seen + (1.0 - share) * error_d[j] + through_rho + _OWN,
                apart * (error_seen + error_d[j])
                + abs(part * (1.0 + share_k) - 2.0 * share * share_k) * error_rho[j]
                + _OWN,
                h * ((1.0 - share) * error_seen + share * error_d[j] + through_rho) + _OWN,
            )
            e[j] = beta * beta * seen * d[j] / delta
            rho[j] = beta / lam * (left + right) / delta
            d[j] = lam * lam * delta * h
        x_error[i] += total


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
