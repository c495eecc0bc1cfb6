"""Sampling schemes: what each needs, when it fits, how it calibrates, and what a training job's loader has to do.

A scheme is one class and one entry of `SCHEMES`. Calibrations, comparisons and the two doors ask it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from factorize.accounting.amplification import calibrate_amplified
from factorize.accounting.law import Law
from factorize.accounting.loss_laws import PoissonLaw
from factorize.accounting.sampling_scheme import SamplingOptions, SamplingScheme, level_of
from factorize.errors import ConditionNotMet, InvalidParameter, UnsupportedProblem, extras_named
from factorize.first_steps import first_steps
from factorize.format.factors import CertifiedFactors, certified
from factorize.numbers.gaussian import gaussian_delta
from factorize.numbers.scalars import finite_real, multiplier_of
from factorize.participation import Participation
from factorize.privacy import Calibration, calibrate
from factorize.privacy_question import GivenNoise, Question
from factorize.spec import LARGEST_BINS
from factorize.structures.base import Matrix

if TYPE_CHECKING:
    from factorize.accounting.bins_calibration import BinsCalibration  # needs python-flint


class FixedScheme(SamplingScheme):
    """No sampling: epsilon holds for every order that keeps to the spec's participation."""

    name = "fixed"
    title = "fixed order"
    basis = "deterministic"  # the Gaussian mechanism has a closed form
    loader = "Keep to the spec's participation: any order, for example the same one in every epoch."
    secret = "nothing"

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return None: it always fits."""
        return None

    def calibrate(self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions) -> Calibration:
        """Return the noise of the Gaussian mechanism."""
        return calibrate(certified(factorization).sensitivity, target, **asked.scale)

    def check_used(self, asked: SamplingOptions) -> None:
        """Refuse bins and the sizes of a sampling."""
        super().check_used(asked)
        asked.refuse_sizes(self.name)

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

    def calibrate(self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions) -> Calibration:
        """Return the noise by the privacy loss distribution of Poisson sampling."""
        level, held = level_of(target, self.name), certified(factorization).opened()
        examples, batch = self._check(held.strategy.finite(), asked)
        return calibrate_amplified(held, **level, dataset_size=examples, batch_size=batch, **asked.scale)

    def options(self, asked: SamplingOptions) -> str:
        """Return the sizes too."""
        return f" --sampling {self.name} --dataset-size {asked.dataset_size} --batch-size {asked.batch_size}"

    def law(self, factorization: CertifiedFactors, asked: SamplingOptions) -> Law:
        """Return the law of as many groups as C has bands."""
        strategy: Matrix = certified(factorization).opened().strategy.finite()
        return PoissonLaw.of(strategy, *self._check(strategy, asked))

    def _check(self, strategy: Matrix, asked: SamplingOptions) -> tuple[int, int]:
        """Return the sizes, and leave to the accountant which bands it takes."""
        if asked.dataset_size is None or asked.batch_size is None:
            raise InvalidParameter(f"{self.name} needs dataset_size and batch_size: give both", field="dataset_size")
        return asked.dataset_size, asked.batch_size


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

    def _check(self, strategy: Matrix, asked: SamplingOptions) -> tuple[int, int]:
        sizes = super()._check(strategy, asked)
        if strategy.bandwidth() > 1:
            raise ConditionNotMet(
                f"this C has {strategy.bandwidth()} bands, and Poisson sampling of every step is for C = I alone; use "
                "cyclic_poisson for a banded C, balls_in_bins for any",
                field="sampling",
            )
        return sizes


class BinsScheme(SamplingScheme):
    """Each example draws the step of its epoch once, for good: for every C."""

    name = "balls_in_bins"
    title = "balls in bins"
    title_of_one_epoch: ClassVar[str | None] = "random allocation (balls in bins)"
    loader = (
        "Let each example draw one step of the epoch, once, uniformly and from a secret seed, and take it in that step "
        "of every epoch; divide by a public constant, never by the batch's size."
    )
    secret = "the bins, which examples are in a batch, and the sizes of batches, for ever"
    claimed = True

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return why: no epochs, or too few or too many bins."""
        bins = self.bins(participation, strategy.n)
        if bins is None:
            return f"needs epochs, and participation {participation.kind!r} has none; use fixed_epochs"
        if not 2 <= bins <= LARGEST_BINS:
            return f"takes 2 to {LARGEST_BINS} bins, the steps of an epoch, and there would be {bins}"
        return None

    def calibrate(self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions) -> BinsCalibration:
        """Return the noise by a claim with bets or by bounds, which the checker has accepted."""
        from factorize.accounting.bins_calibration import calibrate_bins

        numbers: dict[str, Any] = {**level_of(target, self.name), **asked.scale}
        return calibrate_bins(factorization, **numbers, sampling=self.name, bins=asked.bins, method=asked.method)

    def law(self, factorization: CertifiedFactors, asked: SamplingOptions) -> Law:
        """Return the law of these bins."""
        from factorize.accounting.bins_calibration import law_on

        return law_on(certified(factorization).opened(), self.name, asked.bins)

    def check_used(self, asked: SamplingOptions) -> None:
        """Refuse the sizes of a Poisson scheme."""
        asked.refuse_sizes(self.name)

    @staticmethod
    def bins(participation: Participation, n: int) -> int | None:
        """Return the steps of an epoch, None where there are no epochs."""
        return None if participation.passes is None else n // participation.passes


