"""A strategy with few diagonals: the structure `banded`, O(n bands) in memory and per row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.structures.base import StoredMatrix, rows_at_once
from factorize.workloads.state_space import StateSpace


class BandedMatrix(StoredMatrix):
    """A lower-triangular matrix with X[j + d, j] = bands[d, j] and zeros everywhere else.

    Args:
        bands: shape (bands, n) with bands <= n; first row positive, exact zeros where j + d >= n.

    Raises:
        InvalidStrategy: otherwise.
    """

    structure = "banded"

    def __init__(self, bands: np.ndarray) -> None:
        array = np.array(bands, dtype=np.float64, order="C")
        if array.ndim != 2 or not 1 <= array.shape[0] <= array.shape[1]:
            raise InvalidStrategy(f"bands has shape (bands, n) with 1 <= bands <= n; got {array.shape}")
        if not np.isfinite(array).all() or (array[0] <= 0).any():
            raise InvalidStrategy("a banded matrix must be finite with a positive diagonal, its first row of bands")
        n = array.shape[1]
        if any(band[n - d :].any() for d, band in enumerate(array) if d):
            raise InvalidStrategy("bands[d, j] must be exactly 0 where j + d >= n: there is no such row")
        array.setflags(write=False)
        self.bands = array
        self.n = n

    @cached_property
    def _columns(self) -> np.ndarray:
        """Entries down each column, shape (n, bands): column j starts at the diagonal."""
        return np.ascontiguousarray(self.bands.T)

    def _rows(self) -> np.ndarray:
        """Entries leftwards along each row, shape (n, bands): row i starts at the diagonal; as large as C, not kept."""
        out = np.zeros((self.n, len(self.bands)))
        for d, band in enumerate(self.bands):
            out[d:, d] = band[: self.n - d]
        return out

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Write each row's entries at their columns."""
        out = np.zeros((stop - start, self.n))
        for d in range(len(self.bands)):
            i = np.arange(max(start, d), stop)
            out[i - start, i - d] = self.bands[d, i - d]
        return out

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Substitute from the last column to the first; O(n bands) per row."""
        try:
            from factorize.structures.kernels.banded import solve_rows
        except ModuleNotFoundError:
            from factorize.structures.plain_rows import solve_banded as solve_rows  # type: ignore[assignment]

        out = np.empty(block.shape)
        solve_rows(self._columns, np.ascontiguousarray(block, dtype=np.float64), out)
        return out

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """One short product per entry; O(n bands) per row."""
        from factorize.structures.kernels.banded import multiply_rows

        out = np.empty(block.shape)
        multiply_rows(self._columns, np.ascontiguousarray(block, dtype=np.float64), out)
        return out

    def tensors(self) -> dict[str, np.ndarray]:
        """The bands."""
        return {"bands": self.bands}

    def column_norms_squared(self) -> np.ndarray:
        """Sums of squares down the bands."""
        return np.einsum("dj,dj->j", self.bands, self.bands)

    def bin_sums(self, bins: int) -> Iterator[np.ndarray]:
        """Add band by band."""
        n, at_once = self.n, rows_at_once(bins, self.n)
        for start in range(0, n, at_once):
            t = np.arange(start, min(start + at_once, n))
            sums = np.zeros((len(t), bins))
            for d, band in enumerate(self.bands):
                inside = t[t >= d]
                sums[inside - start, (inside - d) % bins] += np.abs(band[inside - d])
            yield sums

    def bandwidth(self) -> int:
        """Position of the last band that is not all zero, plus one."""
        return int(np.flatnonzero(self.bands.any(axis=1))[-1]) + 1

    def decoder_errors(self, workload: StateSpace) -> np.ndarray:
        """Carry the covariance of the last outputs and of the workload's states; O(n bands (bands + states))."""
        from factorize.structures.kernels.banded import output_variances

        variances = np.empty(self.n)
        follow, feed, read, through = map(np.ascontiguousarray, workload.parts())
        output_variances(self._rows(), follow, feed, read, through, variances)
        return variances
