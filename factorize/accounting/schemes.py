"""Sampling schemes: what each needs, when it fits, how it calibrates, and what a training job's loader has to do.

A scheme is one class and one entry of `SCHEMES`. Calibrations, comparisons and the two doors ask it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from factorize.accounting.amplification import calibrate_amplified
from factorize.accounting.bins_calibration import BinsCalibration, Method, calibrate_bins, with_strategy
from factorize.accounting.gram_matrix import LARGEST_BINS
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.participation import Participation
from factorize.privacy import Adjacency, Calibration, PrivacyTarget, calibrate
from factorize.structures.base import Matrix


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """What a calibration is asked for, beside the privacy.

    Attributes:
        clip_norm: bound on one contribution.
        batch_size: the fixed public divisor of means; the expected batch of the Poisson schemes.
        adjacency: `zero_out`, and for `fixed` also `replace_one`.
        dataset_size: N, public, of the Poisson schemes.
        bins: of `balls_in_bins`; by default the steps of an epoch.
        method: of `balls_in_bins`.
    """

    clip_norm: float = 1.0
    batch_size: int | None = None
    adjacency: Adjacency | str = Adjacency.ZERO_OUT
    dataset_size: int | None = None
    bins: int | None = None
    method: Method = "verified"

    @property
    def sized(self) -> bool:
        """Whether the Poisson schemes have what they need."""
        return self.dataset_size is not None and self.batch_size is not None


class SamplingScheme(ABC):
    """A law by which examples take part in the steps of a run, with its accountant.

    Attributes:
        name: as calibrations, comparisons and `--sampling` call it.
        title: for people.
        loader: one sentence on what a training job's loader has to do.
        secret: what epsilon counts on nobody knowing.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    loader: ClassVar[str]
    secret: ClassVar[str]

    @abstractmethod
    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return why the scheme has nothing to say about a strategy, or None where it fits."""

    @abstractmethod
    def calibrate(self, factorization: Any, target: PrivacyTarget, asked: SamplingOptions) -> Calibration:
        """Return the noise; see `calibrate_sampling`."""

    def check_used(self, asked: SamplingOptions) -> None:
        """Refuse options that the scheme has no use for.

        Raises:
            InvalidParameter: one is given.
        """
        if asked.bins is not None:
            raise InvalidParameter(
                f"bins={asked.bins} is for balls_in_bins, not for {self.name}; leave it out", field="bins"
            )

    def method(self, found: Calibration) -> str:
        """Return what a calibration rests on: `deterministic`, `verified` by a claim, or `accountant`."""
        return "accountant"

    def called(self, epochs: int) -> str:
        """Return the title for a run of so many epochs."""
        return self.title

    def options(self, asked: SamplingOptions) -> str:
        """Return the options of `factorize calibrate` that ask for this, beside epsilon and delta."""
        return f" --sampling {self.name}"

    def document(self) -> dict[str, str]:
        """Return the plain JSON form."""
        return {"sampling": self.name, "title": self.title, "loader": self.loader, "secret": self.secret}


class FixedScheme(SamplingScheme):
    """No sampling: epsilon holds for every order that keeps to the spec's participation."""

    name = "fixed"
    title = "fixed order"
    loader = "Keep to the spec's participation: any order, for example the same one in every epoch."
    secret = "nothing"

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return None: it always fits."""
        return None

    def calibrate(self, factorization: Any, target: PrivacyTarget, asked: SamplingOptions) -> Calibration:
        """Return the noise of the Gaussian mechanism."""
        given: dict[str, Any] = {"clip_norm": asked.clip_norm, "batch_size": asked.batch_size}
        return calibrate(factorization.certificate.sensitivity, target, **given, adjacency=asked.adjacency)

    def check_used(self, asked: SamplingOptions) -> None:
        """Refuse bins and a data set's size."""
        super().check_used(asked)
        if asked.dataset_size is not None:
            raise InvalidParameter(
                f"dataset_size={asked.dataset_size} is of no use without sampling; leave it out, or name a sampling",
                field="dataset_size",
            )

    def method(self, found: Calibration) -> str:
        """Return `deterministic`: the Gaussian mechanism has a closed form."""
        return "deterministic"

    def options(self, asked: SamplingOptions) -> str:
        """Return nothing: `fixed` is the default."""
        return ""


