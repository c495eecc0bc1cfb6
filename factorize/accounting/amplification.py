"""Privacy amplified by sampling, where it is proved: Poisson-sampled DP-SGD, and banded C with cyclic Poisson sampling.

A C with b bands releases, at each step, data of that step and of the b - 1 before it. Examples are split once into b
groups; step t samples each example of group t mod b independently. Then no example meets its own noise again, and the
run is as private as ceil(n / b) steps of a Poisson-sampled Gaussian mechanism with sampling probability b batch / N
(Choquette-Choo et al. 2023, theorem 4). A C with as many bands as steps is refused: other accountants are known for it
(Choquette-Choo et al. 2024, "Privacy amplification for matrix mechanisms"), and none of them is here.

The privacy loss distribution is the checker's, rounded up (theorem 10), so that what is found here is also proved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from factorize.accounting.law import multiplier_about
from factorize.certificate.sensitivity import Sensitivity, sensitivity_of
from factorize.errors import ConditionNotMet, InvalidParameter, UnsupportedAdjacency, extras_named
from factorize.format.claims import CertifiedFactors, CertifiedSensitivity, certified
from factorize.numbers.falling import descend, descend_near
from factorize.numbers.gaussian import check_delta, gaussian_epsilon, mu_of, rho_of
from factorize.numbers.scalars import finite_real, multiplier_of, within_scale
from factorize.participation import MinSep
from factorize.privacy import Adjacency, Calibration, PrivacyTarget
from factorize.privacy_question import GivenNoise
from factorize.structures.base import Matrix
from factorize.structures.endless import AnyStrategy

if TYPE_CHECKING:
    from factorize.checker.sampling.allocation import Losses

SMALLEST_DELTA = 1e-14
"""Tails that the grid leaves out count as lost, so that at a smaller delta no epsilon is finite."""
_SMALLEST, _LARGEST = 1e-2, 1e6
_TOLERANCE = 1e-4
_COARSE, _FINE = 4, 16  # cells of the first search, and of the checker


@dataclass(frozen=True, kw_only=True)
class AmplifiedCalibration(Calibration):
    """A calibration whose epsilon counts on the sampling; `rho` and `mu` are what the noise gives without it.

    Attributes:
        sampling_probability: of each example of the step's group; the training job must sample so, independently.
        groups: number of groups the examples are split into, once; step t samples from group t mod groups.
        compositions: steps at which one example may be sampled.
        largest_column: of C, its norm rounded up, which the accounting counts on beside the sensitivity.
    """

    sampling: ClassVar[str] = "cyclic_poisson"

    sampling_probability: float
    groups: int
    compositions: int
    largest_column: float

    def _wanted(self, mine: CertifiedSensitivity, strategy: Callable[[], AnyStrategy]) -> CertifiedSensitivity:
        """Return the sensitivity of examples that are sampled once per turn of the groups, if C has as many bands.

        Raises:
            InvalidParameter: C has more bands than there are groups, so that examples meet their own noise, or a larger
                column than the one that sigma is for.
        """
        c = strategy().finite()
        if c.bandwidth() > self.groups:
            raise InvalidParameter(
                f"the calibration counts on {self.groups} groups, this C has {c.bandwidth()} bands; calibrate this one",
                field="calibration",
            )
        if _largest_column(c) > self.largest_column:
            raise InvalidParameter(
                f"the calibration is for columns of norm {self.largest_column:.9g} at most, this C has one of "
                f"{_largest_column(c):.9g}; calibrate this one",
                field="calibration",
            )
        return sensitivity_of(c, MinSep(kind="min_sep", min_sep=self.groups, max_participations=self.compositions))

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        names = ("sampling", "sampling_probability", "groups", "compositions", "largest_column")
        return {**super().document(), **{name: getattr(self, name) for name in names}}


def amplified_multiplier(epsilon: float, delta: float, *, probability: float, compositions: int) -> float:
    """Return the noise multiplier of a Poisson-sampled Gaussian mechanism, zero-out, composed with itself.

    Args:
        epsilon: of (epsilon, delta)-DP.
        delta: of (epsilon, delta)-DP.
        probability: that a step samples an example, in (0, 1].
        compositions: number of steps.

    Returns:
        The smallest multiplier found; its epsilon at delta is at most the one asked for.

    Raises:
        InvalidParameter: a value outside its range, or a target that no multiplier up to 10^6 reaches.
    """
    target = finite_real("epsilon", epsilon, remedy="give an epsilon above 0")
    _check_delta(delta)
    if not 0 < probability <= 1 or compositions < 1:
        message = f"probability={probability} and compositions={compositions} must be in (0, 1] and >= 1"
        raise InvalidParameter(message, field="probability")

    def excess_on(cells: int) -> Callable[[float], float]:
        """By how much the logarithm of delta at the multiplier e^x is above the one asked for."""

        @cache
        def excess(x: float) -> float:
            return math.log(_delta(_losses(1.0, math.exp(x), probability, compositions, cells), target) / delta)

        return excess

    coarse, fine = excess_on(_COARSE), excess_on(_FINE)
    about = multiplier_about(target, delta, compositions, probability**2)
    near = descend_near(coarse, math.log(about), 2 * math.log(delta), tolerance=_TOLERANCE, reach=1.0)
    found = near and descend_near(fine, *near, tolerance=_TOLERANCE, reach=1.0)
    return math.exp(_root(fine, target) if found is None else found[0])


def _root(excess: Callable[[float], float], epsilon: float) -> float:
    """Return the logarithm of the smallest multiplier that reaches epsilon, or of 0.01 if that does.

    It goes down by halves, since the distribution of losses grows with the square of one over the noise.

    Raises:
        InvalidParameter: no multiplier up to 10^6 reaches it.
    """
    high, half = 0.0, math.log(2.0)
    while excess(high) > 0:
        high += half
        if high > math.log(_LARGEST):
            raise InvalidParameter(
                f"epsilon={epsilon} needs a noise multiplier above {_LARGEST:g}; ask for a larger epsilon",
                field="epsilon",
            )
    while high > math.log(_SMALLEST) and excess(high - half) <= 0:
        high -= half
    return high if high <= math.log(_SMALLEST) else descend(excess, high - half, high, tolerance=_TOLERANCE)


def amplified_epsilon(multiplier: float, delta: float, *, probability: float, compositions: int) -> float:
    """Return an epsilon that a Poisson-sampled Gaussian mechanism has at delta; see `amplified_multiplier`."""
    noise = finite_real("multiplier", multiplier, remedy="give a noise multiplier above 0")
    _check_delta(delta)
    losses = _losses(1.0, noise, probability, compositions)
    return _epsilon(losses, delta, _unsampled(noise, delta, compositions))


def amplified_delta(multiplier: float, epsilon: float, *, probability: float, compositions: int) -> float:
    """Return a delta that a Poisson-sampled Gaussian mechanism has at epsilon; see `amplified_multiplier`."""
    noise = finite_real("multiplier", multiplier, remedy="give a noise multiplier above 0")
    level = finite_real("epsilon", epsilon, strict=False, remedy="give a finite epsilon >= 0")
    return _delta(_losses(1.0, noise, probability, compositions), level)


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
) -> AmplifiedCalibration:
    """Return the noise of a banded C under cyclic Poisson sampling.

    Two of epsilon, delta and sigma are given, and the third is found.

    Args:
        factorization: with a C of few bands; the identity has one, and is DP-SGD.
        epsilon: of (epsilon, delta)-DP; None where it is asked for.
        delta: of (epsilon, delta)-DP; None where it is asked for.
        sigma: standard deviation per entry of Z, for sums; None where it is asked for.
        dataset_size: N, public.
        batch_size: expected number of sampled examples per step; it divides nothing.
        divisor: the fixed public divisor where steps are means; None for sums.
        clip_norm: bound on one contribution.
        adjacency: `zero_out` only: replaced examples under Poisson sampling are not accounted for here.

    Raises:
        ConditionNotMet: C has as many bands as columns, or a group is smaller than a batch.
        UnsupportedAdjacency: another adjacency.
        InvalidParameter: a value outside its range.

    Reference:
        Choquette-Choo et al. 2023 ((Amplified) banded matrix factorization), theorem 4 and algorithm 2.
    """
    if Adjacency.parse(adjacency) is not Adjacency.ZERO_OUT:
        raise UnsupportedAdjacency(
            f"adjacency={str(adjacency)!r} is not covered with sampling; use zero_out, or no amplification",
            field="adjacency",
        )
    strategy = certified(factorization).opened().strategy.finite()
    bands = check_bands(strategy)
    probability = sampling_probability(bands, dataset_size, batch_size)
    compositions = -(-strategy.n // bands)
    sensitivity = sensitivity_of(strategy, MinSep(kind="min_sep", min_sep=bands, max_participations=compositions))
    clip = finite_real("clip_norm", clip_norm, remedy="give the norm that contributions are clipped to")
    within_scale("clip_norm", clip)
    largest = _largest_column(strategy)
    if sigma is None:
        level = PrivacyTarget(epsilon=epsilon, delta=delta)
        assert level.epsilon is not None and level.delta is not None
        at, held = level.epsilon, level.delta
        z = _remembered(at, held, probability, compositions)
        noise = math.nextafter(z * clip * largest * (1 + 4 * np.finfo(float).eps), math.inf)
        while _delta(_losses(largest, multiplier_of(noise, clip_norm=clip), probability, compositions), at) > held:
            noise *= 1 + _TOLERANCE / 4  # cells move with the noise, and delta with the cells
        within_scale("sigma", noise)
    else:
        given = GivenNoise(sigma=sigma, epsilon=epsilon, delta=delta)
        noise, scale = given.sigma, multiplier_of(given.sigma, clip_norm=clip)

        def epsilon_at(delta: float) -> float:
            _check_delta(delta)
            most = _unsampled(scale / largest, delta, compositions)
            return _epsilon(_losses(largest, scale, probability, compositions), delta, most)

        at, held = given.level(
            epsilon_at, lambda level: _delta(_losses(largest, scale, probability, compositions), level)
        )
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
        sampling_probability=probability,
        groups=bands,
        compositions=compositions,
        largest_column=largest,
    )


@lru_cache(maxsize=64)
def _remembered(epsilon: float, delta: float, probability: float, compositions: int) -> float:
    """Return `amplified_multiplier`, which is the same for every C of as many bands."""
    return amplified_multiplier(epsilon, delta, probability=probability, compositions=compositions)


def check_bands(strategy: Matrix) -> int:
    """Return the number of bands of C.

    Raises:
        ConditionNotMet: it has all of them: cyclic sampling has one group then, for each step.
    """
    bands = strategy.bandwidth()
    if bands >= strategy.n and strategy.n > 1:
        raise ConditionNotMet(
            f"this C has {bands} bands, as many as steps: amplification by cyclic sampling is for banded C alone; "
            "use a banded mechanism, or calibrate without sampling",
            field="strategy",
        )
    return bands


def sampling_probability(bands: int, dataset_size: int, batch_size: int) -> float:
    """Return b batch / N, the probability that a step samples an example of its group (the smallest group has N // b).

    Raises:
        InvalidParameter: sizes below 1.
        ConditionNotMet: a group has fewer examples than a batch.
    """
    for name, value in (("dataset_size", dataset_size), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise InvalidParameter(f"{name}={value!r} is not an integer >= 1", field=name)
    group = dataset_size // bands
    if group < batch_size:
        raise ConditionNotMet(
            f"{bands} groups of {dataset_size} examples have {group} each, fewer than batch_size={batch_size}; use "
            "fewer bands or a smaller batch",
            field="batch_size",
        )
    return batch_size / group


def _check_delta(delta: float) -> None:
    if check_delta(delta) < SMALLEST_DELTA:
        raise InvalidParameter(
            f"delta={delta} is below {SMALLEST_DELTA:g}, which loss distributions on a grid leave out; ask for a "
            "larger delta, or calibrate without sampling",
            field="delta",
        )


def _largest_column(strategy: Matrix) -> float:
    """Return the largest column norm, rounded up: the sensitivity of one participation."""
    from factorize.participation import Single

    single: Sensitivity = sensitivity_of(strategy, Single())
    return single.value


@lru_cache(maxsize=32)
def _losses(largest: float, scale: float, probability: float, compositions: int, cells: int = _FINE) -> Losses | None:
    """Return the losses of steps that move the largest column, None where there is so little noise that none are."""
    from factorize.checker.sampling.poisson import losses_of_samples  # needs python-flint, which auditors do without

    try:
        return losses_of_samples(Fraction(largest) ** 2, scale, probability, compositions, cells)
    except InvalidParameter:
        return None


def _unsampled(multiplier: float, delta: float, compositions: int) -> float:
    """Return the epsilon of the steps without sampling, which is above that with it."""
    return gaussian_epsilon(delta, max(math.sqrt(compositions) / multiplier * (1 + 1e-12), 1e-8))


def _delta(losses: Losses | None, epsilon: float) -> float:
    """Return delta at epsilon, as the checker finds it, and a part in 10^6 for another machine's last bits."""
    if losses is None:
        return 1.0
    both = losses.removal(epsilon), losses.addition(epsilon)
    return min(1.0, max(float(each.upper()) for each in both) * (1 + 1e-6))


def _epsilon(losses: Losses | None, delta: float, most: float) -> float:
    """Return the smallest epsilon at most `most` at which losses have delta; `most` where they have it nowhere."""
    low, high = 0.0, most
    if losses is None or _delta(losses, high) > delta:
        return most
    if _delta(losses, 0.0) <= delta:
        return 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _delta(losses, middle) <= delta else (middle, high)
    return high
