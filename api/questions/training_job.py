"""A training job that wants a mechanism: the one statement of its questions for HTTP, the command line and Python."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field

from factorize.adapters.fleet import FleetAdvice, advise_fleet
from factorize.api.questions.comparison import ALL_SAMPLINGS, SamplingNames
from factorize.errors import InvalidParameter, InvalidSpec, Violation
from factorize.plain_data import Count, Frozen, Positive, read_union
from factorize.spec import Spec, parse_spec
from factorize.workloads import KINDS

DEFAULT_MEMORY = (4,)
"""Vectors of noise state, where nobody says how many: what most of the gain takes."""
DEFAULT_SECONDS = 10.0
"""Time for an answer, where nobody says how much."""
_CONSTANT = ("prefix", "momentum")
"""Workloads of a constant learning rate, where none are listed."""
_Delta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
_Examples = Annotated[int, Field(ge=1, le=10**12)]
_Vectors = Annotated[int, Field(ge=0, le=10**6)]


class Job(Frozen):
    """A training job that wants a mechanism, whoever its data come from.

    Attributes:
        epsilon: of (epsilon, delta)-DP, zero-out.
        delta: with `epsilon`.
        memory: vectors of noise state that may be kept; of several budgets the answer is for the largest.
        parameters: of the model: adds the seconds of a step's noise.
        workload: what the optimizer sums, without `n`; running sums by default.
        objective: the mean by default.
        seconds: for all: what promises most is tried first, and the answer says what was not.
    """

    independent: ClassVar[str]
    """What independent noise is called."""
    units: ClassVar[str]
    """Name of the field with the number of those whose data are protected."""

    epsilon: Positive
    delta: _Delta
    memory: Annotated[
        list[_Vectors],
        Field(min_length=1, max_length=8, description="in vectors of the size of the model"),
    ] = list(DEFAULT_MEMORY)
    parameters: Annotated[int, Field(ge=1, le=10**13)] | None = None
    workload: dict[str, Any] | None = None
    objective: dict[str, Any] | None = None
    seconds: Positive = DEFAULT_SECONDS

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps of the run."""

    @property
    @abstractmethod
    def divisor(self) -> int:
        """What a mean is divided by."""

    @property
    @abstractmethod
    def participation(self) -> dict[str, Any]:
        """Of one example, or of one client, as plain data."""

    @property
    def sampled(self) -> dict[str, Any]:
        """What a comparison is told of sampling."""
        return {}

    @property
    def loader(self) -> dict[str, Any]:
        """What has to be done that no sampling scheme says: `loader` and `secret`."""
        return {}

    @property
    @abstractmethod
    def title(self) -> str:
        """The job in a few words."""

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """Return its own numbers and those that follow from them."""

    def notes(self) -> list[str]:
        """Return what is to be known of it, whatever the answer is."""
        count = getattr(self, self.units)
        if self.delta <= 1 / count:
            return []
        return [
            f"delta={self.delta:g} is above 1 / {self.units} = {1 / count:.2g}: publishing the data of one at random "
            "would keep to it; take a smaller one",
        ]

    def check(self) -> None:
        """Refuse numbers that do not fit each other.

        Raises:
            InvalidParameter: they do not.
        """


