"""Sampling: a law by which examples take part in the steps of a run, with everything that others ask of it.

Calibrations, comparisons, training jobs, audits and pages ask the one class; nobody else tells samplings apart.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

import factorize
from factorize.accounting.joint_moments import JointMoments
from factorize.accounting.law import Law
from factorize.errors import InvalidParameter
from factorize.format.manifest import CertifiedFactors
from factorize.participation import Participation
from factorize.privacy import Calibration, check_kind
from factorize.privacy.adjacency import check_zero_out
from factorize.privacy.question import Question, SamplingOptions
from factorize.samplings.first_steps import first_steps
from factorize.structures.base import Matrix
from factorize.training.auditor import Auditor, ParticipationAuditor
from factorize.training.batches import Batches
from factorize.training.job import Source, TrainingJob


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A factorization and its noise, with the order that both are for.

    Attributes:
        factors: the factors of C.
        calibration: the calibration of its noise.
        order: the order of the examples, or of the users where examples have users.
        overflow_delta: the part of delta for an overflow, see `PrivacyStatement`.
        second: the factors of C2, if the squares of gradients have noise of their own.
        moments: noise of both moments; `calibration` is that of the first.
    """

    factors: CertifiedFactors
    calibration: Calibration
    order: Batches
    overflow_delta: float = 0.0
    second: CertifiedFactors | None = None
    moments: JointMoments | None = None


class CodeNumbers(NamedTuple):
    """The numbers of a training job that its code contains."""

    epsilon: float
    delta: float
    batch_size: int
    epochs: int
    steps: int


class Sampling(ABC):
    """A law by which examples take part in the steps of a run.

    Attributes:
        name: the name in specs, calibrations, comparisons and `--sampling`.
        title: the title that people read.
        title_of_one_epoch: the title that people read for a run of one epoch, if it has another one.
        loader: one sentence on the work of a training job's loader.
        secret: the secret that epsilon relies on.
        takes: the options of a calibration that it uses, among `dataset_size`, `batch_size`, `bins` and `work`.
        claimed: whether samples can verify less noise than bounds prove.
        drawn: whether examples are drawn in secret.
        imports: the line of code that imports the order.
        audit: the line of code that imports the auditor of `order`, and the expression that makes it.
        padded: whether its batches come in parts of one shape.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    title_of_one_epoch: ClassVar[str | None] = None
    loader: ClassVar[str]
    secret: ClassVar[str]
    takes: ClassVar[tuple[str, ...]] = ()
    claimed: ClassVar[bool] = False
    drawn: ClassVar[bool] = True
    imports: ClassVar[str]
    audit: ClassVar[tuple[str, str]] = (
        "from factorize.training.auditor import ParticipationAuditor",
        "ParticipationAuditor.of(scale, factors.steps)",
    )
    padded: ClassVar[bool] = True

    @abstractmethod
    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return why the sampling cannot be used with a strategy, or None where it fits."""

    def law(self, factorization: CertifiedFactors, asked: SamplingOptions) -> Law | None:
        """Return the law of random batches on C, or None where no batch is random; it raises as `calibrate` does."""
        return None

    @abstractmethod
    def calibrate(self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions) -> Calibration:
        """Return the noise; see `calibrate_sampling`."""

    def of_first_steps(
        self, run: factorize.Factorization, steps: int, asked: SamplingOptions
    ) -> tuple[factorize.Factorization, SamplingOptions]:
        """Return the factorization and the options for a calibration of the releases in the first steps of a run."""
        return first_steps(run, steps), asked

    def check_used(self, asked: SamplingOptions) -> None:
        """Raise InvalidParameter for options that the sampling does not use; the size of a batch is no divisor."""
        reasons = {
            "work": f"applies to balls_in_bins only, not to {self.name}; leave it out",
            "bins": f"applies to balls_in_bins and random_allocation only, not to {self.name}; leave it out",
            "batch_size": f"applies to Poisson sampling only, not to {self.name}; leave it out, and give the fixed "
            "public divisor of means as divisor",
            "dataset_size": f"applies to Poisson sampling only, not to {self.name}; leave it out",
        }
        for name, reason in reasons.items():
            given = getattr(asked, name)
            if given is not None and name not in self.takes:
                raise InvalidParameter(f"{name}={given} {reason}", field=name)

    @abstractmethod
    def plan(self, job: TrainingJob, squares: Source | None) -> Drawn:
        """Return factorization, noise and order of a training job; raise where the job cannot have them.

        Args:
            job: the job, from whose secret seed the order draws, if it draws.
            squares: source of the factorization for the squares of gradients, if these have noise of their own.
        """

    def auditor(self, drawn: Drawn, users: Sequence[object] | np.ndarray | None) -> Auditor:
        """Return the auditor of a job's order; raise InvalidParameter for users whom it cannot tell apart."""
        return ParticipationAuditor.of(drawn.calibration, drawn.factors.steps, users=users, draws_users=True)

    @property
    def trained_as(self) -> str:
        """The name that training jobs use for it."""
        return self.name

    @abstractmethod
    def code(self, numbers: CodeNumbers, count: str, divisor: str = "") -> list[str]:
        """Return lines of code that calibrate `factors` to `scale`, and make `order` for it.

        Args:
            numbers: the numbers of the job.
            count: an expression for the number of examples.
            divisor: a further argument of the calibration, with its comma.
        """

    def called(self, epochs: int) -> str:
        """Return the title for a run of this many epochs."""
        return (self.title_of_one_epoch if epochs == 1 else None) or self.title

    def options(self, asked: SamplingOptions) -> str:
        """Return the options of `factorize calibrate` that ask for this sampling, without epsilon and delta."""
        return f" --sampling {self.name}"

    def document(self) -> dict[str, str]:
        """Return the plain JSON form."""
        return {"sampling": self.name, "title": self.title, "loader": self.loader, "secret": self.secret}


def check_given(job: TrainingJob, given: object, delta: float, **sizes: int) -> Calibration:
    """Return the calibration that a job was given.

    Args:
        job: the job.
        given: the calibration.
        delta: the delta of the job, less the share of its batches' capacity.
        **sizes: sizes that the calibration has to state, such as `dataset_size`.

    Raises:
        InvalidParameter: it has less privacy, another clip norm, divisor or size than asked for.
        UnsupportedAdjacency: the job asks for another adjacency than zero-out.
    """
    calibration = check_kind(given)
    check_zero_out(job.privacy.adjacency)  # calibrations that count on sampling know no other
    level, asked = calibration.level, (job.privacy.epsilon, delta)
    if level is None or level[0] > asked[0] or level[1] > delta:
        raise InvalidParameter(
            f"the calibration is for {level}, but the target, less the share of the batches' capacity, is {asked}; "
            "calibrate for that",
            field="calibration",
        )
    for name, own in {"clip_norm": job.scale["clip_norm"], "divisor": job.scale["divisor"], **sizes}.items():
        stated = getattr(calibration, name, None)
        if own != stated:
            message = f"the calibration is for {name}={stated}, but the job has {own}; calibrate with {name}={own}"
            raise InvalidParameter(message, field=name)
    return calibration
