"""A toy sampling: a coin decides for each example of the step's group."""

from __future__ import annotations

from dataclasses import replace

from factorize.accounting.amplification import AmplifiedCalibration
from factorize.errors import InvalidParameter
from factorize.format.manifest import CertifiedFactors
from factorize.participation import Participation
from factorize.privacy.question import Question, SamplingOptions
from factorize.samplings.cyclic_poisson import CyclicPoissonSampling
from factorize.structures.base import Matrix


class CoinSampling(CyclicPoissonSampling):
    """Cyclic Poisson sampling of half of each group."""

    name = "coin"
    title = "a coin"
    loader = (
        "Split the examples into as many groups as C has bands; in step t toss a coin for each of group t mod bands."
    )
    takes = ("dataset_size",)

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return why: the size is missing."""
        return "needs dataset_size: give it" if asked.dataset_size is None else None

    def sizes(self, strategy: Matrix, asked: SamplingOptions) -> tuple[int, int]:
        """Return a batch of half a group."""
        if asked.dataset_size is None:
            raise InvalidParameter("coin needs dataset_size: give it", field="dataset_size")
        return asked.dataset_size, asked.dataset_size // strategy.bandwidth() // 2

    def calibrate(
        self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions
    ) -> AmplifiedCalibration:
        """Return that of the groups, under its own name."""
        return replace(super().calibrate(factorization, target, asked), sampling=self.name)
