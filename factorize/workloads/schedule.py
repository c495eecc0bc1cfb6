"""SGD with a learning-rate schedule, and the schedules that have names.

Each becomes its explicit list in the canonical spec. All are relative to a peak of 1, since only relative rates matter
to a factorization.
"""

import math
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import Field

from factorize.errors import InvalidWorkload
from factorize.plain_data import Count, Frozen, Long, NonNegative, UnitInterval
from factorize.workloads.base import StepWorkload, Workload
from factorize.workloads.operators import Accumulate, Operator, Scale

MAX_RATES = 1 << 20
"""The most learning rates, since the canonical spec lists each."""
MIN_RATE = 1e-3
"""The smallest rate for optimising, relative to the largest: smaller ones do not change the loss by 1e-4."""


class Cosine(Frozen):
    """From 1 at step 0 along half a cosine that reaches `final` at step n: as in torch, optax and Hugging Face."""

    kind: Literal["cosine"]
    final: UnitInterval = 0.0

    def rates(self, n: int) -> list[float]:
        """Return the n rates."""
        return [_half_cosine(i, n, self.final) for i in range(n)]


class CosineToLast(Frozen):
    """From 1 at step 0 to `final` at the last step, n - 1, along half a cosine."""

    kind: Literal["cosine_to_last"]
    final: UnitInterval = 0.0

    def rates(self, n: int) -> list[float]:
        """Return the n rates."""
        return [_half_cosine(i, n - 1, self.final) for i in range(n)]


class LinearCooldown(Frozen):
    """1, then linear over the last `steps` steps: 1 - (1 - final)(i - (n - steps) + 1) / steps (C24, G.1)."""

    kind: Literal["linear_cooldown"]
    steps: Count
    final: UnitInterval = 0.0

    def rates(self, n: int) -> list[float]:
        """Return the n rates."""
        _fits(self.steps, n, "steps")
        start = n - self.steps
        return [1.0 if i < start else 1 - (1 - self.final) * (i - start + 1) / self.steps for i in range(n)]


class Step(Frozen):
    """Multiplied by `factor` after each `every` steps."""

    kind: Literal["step"]
    every: Count
    factor: UnitInterval

    def rates(self, n: int) -> list[float]:
        """Return the n rates."""
        return [self.factor ** (i // self.every) for i in range(n)]


class WarmupCosine(Frozen):
    """Linear up to 1 over `warmup` steps ((i + 1) / warmup), then half a cosine that reaches `final` at step n."""

    kind: Literal["warmup_cosine"]
    warmup: Count
    final: UnitInterval = 0.0

    def rates(self, n: int) -> list[float]:
        """Return the n rates."""
        _fits(self.warmup, n, "warmup")
        rest = n - self.warmup
        up = [(i + 1) / self.warmup for i in range(self.warmup)]
        return up + [_half_cosine(i, rest, self.final) for i in range(rest)]


Named = Annotated[Cosine | CosineToLast | LinearCooldown | Step | WarmupCosine, Field(discriminator="kind")]
LearningRates = Annotated[list[NonNegative], Long] | Named


def explicit(rates: LearningRates, n: int) -> list[float]:
    """Return a schedule as its list of n rates; raise InvalidWorkload for another length, more than 2^20, or zeros."""
    if n > MAX_RATES:
        raise InvalidWorkload(
            f"n={n} is above {MAX_RATES}, the limit for a workload with learning rates, since the spec lists each "
            "one; use a smaller n, or leave the schedule out"
        )
    listed = list(rates) if isinstance(rates, list) else [value + 0.0 for value in rates.rates(n)]
    if len(listed) != n:
        raise InvalidWorkload(f"learning_rates has {len(listed)} entries and n is {n}; give one rate per step")
    if not any(listed):
        raise InvalidWorkload("learning_rates are all zero, so no step moves anything; give at least one positive rate")
    return listed


def positive(rates: LearningRates, n: int) -> list[float]:
    """Return the list of rates, with those below a thousandth of the largest raised to it; see `MIN_RATE`."""
    listed = explicit(rates, n)
    least = MIN_RATE * max(listed)
    return [max(rate, least) for rate in listed]


def _half_cosine(i: int, last: int, final: float) -> float:
    # cos(pi) is exactly -1 in double precision, so the last rate is `final` itself and not a rounding above it.
    return 1.0 if last <= 0 else final + (1 - final) * (1 + math.cos(math.pi * i / last)) / 2


def _fits(steps: int, n: int, name: str) -> None:
    if steps > n:
        raise InvalidWorkload(f"{name}={steps} exceeds n={n}; use at most n")


class Rated(StepWorkload):
    """A workload with a learning rate for each step, or with none."""

    if TYPE_CHECKING:
        learning_rates: LearningRates | None

    def model_post_init(self, _context: object) -> None:
        """Check that the list has n rates."""
        if self.learning_rates is not None:
            explicit(self.learning_rates, self.n)

    @property
    def time_invariant(self) -> bool:
        """Whether the learning rate is constant."""
        return self.learning_rates is None

    def rates(self) -> np.ndarray:
        """Return the n learning rates, ones where none are given."""
        return np.ones(self.n) if self.learning_rates is None else np.array(explicit(self.learning_rates, self.n))

    def canonical(self) -> Self:
        """Return the workload with the schedule as its list."""
        if self.learning_rates is None:
            return self
        return self.model_copy(update={"learning_rates": explicit(self.learning_rates, self.n)})


class Schedule(Rated):
    """A = S diag(learning_rates): A[i, j] = learning_rates[j] for j <= i."""

    kind: Literal["schedule"]
    learning_rates: LearningRates

    def operators(self) -> tuple[Operator, ...]:
        """Return the scaling, then the sum."""
        return (Scale(self.rates()), Accumulate())

    def easier(self) -> Workload | None:
        """Return it with rates raised to a thousandth of the largest if one is zero."""
        if self.rates().all():
            return None
        return Schedule(kind=self.kind, n=self.n, learning_rates=positive(self.learning_rates, self.n))
