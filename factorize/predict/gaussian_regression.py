"""Linear regression on Gaussian inputs in the long run, exactly: the fourth moments of x are not replaced by bounds.

docs/notes/predict.md derives it. With x_j = eta l_j and m_j = E theta_j^2 in the eigenbasis of H, a step on one example
gives

    m_j = (1 - 2 x_j + 2 x_j^2) m_j + eta x_j sum_i l_i m_i + s_j,

where s_j is the power of the noise against the mean contraction 1 - x_j, the same as if x x^T were its mean H. Summing
l_j m_j solves it: the loss of the averaged process, each eigenvalue's share times (1 - x_j / 2) / (1 - x_j), over
1 - sum_j x_j / (2 (1 - x_j)), which is the condition of Horowitz and Senne (1981) for LMS filters to be stable.
"""

from __future__ import annotations

import math
from typing import Literal

from factorize.predict.filters import NOT_PRIVATE, STATIONARY, Regression
from factorize.predict.prediction import NO_CLIPPING, Basis, Inverse, Prediction, Relation, require


class GaussianRegression(Regression):
    """Stationary suboptimality of Noisy-FTRL for linear regression, inputs N(0, H), one example per step."""

    kind: Literal["gaussian_regression"]

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return F = E F(theta) - F(theta*) in the limit; terms say what replacing x x^T by H would give."""
        eta = self.learning_rate
        spread = self._spread()
        shares = [(1 - x / 2) / (1 - x) for x in (eta * value for value in self.eigenvalues)]
        weights = [share * value for share, value in zip(shares, self.eigenvalues, strict=True)]
        privacy = eta**2 * self.scale / 2 * self.product(weights) / (1 - spread)
        sampling = spread * self.label_noise**2 / 2 / (1 - spread)
        return Prediction(
            quantity="stationary E F(theta) - F(theta*), Gaussian inputs",
            relation=Relation.EQUAL,
            value=privacy + sampling,
            basis=Basis.EXACT,
            terms={
                "privacy": privacy,
                "sampling": sampling,
                "inputs_averaged": sum(self.averaged(self.product())),
                "spread": spread,
                "effective_dimension": math.fsum(self.eigenvalues) / max(self.eigenvalues),
            },
            assumptions=(
                STATIONARY,
                "inputs N(0, H), one new example per step, independent label noise",
                NO_CLIPPING,
                NOT_PRIVATE,
            ),
            source="docs/notes/predict.md; the setting of Choquette-Choo et al. 2024, section 2.2 and figure 2",
            notes=("exact where theorems C.15 and C.18 of the paper bound",),
        )

    def _spread(self) -> float:
        """Return sum_j x_j / (2 (1 - x_j)), below 1 where second moments settle.

        Raises:
            ConditionNotMet: they grow without bound.
        """
        eta, largest = self.learning_rate, max(self.eigenvalues)
        enough = 2 / (math.fsum(self.eigenvalues) + 2 * largest)
        remedy = f"a learning_rate below {enough:.6g} always settles"
        require(eta * largest < 1, f"learning_rate times {largest:.6g} is not below 1", remedy, field="/learning_rate")
        spread = math.fsum(eta * value / (2 * (1 - eta * value)) for value in self.eigenvalues)
        require(
            spread < 1,
            f"second moments grow: the sum of x / (2 (1 - x)), x = learning_rate * eigenvalue, is {spread:.6g}",
            remedy,
            field="/learning_rate",
        )
        return spread
