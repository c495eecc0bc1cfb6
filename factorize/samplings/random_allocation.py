"""Random allocation: each example draws one step of every epoch anew. It is for C = I, by loss distributions."""

from factorize.accounting.loss_laws import AllocationLaw
from factorize.participation import Participation
from factorize.privacy.question import SamplingOptions
from factorize.samplings.balls_in_bins import BallsInBinsSampling
from factorize.structures.base import Matrix
from factorize.structures.endless import AnyStrategy
from factorize.training.bins_order import RandomAllocation


class RandomAllocationSampling(BallsInBinsSampling):
    """Balls in bins that are drawn again in every epoch."""

    name = "random_allocation"
    title = "random allocation"
    title_of_one_epoch = None
    loader = (
        "Let each example draw one step in every epoch anew, uniformly, independently and from a secret seed; "
        "divide by a public constant, never by the batch's size."
    )
    secret = "the draws, which examples are in a batch, and the sizes of batches, for ever"
    takes = ("bins",)
    claimed = False
    imports = f"from factorize.training.orders import {name}"
    order = RandomAllocation
    bands = 1

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return the reason for a misfit: C has more than one band, or there are no epochs."""
        if strategy.bandwidth() > 1:
            return f"is for C = I, and C has {strategy.bandwidth()} bands; use balls_in_bins"
        bins = participation.epoch(strategy.n)
        if bins is None:
            return f"needs epochs, and participation {participation.kind!r} has none; use fixed_epochs"
        return None if bins > 1 else "has nothing to choose where an epoch is one step; use fixed"

    def law_of(self, strategy: AnyStrategy, bins: int) -> AllocationLaw:
        """Return the law on a C with one band; it raises as `AllocationLaw.of` does."""
        return AllocationLaw.of(strategy, bins)
