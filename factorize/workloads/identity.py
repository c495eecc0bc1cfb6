"""The identity: every step's gradient is released for itself."""

from typing import Literal

from factorize.workloads.base import StepWorkload
from factorize.workloads.operators import Operator


class Identity(StepWorkload):
    """A = I."""

    kind: Literal["identity"]

    def operators(self) -> tuple[Operator, ...]:
        """No operator at all."""
        return ()
