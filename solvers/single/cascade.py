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

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solvers.single import cascade_product, three_filter
from solvers.single.filtered import Filtered
from solvers.single.newton import Optimum, Progress, maximise, require_range

Array = NDArray[np.float64]


def solve(
    beta: Array,
    eta: Array,
    lam: Array,
    decay: Array,
    *,
    tolerance: float,
    callback: Progress | None = None,
    start: Array | None = None,
) -> Optimum:
    """Minimise ``tr(A^T A X^-1)`` over ``diag(X) <= 1`` for ``A = S_lam diag(eta) M_beta L_decay``.

    Args:
        beta: momentum factor from each step to the next, in (0, 1], shape (n,); the last is ignored.  For zero use
            `momentum`.
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, positive, at most 1, shape (n,); the last is ignored.
        decay: factor of the first accumulation from each step to the next, positive, shape (n,); the last is ignored.
        tolerance: relative gap between the bounds at which to stop.
        callback: called with (iteration, relative gap); an exception raised in it ends the solve.
        start: dual weights to start from, positive, shape (n,); their scale does not matter.

    Returns:
        Dual weights with a lower and an upper bound of the minimum; the gap may exceed ``tolerance``.

    Raises:
        ValueError: if the arrays do not fit together or leave the stated ranges.
    """
    return maximise(Cascade(beta, eta, lam, decay), tolerance=tolerance, callback=callback, start=start)


class Cascade(Filtered):
    """``A = S_lam diag(eta) M_beta L_decay`` as `newton` and `solvers.buffered.streaming` want it.

    Args:
        beta: momentum factor from each step to the next, in (0, 1], shape (n,); the last is ignored.  For zero use
            `momentum`.
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, positive, at most 1, shape (n,); the last is ignored.
        decay: factor of the first accumulation from each step to the next, positive, shape (n,); the last is ignored.
    """

    def __init__(self, beta: Array, eta: Array, lam: Array, decay: Array) -> None:
        given = {"beta": beta, "eta": eta, "lam": lam, "decay": decay}
        arrays = {name: np.array(a, dtype=np.float64) for name, a in given.items()}
        shapes = {a.shape for a in arrays.values()}
        if len(shapes) > 1 or arrays["eta"].ndim != 1 or not arrays["eta"].size:
            raise ValueError(f"beta, eta, lam and decay must be vectors of one length, got shapes {sorted(shapes)}")
        require_range("eta", arrays["eta"], 1e-40, 1e40)
        require_range("beta", arrays["beta"], 1e-40, 1.0)
        require_range("lam", arrays["lam"], 1e-40, 1.0)
        require_range("decay", arrays["decay"], 1e-40, 1e3)
        self.beta, self.eta, self.lam, self.decay = arrays.values()
        super().__init__(
            np.stack([self.beta, self.eta, self.lam, self.decay]),
            filters=three_filter,
            products=cascade_product,
            states=3,
            numbers=6,
            tracked_lanes=4,
        )
