"""The identity: every step's gradient is released on its own."""

from typing import Literal

from factorize.workloads.base import StepWorkload
from factorize.workloads.operators import Operator


class Identity(StepWorkload):
    """A = I."""

    kind: Literal["identity"]

    def operators(self) -> tuple[Operator, ...]:
        """Return no operator."""
        return ()
