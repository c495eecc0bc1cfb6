"""A strategy with few buffers: the structures `buffered` and `state_space`, O(n) in memory and per row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.structures.base import Matrix, rows_at_once
from factorize.workloads.state_space import StateSpace


class BufferedMatrix(Matrix):
    """X[i, j] = output[i] . transition[i] ... transition[j+1] input[j] below a positive diagonal.

    Args:
        diagonal: shape (n,), positive.
        transition: shape (n, buffers) for one decay per buffer; (n, groups, s, s) for block-diagonal transitions; or
            (n, buffers, buffers). transition[0] is never used.
        inputs: shape (n, buffers).
        outputs: shape (n, buffers).

    Raises:
        InvalidStrategy: shapes do not fit, a number is not finite, or the diagonal is not positive.
    """

    def __init__(self, diagonal: np.ndarray, transition: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> None:
        parts = [np.array(part, dtype=np.float64) for part in (diagonal, transition, inputs, outputs)]
        if not all(np.isfinite(part).all() for part in parts):
            raise InvalidStrategy("a buffered matrix holds NaN or infinity; every entry must be finite")
        for part in parts:
            part.setflags(write=False)
        self.diagonal, self.transition, self.inputs, self.outputs = parts
        self.n = len(self.diagonal)
        self._blocks = _as_blocks(self.transition, self.n, *self.inputs.shape[1:])
        groups, states = self._blocks.shape[1], self._blocks.shape[2]
        if self.inputs.shape != (self.n, groups * states) or self.outputs.shape != self.inputs.shape:
            shapes = [part.shape for part in parts]
            raise InvalidStrategy(f"shapes {shapes} of diagonal, transition, input and output do not fit each other")
        if self.diagonal.ndim != 1 or (self.diagonal <= 0).any():
            raise InvalidStrategy("the diagonal of a buffered matrix must be one positive number per step")
        self._arrays = (
            self.diagonal,
            self._blocks,
            self.inputs.reshape(self.n, groups, states),
            self.outputs.reshape(self.n, groups, states),
        )

    @property
    def structure(self) -> str:  # type: ignore[override]  # one class, two names in the contract
        """`buffered` with one decay per buffer, else `state_space`."""
        return "buffered" if self.transition.ndim == 2 else "state_space"

    @property
    def multiplied_by_recurrence(self) -> bool:
        """Where buffers do not mix: full transitions take as many multiplications as an array."""
        return self.transition.ndim == 2

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Diagonal (n,), transitions (n, groups, s, s), inputs and outputs (n, groups, s)."""
        return self._arrays

    def rows(self, start: int, stop: int) -> np.ndarray:
        """One backward sweep per row."""
        try:
            from factorize.structures.kernels.buffered import fill_rows
        except ModuleNotFoundError:
            from factorize.structures.plain_rows import fill_buffered as fill_rows  # type: ignore[assignment]

        out = np.empty((stop - start, self.n))
        fill_rows(*self._arrays, start, out)
        return out

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """One backward recurrence per row."""
        try:
            from factorize.structures.kernels.buffered import solve_rows
        except ModuleNotFoundError:
            from factorize.structures.plain_rows import solve_buffered as solve_rows  # type: ignore[assignment]

        out = np.empty(block.shape)
        solve_rows(*self._arrays, np.ascontiguousarray(block, dtype=np.float64), out)
        return out

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """One backward recurrence per row."""
        from factorize.structures.kernels.buffered import multiply_rows

        out = np.empty(block.shape)
        multiply_rows(*self._arrays, np.ascontiguousarray(block, dtype=np.float64), out)
        return out

    def column_norms_squared(self) -> np.ndarray:
        """One backward recurrence over the Gram matrix of the outputs."""
        from factorize.structures.kernels.buffered import column_norms

        norms = np.empty(self.n)
        column_norms(*self._arrays, norms)
        return norms

    @property
    def signed(self) -> bool:
        """Whether a stored number is negative."""
        return self._holds_negative()

    def bin_sums(self, bins: int) -> Iterator[np.ndarray]:
        """By the recurrence where nothing is subtracted."""
        return super().bin_sums(bins) if self.signed else self._carried_sums(bins)

    def _carried_sums(self, bins: int) -> Iterator[np.ndarray]:
        from factorize.structures.kernels.buffered import carried_sums

        n, groups, size = self._arrays[2].shape
        states = np.zeros((bins, groups, size))
        at_once = rows_at_once(bins, n)
        for start in range(0, n, at_once):
            out = np.empty((min(at_once, n - start), bins))
            carried_sums(*self._arrays, start, states, out)
            yield out

    def decoder_errors(self, workload: StateSpace) -> np.ndarray:
        """One forward recurrence over the covariance of both states, O(n (buffers + states)^3)."""
        from factorize.structures.kernels.buffered import output_variances

        variances = np.empty(self.n)
        follow, feed, read, through = map(np.ascontiguousarray, workload.parts())
        output_variances(*self._arrays, follow, feed, read, through, variances)
        return variances

    def tensors(self) -> dict[str, np.ndarray]:
        """Diagonal, decay or transition, input and output."""
        middle = "decay" if self.transition.ndim == 2 else "transition"
        return {"diagonal": self.diagonal, middle: self.transition, "input": self.inputs, "output": self.outputs}


def _as_blocks(transition: np.ndarray, n: int, *buffers: int) -> np.ndarray:
    """Bring the three layouts of a transition to (n, groups, states, states)."""
    shape = transition.shape
    if n == 0 or len(buffers) != 1 or not buffers[0] or shape[0] != n:
        raise InvalidStrategy(f"a buffered matrix needs n >= 1 steps and at least one buffer; got shape {shape}")
    if len(shape) == 2:
        return transition.reshape(n, shape[1], 1, 1)
    if len(shape) == 3 and shape[1] == shape[2]:
        return transition.reshape(n, 1, shape[1], shape[2])
    if len(shape) == 4 and shape[2] == shape[3]:
        return transition
    raise InvalidStrategy(f"a transition has shape (n, m), (n, m, m) or (n, m/s, s, s); got {shape}")
