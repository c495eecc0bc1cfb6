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

from factorize.solvers.methods.compiled import Array
from factorize.solvers.single.filtered import Filtered
from factorize.solvers.single.kernels import two_filter, two_product
from factorize.solvers.single.newton import require_range, vectors


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
            filters=two_filter,
            products=two_product,
            accumulations=(self.beta,),
            states=2,
            numbers=3,
        )
