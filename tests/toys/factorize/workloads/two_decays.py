"""Decaying sums of decaying sums."""

from __future__ import annotations

from typing import Literal

import numpy as np

from factorize.plain_data import Fraction
from factorize.workloads.base import StepWorkload
from factorize.workloads.operators import Decay, Operator


class TwoDecays(StepWorkload):
    """A = D(first) D(second), where D(rate)[i, j] = rate^(i-j) for j <= i."""

    kind: Literal["two_decays"]
    first: Fraction
    second: Fraction

    def operators(self) -> tuple[Operator, ...]:
        """One first-order recursion after the other."""
        return (Decay(np.full(self.n, self.second)), Decay(np.full(self.n, self.first)))
