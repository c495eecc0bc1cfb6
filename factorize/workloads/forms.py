"""Forms of A that make it quick to solve for: few numbers per step, known by what A is and not by its entries."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from factorize.workloads.operators import LookAhead, Operator, Scale


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


class AccumulationChain(NamedTuple):
    """A = S_lam diag(eta) M: accumulations M, then rates, then one accumulation more; with `ahead`, M = I + mu M_mu.

    A factor acts between a step and the next; the last one acts on nothing, and is 1.

    Attributes:
        inner: factors of the accumulations in M, in [0, 1], the one applied first at the front, each of shape (n,).
        eta: learning rates, not negative, shape (n,).
        lam: factors of the last accumulation, in [0, 1], shape (n,); all 0 but the last where there is none.
        ahead: mu, Nesterov's look ahead, in [0, 1).
    """

    inner: tuple[np.ndarray, ...]
    eta: np.ndarray
    lam: np.ndarray
    ahead: float = 0.0


_NEGLIGIBLE = 1e-30  # a factor below this changes no entry of A by a rounding


def chain_of(operators: Iterable[Operator], n: int) -> AccumulationChain | None:
    """Return a product of operators as a chain, or None where it is none.

    What scales the outputs of the last accumulation moves in front of it: diag(b) S_lam = S_mu diag(b), with
    mu_i = lam_i b_i / b_{i-1}.

    Args:
        operators: the one applied first at the front.
        n: number of steps.
    """
    eta, lam, inner, ahead = np.ones(n), None, list[np.ndarray](), 0.0
    for operator in reversed([part for whole in operators for part in whole.parts()]):
        factors = operator.follows(n)
        if isinstance(operator, Scale) and not inner and not ahead:
            eta = eta * operator.factors
        elif isinstance(operator, LookAhead) and lam is not None and not inner and not ahead:
            ahead = operator.momentum if operator.momentum >= _NEGLIGIBLE else 0.0
        elif factors is None or ahead or (lam is None and not eta.all()):
            return None
        elif lam is None:
            lam = np.append(factors[1:] * (eta[1:] / eta[:-1]), 1.0)
        elif factors[1:].max(initial=0.0) >= _NEGLIGIBLE:
            inner.insert(0, np.append(factors[1:], 1.0))
    lam = np.append(np.zeros(n - 1), 1.0) if lam is None else lam
    return AccumulationChain(tuple(inner), eta, lam, ahead)
