"""Noise as a filter without end: the filters that a question may name, and the cost of each in the long run (C24)."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from factorize.plain_data import Frozen, NonNegative, OpenUnit, Positive
from factorize.predict import asymptotic
from factorize.predict.prediction import Question

Eigenvalues = Annotated[list[Positive], Field(min_length=1, max_length=100_000)]
STATIONARITY = "the process is stationary (n -> infinity)"
PRIVACY_CAVEAT = "a statement about Noisy-FTRL: private only where clipping is really done (C24, remark 1.2)"


class Independent(Frozen):
    """DP-SGD: B = 1."""

    kind: Literal["independent"] = "independent"


class Nu(Frozen):
    """nu-Toeplitz: coefficients of (1 - (1 - nu) x)^(1/2); `nu` left out is learning rate times smallest eigenvalue."""

    kind: Literal["nu"]
    nu: OpenUnit | None = None


class DampedAntiPgd(Frozen):
    """B = (1, -(1 - damping))."""

    kind: Literal["anti_pgd"]
    damping: OpenUnit


class Optimal(Frozen):
    """|B|^2 = 1 / sqrt(h): the smallest loss of all filters."""

    kind: Literal["optimal"]


Filter = Annotated[Independent | Nu | DampedAntiPgd | Optimal, Field(discriminator="kind")]


class PrivateNoise(Question):
    """Noise that C24's statements share.

    Attributes:
        learning_rate: eta.
        clip_norm: G.
        rho: of rho-zCDP.
        label_noise: sigma_sgd.
    """

    learning_rate: Positive
    clip_norm: Positive = 1.0
    rho: Positive
    label_noise: NonNegative = 0.0

    @property
    def scale(self) -> float:
        """The noise variance G^2 / (2 rho)."""
        return self.clip_norm**2 / (2 * self.rho)


class Regression(PrivateNoise):
    """Linear regression in the long run.

    Attributes:
        eigenvalues: l_j > 0 of H.
        noise: the filter; `optimal` is the best one for Gaussian inputs.
    """

    eigenvalues: Eigenvalues
    noise: Filter = Independent()

    def product(self, weights: Sequence[float] | None = None) -> float:
        """Return `noise_product` of this filter."""
        return noise_product(self.noise, self.eigenvalues, self.learning_rate, weights)

    def averaged(self, product: float) -> tuple[float, float]:
        """Return the exact costs of noise and labels if the inputs' outer products are replaced by their mean H."""
        eta, sgd = self.learning_rate, self.label_noise**2
        privacy = eta**2 * self.scale * product / 2
        return privacy, sum(eta * x * sgd / (2 - eta * x) for x in self.eigenvalues) / 2


def noise_product(
    noise: Independent | Nu | DampedAntiPgd | Optimal,
    eigenvalues: Sequence[float],
    learning_rate: float,
    weights: Sequence[float] | None = None,
) -> float:
    """Return gamma^2 mean(|B|^2 h), gamma^2 = mean(1 / |B|^2), h = sum_j weight_j / |1 - eta l_j - e^{iw}|^2.

    Args:
        noise: the filter B; `optimal` is the one that makes this number smallest.
        eigenvalues: l_j.
        learning_rate: eta.
        weights: weights of the terms; the l_j themselves if left out.
    """
    weights = eigenvalues if weights is None else weights
    pairs = list(zip(weights, (learning_rate * value for value in eigenvalues), strict=True))
    if isinstance(noise, Independent):
        return math.fsum(weight / _white(x) for weight, x in pairs)
    if isinstance(noise, DampedAntiPgd):
        keep = 1 - noise.damping
        total = math.fsum(weight * (1 + keep**2 - 2 * keep * (1 - x)) / _white(x) for weight, x in pairs)
        return total / (noise.damping * (2 - noise.damping))
    power = asymptotic.quadratic_power(eigenvalues, learning_rate, weights)
    narrowest = learning_rate * min(eigenvalues)
    if isinstance(noise, Optimal):
        return asymptotic.circle_mean(lambda w: np.sqrt(power(w)), width=narrowest) ** 2
    nu = noise.nu or narrowest
    total = math.fsum(weight * asymptotic.circle_integral(nu, x) for weight, x in pairs)
    return asymptotic.limiting_sensitivity_squared(nu) * total / (2 * math.pi)


def stationary_losses(eigenvalues: Sequence[float], learning_rate: float) -> dict[str, float]:
    """Return F per G^2 / (2 rho) of DP-SGD, of nu-Toeplitz noise with nu = eta min(l), and of the optimal filter."""
    filters: dict[str, Independent | Nu | Optimal] = {"dp_sgd": Independent(), "optimum": Optimal(kind="optimal")}
    if learning_rate * min(eigenvalues) < 1:
        filters["nu_toeplitz"] = Nu(kind="nu")
    half = learning_rate**2 / 2
    return {name: half * noise_product(noise, eigenvalues, learning_rate) for name, noise in filters.items()}


def _white(contraction: float) -> float:
    """Return x (2 - x), which is 1 / mean(1 / |1 - x - e^{iw}|^2)."""
    return contraction * (2 - contraction)
