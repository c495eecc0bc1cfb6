"""No sampling: one public order, whose batches come again in every epoch."""

from factorize.accounting.joint_moments import calibrate_moments
from factorize.format.manifest import CertifiedFactors, certified
from factorize.participation import Participation
from factorize.privacy import Calibration, calibrate
from factorize.privacy.question import Question, SamplingOptions
from factorize.samplings.base import CodeNumbers, Drawn, Sampling
from factorize.structures.base import Matrix
from factorize.training.job import Source, TrainingJob
from factorize.training.orders import fixed_order


class FixedSampling(Sampling):
    """A public order, for which epsilon holds as long as it keeps to the spec's participation."""

    name = "fixed"
    title = "fixed order"
    loader = "Keep to the spec's participation: any order, for example the same one in every epoch."
    secret = "nothing"
    drawn = False
    imports = "from factorize.training.orders import fixed_order"

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return None, since a fixed order always fits."""
        return None

    def calibrate(self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions) -> Calibration:
        """Return the noise of the Gaussian mechanism."""
        return calibrate(certified(factorization).sensitivity, target, **asked.scale)

    def plan(self, job: TrainingJob, squares: Source | None) -> Drawn:
        """Plan the same public batches in every epoch."""
        batching, source = job.batching, job.noise.source
        order = fixed_order(
            job.data.units,
            batching.size,
            epochs=batching.epochs,
            seed=batching.order_seed,
            remainder=batching.remainder,
        )
        factors = source.find(len(order), order.participation)
        if squares is None:
            drawn = Drawn(
                factors=factors, calibration=calibrate(factors.sensitivity, job.target, **job.scale), order=order
            )
        else:
            second = squares.find(len(order), order.participation)
            moments = calibrate_moments(factors, second, job.target, **job.scale)
            drawn = Drawn(factors=factors, calibration=moments.first, order=order, second=second, moments=moments)
        order.check(drawn.calibration.sensitivity.participation, factors.steps)
        return drawn

    def code(self, numbers: CodeNumbers, count: str, divisor: str = "") -> list[str]:
        """Return the lines with the order first, which the sensitivity has to cover."""
        return [
            f"order = fixed_order({count}, {numbers.batch_size}, epochs={numbers.epochs})",
            f"scale = factors.calibrate(epsilon={numbers.epsilon!r}, delta={numbers.delta!r}{divisor})",
            "order.check(scale.sensitivity.participation, factors.steps)",
        ]

    def options(self, asked: SamplingOptions) -> str:
        """Return nothing, since `fixed` is the default."""
        return ""
