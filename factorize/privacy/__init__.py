"""Privacy calibration: from a certified sensitivity and a privacy target to the noise to draw.

Everything this project releases is one Gaussian mechanism: C G + Z, with Z of standard deviation
`sigma = noise_multiplier * adjacency.factor * clip_norm * sens(C)` per entry, whatever decoder B follows. G holds sums
of clipped contributions, and `sigma` is for sums wherever it stands; dividing by a public constant comes after it.
Adaptively chosen gradients are covered because C is lower-triangular (Denisov et al. 2022). Nothing here is
amplified by sampling.

What bounds the privacy of a run bounds how well any attack tells whether an example took part, too (Dong, Roth, Su
2022, Gaussian differential privacy, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from factorize.errors import InvalidParameter
from factorize.format.claims import Sensitivity, certified_value, differing
from factorize.format.manifest import CertifiedFactors, certified
from factorize.numbers.gaussian import gaussian_delta, gaussian_epsilon, mu_of, rho_of
from factorize.numbers.scalars import double_above, finite_real, multiplier_of, whole_number, within_scale
from factorize.privacy import selection as selection
from factorize.privacy.adjacency import Adjacency as Adjacency
from factorize.privacy.question import PrivacyTarget as PrivacyTarget
from factorize.privacy.question import Question
from factorize.privacy.selection import BestOf as BestOf

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
"""At which answers state the largest true-positive rate."""
_LARGEST_LEVEL = 700.0  # epsilon whose exponential is a double
_ROUNDED = 1e-12  # relative: more than doubles lose of the rates


NOT_LOOKED_AT: Literal["not_looked_at"] = "not_looked_at"
"""In place of an auditor: the batches are those that epsilon counts on by the word of the caller alone."""


class Telling(Protocol):
    """What is told of each batch: a `factorize.auditor.Auditor`."""

    def check_calibration(self, calibration: Calibration) -> None:
        """Refuse a calibration that counts on other batches than those that pass."""


Told = TypeVar("Told", bound=Telling)


class Presence(NamedTuple):
    """The steps of one example that a sampling draws, as an epsilon counts on it.

    Attributes:
        period: steps, in each run of which an example is taken once at most.
        probability: that it is taken in one of the steps that it may have.
        independent: whether each step is drawn for itself; else one step of each period.
    """

    period: int
    probability: float
    independent: bool


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The noise to draw, with the guarantee that it gives and the assumptions behind it.

    Attributes:
        noise_multiplier: standard deviation of Z in units of `adjacency.factor * clip_norm * sensitivity`.
        sigma_of_sums: standard deviation per entry of Z, for sums of clipped contributions.
        sensitivity: the certified sensitivity of C that was used.
        clip_norm: bound on the norm of one user's contribution to one step.
        adjacency: the neighbouring relation of the guarantee.
        epsilon: None where the target named no delta.
        delta: None where the target named no delta.
        rho: of rho-zCDP.
        mu: of mu-GDP.
        divisor: the fixed public divisor of means; None where there are sums alone.
        sampling: name of the law of sampling that epsilon counts on; `fixed` for none.
        method: what epsilon rests on: `deterministic`, closed forms and bounds; `accountant`; or `verified`, a claim.
        total_variation: of what is seen with and without an example, at most, by the sampling; 1 where there is none.

    Raises:
        InvalidParameter: a divisor that is no integer from 1.
    """

    noise_multiplier: float
    sigma_of_sums: float
    sensitivity: Sensitivity
    clip_norm: float
    adjacency: Adjacency
    epsilon: float | None
    delta: float | None
    rho: float
    mu: float
    divisor: int | None = None
    amplified: ClassVar[bool] = False
    """Whether epsilon counts on a sampling in secret."""
    sampling: str = "fixed"
    method: str = "deterministic"
    total_variation: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is no divisor."""
        if self.divisor is not None:
            remedy = "give the fixed public divisor of the means, or leave it out for sums"
            whole_number("divisor", self.divisor, remedy=remedy)

    @property
    def sigma_of_means(self) -> float | None:
        """Standard deviation per entry of Z for means: sigma_of_sums / divisor, rounded up; None without a divisor."""
        if self.divisor is None:
            return None
        return double_above(Fraction(self.sigma_of_sums) / self.divisor, "sigma_of_means")

    def divisor_of_means(self) -> int:
        """Return the divisor, for noise that is added to means; raise InvalidParameter where there is none."""
        if self.divisor is None:
            raise InvalidParameter(
                f"sigma_of_sums={self.sigma_of_sums:.6g} is for sums, and this calibration has no divisor: noise for "
                "means of an unknown divisor is none; add it to sums, or calibrate with divisor=, the fixed public "
                "number that the sums are divided by",
                field="divisor",
            )
        return self.divisor

    def check_mean(self, norm: float) -> None:
        """Refuse the norm of what is called a mean, where it can only be that of a sum.

        A batch of expected size `divisor`, fixed or sampled independently, has more than divisor + (178 divisor)^(1/2)
        + 60 examples with a probability below 2^-128 (Bernstein); so seldom is what is truly a mean refused.

        Raises:
            InvalidParameter: it is above what a mean can have, or there is no divisor.
        """
        divisor = self.divisor_of_means()
        most = self.clip_norm * (1 + math.sqrt(178 / divisor) + 60 / divisor)
        if not norm <= most:
            raise InvalidParameter(
                f"the norm of the mean is above {most:.6g}, the most at clip_norm={self.clip_norm:g} and "
                f"divisor={divisor}: it is a sum, to which noise of means gives no privacy; use add_to_sum, or clip",
                field="mean",
            )

    def accept_auditor(self, given: Told | str | None) -> Told | None:
        """Return who is told of each batch, where this noise lets their batches pass; None where nobody is.

        Args:
            given: an auditor; None where epsilon counts on no sampling; or `NOT_LOOKED_AT`, by which the caller answers
                for every batch.

        Raises:
            InvalidParameter: nobody is told of batches on whose sampling epsilon counts, or the auditor's are others.
        """
        if (given is None and not self.amplified) or given == NOT_LOOKED_AT:
            return None
        if given is None or isinstance(given, str):
            raise InvalidParameter(
                f"epsilon={self.epsilon} counts on {self.sampling}, and auditor={given!r} is told of no batch; use "
                "make_private, which samples so, or give the auditor of that sampling and record each batch; "
                f"auditor={NOT_LOOKED_AT!r} says that you answer for the batches",
                field="auditor",
            )
        given.check_calibration(self)
        return given

    @property
    def presence(self) -> Presence | None:
        """What is drawn of an example's steps; None where epsilon counts on nothing that is drawn."""
        return None

    @property
    def without_secrecy(self) -> str:
        """A sentence on what holds if the draws become known; empty where nothing is stated beyond mu."""
        return ""

    @property
    def exact(self) -> bool:
        """Whether the guarantee is exact for the stated participation, and not an upper bound."""
        return self.sensitivity.exact and type(self) is Calibration

    @property
    def level(self) -> tuple[float, float] | None:
        """Epsilon and delta, where both are stated."""
        return None if self.epsilon is None or self.delta is None else (self.epsilon, self.delta)

    @property
    def attack_advantage(self) -> float:
        """The most by which an attack's true-positive rate exceeds its false-positive rate, from above.

        The attack sees the run and decides whether an example took part. By mu alone the most is exact,
        2 Phi(mu / 2) - 1; where epsilon and delta hold, it is what they allow, if that is less. A sampling knows it as
        the total variation.
        """
        most = gaussian_delta(0.0, self.mu)
        if self.level is not None:
            epsilon, delta = self.level
            shrunk = math.exp(-epsilon)
            most = min(most, math.tanh(epsilon / 2) + 2 * delta * shrunk / (1 + shrunk))
        return min(most * (1 + _ROUNDED), self.total_variation)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Return the largest true-positive rate of such an attack at a false-positive rate in (0, 1), from above.

        By mu alone it is exact, Phi(Phi^-1(rate) + mu); where epsilon and delta hold, it is what they allow, if less.

        Raises:
            InvalidParameter: a rate outside (0, 1).
        """
        from statistics import NormalDist

        rate, mu = false_positive_rate, self.mu
        rate = finite_real("false_positive_rate", rate, remedy="give a rate above 0 and below 1")
        if rate >= 1:
            message = f"false_positive_rate={rate!r} is not below 1; give one"
            raise InvalidParameter(message, field="false_positive_rate")
        touching = abs(mu * NormalDist().inv_cdf(rate) + mu**2 / 2)  # each epsilon has a bound: this one touches
        known = [(min(touching, _LARGEST_LEVEL), gaussian_delta(min(touching, _LARGEST_LEVEL), mu))]
        if self.level is not None and self.level[0] <= _LARGEST_LEVEL:
            known.append(self.level)
        known.append((0.0, self.total_variation))
        below = (math.exp(epsilon) * rate + delta for epsilon, delta in known)
        above = (-math.expm1(-epsilon) + (delta + rate) * math.exp(-epsilon) for epsilon, delta in known)
        return min(min(*below, *above) * (1 + _ROUNDED), 1.0)

    def check_belongs(self, mine: Sensitivity, strategy: Callable[[], Any], *, digest: str | None = None) -> None:
        """Refuse a factorization that this noise was not calibrated for.

        Args:
            mine: what the factorization's certificate states.
            strategy: gives C, for a calibration under another participation than the certificate's.
            digest: of the factorization, for a calibration that counts on more of C than its sensitivity.

        Raises:
            InvalidParameter: the sensitivities differ in value, kind, rule or participation.
        """
        wrong = differing(self.sensitivity, self._wanted(mine, strategy))
        if wrong:
            name, theirs, ours = wrong
            raise InvalidParameter(
                f"the calibration is for a sensitivity of {name} {theirs!r}, this factorization has {ours!r}; "
                "calibrate this one: use its own calibrate()",
                field="calibration",
            )

    def _wanted(self, mine: Sensitivity, strategy: Callable[[], Any]) -> Sensitivity:
        """Return the sensitivity that a factorization has to have for this noise to be its own."""
        return mine

    def rmse(self, factors: CertifiedFactors) -> float:
        """Return the root mean squared error of the outputs of a workload under this noise, in each coordinate.

        It is that of outputs of sums, and `compare` and `recommend` call it `rmse_at_privacy`. A certificate's losses
        are for noise whose standard deviation is its sensitivity. So this is `loss.rmse` times `sigma_of_sums` over the
        certificate's sensitivity, and `loss.rmse` times `sigma_of_sums` is wrong by the sensitivity.

        Args:
            factors: that this noise was calibrated for.

        Raises:
            InvalidParameter: other factors, or a workload without end, whose error grows without limit.
        """
        check_own(self, factors)
        certified, loss = factors.sensitivity.value, factors.manifest.certificate["loss"]["rmse"]
        if loss is None:
            message = "the workload has no last step, and its error grows without limit; give factors with n"
            raise InvalidParameter(message, field="factors")
        return float(loss * (self.sigma_of_sums / certified))

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form, in the names of the contract's `calibrate` answer."""
        return {
            **self._stated("noise_multiplier", "sigma_of_sums", "sigma_of_means"),
            "sensitivity": self.sensitivity.value,
            "sensitivity_kind": self.sensitivity.kind,
            "sensitivity_rule": self.sensitivity.rule,
            "participation": dict(self.sensitivity.participation),
            **self._stated("clip_norm", "divisor"),
            "adjacency": self.adjacency.value,
            **self._stated("sampling", "epsilon", "delta", "rho", "mu", "exact", "attack_advantage"),
            "true_positive_rates": {str(rate): self.true_positive_rate(rate) for rate in FALSE_POSITIVE_RATES},
        }

    def _stated(self, *names: str) -> dict[str, Any]:
        """Return some of its numbers by their names."""
        return {name: getattr(self, name) for name in names}


