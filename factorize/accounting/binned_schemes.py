"""Schemes in which an example draws bins: once, for good, or in every epoch anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from factorize.accounting.sampling_scheme import SampledScheme, SamplingOptions, level_of
from factorize.format.claims import CertifiedFactors
from factorize.participation import Participation
from factorize.privacy import Calibration
from factorize.privacy_question import Question
from factorize.spec import LARGEST_BINS
from factorize.structures.base import Matrix

if TYPE_CHECKING:
    from factorize.accounting.bins_calibration import BinsCalibration, OpenedFactors  # needs python-flint
    from factorize.accounting.law import Law


class BinsScheme(SampledScheme):
    """Each example draws the step of its epoch once, for good: for every C."""

    name = "balls_in_bins"
    title = "balls in bins"
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

        return calibrate_bins(
            factorization,
            **level_of(target, self.name),
            sampling=self.name,
            clip_norm=asked.clip_norm,
            adjacency=asked.adjacency,
            bins=asked.bins,
            divisor=asked.divisor,
            method=asked.method,
        )

    def law(self, held: OpenedFactors, asked: SamplingOptions) -> Law:
        """Return the law of these bins."""
        from factorize.accounting.bins_calibration import bins_of, law_of

        return law_of(held.strategy, self.name, bins_of(held) if asked.bins is None else asked.bins)

    def check_used(self, asked: SamplingOptions) -> None:
        """Refuse the batch size of a Poisson scheme."""
        asked.refuse_batch_size(self.name)

    def method(self, found: Calibration) -> str:
        """Return the calibration's own."""
        from factorize.accounting.bins_calibration import BinsCalibration

        assert isinstance(found, BinsCalibration)
        return found.method

    def called(self, epochs: int) -> str:
        """Return the title; with one epoch the scheme is random allocation."""
        return "random allocation (balls in bins)" if epochs == 1 else self.title

    @staticmethod
    def bins(participation: Participation, n: int) -> int | None:
        """Return the steps of an epoch, None where there are no epochs."""
        return None if participation.passes is None else n // participation.passes


class AllocationScheme(BinsScheme):
    """Each example draws one step of every epoch anew: for C = I, by loss distributions."""

    name = "random_allocation"
    title = "random allocation"
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

    def called(self, epochs: int) -> str:
        """Return the title."""
        return self.title
