"""Single participation for a cascade of three recursions: SRG, or momentum twice.

``A = S_lam diag(eta) M_beta L_decay``: L accumulates the gradients (factor ``decay[i]`` from step i to i+1), M the
result (``beta[i]``), S the iterate (``lam[i]``).  As in `momentum`, ``(L + t V)^-1`` is the posterior
covariance of ``z = A^T w``, observed with precision ``tau = t v``; backwards in i, after scaling the states by (decay,
beta, lam),

    c += w,   m += eta c,   l += m,   z = l,       state (l, m, c).

Scaling, adding to the last state and adding a multiple of one state to its neighbour keep a covariance totally
nonnegative.  So it is carried as ``U diag(d1, d2, d3) U^T``, U unit lower triangular with rows (1), (r1, 1) and
(r1 a, a + b, 1), so that b is its remaining minor over r1; the information as ``W diag(e1, e2, e3) W^T``, W unit upper
triangular with rows (1, a + b, w23 a), (1, w23) and (1), a and b its own.  All these numbers are non-negative and have
recursions without a subtraction: an observation changes d1 and e1 alone, new noise d3 and e3 alone, and the rest
follows from the formula of Cauchy and Binet, as does the posterior variance with its denominator
``det(I + D M E M^T)``, ``M = U^T W``.

Cost: O(n) per pole.  We found these recursions in no publication.
"""

import numpy as np

from factorize.solvers.methods.compiled import Array, Index, compiled, inlined
from factorize.solvers.single.newton import require_range, vectors
from factorize.solvers.single.pole_sweeps import Filtered, Filters, Six


class Cascade(Filtered):
    """``A = S_lam diag(eta) M_beta L_decay`` as `newton` and `factorize.solvers.single.streaming` want it.

    Args:
        beta: momentum factor from each step to the next, in (0, 1], shape (n,); the last is ignored.  For zero use
            `momentum`.
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, positive, at most 1, shape (n,); the last is ignored.
        decay: factor of the first accumulation from each step to the next, positive, shape (n,); the last is ignored.

    Raises:
        ValueError: the arrays do not fit together or leave the stated ranges.
    """

    def __init__(self, beta: Array, eta: Array, lam: Array, decay: Array) -> None:
        self.beta, self.eta, self.lam, self.decay = vectors(beta=beta, eta=eta, lam=lam, decay=decay)
        require_range("eta", self.eta, 1e-40, 1e40)
        require_range("beta", self.beta, 1e-40, 1.0)
        require_range("lam", self.lam, 1e-40, 1.0)
        require_range("decay", self.decay, 1e-40, 1e3)
        super().__init__(
            np.stack([self.beta, self.eta, self.lam, self.decay]),
            filters=Filters(predict, combine, close),
            accumulations=(self.decay, self.beta),
            states=3,
            numbers=6,
        )


@inlined
def _backward(p: Six, tau: float, beta: float, eta: float, lam: float, decay: float) -> Six:
    """Take one step of the filter from the end; (d1, d2, d3, r1, a, b) in and out."""
    d1, d2, d3, r1, a, b = p
    r2, s, q = r1 * a, a + b, r1 * b
    d1 = d1 / (1.0 + tau * d1)
    d3 = lam * lam * d3 + 1.0
    b2, b3, a3 = beta + eta * lam * s, lam * s, lam * r2
    weight = d2 * b2 * b2 + d3 * eta * eta
    slope = (d2 * b2 * b3 + d3 * eta) / weight
    minor = (d2 * b2 * beta * lam * q + d3 * eta * beta * r1) / weight
    a2 = beta * r1 + eta * a3
    a1 = decay + a2
    whole, first = d1 * a1 * a1 + weight, d1 * a1 * a2 + weight
    return (
        whole,
        d1 * weight * decay * decay / whole,
        beta * beta * d2 * d3 / weight,
        first / whole,
        (d1 * a1 * a3 + weight * slope) / first,
        minor / decay * whole / first,
    )


@inlined
def _forward(p: Six, beta: float, eta: float, lam: float, decay: float) -> Six:
    """Take one step of the filter from the start; (e1, e2, e3, w23, a, b) in and out, the observation in e1."""
    e1, e2, e3, w23, a, b = p
    w12, w13, w = a + b, w23 * a, w23 * b
    m2, a3 = 1.0 + w12, 1.0 + eta * (w13 + w23)
    lower = e1 + e2 * m2 * m2
    whole, last = eta * eta * lower + e3 * a3 * a3, eta * lower + e3 * (w13 + w23) * a3
    return (
        decay * decay * e1 * e2 / lower,
        beta * beta * e3 * lower / whole,
        lam * lam * whole / (1.0 + whole),
        beta / lam * last / whole,
        decay / beta * (e1 * eta + e2 * w12 * eta * m2 + e3 * w13 * a3) / last,
        decay / beta * (e1 * w23 + e2 * m2 * w) / lower * whole / last,
    )


