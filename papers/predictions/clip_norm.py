"""The clip norm that clips nothing, with high probability, and the largest learning rate for it: C24, theorem D.13."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from factorize.plain_data import Count, NonNegative, Positive
from factorize.predict import asymptotic
from factorize.predict.filters import Eigenvalues
from factorize.predict.prediction import Basis, Inverse, Prediction, Question, Relation, require


class ClipNorm(Question):
    """C24, theorems D.4 and D.13: which clip norm nu-DP-FTRL needs for linear regression.

    Attributes:
        eigenvalues: of H.
        learning_rate: eta.
        rho: of rho-zCDP.
        label_noise: sigma_sgd.
        initial_distance: |theta_0 - theta*|.
        steps: T.
        failure_probability: p, of a gradient that is longer.
        nu: of the filter; learning_rate times the smallest eigenvalue by default, and at most that.
    """

    kind: Literal["clip_norm"]
    eigenvalues: Eigenvalues
    learning_rate: Positive
    rho: Positive
    label_noise: NonNegative = 0.0
    initial_distance: NonNegative
    steps: Count
    failure_probability: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.01
    nu: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = None

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return R^2 max(|theta_0 - theta*|, sqrt(eta R^2 sigma^2 / mu), sigma / R) log^(5/2)(T / p)."""
        mu, trace, eta = min(self.eigenvalues), math.fsum(self.eigenvalues), self.learning_rate
        nu = self.nu or min(eta * mu, 1 - 1e-12)
        require(
            nu <= eta * mu * (1 + 1e-12),
            f"nu={nu} is above learning_rate * mu = {eta * mu:.6g}",
            f"use a nu of at most {eta * mu:.6g}",
            field="/nu",
        )
        log = math.log(self.steps / self.failure_probability)
        lengths = {
            "initial_distance": self.initial_distance,
            "drift": math.sqrt(eta * trace / mu) * self.label_noise,
            "label_noise": self.label_noise / math.sqrt(trace),
        }
        sensitivity = asymptotic.limiting_sensitivity_squared(nu)
        weights = 2.0**2  # |beta|_1 of (1 - (1 - nu) x)^(1/2) is at most 2
        private = nu * self.rho / (trace**2 * len(self.eigenvalues) * sensitivity * weights * log**5)
        return Prediction(
            quantity="clip norm G below which every gradient of a run stays with probability 1 - p",
            relation=Relation.ORDER,
            value=trace * max(lengths.values()) * log**2.5,
            basis=Basis.ORDER,
            terms={**lengths, "largest_learning_rate": min(1 / (trace * log), private)},
            assumptions=("Gaussian inputs, R^2 of the order of Tr H", "a learning rate of the order of its largest"),
            source="Choquette-Choo et al. 2024, theorems D.4 and D.13 (universal constants taken as 1)",
            notes=(
                "the DP noise is proportional to G, so that the learning rate, not G, has to be small against it",
                "largest_learning_rate is our reconstruction of the paper's condition: an order, not a statement of it",
            ),
        )