class CyclicScheme(SamplingScheme):
    """Groups in turn, each sampled independently: for a C of few bands."""

    name = "cyclic_poisson"
    title = "cyclic Poisson"
    loader = (
        "Split the examples once into as many groups as C has bands; in step t take each example of group t mod bands "
        "independently, with probability batch_size / (size of the smallest group)."
    )
    secret = "which examples are in a batch, and the sizes of batches"

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return why: sizes are missing, or C has one band or all."""
        bands = strategy.bandwidth()
        if not asked.sized:
            return "needs dataset_size and batch_size: give both"
        if bands == 1:
            return "is poisson for a C of one band; use poisson"
        return f"needs fewer bands than steps, and C has {bands}" if bands >= strategy.n else None

    def calibrate(self, factorization: Any, target: PrivacyTarget, asked: SamplingOptions) -> Calibration:
        """Return the noise by dp_accounting's privacy loss distributions."""
        level, held = _level(target, self.name), with_strategy(factorization)
        if asked.dataset_size is None or asked.batch_size is None:
            raise InvalidParameter(f"{self.name} needs dataset_size and batch_size: give both", field="dataset_size")
        self._check(held.strategy.finite())
        sizes = {"dataset_size": asked.dataset_size, "batch_size": asked.batch_size}
        return calibrate_amplified(held, **level, **sizes, clip_norm=asked.clip_norm, adjacency=asked.adjacency)

    def options(self, asked: SamplingOptions) -> str:
        """Return the sizes too."""
        return f" --sampling {self.name} --dataset-size {asked.dataset_size} --batch-size {asked.batch_size}"

    def _check(self, strategy: Matrix) -> None:
        """Leave to the accountant which bands it takes."""


class PoissonScheme(CyclicScheme):
    """Every step samples from all examples, independently: DP-SGD, with C = I."""

    name = "poisson"
    title = "DP-SGD with Poisson"
    loader = "In every step take each example independently, with probability batch_size / dataset_size."

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return why: sizes are missing, or C has more than one band."""
        if not asked.sized:
            return "needs dataset_size and batch_size: give both"
        return None if strategy.bandwidth() == 1 else f"is for C = I, and C has {strategy.bandwidth()} bands"

    def _check(self, strategy: Matrix) -> None:
        if strategy.bandwidth() > 1:
            raise ConditionNotMet(
                f"this C has {strategy.bandwidth()} bands, and Poisson sampling of every step is for C = I alone; use "
                "cyclic_poisson for a banded C, balls_in_bins for any",
                field="sampling",
            )


class BinsScheme(SamplingScheme):
    """Each example draws the step of its epoch once, for good: for every C."""

    name = "balls_in_bins"
    title = "balls in bins"
    loader = (
        "Let each example draw one step of the epoch, once, uniformly and from a secret seed, and take it in that step "
        "of every epoch; divide by a public constant, never by the batch's size."
    )
    secret = "the bins, which examples are in a batch, and the sizes of batches, for ever"

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return why: no epochs, or too few or too many bins."""
        bins = self.bins(participation, strategy.n)
        if bins is None:
            return f"needs epochs, and participation {participation.kind!r} has none; use fixed_epochs"
        if not 2 <= bins <= LARGEST_BINS:
            return f"takes 2 to {LARGEST_BINS} bins, the steps of an epoch, and there would be {bins}"
        return None

    def calibrate(self, factorization: Any, target: PrivacyTarget, asked: SamplingOptions) -> BinsCalibration:
        """Return the noise by a claim that was tested, or by bounds."""
        return calibrate_bins(
            factorization,
            **_level(target, self.name),
            clip_norm=asked.clip_norm,
            adjacency=asked.adjacency,
            bins=asked.bins,
            batch_size=asked.batch_size,
            method=asked.method,
        )

    def check_used(self, asked: SamplingOptions) -> None:
        """Refuse nothing."""

    def method(self, found: Calibration) -> str:
        """Return the calibration's own."""
        assert isinstance(found, BinsCalibration)
        return found.method

    def called(self, epochs: int) -> str:
        """Return the title; with one epoch the scheme is random allocation."""
        return "random allocation (balls in bins)" if epochs == 1 else self.title

    @staticmethod
    def bins(participation: Participation, n: int) -> int | None:
        """Return the steps of an epoch, None where there are no epochs."""
        return None if participation.passes is None else n // participation.passes