def refuse_infinite(what: str, *, finite: bool) -> None:
    """Refuse a sum of clipped gradients, or a mean of them, which no noise covers.

    Raises:
        InvalidParameter: it is not finite.
    """
    if not finite:
        raise InvalidParameter(
            f"the {what} has entries that are NaN or infinite: no noise hides them, and no clipped gradient has them; "
            "clip each example's gradient before the sum, and count one that is not finite as zeros",
            field=what,
        )


def check_kind(calibration: object) -> Calibration:
    """Return a calibration; raise InvalidParameter for a bare number, or anything else."""
    if not isinstance(calibration, Calibration):
        message = f"the scale of the noise is a bare {type(calibration).__name__}; pass a Calibration"
        raise InvalidParameter(message, field="calibration")
    return calibration


def check_own(calibration: object, given: object) -> CertifiedFactors:
    """Return factors; raise InvalidParameter for anything else, a bare number, and a calibration of other factors."""
    factors, calibration = certified(given), check_kind(calibration)
    calibration.check_belongs(factors.sensitivity, lambda: factors.opened().strategy, digest=factors.digest)
    return factors


def calibrate(
    sensitivity: Sensitivity,
    asked: Question,
    *,
    clip_norm: float = 1.0,
    divisor: int | None = None,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
) -> Calibration:
    """Return the noise that makes C G + Z as private as asked, or what a given noise is worth.

    Args:
        sensitivity: certified sensitivity of the strategy (`certificate.sensitivity`), never a bare number.
        asked: the privacy; or a `GivenNoise`, whose epsilon or delta is found on the mechanism's exact curve.
        clip_norm: bound on the norm of one user's contribution to one step; the training job must enforce it.
        divisor: the fixed public divisor where steps are means; never the size of a random batch.
        adjacency: `zero_out` or `replace_one`; the latter needs twice the sigma.

    Raises:
        InvalidParameter: a number without its certificate, or a value out of range.
        UnsupportedAdjacency: add/remove, or an unknown name.

    Reference:
        Denisov et al. 2022, theorem 2.1 (the mechanism); Balle, Wang 2018, theorem 8 (its privacy).
    """
    relation = Adjacency.parse(adjacency)
    largest = Fraction(certified_value(sensitivity)) * relation.factor
    clip = finite_real("clip_norm", clip_norm, remedy="give the norm that contributions are clipped to")
    within_scale("clip_norm", clip)
    if isinstance(asked, PrivacyTarget):
        z = asked.noise_multiplier
        sigma = within_scale("sigma", double_above(Fraction(z) * Fraction(clip) * largest, "sigma"))
        rho = rho_of(z) if asked.rho is None else asked.rho
        mu = mu_of(z) if asked.mu is None else asked.mu
        epsilon, delta = asked.epsilon, asked.delta
        if epsilon is None and delta is not None:
            epsilon = gaussian_epsilon(delta, mu)
    else:
        sigma = asked.sigma
        z = multiplier_of(sigma, clip_norm=clip, sensitivity=largest)
        rho, mu = rho_of(z), mu_of(z)
        epsilon, delta = asked.level(lambda d: gaussian_epsilon(d, mu), lambda e: gaussian_delta(e, mu))
    return Calibration(
        noise_multiplier=z,
        sigma_of_sums=sigma,
        sensitivity=sensitivity,
        clip_norm=clip,
        adjacency=relation,
        epsilon=epsilon,
        delta=delta,
        rho=rho,
        mu=mu,
        divisor=divisor,
    )
