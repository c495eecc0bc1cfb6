"""C^-1 z for a strategy whose inverse has few diagonals: the last draws are kept (base.py)."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from factorize.client.recurrences.banded import BandedRecurrence
from factorize.client.recurrences.base import Tensors
from factorize.client.recurrences.state_rounding import DOUBLE, Deviation


class InverseBandedToeplitzRecurrence(BandedRecurrence):
    """A strategy whose inverse has few diagonals (structure `inverse_banded_toeplitz`).

    The last bands - 1 draws are kept: x_t = z_t + sum_d noising_d z_{t-d}
    """

    keeps_draws = True
    tensor: ClassVar[str] = "inverse_coefficients"

    @classmethod
    def of_tensors(cls, parts: Tensors, n: int) -> Self:
        """The stored column, which begins with 1; what is kept is subtracted."""
        return cls(np.r_[1.0, -parts[cls.tensor][1:]][None], n)

    def deviation(self, unit: float, arithmetic: float = DOUBLE) -> Deviation:
        """A draw is rounded once for all its uses; then come a product and a sum for each diagonal."""
        lost = (self.vectors + 4) * arithmetic * float(np.linalg.norm(self._rows)) * 1.001
        return Deviation(rows=unit + 4 * arithmetic, inverse=lost)
