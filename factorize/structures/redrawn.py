"""A strategy whose noise makes draws of earlier epochs again: the structure `redrawn`, stored as its inverse.

The draw of step i - lag belongs to the step of the epoch before that saw the same examples. A generator of normals by
counter gives it once more at no memory, so K = C^-1 may use it beside the few states that it carries on:

    x_i = direct[0, i] y_i + sum_{m >= 1} direct[m, i] y_{i - m lag} + output_i . s
    s  <- decay_i s + input[0, i] y_i + sum_{m >= 1} input[m, i] y_{i - m lag},      s = 0 at first, y_j = 0 for j < 0

is row i of K y. What K y protects is C = K^-1, which has no recurrence of few states: a column of it is solved for from
the same equations, with all earlier rows at hand.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.structures.recursion import Recursion, Statement, X
from factorize.structures.recursive import RecursiveMatrix


class RedrawnMatrix(RecursiveMatrix):
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

    @cached_property
    def inverse_recursion(self) -> Recursion:
        """The equations of K."""
        buffers, lags = range(self.decay.shape[1]), [(X, m * self.lag) for m in range(-(-self.n // self.lag))]
        first: Statement = dict(zip(lags, self.direct, strict=False))
        states: list[Statement] = [
            {(a + 1, 1): self.decay[:, a], **dict(zip(lags, self.input[:, :, a], strict=False))} for a in buffers
        ]
        return Recursion(self.n, [first | {(a + 1, 1): self.output[:, a] for a in buffers}, *states])

    @cached_property
    def recursion(self) -> Recursion:
        """K solved for its input, with earlier ones at hand."""
        return self.inverse_recursion.inverse()

    @property
    def redraws(self) -> int:
        """How many earlier draws a step makes again, at most."""
        return len(self.direct) - 1

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
