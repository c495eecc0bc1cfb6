"""First and second moments released together: sensitivity of the pair, and noise of both (JME, arXiv 2502.06597).

An example that contributes g to a step, |g| <= clip norm, contributes h = g * g (entry by entry) to its second moment.
With strategies C1 and C2 and a weight w the pair is one Gaussian mechanism with the contributions (C1 g, w C2 h), in
units of the clip norm and of its square. |h| <= |g|^2 <= 1, so that whatever the participation

    |pair|^2 <= s1^2 + w^2 s2^2

for zero_out, with the certified sensitivities s1, s2. It is attained by the same first unit vector in all steps where
one pattern attains both. Under replace_one the two differences cannot both be large: docs/notes/checker.md derives it.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from factorize.errors import InvalidParameter
from factorize.format.claims import Sensitivity, differing
from factorize.format.manifest import CertifiedFactors, certified
from factorize.numbers.scalars import double_above, finite_real, root_above, within_scale
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.privacy.adjacency import Adjacency

FREE_RULE = "joint moments: the second is free"
SUM_RULE = "joint moments: both sensitivities"
DIFFERENCES_RULE = "joint moments: largest of both differences"
DOUBLED_RULE = "joint moments: twice both sensitivities"
_LEADING_RULE = "monotone Toeplitz: leading pattern"
_TOEPLITZ_STRUCTURES = {"toeplitz", "banded_toeplitz", "blt", "inverse_banded_toeplitz"}
"""The structures whose first column has the largest norm."""


@dataclass(frozen=True)
class MomentSensitivity(Sensitivity):
    """The sensitivity of a pair, in units of clip norm and of the adjacency's factor.

    Attributes:
        weight: w.
    """

    weight: float


@dataclass(frozen=True, kw_only=True)
class MomentCalibration(Calibration):
    """The noise of one of two moments that are released together.

    Attributes:
        own: sensitivity of this moment's own strategy, which identifies its factorization.
    """

    own: Sensitivity

    @property
    def _multiplier(self) -> float:
        """The noise multiplier of the pair, by the noise of the first or of the second moments."""
        assert isinstance(self.sensitivity, MomentSensitivity)
        return super()._multiplier * max(1.0, self.sensitivity.weight / self.clip_norm)

    def check_mean(self, norm: float) -> None:
        """Refuse a norm that only a sum can have; the squares of a contribution have at most the squared clip norm."""
        super().check_mean(norm / max(1.0, self.clip_norm))

    def _wanted(self, mine: Sensitivity, strategy: object) -> Sensitivity:
        """Return the pair's sensitivity, if the factorization is the one that it was calibrated for."""
        return self.sensitivity if differing(self.own, mine) is None else mine


