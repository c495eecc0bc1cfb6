"""What every workload is: a linear map from gradients g_0..g_{n-1} to outputs, row i being x_0 - x_{i+1}."""

from __future__ import annotations

from functools import cached_property, reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from factorize.model import Count, Frozen
from factorize.workloads.operators import Operator
from factorize.workloads.state_space import StateSpace, identity


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


class Workload(Frozen):
    """A workload A of shape (m, n), known by its action; subclasses say which operators it is a product of.

    Attributes:
        kind: the contract's name.
        n: number of steps (columns).
    """

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """The contract's name."""

        @property
        def n(self) -> int:
            """Number of steps (columns)."""

    @property
    def m(self) -> int:
        """Number of outputs (rows)."""
        return self.n

    @property
    def endless(self) -> bool:
        """Whether there is no last step; `n` then raises `UnsupportedProblem`."""
        return False

    def operators(self) -> tuple[Operator, ...]:
        """Return the factors of A, the one applied first at the front."""
        raise NotImplementedError

    @property
    def time_invariant(self) -> bool:
        """Whether A is Toeplitz, so that its first column says everything."""
        return True

    def canonical(self) -> Workload:
        """Return the workload in its canonical form (named schedules become lists)."""
        return self

    def bidiagonal_inverse(self) -> BidiagonalInverse | None:
        """Return A^-1 if it is lower bidiagonal, else None."""
        return None

    def first_order(self) -> FirstOrder | None:
        """Return A as a recursion with one state, if it is that; steps with learning rate zero are allowed."""
        inverse = self.bidiagonal_inverse()
        return None if inverse is None else FirstOrder(inverse.q / inverse.p, 1.0 / inverse.p)

    def momentum_form(self) -> MomentumForm | None:
        """Return A as momentum, rates and a decaying sum, if it is that; else None."""
        return None

    def cascade_form(self) -> CascadeForm | None:
        """Return A as three recursions in a row, if it is that; else None."""
        return None

    def nesterov_form(self) -> NesterovForm | None:
        """Return A as Nesterov's momentum, rates and a decaying sum, if it is that; else None."""
        return None

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return A x.

        Args:
            x: columns, shape (n, d).

        Returns:
            Shape (m, d).
        """
        for operator in self.operators():
            x = operator.apply(x)
        return x

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Return A^T y for y of shape (m, d)."""
        for operator in reversed(self.operators()):
            y = operator.adjoint(y)
        return y

    def recursions(self) -> list[StateSpace] | None:
        """Return the factors of A as recursions with few states, the one applied first at the front, or None."""
        factors = [operator.state_space(self.n) for operator in self.operators()]
        known = [factor for factor in factors if factor is not None]
        return known if len(known) == len(factors) else None

    def state_space(self) -> StateSpace | None:
        """Return A as a recursion with few states, or None if it is not one."""
        factors = self.recursions()
        return None if factors is None else reduce(StateSpace.then, factors, identity(self.n))

    @cached_property
    def coefficients(self) -> np.ndarray | None:
        """The first column of A, shape (n,), if A is Toeplitz; else None."""
        if not self.time_invariant:
            return None
        impulse = np.zeros((self.n, 1))
        impulse[0] = 1.0
        column = np.ascontiguousarray(self.apply(impulse)[:, 0])
        column.setflags(write=False)
        return column

    def row_block(self, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop-1 of A, shape (stop - start, n), without forming the rest."""
        if self.coefficients is not None:
            return toeplitz_rows(self.coefficients, start, stop)
        units = np.zeros((self.m, stop - start))
        units[np.arange(start, stop), np.arange(stop - start)] = 1.0
        return np.ascontiguousarray(self.adjoint(units).T)

    def dense(self) -> np.ndarray:
        """Return A as an array of shape (m, n)."""
        if self.coefficients is not None:
            return toeplitz_rows(self.coefficients, 0, self.n)
        return np.tril(self.apply(np.eye(self.n)))


class StepWorkload(Workload):
    """A square workload over n steps."""

    n: Count


def toeplitz_rows(coefficients: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return rows start..stop-1 of the lower-triangular Toeplitz matrix with that first column, shape (stop-start, n).

    Args:
        coefficients: first column; zero past its end if it is shorter than n.
        start: first row.
        stop: one past the last row.
    """
    n = len(coefficients)
    padded = np.concatenate([np.zeros(n), coefficients])[::-1]
    # Row i is coefficients[i::-1] followed by zeros: a window that slides over the reversed, padded column.
    step = padded.strides[0]
    view = np.lib.stride_tricks.as_strided(padded[n - 1 - start :], (stop - start, n), (-step, step), writeable=False)
    return np.ascontiguousarray(view)
