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
from factorize.solvers.methods.compiled import Array
from factorize.solvers.single.filtered import Filtered
from factorize.solvers.single.kernels import nesterov_filter, two_product
from factorize.solvers.single.newton import require_range, vectors

SMALLEST_MOMENTUM = 1e-3
"""Rounding grows with the inverse of the momentum."""


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
        require_range("mu", np.array([self.mu]), SMALLEST_MOMENTUM, 1.0)
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
            filters=nesterov_filter,
            products=two_product,
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
    """``kappa[i] = eta[i] lam[i] + mu (eta[i] lam[i] - eta[i+1])`` to 4 roundings, shape (n,); the last is unused."""
    own = eta * lam
    after = np.append(eta[1:], own[-1])
    kappa: Array = own + mu * (own - after)
    for i in np.flatnonzero(kappa < 0.5 * own):
        exact = Fraction(float(eta[i])) * Fraction(float(lam[i]))
        kappa[i] = float(exact + Fraction(mu) * (exact - Fraction(float(after[i]))))
    return kappa
