"""The base of workloads: a linear map from gradients g_0..g_{n-1} to outputs, whose row i is x_0 - x_{i+1}."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING, ClassVar, get_args

import numpy as np

from factorize.numbers.state_space import StateSpace, identity
from factorize.numbers.triangular import toeplitz_rows
from factorize.plain_data import Count, Frozen
from factorize.workloads.operators import AccumulationChain, BidiagonalInverse, FirstOrder, Operator, chain_of

OUTLINE_STEPS = 1 << 16
"""The most steps of an outline: a workload with no more is its own outline."""


class Workload(Frozen):
    """A workload A of shape (m, n), known by its action.

    Attributes:
        running_sums: whether every entry on and below the diagonal is 1.
    """

    running_sums: ClassVar[bool] = False

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """The name in the contract."""

        @property
        def n(self) -> int:
            """The number of steps (columns)."""

    @property
    def m(self) -> int:
        """The number of outputs (rows)."""
        return self.n

    @property
    def endless(self) -> bool:
        """Whether there is no last step; `n` then raises `UnsupportedProblem`."""
        return False

    @property
    def time_invariant(self) -> bool:
        """Whether A is Toeplitz, so that its first column determines it."""
        return True

    def canonical(self) -> Workload:
        """Return the workload in its canonical form (named schedules become lists)."""
        return self

    def outline(self) -> Workload:
        """Return a workload that has the same forms and as many states, and at most 65,536 steps or a list of rates.

        The outline is for questions about forms alone: a price has to be known before an array is made.
        """
        return self

    def chain(self) -> AccumulationChain | None:
        """Return A as accumulations, rates and one more accumulation, if it has this form; else None."""
        return None

    def first_order(self) -> FirstOrder | None:
        """Return A as a recursion with one state, if it is one; steps with learning rate zero are allowed."""
        chain = self.chain()
        if chain is None or chain.inner or chain.ahead or not chain.eta.any():
            return None
        return FirstOrder(np.concatenate([[0.0], chain.lam[:-1]]), chain.eta)

    def bidiagonal_inverse(self) -> BidiagonalInverse | None:
        """Return A^-1 if it is lower bidiagonal, which is so for one state that every step feeds; else None."""
        form = self.first_order()
        if form is None or not form.feed.all():
            return None
        return BidiagonalInverse(1.0 / form.feed, form.follow / form.feed)

    def easier(self) -> Workload | None:
        """Return the nearest workload for which more structures have solvers, or None; it may have an easier one."""
        return None

    @abstractmethod
    def apply(self, x: np.ndarray) -> np.ndarray:
        """Return A x, shape (m, d), for x of shape (n, d)."""

    @abstractmethod
    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Return A^T y for y of shape (m, d)."""

    @abstractmethod
    def recursions(self) -> list[StateSpace] | None:
        """Return factors of A that are recursions with few states, the one applied first at the front, or None."""

    def state_space(self) -> StateSpace | None:
        """Return A as a recursion with few states, or None if it is not one."""
        factors = self.recursions()
        return None if factors is None else reduce(StateSpace.then, factors, identity(self.n))

    @cached_property
    def coefficients(self) -> np.ndarray | None:
        """Return the first column of A, shape (n,), if A is Toeplitz; else None."""
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
        return self.picked(range(start, stop))

    def picked(self, rows: Sequence[int]) -> np.ndarray:
        """Return some rows of A, shape (rows, n)."""
        if self.coefficients is not None:
            return np.concatenate([self.row_block(row, row + 1) for row in rows])
        units = np.zeros((self.m, len(rows)))
        units[np.array(rows, dtype=np.intp), np.arange(len(rows))] = 1.0
        return np.ascontiguousarray(self.adjoint(units).T)

    def dense(self) -> np.ndarray:
        """Return A as an array of shape (m, n)."""
        if self.coefficients is not None:
            return toeplitz_rows(self.coefficients, 0, self.n)
        return np.tril(self.apply(np.eye(self.n)))


class Product(Workload):
    """A square workload that is a product of operators."""

    @abstractmethod
    def operators(self) -> tuple[Operator, ...]:
        """Return the factors of A, the one applied first at the front."""

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Apply one operator after the other."""
        for operator in self.operators():
            x = operator.apply(x)
        return x

    def adjoint(self, y: np.ndarray) -> np.ndarray:
        """Apply the operators' transposes in reverse."""
        for operator in reversed(self.operators()):
            y = operator.adjoint(y)
        return y

    def recursions(self) -> list[StateSpace] | None:
        """Return the recursions of the operators, if all of them are recursions; else None."""
        factors = [operator.state_space(self.n) for operator in self.operators()]
        known = [factor for factor in factors if factor is not None]
        return known if len(known) == len(factors) else None

    def chain(self) -> AccumulationChain | None:
        """Return the chain of the operators."""
        return chain_of(self.operators(), self.n)


class StepWorkload(Product):
    """A product of operators over n steps."""

    n: Count

    def outline(self) -> Workload:
        """Return the first steps; with explicit rates all of them, since any may be zero, and JSON bounds the list."""
        if self.n <= OUTLINE_STEPS or getattr(self, "learning_rates", None) is not None:
            return self
        return self._of_steps(OUTLINE_STEPS)

    def _of_steps(self, n: int) -> Workload:
        return type(self).model_validate({**self.document(), "n": n})


def kinds_among(names: Iterable[object]) -> dict[str, type[Workload]]:
    """Return the kinds of workload among some objects, by each kind's own name in the contract."""
    kinds: dict[str, type[Workload]] = {}
    for kind in tuple(names):
        if isinstance(kind, type) and issubclass(kind, Workload) and kind is not Workload:
            stated = get_args(kind.model_fields["kind"].annotation) if "kind" in kind.model_fields else ()
            if len(stated) != 1 or kinds.setdefault(stated[0], kind) is not kind:
                raise TypeError(f"the workload {kind.__name__} states the kind {stated}; it has to be one, and its own")
    return kinds
