"""Linear regression after finitely many steps: theorem D.11 and the rates of corollaries D.14 and D.15 of C24."""

from __future__ import annotations

import math
from typing import Literal

from factorize.plain_data import Count, NonNegative, Positive
from factorize.predict.filters import NOT_PRIVATE, Eigenvalues
from factorize.predict.linear_regression import LinearRegressionQuestion
from factorize.predict.prediction import Basis, Inverse, Prediction, Question, Relation


class LinearRegressionFinite(LinearRegressionQuestion):
    """C24, theorem D.11: suboptimality after finitely many steps.

    Attributes:
        steps: t.
        initial_gap: F(theta_0) - F(theta*).
    """

    kind: Literal["linear_regression_finite"]  # type: ignore[assignment]  # a narrower tag than its parent's
    steps: Count
    initial_gap: NonNegative

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return (sqrt((L/mu) exp(-eta mu t) (F_0 - F*)) + sqrt(F_inf))^2, F_inf bounded by C.15."""
        stationary = super().answer()
        upper = stationary.terms["upper_bound_gaussian_inputs"]
        largest, smallest = max(self.eigenvalues), min(self.eigenvalues)
        decay = largest / smallest * math.exp(-self.learning_rate * smallest * self.steps)
        transient = decay * self.initial_gap
        return Prediction(
            quantity="E F(theta_t) - F(theta*)",
            relation=Relation.AT_MOST,
            value=(math.sqrt(transient) + math.sqrt(upper)) ** 2,
            basis=Basis.PAPER,
            terms={"transient": transient, "stationary_upper_bound": upper},
            assumptions=stationary.assumptions[1:],
            source="Choquette-Choo et al. 2024, theorem D.11 with F_inf bounded by theorem C.15",
        )


class DpFtrlRate(Question):
    """C24, corollaries D.14 and D.15: rates of DP-SGD and of nu-DP-FTRL, clipped, for linear regression.

    Attributes:
        method: `dp_sgd` or `nu_dp_ftrl`.
        eigenvalues: of H.
        steps: T.
        rho: of rho-zCDP.
        label_noise: sigma_sgd.
        initial_distance: |theta_0 - theta*|.
    """

    kind: Literal["dp_ftrl_rate"]
    method: Literal["dp_sgd", "nu_dp_ftrl"]
    eigenvalues: Eigenvalues
    steps: Count
    rho: Positive
    label_noise: NonNegative = 0.0
    initial_distance: NonNegative

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return the rate without constants, logarithms and the exponentially small term."""
        largest, trace, d, t = max(self.eigenvalues), math.fsum(self.eigenvalues), len(self.eigenvalues), self.steps
        effective, condition = trace / largest, largest / min(self.eigenvalues)
        distance, sgd = trace * self.initial_distance**2, self.label_noise**2
        if self.method == "dp_sgd":
            terms = {
                "distance": d * distance / (self.rho * t),
                "label_noise_and_privacy": d * sgd / (self.rho * t),
                "sampling": sgd / t,
            }
        else:
            terms = {
                "distance": condition * effective * distance / (self.rho * t**2),
                "label_noise_and_privacy": condition * effective * sgd / (self.rho * t**2),
                "sampling": sgd / t,
            }
        terms = {name: condition * effective * term for name, term in terms.items()}
        return Prediction(
            quantity="E [F(theta_T) - F(theta*)] where no gradient was clipped",
            relation=Relation.ORDER,
            value=math.fsum(terms.values()),
            basis=Basis.ORDER,
            terms={**terms, "effective_dimension": effective, "condition_number": condition},
            assumptions=("Gaussian inputs", "T large against (condition effective_dimension)^2 d / rho", NOT_PRIVATE),
            source="Choquette-Choo et al. 2024, theorem D.13, corollaries D.14 and D.15",
            notes=("dimension d in DP-SGD's rate becomes condition * effective_dimension / T in nu-DP-FTRL's",),
        )
