"""Sliding-window sums."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from factorize.plain_data import Count
from factorize.workloads.base import StepWorkload
from factorize.workloads.operators import Operator, Window


class SlidingWindow(StepWorkload):
    """A[i, j] = 1 for 0 <= i - j < width."""

    kind: Literal["window"]
    width: Count

    @model_validator(mode="after")
    def _fits(self) -> SlidingWindow:
        if self.width > self.n:
            raise ValueError(f"width={self.width} exceeds n={self.n}; use width <= n (width = n is the prefix sum)")
        return self

    def _of_steps(self, n: int) -> SlidingWindow:
        """Return a window as wide in proportion: a window of all steps is the running sum, and any other is not."""
        width = n if self.width == self.n else min(self.width, n - 1)
        return SlidingWindow(kind=self.kind, n=n, width=width)

    def operators(self) -> tuple[Operator, ...]:
        """Return one windowed sum."""
        return (Window(self.width),)
