"""No sampling: one public order, whose batches come again in every epoch."""

from factorize.accounting.joint_moments import calibrate_moments
from factorize.errors import InvalidParameter
from factorize.format.factors import CertifiedFactors, certified
from factorize.participation import Participation
from factorize.privacy import Calibration, calibrate
from factorize.privacy_question import Question, SamplingOptions
from factorize.samplings.base import CodeNumbers, Drawn, Sampling
from factorize.structures.base import Matrix
from factorize.training.job import Source, TrainingJob
from factorize.training.orders import fixed_order, take_turns


class FixedSampling(Sampling):
    """Epsilon holds for every order that keeps to the spec's participation."""

    name = "fixed"
    title = "fixed order"
    loader = "Keep to the spec's participation: any order, for example the same one in every epoch."
    secret = "nothing"
    drawn = False
    imports = "from factorize.training.orders import fixed_order"

    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return None: it always fits."""
        return None

    def calibrate(self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions) -> Calibration:
        """Return the noise of the Gaussian mechanism."""
        return calibrate(certified(factorization).sensitivity, target, **asked.scale)

    def plan(self, job: TrainingJob, squares: Source | None) -> Drawn:
        """Plan the same public batches of examples, or of users who take turns, in every epoch."""
        batching, users, units, source = job.batching, job.data.user_numbers, job.data.units, job.noise.source
        if users is not None and units < batching.size:
            message = (
                f"a batch takes one example of each user, and {units} make none of {batching.size}; use smaller ones"
            )
            raise InvalidParameter(message, field="batch_size")
        taking_part = fixed_order(
            units,
            batching.size,
            epochs=batching.epochs,
            seed=batching.order_seed,
            remainder=batching.remainder,
        )
        order = taking_part if users is None else take_turns(taking_part, users, seed=batching.order_seed)
        factors = source.find(len(order), taking_part.participation)
        if squares is None:
            drawn = Drawn(
                factors=factors, calibration=calibrate(factors.sensitivity, job.target, **job.scale), order=order
            )
        else:
            second = squares.find(len(order), taking_part.participation)
            moments = calibrate_moments(factors, second, job.target, **job.scale)
            drawn = Drawn(factors=factors, calibration=moments.first, order=order, second=second, moments=moments)
        taking_part.check(drawn.calibration.sensitivity.participation, factors.steps)
        return drawn

    def code(self, numbers: CodeNumbers, count: str, divisor: str = "") -> list[str]:
        """Return the order first, which the sensitivity has to cover."""
        return [
            f"order = fixed_order({count}, {numbers.batch_size}, epochs={numbers.epochs})",
            f"scale = factors.calibrate(epsilon={numbers.epsilon!r}, delta={numbers.delta!r}{divisor})",
            "order.check(scale.sensitivity.participation, factors.steps)",
        ]

    def options(self, asked: SamplingOptions) -> str:
        """Return nothing: `fixed` is the default."""
        return ""