class RecommendRequest(Job):
    """A training job on a data set.

    Attributes:
        examples: in the data set.
        batch_size: examples of a step; expected ones where batches are random.
        epochs: passes over the data.
        samplings: what the loader can do, beside a fixed order; all by default.
    """

    units = "examples"
    independent = "DP-SGD (independent noise), its best sampling"

    examples: _Examples
    batch_size: _Examples
    epochs: Count = 1
    samplings: SamplingNames | None = Field(default=None, json_schema_extra=ALL_SAMPLINGS)

    @property
    def steps(self) -> int:
        """Full batches of an epoch, times epochs."""
        return self.epochs * (self.examples // self.batch_size)

    @property
    def divisor(self) -> int:
        """Examples of a step."""
        return self.batch_size

    @property
    def participation(self) -> dict[str, Any]:
        """Each example once in an epoch."""
        return {"kind": "single"} if self.epochs == 1 else {"kind": "fixed_epochs", "epochs": self.epochs}

    @property
    def sampled(self) -> dict[str, Any]:
        """Sizes and schemes: without random allocation where each example is in one step, which are bins."""
        from factorize.accounting.schemes import SAMPLINGS

        once = [name for name in SAMPLINGS if name != "random_allocation"] if self.epochs == 1 else None
        schemes = self.samplings if self.samplings is not None else once
        return {"dataset_size": self.examples, "batch_size": self.batch_size, "samplings": schemes}

    @property
    def title(self) -> str:
        """Examples, batches and epochs."""
        passes = f"{self.epochs} epoch{'s' if self.epochs > 1 else ''}"
        return f"{self.examples} examples in batches of {self.batch_size}, {passes}"

    def numbers(self) -> dict[str, Any]:
        """Return examples, batch and epochs."""
        return {"examples": self.examples, "batch_size": self.batch_size, "epochs": self.epochs}

    def notes(self) -> list[str]:
        """Name the examples that are in no batch, and what a constant learning rate costs, too."""
        left = self.examples % self.batch_size
        notes = [f"{left} of {self.examples} examples are in no batch (drop-last)"] if left else []
        workload = self.workload or {"kind": "prefix"}
        if self.objective is None and workload["kind"] in _CONSTANT and not workload.get("learning_rates"):
            notes.append(
                "the learning rate is constant; in our study (docs/choose.md) models were more accurate with one that "
                "falls to zero (learning_rates: cosine), and, where it stays constant, with the objective lambda_tau "
                f"and tau={self.steps}"
            )
        return notes + super().notes()

    def check(self) -> None:
        """Refuse a batch that is larger than the data set."""
        check_batch(self.examples, self.batch_size)


class FleetRequest(Job):
    """A federated training job: the guarantee is of one client, whose rounds a timer keeps apart.

    Attributes:
        clients: in the fleet.
        clients_a_round: asked in each round.
        rounds: of the whole run.
        check_in: rounds after which a client returns by itself; by default the server chooses among all.
        offline: share of the fleet that does not answer in a round.
    """

    units = "clients"
    independent = "independent noise, with the same timers"

    clients: _Examples
    clients_a_round: _Examples
    rounds: _Examples
    check_in: Count | None = None
    offline: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @cached_property
    def fleet(self) -> FleetAdvice:
        """How far apart its clients' rounds can be."""
        sizes = (self.clients, self.clients_a_round, self.rounds)
        return advise_fleet(*sizes, check_in=self.check_in, offline=self.offline)

    @property
    def steps(self) -> int:
        """Its rounds."""
        return self.rounds

    @property
    def divisor(self) -> int:
        """Clients that are asked; a constant, however many answer."""
        return self.clients_a_round

    @property
    def participation(self) -> dict[str, Any]:
        """Each client again after some rounds."""
        return dict(self.fleet.spec["participation"])

    @property
    def loader(self) -> dict[str, Any]:
        """The timers; the choice of clients may be known."""
        apart, most = self.fleet.min_sep, self.fleet.max_participations
        rule = (
            f"Ask a client in at most {most} of the rounds, at least {apart} apart; divide by a public constant, never "
            "by the number of answers."
        )
        return {"loader": rule, "secret": "nothing"}

    @property
    def title(self) -> str:
        """Clients and rounds."""
        return f"{self.clients} clients, {self.clients_a_round} in each of {self.rounds} rounds"

    def numbers(self) -> dict[str, Any]:
        """Return the fleet, and what its timers keep to."""
        own = {name: getattr(self, name) for name in ("clients", "clients_a_round", "rounds", "check_in", "offline")}
        return own | {"min_sep": self.fleet.min_sep, "max_participations": self.fleet.max_participations}

    def notes(self) -> list[str]:
        """Say how often a client takes part, too."""
        return [self.fleet.spread, *super().notes()]

    def check(self) -> None:
        """Refuse a fleet that is too small for one round."""
        _ = self.fleet


JobKind = TypeVar("JobKind", bound=Job)


def kind_of(names: Iterable[str]) -> type[Job]:
    """Return which kind of job is meant by fields of such names: a fleet's where one of them is of fleets alone."""
    return FleetRequest if set(names) & (set(FleetRequest.model_fields) - set(Job.model_fields)) else RecommendRequest


def read_job(document: Mapping[str, Any], kind: type[JobKind]) -> JobKind:
    """Read a training job from plain data, and check its workload and objective at its number of steps.

    Args:
        document: see `kind`.
        kind: `RecommendRequest` or `FleetRequest`.

    Raises:
        InvalidSpec: it is none; pointers to the fields.
        InvalidParameter: a batch that is larger than the data set, or a fleet that is too small.
    """
    request: JobKind = read_union(document, kind)
    request.check()
    workload = request.workload or {"kind": "prefix"}
    if "n" in workload:
        raise InvalidSpec([Violation("/workload/n", "n is the number of the job's steps, and follows from it")])
    if workload.get("kind") == "matrix":
        why = "a matrix of one's own has no number of steps to choose; compare mechanisms for it at POST /v1/compare"
        raise InvalidSpec([Violation("/workload/kind", why)])
    objective = {"objective": request.objective} if request.objective else {}
    parse_spec({"workload": {**workload, "n": request.steps}, **objective})
    return request.model_copy(update={"memory": sorted(set(request.memory))})


def check_batch(examples: int, batch_size: int) -> None:
    """Refuse a batch that is larger than the data set.

    Raises:
        InvalidParameter: it is.
    """
    if batch_size > examples:
        raise InvalidParameter(
            f"batch_size={batch_size} makes no full batch of {examples} examples; give at most {examples}",
            field="batch_size",
        )


def about(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workload and the objective of a spec of which nothing else is given.

    Raises:
        InvalidParameter: something else is.
    """
    other = [name for name in document if name not in ("workload", "objective")]
    if other or "n" in document.get("workload", {}):
        other = other or ["n"]
        raise InvalidParameter(
            f"{', '.join(other)} follows from the job, or is what is recommended; give a workload and an objective "
            "alone",
            field=other[0],
        )
    return dict(document)


def schemas(reference: str) -> dict[str, Any]:
    """Return the schemas of jobs and of the workloads that they may name, by name.

    Args:
        reference: template of references, with `{model}`.
    """
    named: dict[str, Any] = {}
    for kind in KINDS.values():
        schema = kind.model_json_schema(ref_template=reference)
        if "n" not in schema["properties"]:  # it lists its rows
            continue
        schema.pop("$defs", None)
        del schema["properties"]["n"]
        schema["required"] = [name for name in schema["required"] if name != "n"]
        named[f"{kind.__name__}OfJob"] = schema
    kinds = [{"$ref": reference.format(model=name)} for name in named]
    objective = Spec.model_json_schema(ref_template=reference)["properties"]["objective"]["oneOf"]
    for job in (RecommendRequest, FleetRequest):
        request = job.model_json_schema(ref_template=reference)
        own = {name: request["properties"][name] for name in job.__annotations__ if name in request["properties"]}
        request["properties"] = {**own, **request["properties"]}  # what the job is, and then what is asked of it
        request["properties"]["workload"] = {"anyOf": [*kinds, {"type": "null"}], "default": None}
        request["properties"]["objective"] = {"anyOf": [*objective, {"type": "null"}], "default": None}
        named[job.__name__] = request
    return named
