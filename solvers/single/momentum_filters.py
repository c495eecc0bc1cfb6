"""Single participation for momentum with learning rates and weight decay.

``A = S_lam diag(eta) M_beta``, where ``M_beta`` accumulates momentum (factor ``beta[i]`` from step i to i+1) and
``S_lam`` the iterate (factor ``lam[i]`` from step i to i+1, 1 without weight decay).  ``A^-1`` has three diagonals;
forming ``L + t V`` from them would lose the small eigenvalues, so ``(L + t V)^-1`` is read as a posterior
covariance: of ``z = A^T w``, w white, where z[i] is observed with precision ``tau[i] = t v[i]``.  Backwards in i

    c[i] = lam[i] c[i+1] + w[i],    m[i] = beta[i] m[i+1] + eta[i] c[i],    z[i] = m[i],

a state of two numbers with ``F = [beta e1 | lam g]``, ``g = (eta, 1)``.  A filter from the end carries the predicted
covariance as ``a (1, r)(1, r)^T + c e2 e2^T``, one from the start the information ``e e1 e1^T + d (rho, 1)(rho, 1)^T``.
In these variables every operation of both filters and of the posterior variance s1 adds, multiplies or divides
positive numbers; the covariance s2 with the second state subtracts once:

    a+ = a / (1 + tau[i+1] a),  u = beta + eta lam r,  c1 = 1 + lam^2 c
    a <- a+ u^2 + eta^2 c1,     r <- (lam r a+ u + eta c1) / a,     c <- beta^2 a+ c1 / a          (a, u new first)

    e' = e + tau[i],  k = 1 + rho eta,  gam = e' eta + d rho k,  del = e' eta^2 + d k^2,  h = 1 / (1 + del)
    s1 = a (1 + c d) / den,  s2 = a (r - c d rho) / den,  den = (1 + a e')(1 + c d) + a d (rho + r)^2
    d <- lam^2 del h,   rho <- beta gam / (lam del),   e <- beta^2 e' d / del                       (d old on the right)

    (K^-1)[i, k] = e1 . Phi[i] ... Phi[k-1] (s1, s2)[k]  (i <= k)
    Phi = [[beta h (1 + d k), eta lam h], [-beta h gam, lam h]]

Cost: O(n) per pole.
"""

import numpy as np

from factorize.solvers.methods.compiled import Array, Index, compiled, inlined
from factorize.solvers.single.newton import require_range, vectors
from factorize.solvers.single.pole_sweeps import Filtered, Filters, Three


class MomentumFilters(Filtered):
    """``A = S_lam diag(eta) M_beta`` as `newton` and `factorize.solvers.single.streaming` want it.

    Args:
        beta: momentum factor from each step to the next, in [0, 1], shape (n,); the last is ignored.
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, positive, at most 1, shape (n,); the last is ignored.

    Raises:
        ValueError: the arrays do not fit together or leave the stated ranges.
    """

    def __init__(self, beta: Array, eta: Array, lam: Array) -> None:
        self.beta, self.eta, self.lam = vectors(beta=beta, eta=eta, lam=lam)
        require_range("eta", self.eta, 1e-60, 1e60)
        require_range("beta", self.beta, 0.0, 1.0)
        require_range("lam", self.lam, 1e-60, 1.0)
        super().__init__(
            np.stack([self.beta, self.eta, self.lam]),
            filters=Filters(predict, combine, close),
            accumulations=(self.beta,),
            states=2,
            numbers=3,
        )


@inlined
def _backward(p: Three, tau: float, beta: float, eta: float, lam: float) -> Three:
    """Take one step of the filter from the end; (a, r, c) in and out."""
    a, r, c = p
    seen = a / (1.0 + tau * a)
    u = beta + eta * lam * r
    c1 = 1.0 + lam * lam * c
    new = seen * u * u + eta * eta * c1
    inverse = 1.0 / new
    return new, (lam * r * seen * u + eta * c1) * inverse, beta * beta * seen * c1 * inverse


@inlined
def _forward(p: Three, beta: float, eta: float, lam: float) -> Three:
    """Take one step of the filter from the start; (e, d, rho) in and out, the observation in e."""
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
    """Return ``(K^-1)[i, i]``."""
    a, r, c = p
    e, d, rho = q
    both = 1.0 + c * d
    return a * both / ((1.0 + a * e) * both + a * d * (rho + r) * (rho + r))


@compiled
def predict(steps: Array, v: Array, t: Array, back: Index, state: Array, filtered: Array) -> None:
    """Run the filter from the end: (a, r, c) of every step, shape (n, 3, poles)."""
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
    """Run the filter from the start, adding ``sum_j w_j s1`` of every step to ``x``."""
    e, d, rho = state[0], state[1], state[2]
    state[:3] = 0.0
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
    state[:3] = 0.0
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
