"""Linear regression and mean estimation in the long run: the formulas of C24, exact ones told apart from bounds.

Noise per step has covariance (G^2 gamma^2 / (2 rho)) times that of the filter B, with gamma^2 the limiting sensitivity;
noise is released under rho-zCDP with clip norm G, zero-out. H has eigenvalues l_j, sigma_sgd^2 is the label noise.
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from factorize.plain_data import Positive
from factorize.predict.filters import (
    PRIVACY_CAVEAT,
    STATIONARITY,
    Independent,
    Nu,
    Optimal,
    PrivateNoise,
    Regression,
    noise_product,
)
from factorize.predict.prediction import NO_CLIPPING, Inverse, Prediction, require

MAX_SHOWN_DIRECTIONS = 256
"""The most eigenvalues for which an answer lists each direction's part of the loss."""


class MeanEstimation(PrivateNoise):
    """C24, theorem 2.1: the limiting squared error of private mean estimation.

    Attributes:
        noise: the filter; `nu` with nu = learning_rate is the optimum.
    """

    kind: Literal["mean_estimation"]
    noise: Annotated[Independent | Nu, Field(discriminator="kind")] = Nu(kind="nu")

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return the limit of E delta_t^2, where delta is the distance to the mean."""
        eta = self.learning_rate
        require(eta < 1, f"learning_rate={eta} is not below 1", "use one in (0, 1)", field="/learning_rate")
        private = self.limit(self.noise)
        sampling = eta * self.label_noise**2 / (2 - eta)
        return Prediction(
            quantity="limit of E (theta_t - theta*)^2",
            value=private + sampling,
            terms={
                "privacy": private,
                "sampling": sampling,
                "optimum": self.limit(Nu(kind="nu")),
                "dp_sgd": self.limit(Independent()),
            },
            assumptions=(STATIONARITY, NO_CLIPPING),
            source="Choquette-Choo et al. 2024, theorem 2.1, eq. (99) and (100)",
            notes=("the paper's F is half of this: its loss carries a factor 1/2",),
        )

    def limit(self, noise: Independent | Nu) -> float:
        """Return the limit of a filter's noise, which is smallest for nu = learning_rate."""
        return self.learning_rate**2 * self.scale * noise_product(noise, [1.0], self.learning_rate)


class LinearRegressionQuestion(Regression):
    """C24, theorems C.15 and C.18: stationary suboptimality of linear regression with Gaussian inputs.

    Attributes:
        fourth_moment: R^2 with E |x|^2 x x^T <= R^2 H; 3 Tr H by default, enough for Gaussian inputs.
        kurtosis: C_k of the assumption, 3 for Gaussian inputs.
    """

    kind: Literal["linear_regression"]
    fourth_moment: Positive | None = None
    kurtosis: Positive = 3.0

    @property
    def radius(self) -> float:
        """The bound R^2 on the fourth moment."""
        return self.fourth_moment or 3 * math.fsum(self.eigenvalues)

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return F for inputs whose x x^T is replaced by H, exactly, with the proved bracket for Gaussian inputs."""
        eta, trace = self.learning_rate, math.fsum(self.eigenvalues)
        require(
            eta * self.radius < 1,
            f"learning_rate * R^2 = {eta * self.radius:.6g} is not below 1",
            f"use a learning_rate below {1 / self.radius:.6g}",
            field="/learning_rate",
        )
        optimum = noise_product(Optimal(kind="optimal"), self.eigenvalues, eta)
        sgd = self.label_noise**2
        product = self.product()
        directions = self.directions()
        privacy, sampling = self.averaged(product)
        x = math.sqrt(eta * self.radius)
        ratio = (x / (1 - x)) ** 2
        upper = (1 + ratio) * eta * self.radius * sgd + (1 + ratio * self.kurtosis) * 2 * eta**2 * self.scale * product
        return Prediction(
            quantity="stationary E F(theta) - F(theta*), inputs' outer product replaced by its mean H",
            value=privacy + sampling,
            terms={
                "privacy": privacy,
                "sampling": sampling,
                "lower_bound_this_filter": eta * sgd * trace / 4 + privacy,
                "lower_bound_all_filters": eta * sgd * trace / 4 + eta**2 * self.scale * optimum / 2,
                "upper_bound_gaussian_inputs": upper,
                "effective_dimension": trace / max(self.eigenvalues),
            },
            assumptions=(
                STATIONARITY,
                "inputs with E|x|^2 x x^T <= R^2 H and kurtosis C_k, independent label noise, for the bounds",
                "learning_rate < 1/R^2",
                NO_CLIPPING,
                PRIVACY_CAVEAT,
            ),
            source="Choquette-Choo et al. 2024, theorems C.15 and C.18 (appendix C)",
            notes=("the upper bound's factor is the smaller (x/(1-x))^2, x = sqrt(eta R^2), of its proof",),
            series=directions,
        )

    def directions(self) -> dict[str, list[float]]:
        """Return each eigendirection's part of the loss, privacy and sampling; nothing for many or for `optimal`."""
        if isinstance(self.noise, Optimal) or len(self.eigenvalues) > MAX_SHOWN_DIRECTIONS:
            return {}
        nu = min(self.eigenvalues) * self.learning_rate
        fixed = Nu(kind="nu", nu=self.noise.nu or nu) if isinstance(self.noise, Nu) else self.noise
        half = self.learning_rate**2 * self.scale / 2
        one = [half * noise_product(fixed, [value], self.learning_rate) for value in self.eigenvalues]
        eta, sgd = self.learning_rate, self.label_noise**2
        labels = [eta * value * sgd / (2 - eta * value) / 2 for value in self.eigenvalues]
        return {"eigenvalue": list(self.eigenvalues), "privacy": one, "sampling": labels}


