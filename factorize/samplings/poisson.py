"""Poisson sampling: every step samples from all examples independently. This is DP-SGD, with C = I."""

from factorize.errors import ConditionNotMet
from factorize.participation import Participation
from factorize.privacy.question import SamplingOptions
from factorize.samplings.cyclic_poisson import CyclicPoissonSampling
from factorize.structures.base import Matrix


class PoissonSampling(CyclicPoissonSampling):
    """Cyclic Poisson sampling with one group; training jobs use the name of cyclic sampling for it."""

    name = "poisson"
    title = "DP-SGD with Poisson"
    loader = "In every step, sample each example independently, with probability batch_size / dataset_size."

    @property
    def trained_as(self) -> str:
        """The name of cyclic Poisson sampling, of which this has one group."""
        return CyclicPoissonSampling.name

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return the reason for a misfit: sizes are missing, or C has more than one band."""
        if not asked.sized:
            return "needs dataset_size and batch_size: give both"
        return None if strategy.bandwidth() == 1 else f"is for C = I, and C has {strategy.bandwidth()} bands"

    def sizes(self, strategy: Matrix, asked: SamplingOptions) -> tuple[int, int]:
        """Return the sizes for a C of one band; raise ConditionNotMet for another C."""
        found = super().sizes(strategy, asked)
        if strategy.bandwidth() > 1:
            raise ConditionNotMet(
                f"poisson needs C = I, and this C has {strategy.bandwidth()} bands; use cyclic_poisson for a banded "
                "C, or balls_in_bins for any",
                field="sampling",
            )
        return found
