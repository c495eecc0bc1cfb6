"""Given noise: a sigma that is there already, and which of epsilon and delta is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from factorize.errors import InvalidParameter
from factorize.numbers.gaussian import check_delta, gaussian_delta, gaussian_epsilon, mu_of, rho_of
from factorize.numbers.scalars import finite_real
from factorize.privacy import (
    Adjacency,
    Calibration,
    CertifiedSensitivity,
    PrivacyTarget,
    certified_value,
    within_scale,
)


@dataclass(frozen=True, kw_only=True)
class GivenNoise:
    """A sigma with exactly one of epsilon and delta; a calibration finds the other.

    Args:
        sigma: standard deviation per entry of Z, for sums.
        epsilon: where delta is asked for.
        delta: where epsilon is asked for.

    Raises:
        InvalidParameter: both or neither, or a value out of range.
    """

    sigma: float
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no question, and keep plain doubles."""
        if (self.epsilon is None) == (self.delta is None):
            given = "both" if self.epsilon is not None else "neither"
            raise InvalidParameter(
                f"sigma={self.sigma!r} with {given} of epsilon and delta is no question; give one of the two, and the "
                "other is answered",
                field="sigma",
            )
        noise = finite_real("sigma", self.sigma, remedy="give the standard deviation of Z")
        object.__setattr__(self, "sigma", within_scale("sigma", noise))
        if self.epsilon is not None:
            level = finite_real("epsilon", self.epsilon, remedy="give a finite epsilon > 0")
            object.__setattr__(self, "epsilon", level)
        if self.delta is not None:
            object.__setattr__(self, "delta", check_delta(self.delta))

    def level(self, epsilon: Callable[[float], float], delta: Callable[[float], float]) -> tuple[float, float]:
        """Return epsilon and delta: the one that is given, and the other by the function of it."""
        if self.delta is not None:
            return epsilon(self.delta), self.delta
        assert self.epsilon is not None  # by __post_init__
        return self.epsilon, delta(self.epsilon)


Question = PrivacyTarget | GivenNoise
"""What a calibration is asked: the noise of a privacy, or the privacy of a noise."""


def question_of(
    *, epsilon: float | None, delta: float | None, rho: float | None, mu: float | None, sigma: float | None
) -> Question:
    """Return what the numbers of a request ask.

    Raises:
        InvalidParameter: they ask nothing, or two things.
    """
    if sigma is None:
        return PrivacyTarget(epsilon=epsilon, delta=delta, rho=rho, mu=mu)
    if rho is not None or mu is not None:
        raise InvalidParameter(
            "sigma with rho or mu is two questions; give sigma with epsilon or delta, whose answer states rho and mu",
            field="sigma",
        )
    return GivenNoise(sigma=sigma, epsilon=epsilon, delta=delta)


def multiplier_of(sigma: float, *, clip_norm: float, sensitivity: float = 1.0) -> float:
    """Return sigma / (clip_norm * sensitivity), rounded down."""
    exact = Fraction(sigma) / Fraction(clip_norm) / Fraction(sensitivity)
    return float(exact) * (1 - 2.0**-51)


def level_without_sampling(
    sensitivity: CertifiedSensitivity,
    noise: GivenNoise,
    *,
    clip_norm: float = 1.0,
    divisor: int | None = None,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
) -> Calibration:
    """Return what a given noise is worth without sampling: the Gaussian mechanism's exact curve, rounded up.

    Args:
        sensitivity: certified sensitivity of the strategy.
        noise: sigma, and which of epsilon and delta is asked for.
        clip_norm: bound on one contribution.
        divisor: the fixed public divisor of means; None for sums.
        adjacency: `zero_out` or `replace_one`.

    Raises:
        InvalidParameter: a value out of range.
        UnsupportedAdjacency: add/remove, or an unknown name.

    Reference:
        Balle, Wang 2018, theorem 8.
    """
    relation = Adjacency.parse(adjacency)
    clip = within_scale(
        "clip_norm", finite_real("clip_norm", clip_norm, remedy="give the norm that contributions are clipped to")
    )
    size = certified_value(sensitivity) * relation.factor
    z = multiplier_of(noise.sigma, clip_norm=clip, sensitivity=size)
    mu = mu_of(z)
    epsilon, delta = noise.level(lambda d: gaussian_epsilon(d, mu), lambda e: gaussian_delta(e, mu))
    return Calibration(
        noise_multiplier=z,
        sigma_of_sums=noise.sigma,
        sensitivity=sensitivity,
        clip_norm=clip,
        adjacency=relation,
        epsilon=epsilon,
        delta=delta,
        rho=rho_of(z),
        mu=mu,
        divisor=divisor,
    )
