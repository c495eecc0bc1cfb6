"""Privacy calibration: from a certified sensitivity and a privacy target to the noise to draw.

Everything this project releases is one Gaussian mechanism: C G + Z, with Z of standard deviation
`sigma = noise_multiplier * adjacency.factor * clip_norm * sens(C)` per entry, whatever decoder B follows. G holds sums
of clipped contributions, and `sigma` is for sums wherever it stands; dividing by a public constant comes after it.
Adaptively chosen gradients are covered because C is lower-triangular (Denisov et al. 2022). Nothing here is
amplified by sampling.

A bound on the privacy of a run also bounds how well any attack tells whether an example took part (Dong, Roth, Su 2022,
Gaussian differential privacy, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from factorize.errors import InvalidParameter
from factorize.format.claims import Sensitivity, certified_value, differing
from factorize.format.manifest import CertifiedFactors, certified
from factorize.numbers.gaussian import MAX_NOISE_MULTIPLIER, gaussian_delta, gaussian_epsilon, mu_of, rho_of
from factorize.numbers.scalars import double_above, finite_real, multiplier_of, whole_number, within_scale
from factorize.privacy.adjacency import Adjacency
from factorize.privacy.question import GivenNoise, PrivacyTarget, Question

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
"""The false-positive rates at which answers state the largest true-positive rate."""
_MAX_EPSILON = 700.0
"""The largest epsilon that enters an exponential, which must stay a double."""
_RELATIVE_ROUNDING = 1e-12
"""Relative margin of the rates, which is more than doubles lose."""


_CONTRADICTION = 1e-6
"""The relative difference above which numbers of a calibration contradict one another."""

NOT_LOOKED_AT: Literal["not_looked_at"] = "not_looked_at"
"""The word that a caller gives in place of an auditor, and so vouches for the batches that epsilon relies on."""


@runtime_checkable
class BatchAuditor(Protocol):
    """An object that is told of each batch, as `factorize.training.auditor.Auditor` is."""

    def check_calibration(self, calibration: Calibration, steps: int) -> None:
        """Refuse a calibration, of factors of so many steps, that relies on other batches than those that pass."""

    def check_release(
        self, step: int, norm: float = 0.0, clip_norm: float = 0.0, *, lags: bool = False, noise: str | None = None
    ) -> None:
        """Refuse noise for other examples than those that were recorded last, or for a sum that these cannot have."""


AnyAuditor = TypeVar("AnyAuditor", bound=BatchAuditor)


class Presence(NamedTuple):
    """The steps of one example that a sampling draws, as an epsilon relies on it.

    Attributes:
        period: number of steps in each run of which an example is taken at most once.
        probability: probability that an example is taken in one of its possible steps.
        independent: whether each step is drawn independently; otherwise one step of each period is drawn.
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
        epsilon: the epsilon of (epsilon, delta)-DP; None where the target named no delta.
        delta: the delta of (epsilon, delta)-DP; None where the target named no delta.
        rho: the rho of rho-zCDP.
        mu: the mu of mu-GDP.
        divisor: the fixed public divisor of means; None where there are only sums.
        sampling: name of the sampling law that epsilon relies on; `fixed` for none.
        method: the basis of epsilon: `deterministic`, closed forms and bounds; `accountant`; or `verified`, a claim.
        total_variation: upper bound on the total variation between runs with and without an example, by the sampling; 1
            for none.

    Raises:
        InvalidParameter: a divisor that is no integer from 1, or privacy that does not follow from the noise, as after
            `dataclasses.replace`.
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
    """Whether epsilon relies on a secret sampling."""
    sampling: str = "fixed"
    method: str = "deterministic"
    total_variation: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a divisor that is no integer from 1, and privacy that does not follow from the noise."""
        if self.divisor is not None:
            remedy = "give the fixed public divisor of the means, or leave it out for sums"
            object.__setattr__(self, "divisor", whole_number("divisor", self.divisor, remedy=remedy))
        most = self._multiplier * (1 + _CONTRADICTION)
        mu, rho = mu_of(most), rho_of(most)
        follows = self.noise_multiplier <= most and self.mu >= mu and self.rho >= rho
        if not follows or not self._level_holds(max(mu, 1 / MAX_NOISE_MULTIPLIER)):
            raise self._contradiction()

    def _contradiction(self) -> InvalidParameter:
        return InvalidParameter(
            f"sigma_of_sums={self.sigma_of_sums:.6g} at clip_norm={self.clip_norm:g} is not known to give epsilon="
            f"{self.epsilon}, delta={self.delta}, mu={self.mu:.6g}, as if a number had been replaced; calibrate again",
            field="calibration",
        )

    @property
    def _multiplier(self) -> float:
        """The noise multiplier, recomputed."""
        largest = Fraction(self.sensitivity.value) * self.adjacency.factor
        return multiplier_of(self.sigma_of_sums, clip_norm=self.clip_norm, sensitivity=largest)

    def _level_holds(self, mu: float) -> bool:
        """Return whether epsilon and delta, where both are stated, follow from a mu that is a little too small."""
        return self.level is None or gaussian_delta(self.level[0], mu) <= self.level[1]

    @property
    def sigma_of_means(self) -> float | None:
        """The standard deviation per entry of Z for means, sigma_of_sums / divisor rounded up, or None without it."""
        if self.divisor is None:
            return None
        return double_above(Fraction(self.sigma_of_sums) / self.divisor, "sigma_of_means")

    def divisor_of_means(self) -> int:
        """Return the divisor, for noise that is added to means; raise InvalidParameter where there is none."""
        if self.divisor is None:
            raise InvalidParameter(
                f"sigma_of_sums={self.sigma_of_sums:.6g} is for sums, and this calibration has no divisor for means; "
                "add the noise to sums, or calibrate with divisor=, the fixed public number that the sums are divided "
                "by",
                field="divisor",
            )
        return self.divisor

    def check_mean(self, norm: float) -> None:
        """Refuse the norm of an alleged mean, if only a sum can have that norm.

        A batch of expected size `divisor`, fixed or sampled independently, has more than divisor + (178 divisor)^(1/2)
        + 60 examples with a probability below 2^-128 (Bernstein); so seldom is a true mean refused.

        Raises:
            InvalidParameter: the norm is larger than that of a mean, or there is no divisor.
        """
        divisor = self.divisor_of_means()
        most = self.clip_norm * (1 + math.sqrt(178 / divisor) + 60 / divisor)
        if not norm <= most:
            raise InvalidParameter(
                f"the norm of the mean is above {most:.6g}, the most at clip_norm={self.clip_norm:g} and "
                f"divisor={divisor}, so it is a sum, which noise for means does not protect; use add_to_sum, or clip",
                field="mean",
            )

    def accept_auditor(self, given: AnyAuditor | str | None, steps: int) -> AnyAuditor | None:
        """Return the auditor that is told of each batch, if this noise fits its batches; None where nobody is told.

        Args:
            steps: n of the factorization.
            given: an auditor; None where epsilon relies on no sampling; or `NOT_LOOKED_AT`, by which the caller answers
                for every batch.

        Raises:
            InvalidParameter: nobody is told of batches whose sampling epsilon relies on, or the auditor lets others
                pass.
        """
        if (given is None and not self.amplified) or (isinstance(given, str) and given == NOT_LOOKED_AT):
            return None
        if given is None or isinstance(given, str):
            raise InvalidParameter(
                f"epsilon={self.epsilon} assumes {self.sampling} sampling, but auditor={given!r} checks no batch; use "
                "make_private, which samples so, or give the auditor of that sampling and record each batch. With "
                f"auditor={NOT_LOOKED_AT!r} you vouch for the batches yourself",
                field="auditor",
            )
        if not isinstance(given, BatchAuditor):
            message = f"this {type(given).__name__} is no auditor; give one of factorize.training.auditor"
            raise InvalidParameter(message, field="auditor")
        given.check_calibration(self, steps)
        return given

    @property
    def presence(self) -> Presence | None:
        """The law by which an example's steps are drawn; None where epsilon relies on no draws."""
        return None

    @property
    def without_secrecy(self) -> str:
        """A sentence on the guarantee if the draws become known; empty where there is none beyond mu."""
        return ""

    @property
    def exact(self) -> bool:
        """Whether the guarantee is exact for the stated participation, and not an upper bound."""
        return self.sensitivity.exact and type(self) is Calibration

    @property
    def level(self) -> tuple[float, float] | None:
        """The pair of epsilon and delta, where both are stated."""
        return None if self.epsilon is None or self.delta is None else (self.epsilon, self.delta)

    @property
    def attack_advantage(self) -> float:
        """The most by which an attack's true-positive rate exceeds its false-positive rate, an upper bound.

        The attack sees the run and decides whether an example took part. By mu alone the most is exact,
        2 Phi(mu / 2) - 1; where epsilon and delta hold, it is their bound, if that is less. A sampling gives it as
        the total variation.
        """
        most = gaussian_delta(0.0, self.mu)
        if self.level is not None:
            epsilon, delta = self.level
            shrunk = math.exp(-epsilon)
            most = min(most, math.tanh(epsilon / 2) + 2 * delta * shrunk / (1 + shrunk))
        return min(most * (1 + _RELATIVE_ROUNDING), self.total_variation)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Return an upper bound on the true-positive rate of such an attack at a false-positive rate in (0, 1).

        By mu alone it is exact, Phi(Phi^-1(rate) + mu); where epsilon and delta hold, it is their bound, if that is
        less.

        Raises:
            InvalidParameter: a rate outside (0, 1).
        """
        from statistics import NormalDist

        rate, mu = false_positive_rate, self.mu
        rate = finite_real("false_positive_rate", rate, remedy="give a rate above 0 and below 1")
        if rate >= 1:
            message = f"false_positive_rate={rate!r} is not below 1; give a rate above 0 and below 1"
            raise InvalidParameter(message, field="false_positive_rate")
        touching = abs(mu * NormalDist().inv_cdf(rate) + mu**2 / 2)  # each epsilon has a bound: this one touches
        known = [(min(touching, _MAX_EPSILON), gaussian_delta(min(touching, _MAX_EPSILON), mu))]
        if self.level is not None and self.level[0] <= _MAX_EPSILON:
            known.append(self.level)
        known.append((0.0, self.total_variation))
        below = (math.exp(epsilon) * rate + delta for epsilon, delta in known)
        above = (-math.expm1(-epsilon) + (delta + rate) * math.exp(-epsilon) for epsilon, delta in known)
        return min(min(*below, *above) * (1 + _RELATIVE_ROUNDING), 1.0)

    def check_belongs(self, mine: Sensitivity, strategy: Callable[[], Any], *, digest: str | None = None) -> None:
        """Refuse a factorization that this noise was not calibrated for.

        Args:
            mine: sensitivity that the factorization's certificate states.
            strategy: returns C, for a calibration under another participation than the certificate's.
            digest: digest of the factorization, for a calibration that relies on more of C than its sensitivity.

        Raises:
            InvalidParameter: the sensitivities differ in value, kind, rule or participation.
        """
        wrong = differing(self.sensitivity, self._wanted(mine, strategy))
        if wrong:
            name, theirs, ours = wrong
            raise InvalidParameter(
                f"the calibration is for a sensitivity of {name} {theirs!r}, but this factorization has {ours!r}; "
                "calibrate this one with its own calibrate()",
                field="calibration",
            )

    def _wanted(self, mine: Sensitivity, strategy: Callable[[], Any]) -> Sensitivity:
        """Return the sensitivity that a factorization must have for this noise to be its own."""
        return mine

    def rmse(self, factors: CertifiedFactors) -> float:
        """Return the root mean squared error of the outputs of a workload under this noise, in each coordinate.

        The number is for outputs of sums, and `compare` and `recommend` call it `rmse_at_privacy`. A certificate's
        losses
        are for noise whose standard deviation is its sensitivity. So this is `loss.rmse` times `sigma_of_sums` over the
        certificate's sensitivity, and `loss.rmse` times `sigma_of_sums` is wrong by the sensitivity.

        Args:
            factors: the factors that this noise was calibrated for.

        Raises:
            InvalidParameter: other factors, or a workload without end, whose error grows without limit.
        """
        check_own(self, factors)
        certified, loss = factors.sensitivity.value, factors.manifest.certificate["loss"]["rmse"]
        if loss is None:
            message = "the workload has no last step, so its error grows without limit; give factors for a finite n"
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
        """Return some of the calibration's numbers by their names."""
        return {name: getattr(self, name) for name in names}