SCHEMES: dict[str, SamplingScheme] = {
    scheme.name: scheme for scheme in (FixedScheme(), CyclicScheme(), BinsScheme(), PoissonScheme())
}
"""The one list, by name."""

SAMPLINGS = tuple(SCHEMES)

_UNCOVERED = {
    "random_allocation": "it is balls_in_bins with one epoch; use balls_in_bins",
    "shuffle": "equal-size shuffling gives away the last bin, and is not amplified here; use balls_in_bins, or fixed",
    "redrawn_bins": "bins that are drawn anew in each epoch have no accountant here; use balls_in_bins",
    "b_min_sep": "its pair is known and its evaluator is not here; use balls_in_bins, or cyclic_poisson for a banded C",
}


def scheme_of(sampling: str) -> SamplingScheme:
    """Return the scheme of a name.

    Raises:
        InvalidParameter: it is unknown, or has no accountant here.
    """
    if sampling not in SCHEMES:
        reason = _UNCOVERED.get(str(sampling), f"known are {', '.join(SAMPLINGS)}")
        raise InvalidParameter(f"sampling={str(sampling)[:20]!r} is not covered: {reason}", field="sampling")
    return SCHEMES[sampling]


def calibrate_sampling(
    factorization: Any,
    target: PrivacyTarget,
    *,
    sampling: str,
    clip_norm: float = 1.0,
    batch_size: int | None = None,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    dataset_size: int | None = None,
    bins: int | None = None,
    method: Method = "verified",
) -> Calibration:
    """Return the noise of a factorization under a sampling scheme.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        target: (epsilon, delta), and for `fixed` any other target too.
        sampling: `fixed`: none; `cyclic_poisson`, for a banded C; `poisson`, for C = I; `balls_in_bins`, for any C.
        clip_norm: see `SamplingOptions`, as for all that follow.
        batch_size: the fixed public divisor of means; the expected batch of the Poisson schemes.
        adjacency: `zero_out`, and for `fixed` also `replace_one`.
        dataset_size: N, public, of the Poisson schemes.
        bins: of `balls_in_bins`; by default the steps of an epoch.
        method: of `balls_in_bins`.

    Raises:
        InvalidParameter: an unknown scheme, one that has no accountant here, or what it needs is missing or not used.
        ConditionNotMet: a C that the scheme does not cover.
        UnsupportedAdjacency: an adjacency that the scheme does not cover.
        UnsupportedProblem: dp_accounting is needed and not installed.
    """
    scheme = scheme_of(sampling)
    asked = SamplingOptions(
        clip_norm=clip_norm,
        batch_size=batch_size,
        adjacency=adjacency,
        dataset_size=dataset_size,
        bins=bins,
        method=method,
    )
    scheme.check_used(asked)
    return scheme.calibrate(factorization, target, asked)


def _level(target: PrivacyTarget, name: str) -> dict[str, Any]:
    """Return epsilon and delta.

    Raises:
        InvalidParameter: the target is another one.
    """
    if target.epsilon is None or target.delta is None:
        raise InvalidParameter(
            f"rho and mu describe the noise without {name}, and an amplified run is no Gaussian mechanism; give "
            "epsilon and delta",
            field="epsilon",
        )
    return {"epsilon": target.epsilon, "delta": target.delta}
