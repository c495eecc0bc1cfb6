"""A strategy whose noise makes draws of earlier epochs again: the structure `redrawn`, stored as its inverse.

The draw of step i - lag belongs to the step of the epoch before that saw the same examples. A counter-based
generator of normals repeats it without memory, so K = C^-1 may use it besides the few states that it carries on:

    x_i = direct[0, i] y_i + sum_{m >= 1} direct[m, i] y_{i - m lag} + output_i . s
    s  <- decay_i s + input[0, i] y_i + sum_{m >= 1} input[m, i] y_{i - m lag},      s = 0 at first, y_j = 0 for j < 0

is row i of K y. The noise K y protects C = K^-1, which has no recurrence of few states: its columns are solved for
from the same equations, with all earlier rows at hand.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from factorize.structures.recursion import MatrixRecursion, RecursiveMatrix, Statement, X


class RedrawnMatrix(RecursiveMatrix):
    """The inverse of the matrix K above.

    Args:
        decay: shape (n, buffers), of either sign and any size.
        output: shape (n, buffers).
        input: shape (redraws + 1, n, buffers), zero at [m, i] where i < m lag.
        direct: shape (redraws + 1, n), direct[0] positive; zero at [m, i] where i < m lag.
        lag: steps from a draw to its next use, the length of an epoch; 1 <= lag <= n.

    Raises:
        InvalidStrategy: a tensor is not of this form, or a number is not finite.
    """

    def __init__(
        self, decay: np.ndarray, output: np.ndarray, input: np.ndarray, direct: np.ndarray, lag: int | np.ndarray
    ) -> None:
        n = np.shape(decay)[0] if np.ndim(decay) else None
        parts = {"decay": decay, "output": output, "input": input, "direct": direct, "lag": np.atleast_1d(lag)}
        self.decay, self.output, self.input, self.direct, steps = self.keep("redrawn", parts, n)
        self.lag, self.n = int(steps[0]), len(self.decay)

    @cached_property
    def inverse_recursion(self) -> MatrixRecursion:
        """The recursion of K by the equations above."""
        buffers, lags = range(self.decay.shape[1]), [(X, m * self.lag) for m in range(-(-self.n // self.lag))]
        first: Statement = dict(zip(lags, self.direct, strict=False))
        states: list[Statement] = [
            {(a + 1, 1): self.decay[:, a], **dict(zip(lags, self.input[:, :, a], strict=False))} for a in buffers
        ]
        return MatrixRecursion(self.n, [first | {(a + 1, 1): self.output[:, a] for a in buffers}, *states])

    def leading(self, steps: int) -> RedrawnMatrix:
        """Return the matrix of the first steps, with no more redraws than they use."""
        made = slice(-(-steps // self.lag)), slice(steps)
        lag = min(self.lag, steps)
        return RedrawnMatrix(self.decay[:steps], self.output[:steps], self.input[made], self.direct[made], lag)
