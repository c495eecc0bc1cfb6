"""Stationary loss of smooth and strongly convex functions: theorem 3.1 of C24, with the multiplier that is one number.

The theorem's bound is a convex program over multipliers; every multiplier gives a bound, and one number a gives it in
closed form, so that nothing is solved here. With u = (1 - e^{iw}) / eta, G = u Theta - Z in frequencies, and
(G - mu Theta)* (L Theta - G) >= 0 on average, weighted by a,

    E|x - x*|^2 <= mean(psi S),   psi = a (a (L - mu)^2 + 4) / (4 (a p - 1)),   p = Re[(u - mu)* (u - L)],

S the power of the noise. At L = mu and a -> infinity it is the exact loss of a quadratic. The derivation is in
papers/pages/notes-predictions.md. The program over all multipliers is in `factorize.solvers.frequency`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from factorize.plain_data import Count, Positive
from factorize.predict import asymptotic
from factorize.predict.filters import STATIONARITY, DampedAntiPgd, Independent, Nu, PrivateNoise
from factorize.predict.prediction import NO_CLIPPING, Basis, Inverse, Prediction, Relation, require

Array = NDArray[np.float64]

_MULTIPLIERS = np.geomspace(1 + 1e-3, 1e6, 49)
"""The values of a mu L that are tried; the bound holds for each, so the smallest is stated."""


class StronglyConvex(PrivateNoise):
    """C24, theorem 3.1: stationary suboptimality of a strongly convex and smooth function.

    Attributes:
        strong_convexity: mu.
        smoothness: L.
        dimension: d.
        noise: the filter; `nu` left out is learning_rate times strong_convexity.
    """

    kind: Literal["strongly_convex"]
    strong_convexity: Positive
    smoothness: Positive
    dimension: Count
    noise: Annotated[Independent | Nu | DampedAntiPgd, Field(discriminator="kind")] = Independent()

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return (L/2) mean(psi (d G^2 gamma^2 |B|^2 / (2 rho) + sigma_sgd^2)) at the best a of a grid."""
        mu, smooth, eta = self.strong_convexity, self.smoothness, self.learning_rate
        require(
            mu <= smooth,
            f"strong_convexity={mu} is above smoothness={smooth}",
            "give the smaller one as strong_convexity",
            field="/strong_convexity",
        )
        require(
            eta * (mu + smooth) <= 2,
            f"learning_rate * (mu + L) = {eta * (mu + smooth):.6g} is above 2, where none gives a bound",
            f"use a learning_rate of at most {2 / (mu + smooth):.6g}",
            field="/learning_rate",
        )
        private = self.dimension * self.scale
        costs = [self._costs(factor / (mu * smooth)) for factor in _MULTIPLIERS]
        totals = [private * noise + self.label_noise**2 * white for noise, white in costs]
        best = int(np.argmin(totals))
        noise, white = costs[best]
        return Prediction(
            quantity="stationary E F(theta) - F(theta*)",
            relation=Relation.AT_MOST,
            value=smooth / 2 * totals[best],
            basis=Basis.DERIVED,
            terms={
                "privacy": smooth / 2 * private * noise,
                "sampling": smooth / 2 * self.label_noise**2 * white,
                "multiplier": float(_MULTIPLIERS[best]) / (mu * smooth),
            },
            assumptions=(
                STATIONARITY,
                "F is L-smooth and mu-strongly convex",
                "stochastic gradients stay within label_noise of their mean",
                NO_CLIPPING,
            ),
            source="Choquette-Choo et al. 2024, theorem 3.1 with a multiplier of one number",
        )

    def _costs(self, multiplier: float) -> tuple[float, float]:
        """Return gamma^2 mean(psi |B|^2) and mean(psi) for one multiplier."""
        eta, mu = self.learning_rate, self.strong_convexity
        width = min(eta * mu, 1.0)

        def gain(w: Array) -> Array:
            p = mu * self.smoothness + 2 * np.sin(w / 2) ** 2 * (2 / eta - mu - self.smoothness) / eta
            spread = multiplier * (self.smoothness - mu) ** 2 + 4
            return np.asarray(multiplier * spread / (4 * (multiplier * p - 1)))

        white = asymptotic.circle_mean(gain, width=width)
        if isinstance(self.noise, Independent):
            return white, white
        if isinstance(self.noise, DampedAntiPgd):
            keep = 1 - self.noise.damping
            power = asymptotic.circle_mean(lambda w: asymptotic.distance_squared(1 - keep, w) * gain(w), width=width)
            return power / (1 - keep**2), white
        nu = self.noise.nu or min(eta * mu, 1 - 1e-12)
        power = asymptotic.circle_mean(
            lambda w: np.sqrt(asymptotic.distance_squared(nu, w)) * gain(w), width=min(nu, width)
        )
        return asymptotic.limiting_sensitivity_squared(nu) * power, white