@inlined
def _posterior(p: Six, e: Six) -> tuple[float, float, float]:
    """Return ``(K^-1)[i, i]`` and its covariances with the second and third state."""
    d1, d2, d3, r1, a, b = p
    r2, s, q = r1 * a, a + b, r1 * b
    e1, e2, e3, w23, a, b = e
    w12, w13, w = a + b, w23 * a, w23 * b
    m12, m13, m23 = r1 + w12, r2 + r1 * w23 + w13, s + w23
    minor = w + s * w12 + q
    rest = 1.0 + d2 * (e2 + e3 * m23 * m23) + d3 * e3 + d2 * d3 * e2 * e3
    den = rest + d1 * (e1 * rest + e2 * m12 * m12 * (1.0 + d3 * e3) + e3 * m13 * m13 + d2 * e2 * e3 * minor * minor)
    scale = d1 / den
    y1 = scale * rest
    y2 = -scale * d2 * (e2 * m12 + e3 * m13 * m23 + d3 * e2 * e3 * m12)
    y3 = scale * d3 * e3 * (d2 * e2 * minor - m13)
    return y1, r1 * y1 + y2, r2 * y1 + s * y2 + y3


@compiled
def predict(steps: Array, v: Array, t: Array, back: Index, state: Array, filtered: Array) -> None:
    """Filter from the end: the six numbers of every step, shape (n, 6 or more, poles)."""
    n, count = v.size, t.size
    eta = steps[1, n - 1]
    for j in range(count):
        state[0, j], state[3, j], state[4, j] = eta * eta, 1.0, 1.0 / eta
        state[1, j] = state[2, j] = state[5, j] = 0.0
    for k in range(6):
        for j in range(count):
            filtered[n - 1, k, j] = state[k, j]
    for step in range(1, n):
        i = back[step]
        beta, eta, lam, decay = steps[0, i], steps[1, i], steps[2, i], steps[3, i]
        for j in range(count):
            p = (state[0, j], state[1, j], state[2, j], state[3, j], state[4, j], state[5, j])
            new = _backward(p, t[j] * v[i + 1], beta, eta, lam, decay)
            state[0, j], state[1, j], state[2, j], state[3, j] = new[0], new[1], new[2], new[3]
            state[4, j], state[5, j] = new[4], new[5]
        for k in range(6):
            for j in range(count):
                filtered[i, k, j] = state[k, j]


@compiled
def combine(steps: Array, v: Array, t: Array, w: Array, state: Array, filtered: Array, x: Array) -> None:
    """Filter from the start, adding ``sum_j w_j s1`` of every step to ``x``."""
    count = t.size
    state[:6] = 0.0
    for i in range(v.size):
        beta, eta, lam, decay = steps[0, i], steps[1, i], steps[2, i], steps[3, i]
        f = filtered[i]
        total = 0.0
        for j in range(count):
            e1 = state[0, j] + t[j] * v[i]
            e = (e1, state[1, j], state[2, j], state[3, j], state[4, j], state[5, j])
            p = (f[0, j], f[1, j], f[2, j], f[3, j], f[4, j], f[5, j])
            total += w[j] * _posterior(p, e)[0]
            new = _forward(e, beta, eta, lam, decay)
            state[0, j], state[1, j], state[2, j], state[3, j] = new[0], new[1], new[2], new[3]
            state[4, j], state[5, j] = new[4], new[5]
        x[i] += total


@compiled
def close(steps: Array, v: Array, t: Array, squares: Array, back: Index, state: Array, loops: Array) -> None:
    """Closed loop of every step, shape (n, 12, poles): Phi row by row, then sigma times the root of ``squares``."""
    predict(steps, v, t, back, state, loops)
    count = t.size
    state[:6] = 0.0
    for i in range(v.size):
        beta, eta, lam, decay = steps[0, i], steps[1, i], steps[2, i], steps[3, i]
        out = loops[i]
        for j in range(count):
            e1, e2, e3 = state[0, j] + t[j] * v[i], state[1, j], state[2, j]
            e = (e1, e2, e3, state[3, j], state[4, j], state[5, j])
            w12, w13, w23 = e[4] + e[5], e[3] * e[4], e[3]
            p = (out[0, j], out[1, j], out[2, j], out[3, j], out[4, j], out[5, j])
            m2, a3 = 1.0 + w12, 1.0 + eta * (w13 + w23)
            lower = e1 + e2 * m2 * m2
            h = 1.0 / (1.0 + eta * eta * lower + e3 * a3 * a3)
            g1 = h * (e1 * eta + e2 * w12 * eta * m2 + e3 * w13 * a3)
            g2 = h * (eta * lower + e3 * (w13 + w23) * a3)
            kept = beta * h * (1.0 + e3 * a3)
            out[0, j] = decay * h * (1.0 + eta * eta * e2 * m2 + e3 * a3 * (1.0 + eta * w23))
            out[1, j], out[2, j] = kept, lam * eta * h
            out[3, j], out[4, j], out[5, j] = -decay * eta * g1, kept, lam * eta * h
            out[6, j], out[7, j], out[8, j] = -decay * g1, -beta * g2, lam * h
            root = np.sqrt(squares[j])
            sigma = _posterior(p, e)
            out[9, j], out[10, j], out[11, j] = root * sigma[0], root * sigma[1], root * sigma[2]
            new = _forward(e, beta, eta, lam, decay)
            state[0, j], state[1, j], state[2, j], state[3, j] = new[0], new[1], new[2], new[3]
            state[4, j], state[5, j] = new[4], new[5]
