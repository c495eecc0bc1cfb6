"""The linear maps that optimizers are made of, each applied to columns in O(n) per column.

A workload A is a product of these: `apply` runs the recursion forwards (A x), `adjoint` runs its transpose backwards
(A^T y). Both take and return arrays of shape (n, d). Nothing n x n is formed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from factorize.numbers.state_space import StateSpace, first_order, identity, scaling

Array = np.ndarray
_MIN_DECAY = 1e-30
"""The smallest decay of a coupled recursion that is divided into two decays."""


class Operator(ABC):
    """A lower-triangular n x n map known by its action."""

    @abstractmethod
    def apply(self, x: Array) -> Array:
        """Return L x for x of shape (n, d)."""

    @abstractmethod
    def adjoint(self, y: Array) -> Array:
        """Return L^T y for y of shape (n, d)."""

    @abstractmethod
    def state_space(self, n: int) -> StateSpace | None:
        """Return the map as a recursion with few states, or None if it needs many."""

    def follows(self, n: int) -> Array | None:
        """Return f where y_i = f_i y_{i-1} + x_i, shape (n,); None for any other map."""
        return None

    def parts(self) -> tuple[Operator, ...]:
        """Return simpler operators whose product it is up to rounding, the one applied first at the front."""
        return (self,)


@dataclass(frozen=True)
class Accumulate(Operator):
    """The prefix sum: y_i = y_{i-1} + x_i."""

    def apply(self, x: Array) -> Array:
        """Return the running sums over the first axis."""
        return np.cumsum(x, axis=0)

    def adjoint(self, y: Array) -> Array:
        """Return the running sums from the end."""
        return np.cumsum(y[::-1], axis=0)[::-1]

    def state_space(self, n: int) -> StateSpace:
        """Return a recursion with one state, the sum."""
        return first_order(np.ones(n))

    def follows(self, n: int) -> Array:
        """Return ones."""
        return np.ones(n)


@dataclass(frozen=True)
class Decay(Operator):
    """A first-order recursion with its own factor each step: y_i = factors_i y_{i-1} + x_i."""

    factors: Array

    def apply(self, x: Array) -> Array:
        """Run the recursion forwards."""
        y = np.array(x, dtype=np.float64)
        for i in range(1, len(y)):
            y[i] += self.factors[i] * y[i - 1]
        return y

    def adjoint(self, y: Array) -> Array:
        """Run x_i = y_i + factors_{i+1} x_{i+1} backwards."""
        x = np.array(y, dtype=np.float64)
        for i in range(len(x) - 2, -1, -1):
            x[i] += self.factors[i + 1] * x[i + 1]
        return x

    def state_space(self, n: int) -> StateSpace:
        """Return a recursion with one state, the last output."""
        return first_order(self.factors)

    def follows(self, n: int) -> Array:
        """Return the factors."""
        return self.factors


@dataclass(frozen=True)
class Scale(Operator):
    """A diagonal matrix: y_i = factors_i x_i."""

    factors: Array

    def apply(self, x: Array) -> Array:
        """Scale the rows."""
        return self.factors[:, None] * x

    def adjoint(self, y: Array) -> Array:
        """Scale the rows."""
        return self.factors[:, None] * y

    def state_space(self, n: int) -> StateSpace:
        """Return a map without a state."""
        return scaling(self.factors)


@dataclass(frozen=True)
class Window(Operator):
    """A sliding sum of the last `width` entries."""

    width: int

    def apply(self, x: Array) -> Array:
        """Subtract the running sum from `width` steps ago: exact for integers, one rounding more for reals."""
        sums = np.cumsum(x, axis=0)
        sums[self.width :] -= sums[: -self.width].copy()
        return sums

    def adjoint(self, y: Array) -> Array:
        """Return the same sum in the other direction."""
        return self.apply(y[::-1])[::-1]

    def state_space(self, n: int) -> StateSpace | None:
        """Return None, since a window remembers `width` inputs; one step is the identity, n steps the running sum."""
        if self.width == 1:
            return identity(n)
        return first_order(np.ones(n)) if self.width >= n else None


@dataclass(frozen=True)
class LookAhead(Operator):
    """Nesterov's output: y = x + momentum m, with m_i = momentum m_{i-1} + x_i."""

    momentum: float

    def apply(self, x: Array) -> Array:
        """Add the weighted momentum to its input."""
        return x + self.momentum * Decay(np.full(len(x), self.momentum)).apply(x)

    def adjoint(self, y: Array) -> Array:
        """Add the weighted adjoint momentum to its input."""
        return y + self.momentum * Decay(np.full(len(y), self.momentum)).adjoint(y)

    def state_space(self, n: int) -> StateSpace:
        """Return a recursion with one state, m_{i-1}: y_i = (1 + momentum) x_i + momentum^2 m_{i-1}."""
        mu = np.full((n, 1), self.momentum)
        return StateSpace(mu[:, :, None], np.ones((n, 1)), mu**2, np.full(n, 1.0 + self.momentum))


