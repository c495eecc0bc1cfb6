"""Gradient descent with correlated noise on a quadratic: exact second moments, step by step.

f(x) = sum_j l_j (x_j - x*_j)^2 / 2, SGD with momentum and gradients that are not clipped. This ranks mechanisms better
than any bound.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from factorize.plain_data import Fraction
from factorize.predict.moments import ExactRun, shown_steps
from factorize.predict.prediction import NO_CLIPPING, Inverse, Prediction, require, rows_wanted


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
