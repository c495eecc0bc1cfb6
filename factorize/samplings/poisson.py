"""Poisson sampling: every step samples from all examples, independently. DP-SGD, with C = I."""

from factorize.errors import ConditionNotMet
from factorize.participation import Participation
from factorize.privacy.question import SamplingOptions
from factorize.samplings.cyclic_poisson import CyclicPoissonSampling
from factorize.structures.base import Matrix


class PoissonSampling(CyclicPoissonSampling):
    """Cyclic Poisson sampling of one group; training jobs ask for it under that name."""

    name = "poisson"
    title = "DP-SGD with Poisson"
    loader = "In every step take each example independently, with probability batch_size / dataset_size."

    @property
    def trained_as(self) -> str:
        """That of one group."""
        return CyclicPoissonSampling.name

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return why: sizes are missing, or C has more than one band."""
        if not asked.sized:
            return "needs dataset_size and batch_size: give both"
        return None if strategy.bandwidth() == 1 else f"is for C = I, and C has {strategy.bandwidth()} bands"

    def sizes(self, strategy: Matrix, asked: SamplingOptions) -> tuple[int, int]:
        """Return them for a C of one band; raise ConditionNotMet for another."""
        found = super().sizes(strategy, asked)
        if strategy.bandwidth() > 1:
            raise ConditionNotMet(
                f"this C has {strategy.bandwidth()} bands, and Poisson sampling of every step is for C = I alone; use "
                "cyclic_poisson for a banded C, balls_in_bins for any",
                field="sampling",
            )
        return found
