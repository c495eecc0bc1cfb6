"""Exponentially decaying sums."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from factorize.workloads.base import StepWorkload
from factorize.workloads.operators import Decay, Operator


class ExponentialDecay(StepWorkload):
    """A[i, j] = rate^(i-j), 0 < rate <= 1."""

    kind: Literal["decay"]
    rate: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]

    def operators(self) -> tuple[Operator, ...]:
        """Return one first-order recursion."""
        return (Decay(np.full(self.n, self.rate)),)
