"""The scheme of a sampling: what it is called, what it needs, how it calibrates, what a loader has to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from factorize.accounting.law import Law
from factorize.errors import InvalidParameter
from factorize.format.factors import CertifiedFactors
from factorize.numbers.scalars import whole_number
from factorize.participation import Participation
from factorize.privacy import Adjacency, Calibration
from factorize.privacy_question import GivenNoise, Question
from factorize.structures.base import Matrix

Method = Literal["verified", "deterministic"]
"""What a claim under bins may rest on: bets as well, or closed forms and bounds alone."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """What a calibration is asked for beside the privacy; `CalibrationRequest` says what each option means."""

    clip_norm: float = 1.0
    divisor: int | None = None
    adjacency: Adjacency | str = Adjacency.ZERO_OUT
    dataset_size: int | None = None
    batch_size: int | None = None
    bins: int | None = None
    method: Method = "verified"

    def __post_init__(self) -> None:
        """Check the sizes, whichever scheme uses them."""
        for name in ("dataset_size", "batch_size"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name))

    @property
    def scale(self) -> dict[str, Any]:
        """What every calibration takes."""
        return {"clip_norm": self.clip_norm, "divisor": self.divisor, "adjacency": self.adjacency}

    @property
    def sized(self) -> bool:
        """Whether the Poisson schemes have what they need."""
        return self.dataset_size is not None and self.batch_size is not None

    def refuse_sizes(self, sampling: str) -> None:
        """Raise InvalidParameter for the sizes of a Poisson scheme, where there is none; a batch's is no divisor."""
        if self.batch_size is not None:
            raise InvalidParameter(
                f"batch_size={self.batch_size} is of the Poisson schemes, divides nothing, and is of no use to "
                f"{sampling}; leave it out, and give the fixed public divisor of means as divisor",
                field="batch_size",
            )
        if self.dataset_size is not None:
            raise InvalidParameter(
                f"dataset_size={self.dataset_size} is of the Poisson schemes, and no use to {sampling}; leave it out",
                field="dataset_size",
            )


class SamplingScheme(ABC):
    """A law by which examples take part in the steps of a run, with its accountant.

    Attributes:
        name: as calibrations, comparisons and `--sampling` call it.
        title: for people.
        loader: one sentence on what a training job's loader has to do.
        secret: what epsilon counts on nobody knowing.
        claimed: whether samples can verify less noise than bounds prove.
        basis: what calibrations rest on that do not say so themselves.
        title_of_one_epoch: for people, where a run of one epoch has another title.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    title_of_one_epoch: ClassVar[str | None] = None
    basis: ClassVar[str] = "accountant"
    loader: ClassVar[str]
    secret: ClassVar[str]
    claimed: ClassVar[bool] = False

    @abstractmethod
    def misfit(self, participation: Participation, strategy: Matrix, asked: SamplingOptions) -> str | None:
        """Return why the scheme has nothing to say about a strategy, or None where it fits."""

    @abstractmethod
    def calibrate(self, factorization: CertifiedFactors, target: Question, asked: SamplingOptions) -> Calibration:
        """Return the noise; see `calibrate_sampling`."""

    def law(self, factorization: CertifiedFactors, asked: SamplingOptions) -> Law | None:
        """Return the law of random batches on C, None where no batch is random.

        It raises as `calibrate` does.
        """
        return None

    def check_used(self, asked: SamplingOptions) -> None:
        """Raise InvalidParameter for options that the scheme has no use for."""
        if asked.bins is not None:
            raise InvalidParameter(
                f"bins={asked.bins} is for balls_in_bins, not for {self.name}; leave it out", field="bins"
            )

    def method(self, found: Calibration) -> str:
        """Return what a calibration rests on: `deterministic`, `verified` by a claim, or `accountant`."""
        return str(getattr(found, "method", self.basis))

    def called(self, epochs: int) -> str:
        """Return the title for a run of so many epochs."""
        return (self.title_of_one_epoch if epochs == 1 else None) or self.title

    def options(self, asked: SamplingOptions) -> str:
        """Return the options of `factorize calibrate` that ask for this, beside epsilon and delta."""
        return f" --sampling {self.name}"

    def document(self) -> dict[str, str]:
        """Return the plain JSON form."""
        return {"sampling": self.name, "title": self.title, "loader": self.loader, "secret": self.secret}


def level_of(target: Question, name: str) -> dict[str, Any]:
    """Return epsilon and delta, or sigma and one of them; raise InvalidParameter for another target."""
    if isinstance(target, GivenNoise):
        return {"epsilon": target.epsilon, "delta": target.delta, "sigma": target.sigma}
    if target.epsilon is None or target.delta is None:
        raise InvalidParameter(
            f"rho and mu describe the noise without {name}, and an amplified run is no Gaussian mechanism; give "
            "epsilon and delta",
            field="epsilon",
        )
    return {"epsilon": target.epsilon, "delta": target.delta}
