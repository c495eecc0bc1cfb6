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

from factorize.solvers.methods.compiled import Array
from factorize.solvers.single.filtered import Filtered
from factorize.solvers.single.kernels import three_filter, three_product
from factorize.solvers.single.newton import require_range, vectors


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
            filters=three_filter,
            products=three_product,
            accumulations=(self.decay, self.beta),
            states=3,
            numbers=6,
        )
