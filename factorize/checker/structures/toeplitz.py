"""Toeplitz matrices by their first column (structures `toeplitz` and `banded_toeplitz`, which holds its start)."""

from collections.abc import Mapping

import numpy as np

from factorize.checker.arithmetic.near import Near
from factorize.checker.structures.base import StoredReading, placed, prefix_norms


class ToeplitzReading(StoredReading):
    """C by the start of its first column, as far as it is not 0."""

    column: np.ndarray

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        column = np.pad(parts["coefficients"], (0, n - len(parts["coefficients"])))
        self.n, self.column, self.diagonal = n, column, column[:1]
        self.signed, self.bandwidth = bool((column < 0).any()), width_of(column)

    def column_norms(self) -> Near:
        """Squared norms of the columns."""
        return prefix_norms(Near(self.column, 0.0))

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        return placed([self.column] * len(indices), indices, self.n)


def falls(column: np.ndarray) -> bool:
    """Return whether coefficients are non-negative and do not increase."""
    return bool((column >= 0).all() and (column[1:] <= column[:-1]).all())


def width_of(column: np.ndarray) -> int:
    """Return how many coefficients there are up to the last one that is not 0, the first one included."""
    return int(np.flatnonzero(column).max(initial=0)) + 1
