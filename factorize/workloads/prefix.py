"""Prefix sums: plain SGD with a constant learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from factorize.errors import UnsupportedProblem
from factorize.plain_data import CountOrEndless
from factorize.workloads.base import OUTLINE_STEPS, Product, Workload
from factorize.workloads.operators import Accumulate, Operator


class Prefix(Product):
    """A[i, j] = 1 for j <= i.

    Attributes:
        steps: n, or `unbounded`: rows without end.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    running_sums: ClassVar[bool] = True

    kind: Literal["prefix"]
    steps: CountOrEndless = Field(alias="n")

    @property
    def n(self) -> int:
        """The number of steps; raises UnsupportedProblem where there is no last one."""
        if isinstance(self.steps, str):
            raise UnsupportedProblem(
                "this needs a number of steps, and n is 'unbounded'; give n, or read rows of the strategy "
                "(docs/spec.md lists what works without a last step)",
                field="/workload/n",
            )
        return self.steps

    @property
    def endless(self) -> bool:
        """Whether n is unbounded."""
        return isinstance(self.steps, str)

    def outline(self) -> Prefix:
        """Return the first steps."""
        if self.endless or self.n <= OUTLINE_STEPS:
            return self
        return Prefix(kind=self.kind, n=OUTLINE_STEPS)

    def operators(self) -> tuple[Operator, ...]:
        """Return one running sum."""
        return (Accumulate(),)


def easier_ones(workload: Workload) -> Iterator[Workload]:
    """Yield easier workloads for which a strategy may be optimised, the nearest first and running sums last.

    There are none for a workload with a bidiagonal inverse, which every streaming structure takes.
    """
    if workload.endless or workload.outline().bidiagonal_inverse() is not None:
        return
    easier = workload.easier()
    while easier is not None:
        yield easier.canonical()
        easier = easier.easier()
    yield Prefix(kind="prefix", n=workload.n)