class AllocationScheme(BinsScheme):
    """Each example draws one step of every epoch anew: for C = I, by loss distributions."""

    name = "random_allocation"
    title = "random allocation"
    title_of_one_epoch = None
    loader = (
        "Let each example draw one step in every epoch anew, uniformly, independently and from a secret seed; "
        "divide by a public constant, never by the batch's size."
    )
    secret = "the draws, which examples are in a batch, and the sizes of batches, for ever"
    claimed = False

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return why: more than one band, or no epochs."""
        if strategy.bandwidth() > 1:
            return f"is for C = I, and C has {strategy.bandwidth()} bands; use balls_in_bins"
        bins = self.bins(participation, strategy.n)
        if bins is None:
            return f"needs epochs, and participation {participation.kind!r} has none; use fixed_epochs"
        return None if bins > 1 else "has nothing to choose where an epoch is one step; use fixed"


_ALL = FixedScheme(), CyclicScheme(), BinsScheme(), PoissonScheme(), AllocationScheme()
SCHEMES: dict[str, SamplingScheme] = {scheme.name: scheme for scheme in _ALL}
"""The one list, by name."""
SAMPLINGS = tuple(SCHEMES)

_UNCOVERED = {
    "shuffle": "equal-size shuffling gives away the last bin, and is not amplified here; use balls_in_bins, or fixed",
    "poisson_per_epoch": "examples that may take part twice in an epoch, or not at all, have no accountant for a C "
    "that is not I; use balls_in_bins, or cyclic_poisson for a banded C",
    "b_min_sep": "its pair is known and its evaluator is not here; use balls_in_bins, or cyclic_poisson for a banded C",
}


def scheme_of(sampling: str) -> SamplingScheme:
    """Return the scheme of a name; raise InvalidParameter where it is unknown, or has no accountant here."""
    if sampling not in SCHEMES:
        reason = _UNCOVERED.get(str(sampling), f"known are {', '.join(SAMPLINGS)}")
        raise InvalidParameter(f"sampling={str(sampling)[:20]!r} is not covered: {reason}", field="sampling")
    return SCHEMES[sampling]


@extras_named("a calibration that counts on sampling")
def calibrate_sampling(
    factorization: CertifiedFactors, target: Question, *, sampling: str, steps: int | None = None, **options: Any
) -> Calibration:
    """Return the noise of a factorization under a sampling scheme.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        target: (epsilon, delta), and for `fixed` any other target too; or a `GivenNoise`, whose epsilon or delta is
            found.
        sampling: `fixed`: none; `cyclic_poisson`, for a banded C; `poisson`, for C = I; `balls_in_bins`, for any C;
            `random_allocation`, for C = I.
        steps: the first of the run, where it stops there; by default all.
        **options: see `SamplingOptions`.

    Raises:
        InvalidParameter: an unknown scheme, one that has no accountant here, or what it needs is missing or not used.
        ConditionNotMet: a C that the scheme does not cover.
        UnsupportedAdjacency: an adjacency that the scheme does not cover.
    """
    scheme, settings = scheme_of(sampling), SamplingOptions(**options)
    if steps is not None:
        whole = certified(factorization).opened()
        if isinstance(scheme, BinsScheme) and settings.bins is None:
            from factorize.accounting.bins_calibration import bins_of

            settings = replace(settings, bins=bins_of(whole))
        factorization = first_steps(whole, steps, least=settings.bins or 1)
    scheme.check_used(settings)
    return scheme.calibrate(factorization, target, settings)


MOST_POINTS = 1000


def privacy_profile(
    factorization: CertifiedFactors, *, sigma: float, epsilons: Sequence[float], sampling: str, asked: SamplingOptions
) -> list[dict[str, float]]:
    """Return the curve as plain data: `epsilon`, `delta` and `delta_without_secrecy`, rounded up, all at once true.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        sigma: standard deviation per entry of Z, for sums.
        epsilons: above 0.
        sampling: a scheme of `calibrate_sampling`.
        asked: sizes, clip norm and adjacency.

    Raises:
        InvalidParameter: no epsilons, more than 1000, one that is not above 0, or what the scheme refuses.
    """
    if not 1 <= len(epsilons) <= MOST_POINTS:
        raise InvalidParameter(f"{len(epsilons)} epsilons are no curve; give 1 to {MOST_POINTS}", field="epsilons")
    levels = sorted({finite_real("epsilons", one, remedy="give finite epsilons above 0") for one in epsilons})
    scheme = scheme_of(sampling)
    scheme.check_used(asked)
    plain = scheme.calibrate(factorization, GivenNoise(sigma=sigma, epsilon=levels[-1]), asked)
    law, multiplier = scheme.law(factorization, asked), multiplier_of(plain.sigma_of_sums, clip_norm=asked.clip_norm)
    points = []
    for level in levels:
        known = gaussian_delta(level, plain.mu)
        delta = known if law is None else min(law.delta(multiplier, level), known)
        points.append({"epsilon": level, "delta": delta, "delta_without_secrecy": known})
    return points


@extras_named("the epsilon of a run that stops early")
def epsilon_of_first_steps(run: object, noise: Mapping[str, Any], steps: int, delta: float | None = None) -> float:
    """Return epsilon of the first steps of a run, at most that of all steps.

    It holds where the stop depended neither on the data nor on what was released.

    Args:
        run: its factors.
        noise: the calibration, as plain data.
        steps: that were released, 0 to n.
        delta: of the guarantee; the calibration's by default.

    Raises:
        InvalidParameter: no number of its steps, or no delta.
        UnsupportedProblem: squares of gradients have noise of their own.
    """
    if "second_sigma_of_sums" in noise:
        raise UnsupportedProblem(
            "gradients and their squares are released together, and the epsilon of their first steps is not known "
            "here; take that of all steps"
        )
    at = noise["delta"] if delta is None else delta
    if at is None:
        raise InvalidParameter("the calibration states no delta; give delta", field="delta")
    if steps == 0:
        return 0.0
    options = {
        name: noise[name] for name in ("clip_norm", "adjacency", "bins", "dataset_size", "batch_size") if name in noise
    }
    given = GivenNoise(sigma=noise["sigma_of_sums"], delta=at)
    found = calibrate_sampling(certified(run), given, sampling=noise["sampling"], steps=steps, **options).epsilon
    assert found is not None
    return found if noise["epsilon"] is None or at != noise["delta"] else min(found, noise["epsilon"])
