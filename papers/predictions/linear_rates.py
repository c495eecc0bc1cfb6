"""Linear regression after finitely many steps: theorem D.11 of C24."""

from __future__ import annotations

import math
from typing import Literal

from factorize.plain_data import Count, NonNegative
from factorize.predict.linear_regression import LinearRegressionQuestion
from factorize.predict.prediction import Basis, Inverse, Prediction, Relation


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
