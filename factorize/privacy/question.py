"""The question that a calibration answers: how much noise gives this privacy, or how much privacy this noise gives."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from factorize.errors import InvalidParameter
from factorize.numbers.gaussian import (
    check_delta,
    noise_multiplier_for_epsilon,
    noise_multiplier_for_mu,
    noise_multiplier_for_rho,
    remaining_mu,
)
from factorize.numbers.scalars import finite_real, whole_number, within_scale


@dataclass(frozen=True, kw_only=True)
class PrivacyTarget:
    """The privacy asked for: exactly one of (epsilon, delta), rho or mu.

    Args:
        epsilon: the epsilon of (epsilon, delta)-differential privacy; needs `delta`.
        delta: a number in (0, 1). With rho or mu it is optional, and the answer then has the exact epsilon at it.
        rho: the rho of rho-zCDP, equal to mu^2 / 2 for a Gaussian mechanism.
        mu: the mu of mu-GDP. Some papers call this number rho (Renyi divergence alpha rho^2 / 2).

    Raises:
        InvalidParameter: no target, more than one, epsilon without delta, or a value out of range.
    """

    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None
    mu: float | None = None

    def __post_init__(self) -> None:
        """Refuse an invalid target, and keep plain doubles."""
        targets = [name for name in ("epsilon", "rho", "mu") if getattr(self, name) is not None]
        if len(targets) != 1:
            raise InvalidParameter(
                f"{len(targets)} privacy targets given ({', '.join(targets) or 'none'}), but exactly one is needed;"
                " give epsilon with delta, or rho, or mu",
                field=targets[1] if targets else "epsilon",
            )
        if self.epsilon is not None and self.delta is None:
            raise InvalidParameter(
                f"epsilon={self.epsilon} needs a delta, since a Gaussian mechanism is never (epsilon, 0)-DP;"
                " give delta in (0, 1), well below 1 / (number of users)",
                field="delta",
            )
        if self.delta is not None:
            object.__setattr__(self, "delta", check_delta(self.delta))
        _ = self.noise_multiplier  # refuses a target out of range now, not at its first use
        object.__setattr__(self, targets[0], float(getattr(self, targets[0])))

    @cached_property
    def noise_multiplier(self) -> float:
        """The noise multiplier that reaches the target: never below the true one, and at most 2e-12 above it."""
        if self.rho is not None:
            return noise_multiplier_for_rho(self.rho)
        if self.mu is not None:
            return noise_multiplier_for_mu(self.mu)
        assert self.epsilon is not None and self.delta is not None  # checked in __post_init__; narrows the types
        return noise_multiplier_for_epsilon(self.epsilon, self.delta)


@dataclass(frozen=True, kw_only=True)
class GivenNoise:
    """A sigma with exactly one of epsilon and delta; a calibration finds the other.

    Args:
        sigma: standard deviation per entry of Z, for sums.
        epsilon: the epsilon at which delta is asked for.
        delta: the delta at which epsilon is asked for.

    Raises:
        InvalidParameter: both or neither, or a value out of range.
    """

    sigma: float
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        """Refuse an invalid question, and keep plain doubles."""
        if (self.epsilon is None) == (self.delta is None):
            count = "both" if self.epsilon is not None else "neither"
            raise InvalidParameter(
                f"sigma={self.sigma!r} came with {count} of epsilon and delta; give exactly one of the two to compute "
                "the other",
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
        """Return epsilon and delta: the given one, and the other by the function of it."""
        if self.delta is not None:
            return epsilon(self.delta), self.delta
        assert self.epsilon is not None  # checked in __post_init__
        return self.epsilon, delta(self.epsilon)


Method = Literal["verified", "deterministic"]
"""The ways to show a claim under bins: with bets as well, or by closed forms and bounds alone."""
Question = PrivacyTarget | GivenNoise
"""The question of a calibration: the noise that gives a privacy, or the privacy that a noise gives."""


def question_of(
    *,
    epsilon: float | None,
    delta: float | None,
    rho: float | None,
    mu: float | None,
    sigma: float | None,
    spent_mu: float | None = None,
) -> Question:
    """Return the question that the numbers of a request ask; if a budget is partly spent, it is about the rest.

    Raises:
        InvalidParameter: the numbers ask nothing, or two things.
    """
    if sigma is None:
        budget = PrivacyTarget(epsilon=epsilon, delta=delta, rho=rho, mu=mu)
        if spent_mu is None:
            return budget
        return PrivacyTarget(mu=remaining_mu(budget.noise_multiplier, spent_mu), delta=delta)
    if spent_mu is not None:
        raise InvalidParameter(
            "spent_mu is part of a budget, which sigma does not name; give the budget (epsilon and delta, rho or mu), "
            "or compose the two mu with factorize.numbers.gaussian.compose_mu",
            field="spent_mu",
        )
    if rho is not None or mu is not None:
        raise InvalidParameter(
            "sigma cannot come with rho or mu; give sigma with epsilon or delta, and the answer states rho and mu",
            field="sigma",
        )
    return GivenNoise(sigma=sigma, epsilon=epsilon, delta=delta)


WORK = 1 << 28
"""The most samples times bins of one direction of a claim, unless a caller gives another number."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The options of a calibration besides the privacy; `CalibrationRequest` explains each of them.

    Attributes:
        work: the most samples times bins of one direction of a claim; None for `WORK`.
    """

    clip_norm: float = 1.0
    divisor: int | None = None
    adjacency: str = "zero_out"
    dataset_size: int | None = None
    batch_size: int | None = None
    bins: int | None = None
    method: Method = "verified"
    work: int | None = None

    def __post_init__(self) -> None:
        """Check the sizes, whichever sampling uses them."""
        for name in ("dataset_size", "batch_size"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.work is not None:
            whole_number("work", self.work, low=0)

    @property
    def scale(self) -> dict[str, Any]:
        """The options that every calibration takes."""
        return {"clip_norm": self.clip_norm, "divisor": self.divisor, "adjacency": self.adjacency}

    @property
    def sized(self) -> bool:
        """Whether the sizes are given that the Poisson samplings need."""
        return self.dataset_size is not None and self.batch_size is not None


def level_of(target: Question, name: str) -> dict[str, Any]:
    """Return epsilon and delta, or sigma and one of them; raise InvalidParameter for another target."""
    if isinstance(target, GivenNoise):
        return {"epsilon": target.epsilon, "delta": target.delta, "sigma": target.sigma}
    if target.epsilon is None or target.delta is None:
        raise InvalidParameter(
            f"sampling={name!r} needs epsilon and delta alone: rho, mu and spent_mu describe a Gaussian mechanism, "
            "which an amplified run is not",
            field="epsilon",
        )
    return {"epsilon": target.epsilon, "delta": target.delta}
