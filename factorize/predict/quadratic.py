"""What gradient descent with correlated noise does on a quadratic: exact second moments, step by step.

f(x) = sum_j l_j (x_j - x*_j)^2 / 2, SGD with momentum and gradients that are not clipped. Each coordinate's distance to
the optimum is a linear function of the rows of Z, whose coefficients follow the same recursion as the iterates, so
E x_t^2 = (deterministic part)^2 + sigma^2 |coefficients|^2. This ranks mechanisms better than any bound.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from factorize.errors import InvalidParameter
from factorize.model import Fraction, NonNegative, Positive, Real
from factorize.predict.prediction import (
    NO_CLIPPING,
    Basis,
    Inverse,
    Prediction,
    Question,
    Relation,
    require,
    rows_wanted,
)
from factorize.predict.rows import inverse_blocks

_TOEPLITZ = ("toeplitz", "banded_toeplitz", "blt")

SHOWN = 257
"""Steps in the series of an answer; more are thinned evenly."""


def shown_steps(count: int) -> np.ndarray:
    """Return the steps of a path of `count` that an answer lists: evenly spaced, first and last among them."""
    return np.unique(np.linspace(0, count - 1, min(SHOWN, count)).round().astype(int))


class Quadratic(Question):
    """The exact loss of a run on a quadratic, with the noise of a factorization.

    Attributes:
        eigenvalues: l_j of the Hessian, one per coordinate.
        learning_rate: gamma.
        momentum: of heavy ball.
        sigma: standard deviation per entry of Z.
        initial: x_0 - x*, one per coordinate or one for all.
    """

    about_factorization: ClassVar[bool] = True

    kind: Literal["quadratic"]
    eigenvalues: Annotated[list[NonNegative], Field(min_length=1, max_length=4096)]
    learning_rate: Positive
    momentum: Fraction = 0.0
    sigma: NonNegative
    initial: Annotated[list[Real], Field(min_length=1)] = [1.0]

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return E f(x_n) - f*, with averages and the whole path beside it."""
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
            relation=Relation.EQUAL,
            value=float(loss[-1]),
            basis=Basis.EXACT,
            terms={
                "initial": float(loss_of[0, -1]),
                "noise": float(loss_of[1, -1]),
                "average_loss": float(loss.mean()),
                "average_squared_gradient": float(gradient.mean()),
                "last_squared_gradient": float(gradient[-1]),
            },
            assumptions=("f is a quadratic with these eigenvalues, gradients are exact", NO_CLIPPING),
            source="second moments of Koloskova et al. 2023, eq. (8), derived in docs/predict.md",
            series={"step": shown.tolist(), "loss": loss[shown].tolist(), "squared_gradient": gradient[shown].tolist()},
        )

    def second_moments(self, inverse: Inverse) -> tuple[np.ndarray, np.ndarray]:
        """Return (deterministic, noise) parts of E (x_t - x*)^2, each of shape (n + 1, coordinates).

        Raises:
            InvalidParameter: `initial` has neither one entry nor one per eigenvalue.
        """
        count = len(self.eigenvalues)
        if len(self.initial) not in (1, count):
            raise InvalidParameter(
                f"initial has {len(self.initial)} entries; give one, or one for each of the {count} eigenvalues",
                field="/initial",
            )
        n = inverse.shape("C_inv")[0]
        signal = self._path(np.broadcast_to(np.array(self.initial), (count,)), n)
        toeplitz = getattr(getattr(inverse, "strategy", None), "structure", "") in _TOEPLITZ
        noise = self._filtered(inverse, n) if toeplitz else self._swept(inverse, n)
        return signal**2, self.sigma**2 * noise

    def _path(self, start: np.ndarray, n: int) -> np.ndarray:
        """Return the noise-free distances, shape (n + 1, coordinates)."""
        path = np.empty((n + 1, len(start)))
        path[0] = start
        velocity = np.zeros_like(start)
        eigenvalues = np.array(self.eigenvalues)
        for t in range(n):
            velocity = self.momentum * velocity + eigenvalues * path[t]
            path[t + 1] = path[t] - self.learning_rate * velocity
        return path

    def _swept(self, inverse: Inverse, n: int) -> np.ndarray:
        """Squared norms of the coefficients on Z, O(n^2) per coordinate."""
        from factorize.predict.sweeps import swept

        return swept(inverse_blocks(inverse), n, np.array(self.eigenvalues), self.learning_rate, self.momentum)

    def _filtered(self, inverse: Inverse, n: int) -> np.ndarray:
        """The same for a Toeplitz C^-1: one filter per coordinate, O(n)."""
        from scipy.signal import lfilter

        coefficients = inverse.rows("C_inv", n - 1, n)[0, ::-1]
        squares = np.zeros((n + 1, len(self.eigenvalues)))
        for j, eigenvalue in enumerate(self.eigenvalues):
            step = self.learning_rate * eigenvalue
            recursion = [1.0, step - 1 - self.momentum, self.momentum]
            response = lfilter([self.learning_rate], recursion, coefficients)
            squares[1:, j] = np.cumsum(response**2)
        return squares