class GaussianRegression(Regression):
    """Stationary suboptimality of Noisy-FTRL for linear regression, inputs N(0, H), one example per step, exactly.

    docs/notes/frequency-domain.md derives it: the fourth moments of x are not replaced by bounds. With x_j = eta l_j
    and m_j = E theta_j^2 in the eigenbasis of H, a step on one example gives

        m_j = (1 - 2 x_j + 2 x_j^2) m_j + eta x_j sum_i l_i m_i + s_j,

    where s_j is the power of the noise against the mean contraction 1 - x_j, the same as if x x^T were its mean H.
    Summing l_j m_j solves it: the loss of the averaged process, each eigenvalue's share times
    (1 - x_j / 2) / (1 - x_j), over 1 - sum_j x_j / (2 (1 - x_j)), which is the condition of Horowitz and Senne (1981)
    for LMS filters to be stable.
    """

    kind: Literal["gaussian_regression"]

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return F = E F(theta) - F(theta*) in the limit; the terms include its value with x x^T replaced by H."""
        eta = self.learning_rate
        spread = self._spread()
        shares = [(1 - x / 2) / (1 - x) for x in (eta * value for value in self.eigenvalues)]
        weights = [share * value for share, value in zip(shares, self.eigenvalues, strict=True)]
        privacy = eta**2 * self.scale / 2 * self.product(weights) / (1 - spread)
        sampling = spread * self.label_noise**2 / 2 / (1 - spread)
        return Prediction(
            quantity="stationary E F(theta) - F(theta*), Gaussian inputs",
            value=privacy + sampling,
            terms={
                "privacy": privacy,
                "sampling": sampling,
                "inputs_averaged": sum(self.averaged(self.product())),
                "spread": spread,
                "effective_dimension": math.fsum(self.eigenvalues) / max(self.eigenvalues),
            },
            assumptions=(
                STATIONARITY,
                "inputs N(0, H), one new example per step, independent label noise",
                NO_CLIPPING,
                PRIVACY_CAVEAT,
            ),
            source="docs/notes/frequency-domain.md; setting of Choquette-Choo et al. 2024, section 2.2 and figure 2",
            notes=("exact where theorems C.15 and C.18 of the paper bound",),
        )

    def _spread(self) -> float:
        """Return sum_j x_j / (2 (1 - x_j)), below 1 where second moments settle.

        Raises:
            ConditionNotMet: second moments grow without bound.
        """
        eta, largest = self.learning_rate, max(self.eigenvalues)
        enough = 2 / (math.fsum(self.eigenvalues) + 2 * largest)
        remedy = f"use a learning_rate below {enough:.6g}, which always converges"
        require(eta * largest < 1, f"learning_rate times {largest:.6g} is not below 1", remedy, field="/learning_rate")
        spread = math.fsum(eta * value / (2 * (1 - eta * value)) for value in self.eigenvalues)
        require(
            spread < 1,
            f"second moments grow: the sum of x / (2 (1 - x)), x = learning_rate * eigenvalue, is {spread:.6g}",
            remedy,
            field="/learning_rate",
        )
        return spread
