"""Gradient descent with correlated noise on a quadratic: exact second moments, step by step.

f(x) = sum_j l_j (x_j - x*_j)^2 / 2, SGD with momentum and without clipping. This ranks mechanisms better
than any bound. Each coordinate's distance to the optimum is a linear function of the rows of Z, whose coefficients
follow the same recursion as the iterates, so E x_t^2 = (deterministic part)^2 + sigma^2 |coefficients|^2.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from factorize.errors import InvalidParameter, TooLarge
from factorize.plain_data import Fraction, NonNegative, Positive, Real
from factorize.predict.prediction import NO_CLIPPING, Inverse, Prediction, ScaledNoise, require, rows_wanted

MAX_STEPS_SHOWN = 257
"""The most steps in the series of an answer; longer series are thinned evenly."""
MAX_STEPS = 16384
"""The most steps of a run: its rows take O(n^2) to read, 2 GB of numbers at this n."""

_BLOCK_BYTES = 1 << 23
"""The bytes of rows of C^-1 that are read at a time."""


def shown_steps(count: int) -> np.ndarray:
    """Return the steps of a path of `count` that an answer lists, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(MAX_STEPS_SHOWN, count)).round().astype(int))


class ExactRun(ScaledNoise):
    """A run on f(x) = sum_j l_j (x_j - x*_j)^2 / 2 with the noise of a factorization.

    Attributes:
        eigenvalues: l_j of the Hessian, one per coordinate.
        learning_rate: gamma.
        initial: x_0 - x*, one per coordinate or one for all.
    """

    about_factorization: ClassVar[bool] = True

    eigenvalues: Annotated[list[NonNegative], Field(min_length=1, max_length=4096)]
    learning_rate: Positive
    initial: Annotated[list[Real], Field(min_length=1)] = [1.0]

    def moments(self, inverse: Inverse, momentum: float, decay: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Return (deterministic, noise) parts of E (x_t - x*)^2, each of shape (n + 1, coordinates).

        Args:
            inverse: rows of C^-1.
            momentum: momentum of heavy ball.
            decay: c of recursive gradients, whose noise is the sum of c^(t-s) (C^-1 Z)_s; 0 for plain ones.

        Raises:
            InvalidParameter: `initial` has neither one entry nor one per eigenvalue.
            TooLarge: see `inverse_blocks`.
        """
        count = len(self.eigenvalues)
        if len(self.initial) not in (1, count):
            raise InvalidParameter(
                f"initial has {len(self.initial)} entries; give one, or one for each of the {count} eigenvalues",
                field="/initial",
            )
        n = inverse.shape("C_inv")[0]
        strategy = getattr(inverse, "strategy", None)
        toeplitz = strategy is not None and strategy.finite().time_invariant
        # The noise is computed first, since it refuses a number of rows for which the path would be long, too.
        noise = (self._filtered if toeplitz else self._swept)(inverse, n, momentum, decay)
        signal = self._path(np.broadcast_to(np.array(self.initial), (count,)), n, momentum)
        return signal**2, self.scaled_sigma(inverse) ** 2 * noise

    def _path(self, start: np.ndarray, n: int, momentum: float) -> np.ndarray:
        """Return the noise-free distances, shape (n + 1, coordinates)."""
        path = np.empty((n + 1, len(start)))
        path[0] = start
        velocity = np.zeros_like(start)
        eigenvalues = np.array(self.eigenvalues)
        for t in range(n):
            velocity = momentum * velocity + eigenvalues * path[t]
            path[t + 1] = path[t] - self.learning_rate * velocity
        return path

    def _swept(self, inverse: Inverse, n: int, momentum: float, decay: float) -> np.ndarray:
        """Return the squared norms of the coefficients on Z, in O(n^2) per coordinate."""
        rows, eigenvalues = chain.from_iterable(inverse_blocks(inverse)), np.array(self.eigenvalues)
        squares = np.zeros((n + 1, len(eigenvalues)))
        position, velocity = np.zeros((2, len(eigenvalues), n))
        noise = np.zeros(n)
        for step, row in enumerate(rows, 1):
            x, v, z = position[:, :step], velocity[:, :step], noise[:step]
            z *= decay
            z += row[:step]
            v *= momentum
            v += eigenvalues[:, None] * x + z
            x -= self.learning_rate * v
            squares[step] = np.einsum("js,js->j", x, x)
        return squares

    def _filtered(self, inverse: Inverse, n: int, momentum: float, decay: float) -> np.ndarray:
        """Return the same for a Toeplitz C^-1, with one filter per coordinate, in O(n)."""
        from scipy.signal import lfilter

        coefficients = lfilter([1.0], [1.0, -decay], inverse.rows("C_inv", n - 1, n)[0, ::-1])
        squares = np.zeros((n + 1, len(self.eigenvalues)))
        for j, eigenvalue in enumerate(self.eigenvalues):
            step = self.learning_rate * eigenvalue
            recursion = [1.0, step - 1 - momentum, momentum]
            response = lfilter([self.learning_rate], recursion, coefficients)
            squares[1:, j] = np.cumsum(response**2)
        return squares


class QuadraticRun(ExactRun):
    """The exact loss of a run on a quadratic, with the noise of a factorization.

    Attributes:
        momentum: of heavy ball.
        decay: c of DP-SRG's recursive gradients, which are exact here, with noise that decays by c a step; 0 for plain
            gradients.
    """

    kind: Literal["quadratic"]
    momentum: Fraction = 0.0
    decay: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return E f(x_n) - f*, with averages and the whole path."""
        source = rows_wanted(inverse, self.kind)
        largest = max(self.eigenvalues)
        limit = 2 * (1 + self.momentum) / largest if largest else np.inf
        require(
            self.learning_rate < limit,
            f"learning_rate={self.learning_rate} makes the iterates diverge along the eigenvalue {largest}",
            f"use a learning_rate below {limit:.6g}",
            field="/learning_rate",
        )
        eigenvalues = np.array(self.eigenvalues)
        signal, noise = self.second_moments(source)
        loss_of = np.array([signal @ eigenvalues, noise @ eigenvalues]) / 2
        gradient = (signal + noise) @ eigenvalues**2
        loss = loss_of.sum(axis=0)
        shown = shown_steps(len(loss))
        return Prediction(
            quantity="E f(x_n) - f*",
            value=float(loss[-1]),
            terms={
                "initial": float(loss_of[0, -1]),
                "noise": float(loss_of[1, -1]),
                "average_loss": float(loss.mean()),
                "average_squared_gradient": float(gradient.mean()),
                "last_squared_gradient": float(gradient[-1]),
            },
            assumptions=("f is a quadratic with these eigenvalues, gradients are exact", NO_CLIPPING),
            source="second moments of Koloskova et al. 2023, eq. (8)",
            series={"step": shown.tolist(), "loss": loss[shown].tolist(), "squared_gradient": gradient[shown].tolist()},
        )

    def second_moments(self, inverse: Inverse) -> tuple[np.ndarray, np.ndarray]:
        """Return `moments` with this question's momentum and decay."""
        return self.moments(inverse, self.momentum, self.decay)


def inverse_blocks(inverse: Inverse) -> Iterator[np.ndarray]:
    """Return the blocks of consecutive rows of C^-1, each of which is read on demand.

    Raises:
        TooLarge: there are more than `MAX_STEPS` rows; raised before any is read.
    """
    n = inverse.shape("C_inv")[0]
    if n > MAX_STEPS:
        raise TooLarge(f"n={n} is above {MAX_STEPS}, the limit for a prediction; use a smaller n")
    step = max(1, _BLOCK_BYTES // (8 * n))
    return (inverse.rows("C_inv", start, min(start + step, n)) for start in range(0, n, step))