@dataclass(frozen=True)
class JointMoments:
    """The noise of both moments, and their joint guarantee.

    Attributes:
        first: noise of C1, of sums (and means) of clipped gradients.
        second: noise of C2, of sums (and means) of the squares of clipped gradients.
        digests: the digests of both factorizations.
    """

    first: MomentCalibration
    second: MomentCalibration
    digests: tuple[str, str]

    @property
    def sensitivity(self) -> MomentSensitivity:
        """The sensitivity of the pair."""
        assert isinstance(self.first.sensitivity, MomentSensitivity)
        return self.first.sensitivity

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form, which a receipt states and the bytes of both files prove."""
        return {
            **self.first.document(),
            "second_sigma_of_sums": self.second.sigma_of_sums,
            "second_sigma_of_means": self.second.sigma_of_means,
            "weight": self.sensitivity.weight,
            "digests": list(self.digests),
        }


def moment_sensitivity(
    first: CertifiedFactors, second: CertifiedFactors, *, weight: float, adjacency: Adjacency | str = "zero_out"
) -> MomentSensitivity:
    """Return the sensitivity of first and second moments together.

    Args:
        first: factors of C1.
        second: factors of C2, for the same steps and participation; it may be the same factorization.
        weight: w > 0 of the second moments.
        adjacency: `zero_out` or `replace_one`.

    Raises:
        InvalidParameter: strategies of other steps or participations, or a weight out of range.
    """
    relation, remedy = Adjacency.parse(adjacency), "give the weight of the second moments, 0.7 for example"
    w = Fraction(finite_real("weight", weight, remedy=remedy))
    if not 1e-12 <= w <= 1e12:
        raise InvalidParameter(f"weight={weight!r} is outside [1e-12, 1e12]; {remedy}", field="weight")
    one, two = certified(first).sensitivity, certified(second).sensitivity
    if first.steps != second.steps or dict(one.participation) != dict(two.participation):
        raise InvalidParameter(
            f"the first moments have {first.steps} steps under {dict(one.participation)}, the second {second.steps} "
            f"under {dict(two.participation)}; solve both for the same steps and participation",
            field="second",
        )
    alpha, beta = Fraction(one.value) ** 2, w**2 * Fraction(two.value) ** 2
    single = dict(one.participation) == {"kind": "single"}
    if relation is Adjacency.ZERO_OUT or not single:
        exact = relation is Adjacency.ZERO_OUT and _attained(first, second)
        squared, rule = alpha + beta, SUM_RULE if relation is Adjacency.ZERO_OUT else DOUBLED_RULE
    elif alpha >= 2 * beta:
        squared, rule, exact = alpha, FREE_RULE, one.exact
    else:
        squared, rule, exact = (alpha + 2 * beta) ** 2 / (8 * beta), DIFFERENCES_RULE, False
    value = one.value if rule == FREE_RULE else root_above(squared, "sensitivity")
    return MomentSensitivity(value, "exact" if exact else "upper_bound", rule, dict(one.participation), float(w))


def calibrate_moments(
    first: CertifiedFactors,
    second: CertifiedFactors,
    target: PrivacyTarget,
    *,
    weight: float | None = None,
    clip_norm: float = 1.0,
    divisor: int | None = None,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
) -> JointMoments:
    """Return the noise that makes both moments together as private as asked.

    Args:
        first: factors of C1, for gradients.
        second: factors of C2, for their squares.
        target: the privacy asked for, of the pair.
        weight: w; a larger one gives the second moments less noise. None takes s1 / (2^(1/2) s2) less 2^-28: the
            largest for which the second moments are free under replace_one and one participation, and at which they
            cost the first 22 % more noise under zero_out.
        clip_norm: bound on the norm of one user's contribution to one step.
        divisor: the fixed public divisor where steps are means of both moments.
        adjacency: `zero_out` or `replace_one`.

    Raises:
        InvalidParameter: strategies of other steps or participations, or a value out of range.
    """
    one, two = certified(first), certified(second)
    ratio = one.sensitivity.value / two.sensitivity.value
    w = ratio / math.sqrt(2.0) * (1 - 2.0**-28) if weight is None else weight  # stated values are 1e-9 above at most
    pair = moment_sensitivity(one, two, weight=w, adjacency=adjacency)
    plain = calibrate(pair, target, clip_norm=clip_norm, divisor=divisor, adjacency=adjacency)
    common = {name: value for name, value in vars(plain).items() if name != "sigma_of_sums"}
    sigma = Fraction(plain.sigma_of_sums) * Fraction(plain.clip_norm) / Fraction(pair.weight)
    return JointMoments(
        MomentCalibration(**common, sigma_of_sums=plain.sigma_of_sums, own=one.sensitivity),
        replace(
            MomentCalibration(**common, sigma_of_sums=plain.sigma_of_sums, own=two.sensitivity),
            sigma_of_sums=within_scale("sigma", double_above(sigma, "sigma")),
        ),
        (one.digest, two.digest),
    )


def _attained(first: CertifiedFactors, second: CertifiedFactors) -> bool:
    """Return whether one pattern is known to be the worst of both strategies: one strategy, or a rule that names it."""
    one, two = first.sensitivity, second.sensitivity
    if not (one.exact and two.exact):
        return False
    if dict(one.participation) == {"kind": "single"}:
        return first.digest == second.digest or {first.structure, second.structure} <= _TOEPLITZ_STRUCTURES
    return one.rule == two.rule == _LEADING_RULE
