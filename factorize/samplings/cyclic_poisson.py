"""Cyclic Poisson sampling: groups take turns, each sampled independently, for a C of few bands."""

from dataclasses import replace
from typing import Any, ClassVar

import factorize
from factorize.accounting.amplification import AmplifiedCalibration, calibrate_amplified
from factorize.accounting.law import Law
from factorize.accounting.loss_laws import PoissonLaw
from factorize.errors import InvalidParameter
from factorize.format.manifest import CertifiedFactors, certified
from factorize.participation import Participation
from factorize.privacy import Calibration
from factorize.privacy.question import Question, SamplingOptions, level_of
from factorize.samplings.base import CodeNumbers, Drawn, Sampling, check_given
from factorize.samplings.first_steps import leading_block
from factorize.structures.base import Matrix
from factorize.training.job import Source, TrainingJob
from factorize.training.sampling import CyclicPoisson

MAX_COLUMN_RATIO = 1.2
"""The largest squared column norm over the mean of all: the noise is then a tenth more than for even columns, and
`compare` shows those, too."""


class CyclicPoissonSampling(Sampling):
    """Examples are split once into as many groups as C has bands, and each step samples from one of them."""

    name = "cyclic_poisson"
    title = "cyclic Poisson"
    loader = (
        "Split the examples once into as many groups as C has bands; in step t, sample each example of group t mod "
        "bands independently, with probability batch_size / (size of the smallest group)."
    )
    secret = "which examples are in a batch, and the sizes of batches"
    takes: ClassVar[tuple[str, ...]] = ("dataset_size", "batch_size")
    padded = False
    imports = "from factorize.training.sampling import CyclicPoisson"
    order: ClassVar[type[CyclicPoisson]] = CyclicPoisson
    even: ClassVar[bool] = True
    """Whether the law uses the largest column for all, so that the best C has columns of one norm."""

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return the reason for a misfit: sizes are missing, or C has one band or all."""
        bands = strategy.bandwidth()
        if not asked.sized:
            return "needs dataset_size and batch_size: give both"
        if bands == 1:
            return "is poisson for a C of one band; use poisson"
        squares = strategy.column_norms_squared()
        uneven = squares.max() / squares.mean()
        if uneven > MAX_COLUMN_RATIO:
            return f"counts the largest column for all, {uneven:.2g} times the mean; use normalization 'columns'"
        return f"needs fewer bands than steps, and C has {bands}" if bands >= strategy.n else None

    def law(self, factorization: CertifiedFactors, asked: SamplingOptions) -> Law:
        """Return the law of as many groups as C has bands."""
        strategy: Matrix = certified(factorization).opened().strategy.finite()
        return PoissonLaw.of(strategy, *self.sizes(strategy, asked), asked.bins)

    def calibrate(
        self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions
    ) -> AmplifiedCalibration:
        """Return the noise by the privacy loss distribution of Poisson sampling."""
        level, held = level_of(target, self.name), certified(factorization).opened()
        examples, batch = self.sizes(held.strategy.finite(), asked)
        sizes: dict[str, Any] = {"dataset_size": examples, "batch_size": batch, "groups": asked.bins}
        return calibrate_amplified(held, **level, **sizes, **asked.scale)

    def of_first_steps(
        self, run: factorize.Factorization, steps: int, asked: SamplingOptions
    ) -> tuple[factorize.Factorization, SamplingOptions]:
        """Keep the groups of the whole C, since its first rows may have fewer bands."""
        return leading_block(run, steps), replace(asked, bins=run.strategy.finite().bandwidth())

    def sizes(self, strategy: Matrix, asked: SamplingOptions) -> tuple[int, int]:
        """Return the sizes of data set and batch; the accountant decides which bands it takes."""
        if asked.dataset_size is None or asked.batch_size is None:
            missing = "dataset_size" if asked.dataset_size is None else "batch_size"
            raise InvalidParameter(f"{self.name} needs dataset_size and batch_size: give both", field=missing)
        return asked.dataset_size, asked.batch_size

    def plan(self, job: TrainingJob, squares: Source | None) -> Drawn:
        """Plan batches that are sampled anew in every step, for a banded C."""
        source, examples, batching = job.noise.source, job.data.units, job.batching
        if source.bands is None and source.memory is not None:
            source = replace(source, bands=source.memory + 1)
        if source.bands is None and source.automatic:
            need = f"{batching.sampling} needs the number of bands that C may have"
            raise InvalidParameter(f"{need}; give bands=, or a banded factorization", field="bands")
        steps = batching.epochs * max(1, examples // batching.size)
        single = self.even or source.bands is None or source.bands == 1
        source = self.ask_for_best(source, job, steps)
        factors = source.find(steps, {"kind": "single"} if single else {"kind": "min_sep", "min_sep": source.bands})
        calibration: Calibration
        if job.noise.calibration is None:
            asked = SamplingOptions(dataset_size=examples, batch_size=batching.size, **job.scale)
            calibration = self.calibrate(factors, job.target, asked)
        else:
            sizes = {"dataset_size": examples, "batch_size": batching.size}
            calibration = check_given(job, job.noise.calibration, job.privacy.delta, **sizes)
        seed = int.from_bytes(job.noise.order_key(factors.digest), "little")
        order = self.order(examples, calibration, steps=steps, seed=seed)
        order.check(calibration.sensitivity.participation, factors.steps)
        return Drawn(factors=factors, calibration=calibration, order=order)

    def ask_for_best(self, source: Source, job: TrainingJob, steps: int) -> Source:
        """Return the source of the best C under this law, if one is searched for."""
        return source

    def code(self, numbers: CodeNumbers, count: str, divisor: str = "") -> list[str]:
        """Return the lines with the calibration first, which computes the probability of an example."""
        return [
            f'scale = factors.calibrate(epsilon={numbers.epsilon!r}, delta={numbers.delta!r}, sampling="{self.name}", '
            f"dataset_size={count}, batch_size={numbers.batch_size}{divisor})",
            f"order = {self.order.__name__}({count}, scale, steps={numbers.steps}, seed=secrets.randbits(128))",
        ]

    def options(self, asked: SamplingOptions) -> str:
        """Return the options with the sizes."""
        return f" --sampling {self.name} --dataset-size {asked.dataset_size} --batch-size {asked.batch_size}"
