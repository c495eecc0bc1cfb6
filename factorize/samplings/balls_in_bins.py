"""Balls in bins: each example draws the step of its epoch once and keeps it. It is for every C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

import factorize
from factorize.accounting.gram_matrix import bins_of
from factorize.accounting.loss_laws import AllocationLaw
from factorize.errors import InvalidParameter
from factorize.format.manifest import CertifiedFactors, certified
from factorize.participation import Participation
from factorize.privacy import Calibration, PrivacyTarget
from factorize.privacy.adjacency import check_zero_out
from factorize.privacy.question import Question, SamplingOptions, level_of
from factorize.samplings.base import CodeNumbers, Drawn, Sampling, check_given
from factorize.samplings.first_steps import first_steps
from factorize.spec import LARGEST_BINS
from factorize.structures.base import Matrix
from factorize.structures.endless import AnyStrategy
from factorize.training.batches import epochs_of
from factorize.training.bin_draws import capacity_for
from factorize.training.bins_audit import BinsAuditor
from factorize.training.bins_order import BallsInBins
from factorize.training.job import Source, TrainingJob

if TYPE_CHECKING:
    from factorize.accounting.bins_calibration import BinsCalibration  # the import needs python-flint
    from factorize.accounting.bins_law import BinsLaw

_OVERFLOW_SHARE = 1024
"""The capacity may cost at most delta divided by this number."""


class BallsInBinsSampling(Sampling):
    """Each example takes part in the step of its bin in every epoch."""

    name = "balls_in_bins"
    title = "balls in bins"
    title_of_one_epoch: ClassVar[str | None] = "random allocation (balls in bins)"
    loader = (
        "Assign each example to one step of the epoch, once, uniformly and from a secret seed, and use it in that "
        "step of every epoch; divide by a public constant, never by the batch's size."
    )
    secret = "the bins, which examples are in a batch, and the sizes of batches, for ever"
    takes: ClassVar[tuple[str, ...]] = ("bins", "work")
    claimed = True
    imports = f"from factorize.training.orders import {name}"
    audit = "from factorize.training.bins_audit import BinsAuditor", "BinsAuditor.of(order, divisor=scale.divisor)"
    order: ClassVar[type[BallsInBins]] = BallsInBins
    bands: ClassVar[int | None] = None
    """The number of bands of the C that a job solves for; None leaves it to the job."""

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return the reason for a misfit: there are no epochs, or too few or too many bins."""
        bins = participation.epoch(strategy.n)
        if bins is None:
            return f"needs epochs, and participation {participation.kind!r} has none; use fixed_epochs"
        if not 2 <= bins <= LARGEST_BINS:
            return f"needs epochs of 2 to {LARGEST_BINS} steps (bins), and these have {bins}"
        return None

    def law(self, factorization: CertifiedFactors, asked: SamplingOptions) -> BinsLaw | AllocationLaw:
        """Return the law of these bins, which by default are those of the spec's epochs."""
        held = certified(factorization).opened()
        return self.law_of(held.strategy, bins_of(held) if asked.bins is None else asked.bins)

    def law_of(self, strategy: AnyStrategy, bins: int) -> BinsLaw | AllocationLaw:
        """Return the law on C; it raises as `bin_gram` does."""
        from factorize.accounting.bins_law import BinsLaw

        return BinsLaw.of(strategy, bins)

    def calibrate(self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions) -> BinsCalibration:
        """Return the noise by a claim that the checker has accepted, with bets or by bounds."""
        from factorize.accounting.bins_calibration import BinsCalibration, calibrate_bins

        check_zero_out(asked.adjacency)
        level_of(target, self.name)
        return calibrate_bins(BinsCalibration, factorization, lambda held: self.law(held, asked), target, asked)

    def options(self, asked: SamplingOptions) -> str:
        """Return the options with the work, where it is not the usual one."""
        return super().options(asked) + ("" if asked.work is None else f" --work {asked.work}")

    def of_first_steps(
        self, run: factorize.Factorization, steps: int, asked: SamplingOptions
    ) -> tuple[factorize.Factorization, SamplingOptions]:
        """Cover an epoch in any case, since the draws are among all of its steps."""
        bins = bins_of(run) if asked.bins is None else asked.bins
        return first_steps(run, steps, least=bins), replace(asked, bins=bins)

    def plan(self, job: TrainingJob, squares: Source | None) -> Drawn:
        """Plan the secret order in which each example draws its bin."""
        privacy, batching, examples, capacity = job.privacy, job.batching, job.data.units, None
        bins, physical = max(1, examples // batching.size), batching.physical
        check_zero_out(privacy.adjacency)
        if batching.overflow == "abort":
            tau = privacy.delta / _OVERFLOW_SHARE / (1 + float(np.exp(min(privacy.epsilon, 700.0))))
            tau /= self.order.draws(batching.epochs)
            capacity = capacity_for(examples, bins, physical_batch=physical or 1, tau=tau)
            physical = physical or capacity
        amplified = {"kind": "balls_in_bins", "epsilon": privacy.epsilon, "delta": privacy.delta}
        source = job.noise.source
        if self.bands is not None and source.automatic:
            if source.bands not in (None, self.bands):
                message = f"bands={source.bands}, but {self.name} needs a C of {self.bands}; leave bands out"
                raise InvalidParameter(message, field="bands")
            source = replace(source, bands=self.bands)
        factors = source.find(bins * batching.epochs, epochs_of(batching.epochs), amplified)
        key = job.noise.order_key(factors.digest)
        room: dict[str, Any] = {"physical_batch": physical, "capacity": capacity, "overflow": batching.overflow}
        order = self.order(examples, bins, batching.epochs, key, **room)
        extra = order.extra_delta(privacy.epsilon)
        left = math.nextafter(privacy.delta - extra, 0.0)  # rounds down, so that both together are at most delta
        calibration: Calibration | None = job.noise.calibration
        if calibration is None:
            target = PrivacyTarget(epsilon=privacy.epsilon, delta=left)
            calibration = self.calibrate(factors, target, SamplingOptions(bins=bins, **job.scale))
        order.check_calibration(calibration, factors.steps)
        check_given(job, calibration, left)
        return Drawn(factors=factors, calibration=calibration, order=order, overflow_delta=extra)

    def code(self, numbers: CodeNumbers, count: str, divisor: str = "") -> list[str]:
        """Return the lines with the order first: if its capacity costs a part of delta, the calibration gets less."""
        level = f"epsilon={numbers.epsilon!r}, delta={numbers.delta!r} - order.extra_delta({numbers.epsilon!r})"
        bins = numbers.steps // numbers.epochs
        return [
            f"order = {self.name}({count}, {bins}, {numbers.epochs}, secrets.token_bytes(32))",
            f'scale = factors.calibrate({level}, sampling="{self.name}"{divisor})',
            "order.check_calibration(scale, factors.steps)",
        ]

    def auditor(self, drawn: Drawn, users: Sequence[object] | np.ndarray | None) -> BinsAuditor:
        """Return the auditor of the order's own bins."""
        assert isinstance(drawn.order, BallsInBins)
        return BinsAuditor.of(drawn.order, divisor=drawn.calibration.divisor, users=users)
