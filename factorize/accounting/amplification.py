"""Privacy amplified by Poisson sampling, where it is proved: DP-SGD, and banded C with cyclic Poisson sampling.

A C with as many bands as steps is refused: other accountants are known for it (Choquette-Choo et al. 2024, "Privacy
amplification for matrix mechanisms"), and none of them is here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from factorize.accounting.loss_laws import PoissonLaw, largest_column
from factorize.errors import InvalidParameter, extras_named
from factorize.factors.sensitivity import sensitivity_of
from factorize.format.claims import Sensitivity
from factorize.format.manifest import CertifiedFactors, certified
from factorize.numbers.gaussian import mu_of, rho_of
from factorize.numbers.scalars import finite_real, multiplier_of, within_scale
from factorize.participation import MinSep
from factorize.privacy import Calibration, Presence, PrivacyTarget
from factorize.privacy.adjacency import Adjacency, check_zero_out
from factorize.privacy.question import question_of
from factorize.structures.endless import AnyStrategy

_NEARLY = 1.01
"""The ratio of an estimated delta to the stated one, above which they contradict each other."""


@dataclass(frozen=True, kw_only=True)
class AmplifiedCalibration(Calibration):
    """A calibration whose epsilon relies on secret sampling; `rho` and `mu` hold without it.

    Attributes:
        sampling_probability: probability that a step samples an example of its group, for which the job must sample so.
        groups: number of groups the examples are split into, once; step t samples from group t mod groups.
        compositions: steps at which one example may be sampled.
        largest_column: the largest norm of a column of C, rounded up, which the accounting uses beside the sensitivity.
        dataset_size: N, which gives the probability together with the number of groups.
        batch_size: expected number of sampled examples per step.
    """

    amplified: ClassVar[bool] = True
    sampling: str = PoissonLaw.name
    method: str = "accountant"
    sampling_probability: float
    groups: int
    compositions: int
    largest_column: float
    dataset_size: int
    batch_size: int

    @property
    def presence(self) -> Presence:
        """Return each step of an example's group."""
        return Presence(self.groups, self.sampling_probability, independent=True)

    def _wanted(self, mine: Sensitivity, strategy: Callable[[], AnyStrategy]) -> Sensitivity:
        """Return the sensitivity of examples that are sampled once per turn of the groups.

        With more bands than groups an example would meet its own noise again; sigma covers columns of the largest norm.
        """
        c = strategy().finite()
        if c.bandwidth() > self.groups:
            raise InvalidParameter(
                f"the calibration is for a C of at most {self.groups} bands, but this C has {c.bandwidth()}; "
                "calibrate this one",
                field="calibration",
            )
        if largest_column(c) > self.largest_column:
            raise InvalidParameter(
                f"the calibration is for columns of norm {self.largest_column:.9g} at most, but this C has one of "
                f"{largest_column(c):.9g}; calibrate this one",
                field="calibration",
            )
        law = PoissonLaw(self.compositions, 1, self.largest_column, self.sampling_probability).in_doubles()
        multiplier = multiplier_of(self.sigma_of_sums, clip_norm=self.clip_norm)
        if self.level is not None and law.delta(multiplier, self.level[0]) > self.level[1] * _NEARLY:
            raise self._contradiction()
        return sensitivity_of(c, MinSep(kind="min_sep", min_sep=self.groups, max_participations=self.compositions))

    def _level_holds(self, mu: float) -> bool:
        """Return True: `_wanted` compares epsilon with the noise, since that takes half a second of long runs."""
        return True

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        names = ("sampling_probability", "groups", "compositions", "largest_column")
        return {**super().document(), **self._stated(*names, "dataset_size", "batch_size")}


@extras_named("an amplified calibration")
def calibrate_amplified(
    factorization: CertifiedFactors,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    sigma: float | None = None,
    dataset_size: int,
    batch_size: int,
    divisor: int | None = None,
    clip_norm: float = 1.0,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    groups: int | None = None,
) -> AmplifiedCalibration:
    """Return the noise of a banded C under cyclic Poisson sampling.

    Two of epsilon, delta and sigma are given, and the third is found.

    Args:
        factorization: one with a C of few bands; the identity has one, and is DP-SGD.
        epsilon: the epsilon of (epsilon, delta)-DP; None to have it found.
        delta: the delta of (epsilon, delta)-DP; None to have it found.
        sigma: standard deviation per entry of Z, for sums; None to have it found.
        dataset_size: N, public.
        batch_size: expected number of sampled examples per step; it divides nothing.
        divisor: the fixed public divisor where steps are means; None for sums.
        clip_norm: bound on one contribution.
        adjacency: `zero_out` only: replaced examples under Poisson sampling are not accounted for here.
        groups: the number of groups, at least the bands of C; by default as many.

    Raises:
        ConditionNotMet: C has as many bands as columns, or a group is smaller than a batch.
        UnsupportedAdjacency: another adjacency.
        InvalidParameter: a value outside its range.

    Reference:
        Choquette-Choo et al. 2023 ((Amplified) banded matrix factorization), theorem 4 and algorithm 2.
    """
    check_zero_out(adjacency)
    strategy = certified(factorization).opened().strategy.finite()
    law = PoissonLaw.of(strategy, dataset_size, batch_size, groups)
    clip = within_scale(
        "clip_norm", finite_real("clip_norm", clip_norm, remedy="give the norm that contributions are clipped to")
    )
    question = question_of(epsilon=epsilon, delta=delta, rho=None, mu=None, sigma=sigma)
    if isinstance(question, PrivacyTarget):
        assert question.epsilon is not None and question.delta is not None
        at, held = question.epsilon, question.delta
        of_norm_1 = _estimated(at, held, law.probability, law.epochs)  # the same for every C with as many bands
        noise = math.nextafter(of_norm_1 * clip * law.largest * (1 + 2.0**-50), math.inf)
        while law.delta(multiplier_of(noise, clip_norm=clip), at) > held:
            noise *= 1 + law.tolerance / 4  # the distribution's cells move with the noise, and delta with the cells
        within_scale("sigma", noise)
    else:
        noise, multiplier = question.sigma, multiplier_of(question.sigma, clip_norm=clip)
        at, held = question.level(lambda d: law.epsilon(multiplier, d), lambda e: law.delta(multiplier, e))
    sensitivity = law.stated(strategy)
    unamplified = multiplier_of(noise, clip_norm=clip, sensitivity=sensitivity.value)
    return AmplifiedCalibration(
        noise_multiplier=unamplified,
        sigma_of_sums=noise,
        sensitivity=sensitivity,
        clip_norm=clip,
        adjacency=Adjacency.ZERO_OUT,
        epsilon=at,
        delta=held,
        rho=rho_of(unamplified),
        mu=mu_of(unamplified),
        divisor=divisor,
        total_variation=law.total_variation(multiplier_of(noise, clip_norm=clip)),
        sampling_probability=law.probability,
        groups=law.bins,
        compositions=law.epochs,
        largest_column=law.largest,
        dataset_size=int(dataset_size),
        batch_size=int(batch_size),
    )


@lru_cache(maxsize=64)
def _estimated(epsilon: float, delta: float, probability: float, compositions: int) -> float:
    return PoissonLaw(compositions, 1, 1.0, probability).estimated_sigma(epsilon, delta)
