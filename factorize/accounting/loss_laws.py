"""Laws of independent blocks, by the privacy loss distribution that the checker proves and accepts.

- Random allocation, on a C with one band: each example draws one step of every epoch anew. The epochs are k independent
  blocks of b steps (theorem 9). The same bounds hold where each example chooses k of all n = k b steps: that is a
  random order of the steps, which may be public, and then one step of each block of it.
- Cyclic Poisson sampling, on a C with few bands: examples are split once into as many groups as C has bands, and each
  step samples from one of them. No example meets its own noise again, and the run is as private as ceil(n / b) steps
  of a Poisson-sampled Gaussian mechanism (Choquette-Choo et al. 2023, theorem 4; theorem 10 has its losses).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np

from factorize.accounting.law import MARGIN, Bound, Law, multiplier_about
from factorize.checker.strategy import Strategy
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.factors.sensitivity import Sensitivity, sensitivity_of
from factorize.numbers.scalars import double_above, whole_number
from factorize.participation import MinSep, Single
from factorize.structures.base import Matrix
from factorize.structures.endless import AnyStrategy

if TYPE_CHECKING:
    from flint import arb

    from factorize.checker.sampling.losses import GridLaw, Losses, StepLaw

MAX_BLOCK_STEPS = 1 << 24
"""The most steps of a block that a claim may have."""


class LossLaw(Law):
    """Independent blocks of `bins` steps, in each of which an example takes part once at most.

    Args:
        steps: n.
        bins: b, the steps of a block.
        square: an upper bound on the squared norm of a step's view of an example.
        chance: the p for which the likelihood ratio of a block has about the variance p (e^(1 / s^2) - 1).
        signed: whether an entry of C may be negative.
    """

    def __init__(self, steps: int, bins: int, square: float, chance: float, *, signed: bool) -> None:
        super().__init__(steps, bins, math.sqrt(square * -(-steps // bins)) * (1 + MARGIN), signed=signed)
        self.square, self._chance = square, chance
        self._proved = True

    def _remember(self) -> None:
        self._losses_at = lru_cache(maxsize=4)(self._losses)

    @abstractmethod
    def losses(self, multiplier: float, step_law: StepLaw | None = None) -> Losses:
        """Return the checker's law of a run's likelihood ratio; raise InvalidParameter where nothing is private.

        Args:
            multiplier: s = sigma / clip_norm.
            step_law: the law of one step, where an estimate is enough.
        """

    def sigma(
        self, epsilon: float, delta: float, *, near: float | None = None, tolerance: float | None = None
    ) -> float:
        """Return an s near the smallest that gives (epsilon, delta): estimated, and raised until it is proved.

        See `Curve.sigma`.
        """
        found = self.estimated_sigma(epsilon, delta, near=near, tolerance=tolerance)
        while self.delta(found, epsilon) > delta:
            found *= 1 + (tolerance or self.tolerance) / 4  # cells move with the noise, and delta moves with the cells
        return found

    def estimated_sigma(self, epsilon: float, delta: float, **options: float | None) -> float:
        """Return `sigma` by laws in doubles, which take a fiftieth of the time of proved ones."""
        return Law.sigma(self.in_doubles(), epsilon, delta, **options)

    def in_doubles(self) -> Self:
        """Return the law whose answers are estimates."""
        estimated = copy(self)
        estimated._proved = False
        return estimated

    def removal(self, multiplier: float, epsilon: float) -> Bound:
        """Return the bound by the losses where the example takes part."""
        return self._bound(multiplier, lambda losses: losses.removal(epsilon))

    def addition(self, multiplier: float, epsilon: float) -> Bound:
        """Return the bound by the losses where the example is left out."""
        return self._bound(multiplier, lambda losses: losses.addition(epsilon))

    def guess(self, epsilon: float, delta: float) -> float:
        """Return the multiplier of a run whose losses were those of one Gaussian mechanism."""
        return math.sqrt(self.square) * multiplier_about(epsilon, delta, self.epochs, self._chance)

    def _losses(self, multiplier: float) -> Losses | None:
        try:
            return self.losses(multiplier, None if self._proved else _nearly_step_law)
        except InvalidParameter:
            return None

    def _bound(self, multiplier: float, delta: Callable[[Losses], arb]) -> Bound:
        """Return a bound whose logarithm of delta is slightly raised."""
        losses = self._losses_at(multiplier)
        value = 0.0 if losses is None else math.log(float(delta(losses).upper()))
        return Bound("loss_distribution", min(value + MARGIN * (1 + abs(value)), 0.0))


class AllocationLaw(LossLaw):
    """A law by which each example draws one step in every epoch anew.

    Args:
        steps: n.
        bins: b = n / k, the steps of an epoch.
        square: an upper bound on the squared entries of C.
        signed: whether an entry of C may be negative.
    """

    name = "random_allocation"
    tolerance = 2e-4  # the grid moves with the multiplier, and delta is not smooth on a finer scale

    def __init__(self, steps: int, bins: int, square: float, *, signed: bool) -> None:
        super().__init__(steps, bins, square, 1 / bins, signed=signed)

    @classmethod
    def of(cls, matrix: AnyStrategy, bins: int) -> Self:
        """Return the law on a C with one band.

        Raises:
            ConditionNotMet: C has more bands.
            InvalidParameter: bins do not divide n, or a C without end.
        """
        from factorize.checker.sampling.losses import largest_square

        if matrix.side is None:
            raise InvalidParameter(
                "random_allocation needs a number of steps, and this C has no last step; solve for a number n, or "
                "calibrate without sampling",
                field="sampling",
            )
        held = matrix.finite()
        if held.bandwidth() > 1:
            raise ConditionNotMet(
                f"random_allocation needs C = I, and this C has {held.bandwidth()} bands; use balls_in_bins",
                field="sampling",
            )
        n = held.n
        whole_number(
            "bins", bins, high=min(n, MAX_BLOCK_STEPS), remedy=f"give the number of steps in an epoch, of n={n} in all"
        )
        if n % bins:
            raise InvalidParameter(
                f"bins={bins} does not divide n={n}; give the number of steps in an epoch, n / epochs", field="bins"
            )
        square = largest_square(Strategy(held.structure, held.tensors(), n))
        return cls(n, int(bins), double_above(square, "sensitivity"), signed=held.signed)

    def losses(self, multiplier: float, step_law: StepLaw | None = None) -> Losses:
        """Return the losses of theorem 9."""
        from factorize.checker.sampling.losses import losses_of_blocks

        return losses_of_blocks(Fraction(self.square), multiplier, self.bins, self.epochs, step_law)

    def stated(self, strategy: AnyStrategy) -> Sensitivity:
        """Return the sensitivity over all choices of as many steps."""
        pattern = MinSep(kind="min_sep", min_sep=1, max_participations=self.epochs)
        return Sensitivity(self.sensitivity, "upper_bound", "largest entry for each step", pattern.document())


class PoissonLaw(LossLaw):
    """Steps that belong to as many groups as C has bands, in turn; each samples every example of its group by itself.

    Args:
        steps: n.
        groups: the number of groups, which is the number of bands of C; one group is the Poisson sampling of DP-SGD.
        largest: an upper bound on the norm of a column of C.
        probability: probability that a step samples an example of its group, in (0, 1].
    """

    name = "cyclic_poisson"
    tolerance = 1e-4

    def __init__(self, steps: int, groups: int, largest: float, probability: float) -> None:
        if not 0 < probability <= 1 or steps < 1:
            message = f"probability={probability} must be in (0, 1], and steps={steps} at least 1"
            raise InvalidParameter(message, field="probability")
        super().__init__(steps, groups, largest**2 * (1 + MARGIN), probability**2, signed=False)
        self.largest, self.probability = largest, probability

    @classmethod
    def of(cls, strategy: Matrix, dataset_size: int, batch_size: int, groups: int | None = None) -> Self:
        """Return the law on a banded C.

        Args:
            strategy: C.
            dataset_size: N.
            batch_size: expected number of sampled examples per step.
            groups: the number of groups, at least the bands of C; by default as many.

        Raises:
            ConditionNotMet: C has as many bands as columns, or a group is smaller than a batch.
            InvalidParameter: sizes below 1, or fewer groups than bands.
        """
        bands = strategy.bandwidth()
        if groups is None and bands >= strategy.n > 1:
            raise ConditionNotMet(
                f"cyclic_poisson needs a C with fewer bands than steps, and this one has {bands} bands; use a banded "
                "mechanism, or calibrate without sampling",
                field="sampling",
            )
        remedy = "give the number of C's bands, or more: with fewer an example would meet its own noise again"
        count = bands if groups is None else whole_number("groups", groups, low=bands, remedy=remedy)
        return cls(strategy.n, count, largest_column(strategy), sampling_probability(count, dataset_size, batch_size))

    def losses(self, multiplier: float, step_law: StepLaw | None = None) -> Losses:
        """Return the losses of theorem 10."""
        from factorize.checker.sampling.losses import losses_of_samples

        return losses_of_samples(Fraction(self.largest) ** 2, multiplier, self.probability, self.epochs, step_law)


def _nearly_step_law(width: float, probability: float, finest: float) -> GridLaw:
    """Return the law of a step in doubles, on the grid of the proved one."""
    from scipy.special import ndtr

    from factorize.checker.sampling.losses import MIN_MASS, GridLaw, grid_of

    first, cells, step = grid_of(width, probability, finest)
    ends = step * np.arange(first, first + cells + 1)
    with np.errstate(divide="ignore"):
        normal = (np.log(np.maximum(np.expm1(ends) / probability + 1, 0.0)) + width**2 / 2) / width

    def chances(z: np.ndarray) -> np.ndarray:
        near_zero = -np.abs(z)  # below zero the small tail keeps all its digits
        return np.where(z[:-1] > 0, ndtr(near_zero[:-1]) - ndtr(near_zero[1:]), ndtr(z[1:]) - ndtr(z[:-1]))

    mass = chances(normal)
    mean = (1 - probability) * mass + probability * chances(normal - width)
    right = (mean - mass * np.exp(ends[:-1])) / (np.exp(ends[:-1]) * math.expm1(step))
    masses = np.append(mass - right, 0.0) + np.append(0.0, right)
    return GridLaw(first, np.maximum(masses, 0.0), step, 0.0, 2 * MIN_MASS)


def sampling_probability(bands: int, dataset_size: int, batch_size: int) -> float:
    """Return b batch / N, the probability that a step samples an example of its group (the smallest has N // b)."""
    dataset_size, batch_size = whole_number("dataset_size", dataset_size), whole_number("batch_size", batch_size)
    group = dataset_size // bands
    if group < batch_size:
        raise ConditionNotMet(
            f"each of the {bands} groups has {group} of the {dataset_size} examples, fewer than "
            f"batch_size={batch_size}; use fewer bands or a smaller batch",
            field="batch_size",
        )
    return batch_size / group


def largest_column(strategy: Matrix) -> float:
    """Return the largest column norm, rounded up: the sensitivity of one participation."""
    return sensitivity_of(strategy, Single()).value