@dataclass(frozen=True)
class CoupledDecay(Operator):
    """Weight decay added to the gradient: m_i = mu m_{i-1} + x_i - rate s_{i-1}, s_i = s_{i-1} + eta_i m_i; y = s.

    s_i is x_0 - x_{i+1} of the optimizer x_{i+1} = x_i - eta_i m_i, m_i = mu m_{i-1} + g_i + rate x_i.
    """

    learning_rates: Array
    momentum: float
    rate: float

    def apply(self, x: Array) -> Array:
        """Run the optimizer forwards."""
        moved = np.zeros(x.shape, dtype=np.float64)
        s = np.zeros(x.shape[1])
        m = np.zeros(x.shape[1])
        for i, eta in enumerate(self.learning_rates):
            m = self.momentum * m + x[i] - self.rate * s
            s = s + eta * m
            moved[i] = s
        return moved

    def adjoint(self, y: Array) -> Array:
        """Run the transposed recursion backwards; variables with bars are derivatives with respect to the state."""
        out = np.zeros(y.shape, dtype=np.float64)
        s_bar = np.zeros(y.shape[1])
        m_bar = np.zeros(y.shape[1])
        for i in range(len(y) - 1, -1, -1):
            s_bar = s_bar + y[i]
            m_bar = m_bar + self.learning_rates[i] * s_bar
            out[i] = m_bar
            s_bar = s_bar - self.rate * m_bar
            m_bar = self.momentum * m_bar
        return out

    def state_space(self, n: int) -> StateSpace:
        """Return a recursion with states (s, m): m' = momentum m - rate s + x, s' = s + eta m'; the output is s'."""
        eta = self.learning_rates
        follow = np.empty((n, 2, 2))
        follow[:, 0, 0] = 1.0 - eta * self.rate
        follow[:, 0, 1] = eta * self.momentum
        follow[:, 1, 0] = -self.rate
        follow[:, 1, 1] = self.momentum
        feed = np.stack([eta, np.ones(n)], axis=1)
        return StateSpace(follow, feed, follow[:, 0, :].copy(), np.array(eta))

    def parts(self) -> tuple[Operator, ...]:
        """Return two decays with the rates between them, if the rates are positive and nothing oscillates.

        With rho_i = eta_i / eta_{i-1} and y_i = s_i - d_i s_{i-1} the recursion is y_i = f_i y_{i-1} + eta_i x_i, where
        f_i d_{i-1} = rho_i momentum and f_i + d_i is the factor of s_{i-1}. So d_0 = 1 and

            d_i = 1 - eta_i rate - rho_i momentum (1 / d_{i-1} - 1),

        and momentum / d_{i-1} is what multiplies the momentum. Once d_i falls below the momentum, s oscillates.
        """
        rates, n = self.learning_rates, len(self.learning_rates)
        if not rates.all():
            return (self,)
        decays, follow = np.ones(n), np.zeros(n)
        for i in range(1, n):
            follow[i] = self.momentum / decays[i - 1]
            decays[i] = 1.0 - rates[i] * self.rate - rates[i] / rates[i - 1] * (follow[i] - self.momentum)
            if not decays[i] > max(self.momentum, _MIN_DECAY):
                return (self,)
        return Decay(follow), Scale(rates), Decay(decays)


class BidiagonalInverse(NamedTuple):
    """A^-1 with diagonal p_i and sub-diagonal -q_i (q_0 = 0), which makes an O(n) solver possible.

    Attributes:
        p: diagonal, shape (n,), positive.
        q: negated sub-diagonal, shape (n,), non-negative; q[i] couples step i to step i - 1.
    """

    p: np.ndarray
    q: np.ndarray


class FirstOrder(NamedTuple):
    """A as a recursion: row i is follow_i times row i - 1, plus feed_i in column i.

    If every feed is positive the inverse is bidiagonal, with p = 1 / feed and q = follow / feed.

    Attributes:
        follow: factors in [0, 1], shape (n,); the first is 0.
        feed: factors that are non-negative, not all zero, shape (n,).
    """

    follow: np.ndarray
    feed: np.ndarray


class AccumulationChain(NamedTuple):
    """A = S_lam diag(eta) M: accumulations M, then rates, then one accumulation more; with `ahead`, M = I + mu M_mu.

    A factor acts between a step and the next; the last factor acts on nothing, and is 1.

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


_NEGLIGIBLE_FACTOR = 1e-30
"""The largest factor that is treated as zero, since it changes no entry of A by a rounding."""


def chain_of(operators: Iterable[Operator], n: int) -> AccumulationChain | None:
    """Return a product of operators as a chain, or None where it is no chain.

    A scaling of the outputs of the last accumulation moves in front of it: diag(b) S_lam = S_mu diag(b), with
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
            ahead = operator.momentum if operator.momentum >= _NEGLIGIBLE_FACTOR else 0.0
        elif factors is None or ahead or (lam is None and not eta.all()):
            return None
        elif lam is None:
            lam = np.append(factors[1:] * (eta[1:] / eta[:-1]), 1.0)
        elif factors[1:].max(initial=0.0) >= _NEGLIGIBLE_FACTOR:
            inner.insert(0, np.append(factors[1:], 1.0))
    lam = np.append(np.zeros(n - 1), 1.0) if lam is None else lam
    return AccumulationChain(tuple(inner), eta, lam, ahead)
