"""Random allocation: each example draws one step of every epoch anew. It is for C = I, by loss distributions."""

from dataclasses import replace

import factorize
from factorize.accounting.gram_matrix import bins_of
from factorize.accounting.loss_laws import AllocationLaw
from factorize.numbers.scalars import whole_number
from factorize.participation import Participation
from factorize.privacy.question import SamplingOptions
from factorize.samplings.balls_in_bins import BallsInBinsSampling
from factorize.samplings.first_steps import leading_block
from factorize.structures.base import Matrix
from factorize.structures.endless import AnyStrategy
from factorize.training.bins_order import RandomAllocation


class RandomAllocationSampling(BallsInBinsSampling):
    """Balls in bins that are drawn again in every epoch."""

    name = "random_allocation"
    title = "random allocation"
    title_of_one_epoch = None
    loader = (
        "In every epoch, draw a new step for each example, uniformly, independently and from a secret seed; divide "
        "by a public constant, never by the batch's size."
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
        return None if bins > 1 else "needs epochs of at least 2 steps; use fixed"

    def of_first_steps(
        self, run: factorize.Factorization, steps: int, asked: SamplingOptions
    ) -> tuple[factorize.Factorization, SamplingOptions]:
        """Cover whole epochs of the draws, since each draw is among all steps of its epoch."""
        bins = bins_of(run) if asked.bins is None else whole_number("bins", asked.bins)
        return leading_block(run, steps, multiple=bins), replace(asked, bins=bins)

    def law_of(self, strategy: AnyStrategy, bins: int) -> AllocationLaw:
        """Return the law on a C with one band; it raises as `AllocationLaw.of` does."""
        return AllocationLaw.of(strategy, bins)
