"""b-min-sep sampling: an example rests for b - 1 steps after each of its steps, and else comes with one probability."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import factorize
from factorize.errors import InvalidParameter
from factorize.format.bins_claims import MAX_MIN_SEP_STEPS, MAX_STAR_STEPS
from factorize.format.manifest import CertifiedFactors, certified
from factorize.participation import Participation
from factorize.privacy.adjacency import check_zero_out
from factorize.privacy.question import Question, SamplingOptions, level_of
from factorize.samplings.cyclic_poisson import CyclicPoissonSampling
from factorize.samplings.first_steps import first_steps
from factorize.structures.base import Matrix
from factorize.training.batches import epochs_of
from factorize.training.job import Source, TrainingJob
from factorize.training.sampling import BMinSep

if TYPE_CHECKING:
    from factorize.accounting.bins_calibration import MinSepCalibration  # the import needs python-flint
    from factorize.accounting.min_sep_law import MinSepLaw


class BMinSepSampling(CyclicPoissonSampling):
    """Every step samples from the examples that rested in the last b - 1 steps, where b is the number of C's bands."""

    name = "b_min_sep"
    title = "b-min-sep"
    loader = (
        "In every step, sample each example that took part in none of the last b - 1 steps (C has b bands), "
        "independently and with the calibration's probability; begin as if the run had gone on before, as "
        "training.sampling.BMinSep does."
    )
    secret = "which examples are in a batch, and the sizes of batches"
    takes = ("dataset_size", "batch_size", "bins")
    claimed = True
    imports = "from factorize.training.sampling import BMinSep"
    order = BMinSep
    even = False

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return the reason for a misfit: sizes are missing or wrong, C has one band or all, or steps are too many."""
        if asked.dataset_size is None or asked.batch_size is None:
            return "needs dataset_size and batch_size: give both"
        bands = strategy.bandwidth()
        if bands == 1:
            return "is the same as poisson for a C of one band; use poisson"
        if strategy.n > MAX_MIN_SEP_STEPS:
            return f"supports up to {MAX_MIN_SEP_STEPS} steps, and there are {strategy.n}"
        if bands * asked.batch_size > asked.dataset_size:
            return f"needs batches of at most dataset_size / {bands}, as C has {bands} bands"
        return f"needs fewer bands than steps, and C has {bands}" if bands >= strategy.n else None

    def sizes(self, strategy: Matrix, asked: SamplingOptions) -> tuple[int, int]:
        """Return the sizes of data set and batch; raise InvalidParameter unless bins are the number of bands of C."""
        bands = strategy.bandwidth()
        if asked.bins not in (None, bands):
            raise InvalidParameter(
                f"bins={asked.bins} is not {bands}, the bands of C, which b_min_sep always uses; leave bins out",
                field="bins",
            )
        return super().sizes(strategy, asked)

    def of_first_steps(
        self, run: factorize.Factorization, steps: int, asked: SamplingOptions
    ) -> tuple[factorize.Factorization, SamplingOptions]:
        """Cover as many steps as have all bands, since b and the probability belong to the whole C."""
        bands = run.strategy.finite().bandwidth()
        held = first_steps(run, steps, least=min(bands + 1, run.steps))
        return (held if held.strategy.finite().bandwidth() == bands else run), asked

    def ask_for_best(self, source: Source, job: TrainingJob, steps: int) -> Source:
        """Return the source of the best bands under this law at the job's privacy, if `auto` asks and one is known.

        The last iterate counts as much as the mean, since jobs name no schedule: the smallest mean error alone leaves
        late steps noisy, and models train worse (papers/pages/leaderboard.md).
        """
        if not source.automatic or source.bands in (None, 1) or steps > MAX_STAR_STEPS:
            return source
        spec = {
            "workload": source.workload(steps),
            "objective": {"kind": "lambda_tau", "tau": steps},
            "participation": epochs_of(job.batching.epochs),
            "mechanism": {"kind": "banded", "bands": source.bands},
            "sampling": {"kind": self.name, "epsilon": job.privacy.epsilon, "delta": job.privacy.delta},
        }
        return replace(source, spec=spec, memory=None)

    def law(self, factorization: CertifiedFactors, asked: SamplingOptions) -> MinSepLaw:
        """Return the law on C."""
        from factorize.accounting.min_sep_law import MinSepLaw

        strategy: Matrix = certified(factorization).opened().strategy.finite()
        return MinSepLaw.of(strategy, *self.sizes(strategy, asked))

    def calibrate(  # type: ignore[override]
        self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions
    ) -> MinSepCalibration:
        """Return the noise by a claim that the checker has accepted, with bets or by bounds."""
        from factorize.accounting.bins_calibration import MinSepCalibration, calibrate_bins

        check_zero_out(asked.adjacency)
        level_of(target, self.name)
        examples, batch = self.sizes(certified(factorization).opened().strategy.finite(), asked)
        own = {"dataset_size": examples, "batch_size": batch}
        return calibrate_bins(
            MinSepCalibration, factorization, lambda held: self.law(held, asked), target, asked, **own
        )
