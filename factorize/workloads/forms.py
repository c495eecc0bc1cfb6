"""Forms of A that make it quick to solve for: few numbers per step, known by what A is and not by its entries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class BidiagonalInverse(NamedTuple):
    """A^-1 with diagonal p_i and sub-diagonal -q_i (q_0 = 0); what makes an O(n) solver possible.

    Attributes:
        p: diagonal, shape (n,), positive.
        q: negated sub-diagonal, shape (n,), non-negative; q[i] couples step i to step i - 1.
    """

    p: np.ndarray
    q: np.ndarray


class FirstOrder(NamedTuple):
    """A as a recursion: row i is follow_i times row i - 1, plus feed_i in column i.

    Where every feed is positive the inverse is bidiagonal, with p = 1 / feed and q = follow / feed.

    Attributes:
        follow: in [0, 1], shape (n,); the first is 0.
        feed: non-negative, not all zero, shape (n,).
    """

    follow: np.ndarray
    feed: np.ndarray


def running_sum(rates: np.ndarray) -> FirstOrder:
    """Return the running sum of rates times inputs."""
    return FirstOrder(np.minimum(np.arange(len(rates)), 1.0), rates)


class MomentumForm(NamedTuple):
    """A = S_lam diag(eta) M_beta: momentum, then rates, then a decaying sum; the other form with an O(n) solver.

    Attributes:
        beta: momentum factor from each step to the next, in [0, 1], shape (n,).
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, in (0, 1], shape (n,).
    """

    beta: np.ndarray
    eta: np.ndarray
    lam: np.ndarray


class CascadeForm(NamedTuple):
    """A = S_lam diag(eta) M_beta L_decay: a momentum form of gradients that are accumulated first.

    Attributes:
        beta: momentum factor from each step to the next, in (0, 1], shape (n,).
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, in (0, 1], shape (n,).
        decay: factor of the first accumulation from each step to the next, positive, shape (n,).
    """

    beta: np.ndarray
    eta: np.ndarray
    lam: np.ndarray
    decay: np.ndarray


class NesterovForm(NamedTuple):
    """A = S_lam diag(eta) (I + mu M_mu): the gradient and the momentum after it.

    Attributes:
        mu: momentum factor, in (0, 1].
        eta: learning rates, positive, shape (n,).
        lam: decay of the iterate from each step to the next, in (0, 1], shape (n,).
    """

    mu: float
    eta: np.ndarray
    lam: np.ndarray
