"""A strategy whose noise makes draws of earlier epochs again: the structure `redrawn`, stored as its inverse.

The draw of step i - lag belongs to the step of the epoch before that saw the same examples. A generator of normals by
counter gives it once more at no memory, so K = C^-1 may use it beside the few states that it carries on:

    x_i = direct[0, i] y_i + sum_{m >= 1} direct[m, i] y_{i - m lag} + output_i . s
    s  <- decay_i s + input[0, i] y_i + sum_{m >= 1} input[m, i] y_{i - m lag},      s = 0 at first, y_j = 0 for j < 0

is row i of K y. What K y protects is C = K^-1, which has no recurrence of few states: a column of it is solved for from
the same equations, with all earlier rows at hand.
"""

from __future__ import annotations

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.structures.base import Matrix
from factorize.workloads.state_space import StateSpace

_AT_ONCE = 256  # columns of A K, or rows of C


class RedrawnMatrix(Matrix):
    """The inverse of the matrix K above.

    Args:
        decay: shape (n, buffers), of either sign and any size.
        output: shape (n, buffers).
        input: shape (redraws + 1, n, buffers), zero at [m, i] where i < m lag.
        direct: shape (redraws + 1, n), direct[0] positive; zero at [m, i] where i < m lag.
        lag: steps from a draw to its next use, the length of an epoch; 1 <= lag <= n.

    Raises:
        InvalidStrategy: otherwise, or a number is not finite.
    """

    structure = "redrawn"

    def __init__(self, decay: np.ndarray, output: np.ndarray, input: np.ndarray, direct: np.ndarray, lag: int) -> None:
        parts = [np.array(part, dtype=np.float64, order="C") for part in (decay, output, input, direct)]
        shapes = [part.shape for part in parts]
        if parts[0].ndim != 2 or not parts[0].size or parts[2].ndim != 3 or not len(parts[2]):
            raise InvalidStrategy(
                "decay is (n, buffers) and input (redraws + 1, n, buffers) with a buffer and a step at least; got "
                f"shapes {shapes[0]} and {shapes[2]}"
            )
        if shapes[1] != shapes[0] or shapes[2][1:] != shapes[0] or shapes[3] != shapes[2][:2]:
            raise InvalidStrategy(f"shapes {shapes} of decay, output, input and direct do not fit each other")
        if not all(np.isfinite(part).all() for part in parts):
            raise InvalidStrategy("a matrix with redraws holds NaN or infinity; every entry must be finite")
        if isinstance(lag, bool) or not isinstance(lag, (int, np.integer)) or not 1 <= lag <= shapes[0][0]:
            raise InvalidStrategy(f"lag={lag!r} is no whole number of steps from 1 to n={shapes[0][0]}")
        if (parts[3][0] <= 0).any():
            raise InvalidStrategy("direct[0] is the diagonal of C^-1 and must be positive at every step")
        for m in range(1, len(parts[3])):
            if parts[2][m, : m * lag].any() or parts[3][m, : m * lag].any():
                raise InvalidStrategy(
                    f"input[{m}] and direct[{m}] must be exactly 0 before step {m * lag}: there is no earlier draw"
                )
        for part in parts:
            part.setflags(write=False)
        self.decay, self.output, self.input, self.direct = parts
        self.lag, self.n = int(lag), shapes[0][0]

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        """Decay, output, input, direct and lag."""
        return self.decay, self.output, self.input, self.direct, self.lag

    @property
    def redraws(self) -> int:
        """How many earlier draws a step makes again, at most."""
        return len(self.direct) - 1

    def rows(self, start: int, stop: int) -> np.ndarray:
        """One backward sweep per row."""
        units = np.zeros((stop - start, self.n))
        units[np.arange(stop - start), np.arange(start, stop)] = 1.0
        return self.left_multiply(units)

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Multiply by K, whose numbers are stored: one backward sweep per row, O(n buffers redraws)."""
        try:
            from factorize.structures.kernels.redrawn import solve_rows
        except ModuleNotFoundError:
            from factorize.structures.plain_rows import solve_redrawn as solve_rows  # type: ignore[assignment]

        out = np.empty(block.shape)
        solve_rows(*self.parts, np.ascontiguousarray(block, dtype=np.float64), out)
        return out

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """Solve z K = block: one backward sweep per row, O(n buffers redraws)."""
        try:
            from factorize.structures.kernels.redrawn import multiply_rows
        except ModuleNotFoundError:
            from factorize.structures.plain_rows import multiply_redrawn as multiply_rows  # type: ignore[assignment]

        out = np.empty(block.shape)
        multiply_rows(*self.parts, np.ascontiguousarray(block, dtype=np.float64), out)
        return out

    def column_norms_squared(self) -> np.ndarray:
        """Solve for every row."""
        norms = np.zeros(self.n)
        for start in range(0, self.n, _AT_ONCE):
            norms += (self.rows(start, min(start + _AT_ONCE, self.n)) ** 2).sum(axis=0)
        return norms

    def decoder_errors(self, workload: StateSpace) -> np.ndarray:
        """Columns of A K, one recurrence of both states each; O(n^2 (buffers + states^2)) in time, O(n) in memory."""
        from factorize.structures.kernels.redrawn import output_variances

        variances = np.zeros(self.n)
        follow, feed, read, through = map(np.ascontiguousarray, workload.parts())
        for start in range(0, self.n, _AT_ONCE):
            stop = min(start + _AT_ONCE, self.n)
            output_variances(*self.parts, follow, feed, read, through, start, stop, variances)
        return variances

    def tensors(self) -> dict[str, np.ndarray]:
        """The parts of K."""
        parts = {"decay": self.decay, "output": self.output, "input": self.input, "direct": self.direct}
        return {**parts, "lag": np.array([float(self.lag)])}


def read_redrawn(
    decay: np.ndarray, output: np.ndarray, input: np.ndarray, direct: np.ndarray, lag: np.ndarray
) -> RedrawnMatrix:
    """Return the matrix of a file's tensors.

    Raises:
        InvalidStrategy: they are not those of one; `lag` is one whole number, shape (1,).
    """
    if lag.shape != (1,) or not 1 <= lag[0] <= 2**53 or lag[0] != int(lag[0]):
        raise InvalidStrategy("the lag of a matrix with redraws must be one positive whole number")
    return RedrawnMatrix(decay, output, input, direct, int(lag[0]))
