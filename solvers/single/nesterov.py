"""Single participation for Nesterov's momentum with learning rates.

``A = S_lam diag(eta) (I + mu M_mu)``, where ``M_mu`` accumulates momentum and ``S_lam`` the iterate (factor ``lam[i]``
from step i to i+1, 1 without weight decay).  As in `factorize.solvers.single.momentum_filters`, ``(L + t V)^-1`` is the
posterior covariance of ``z = A^T w``, observed with precision ``tau = t v``; backwards in i

    c[i] = lam[i] c[i+1] + w[i],    m[i] = mu m[i+1] + eta[i] c[i],    z[i] = eta[i] c[i] + mu m[i].

A is not totally nonnegative, but in the state (z, c) the filter from the end is a momentum filter with the coupling
``kappa[i] = eta[i] lam[i] + mu (eta[i] lam[i] - eta[i+1])`` in place of ``eta lam``, and in the state (m, c) that from
the start is one whose observation sees ``(mu, eta)``.  The covariance is ``a (1, r)(1, r)^T + c e2 e2^T``, the
information on (m, c) before the observation ``e e1 e1^T + d (rho, 1)(rho, 1)^T``:

    a+ = a / (1 + tau[i+1] a),   u = mu + kappa r,   y = 1 - eta[i+1] r,   g = (1 + mu) eta
    a <- a+ u^2 + c kappa^2 + g^2,    r <- (lam r a+ u + lam kappa c + g) / a
    c <- mu^2 (a+ (lam^2 c + y^2) + eta[i+1]^2 c) / a                          (a+, u, y, c old; divisor a new)

    k = 1 + eta rho,   q = mu - eta rho,   s = eta^2 (tau (1 + mu)^2 + e) + d k^2,   h = 1 / (1 + s)
    gam = eta (tau mu (1 + mu) + e) + d rho k
    d <- lam^2 s h,    rho <- mu gam / (lam s),    e <- mu^2 (e d + tau (e eta^2 + d q^2)) / s      (old on the right)

    e' = e / mu^2,  d' = d / mu^2,  w = rho + r q,  b = 1 + c (e' eta^2 + d' q^2)      (before the observation)
    s1 = a b / den,  s2 = a (r + c (e' eta - d' rho q)) / den
    den = (1 + a tau) b + a (e' (1 - eta r)^2 + d' w^2 + mu^2 c e' d')

Only y and q subtract, and kappa, which depends on the rates alone.  Both are of the size of mu, and positive while
``eta[i+1] <= lam[i] eta[i]`` (their own recursions, multiplied out, then add positive terms); where rates rise they may
change sign.  They enter as squares in sums of positive terms, so nothing is divided by them.
A rate may rise by ``1 + 1 / mu`` at most in one step, so that kappa is not negative: a linear warm-up may double its
first.

Cost: O(n) per pole.  We found these recursions in no publication.
"""

from fractions import Fraction

import numpy as np

from factorize.solvers.methods.bidiagonal_systems import accumulate
from factorize.solvers.methods.compiled import Array, Index, compiled, inlined
from factorize.solvers.single.newton import require_range, vectors
from factorize.solvers.single.pole_sweeps import Filtered, Filters, Three

MIN_MOMENTUM = 1e-3
"""The least momentum: rounding grows with its inverse."""


class Nesterov(Filtered):
    """``A = S_lam diag(eta) (I + mu M_mu)`` as `newton` and `factorize.solvers.single.streaming` want it.

    Args:
        mu: momentum factor, in [0.001, 1].  For zero use `bidiagonal`.
        eta: learning rates, positive, shape (n,), none above ``(1 + 1 / mu) lam`` times the one before.
        lam: decay of the iterate from each step to the next, positive, at most 1, shape (n,); the last is ignored.

    Raises:
        ValueError: the arrays do not fit together or leave the stated ranges.
    """

    def __init__(self, mu: float, eta: Array, lam: Array) -> None:
        self.mu, (self.eta, self.lam) = float(mu), vectors(eta=eta, lam=lam)
        require_range("mu", np.array([self.mu]), MIN_MOMENTUM, 1.0)
        require_range("eta", self.eta, 1e-60, 1e60)
        require_range("lam", self.lam, 1e-60, 1.0)
        kappa = couplings(self.mu, self.eta, self.lam)
        if kappa.min() < 0.0:
            i = int(np.argmax(kappa < 0.0))
            raise ValueError(
                f"eta rises from {self.eta[i]:g} to {self.eta[i + 1]:g} in one step, more than by the factor "
                f"{(1.0 + 1.0 / self.mu) * self.lam[i]:g} that these recurrences allow; let the rates rise more slowly"
            )
        super().__init__(
            np.stack([np.full_like(self.eta, self.mu), self.eta, self.lam, kappa]),
            filters=Filters(predict, combine, close),
            accumulations=(np.full_like(self.eta, self.mu),),
            states=2,
            numbers=3,
        )

    def _inner(self, y: Array, *, transposed: bool = False) -> Array:
        return y + self.mu * super()._inner(y, transposed=transposed)

    def _inner_inverse(self, x: Array, *, transposed: bool = False) -> Array:
        """``|((1 + mu) - mu Z)^-1 (1 - mu Z)|``: diagonals ``1 / (1 + mu)``, then ``f^(k+1)``, f = mu / (1 + mu)."""
        f = self.mu / (1.0 + self.mu)
        fading = f * f * accumulate(np.full_like(x, f), x, transposed=transposed)
        out = x / (1.0 + self.mu)
        if transposed:
            out[:-1] += fading[1:]
        else:
            out[1:] += fading[:-1]
        return np.asarray(out)


def couplings(mu: float, eta: Array, lam: Array) -> Array:
    """Return ``kappa[i] = eta[i] lam[i] + mu (eta[i] lam[i] - eta[i+1])`` to 4 roundings, shape (n,), last unused."""
    own = eta * lam
    after = np.append(eta[1:], own[-1])
    kappa: Array = own + mu * (own - after)
    for i in np.flatnonzero(kappa < 0.5 * own):
        exact = Fraction(float(eta[i])) * Fraction(float(lam[i]))
        kappa[i] = float(exact + Fraction(mu) * (exact - Fraction(float(after[i]))))
    return kappa


@inlined
def _backward(p: Three, tau: float, after: float, mu: float, eta: float, lam: float, kappa: float) -> Three:
    """Take a step of the filter from the end; (a, r, c) in and out, ``after`` the rate of the step of p."""
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
    """Take one step of the filter from the start, the observation first; (e, d, rho) in and out."""
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
    """Return ``(K^-1)[i, i]``, its covariance with the second state, and the weight of w^2 without its cancellation."""
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
    state[:3] = 0.0
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
    state[:3] = 0.0
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