def refuse_infinite(what: str, *, finite: bool) -> None:
    """Refuse a sum of clipped gradients, or a mean of them, that is not finite, since no noise covers it.

    Raises:
        InvalidParameter: the sum or mean is not finite.
    """
    if not finite:
        raise InvalidParameter(
            f"the {what} has NaN or infinite entries, which no noise hides; clip each example's gradient before the "
            "sum, and replace a gradient that is not finite by zeros",
            field=what,
        )


def check_kind(calibration: object) -> Calibration:
    """Return a calibration; raise InvalidParameter for a bare number, or anything else."""
    if not isinstance(calibration, Calibration):
        message = f"calibration is a bare {type(calibration).__name__}, not a Calibration; make one with calibrate()"
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
    """Return the noise that gives C G + Z the privacy asked for, or the privacy that a given noise gives.

    Args:
        sensitivity: certified sensitivity of the strategy (`certificate.sensitivity`), never a bare number.
        asked: the privacy asked for; or a `GivenNoise`, whose epsilon or delta is found on the mechanism's exact curve.
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
    elif not isinstance(asked, GivenNoise):
        message = f"the target is a bare {type(asked).__name__}; give a PrivacyTarget(epsilon=..., delta=...)"
        raise InvalidParameter(message, field="target")
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
