"""The plan, and what all requests for one have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from factorize.errors import ConditionNotMet
from factorize.plain_data import Count, Frozen, Positive
from factorize.predict import Prediction
from factorize.privacy import Adjacency, PrivacyTarget

AdjacencyName = Literal["zero_out", "replace_one"]
Delta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A full parameter set.

    Attributes:
        system: which training system.
        parameters: of the algorithm, in the names of `factorize.training`.
        noise: the target, the noise multiplier, and sigma per entry of Z at sensitivity 1.
        spec: what to solve, in the contract's JSON form; None where the noise is independent by definition.
        predictions: what the papers promise at these parameters.
        questions: what to ask `factorize predict` about the solved spec, where the promise depends on it.
        notes: what was rounded, dropped or assumed.
        comparison: a request for `factorize compare`, whose answer may be a better mechanism under a sampling; None
            where no sampling is covered.
    """

    system: str
    parameters: Mapping[str, Any]
    noise: Mapping[str, Any]
    spec: Mapping[str, Any] | None
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    questions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    comparison: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        return {
            "system": self.system,
            "parameters": dict(self.parameters),
            "noise": dict(self.noise),
            "spec": None if self.spec is None else dict(self.spec),
            "predictions": {name: prediction.document() for name, prediction in self.predictions.items()},
            "questions": {name: dict(question) for name, question in self.questions.items()},
            "notes": list(self.notes),
            "comparison": None if self.comparison is None else dict(self.comparison),
        }


class PlanRequest(Frozen):
    """Base of the requests.

    Attributes:
        examples: n, size of the data set.
        epsilon: of (epsilon, delta)-DP.
        delta: of (epsilon, delta)-DP.
        adjacency: `zero_out` or `replace_one`.
    """

    default_adjacency: ClassVar[AdjacencyName] = "zero_out"

    examples: Count
    epsilon: Positive
    delta: Delta
    adjacency: AdjacencyName | None = None

    @property
    def relation(self) -> Adjacency:
        """The adjacency, the system's own where none is named."""
        return Adjacency.parse(self.adjacency or self.default_adjacency)

    @abstractmethod
    def plan(self) -> Plan:
        """Return the full parameter set.

        Raises:
            ConditionNotMet: no run with these numbers is covered; the message says what to change.
        """

    def noise(self, clip_norm: float, divisor: int) -> dict[str, Any]:
        """Return the noise of one Gaussian mechanism with sensitivity 1, for means with a fixed divisor."""
        target = PrivacyTarget(epsilon=self.epsilon, delta=self.delta)
        multiplier = target.noise_multiplier
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "adjacency": self.relation.value,
            "noise_multiplier": multiplier,
            "clip_norm": clip_norm,
            "batch_size": divisor,
            "sigma_at_sensitivity_1": multiplier * self.relation.factor * clip_norm / divisor,
            "mu": 1 / multiplier,
            "rho": 1 / (2 * multiplier**2),
        }

    def comparison(self, spec: Mapping[str, Any] | None, batch_size: int) -> dict[str, Any] | None:
        """Return the comparison of all mechanisms for a spec under all samplings, which are accounted for zero-out."""
        if spec is None or self.relation is not Adjacency.ZERO_OUT:
            return None
        sizes = {"dataset_size": self.examples, "batch_size": batch_size}
        alone = {name: value for name, value in spec.items() if name != "mechanism"}
        return {"spec": alone, "epsilon": self.epsilon, "delta": self.delta, **sizes}

    def batches(self, batch_size: int, *, pad: bool = False) -> int:
        """Return the full batches of one pass, and a shorter last one where they are padded.

        Raises:
            ConditionNotMet: there is none.
        """
        if pad:
            return -(-self.examples // batch_size)
        if batch_size > self.examples:
            raise ConditionNotMet(
                f"batch_size={batch_size} makes no full batch of {self.examples} examples; use at most {self.examples}",
                field="/batch_size",
            )
        return self.examples // batch_size

    def dropped(self, batch_size: int) -> tuple[str, ...]:
        """Say how many examples a fixed order with full batches leaves out."""
        left = self.examples % batch_size
        return (f"{left} of {self.examples} examples are in no batch (drop-last)",) if left else ()
