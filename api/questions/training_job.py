"""A training job that wants a mechanism: the one statement of its questions for HTTP, the command line and Python."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field, field_validator

from factorize.adapters.fleet import advise_fleet
from factorize.api.questions.comparison import ALL_SAMPLINGS, Budgets, Parameters, SamplingNames
from factorize.api.questions.optimizer import (
    OPTIMIZERS,
    Optimizer,
    is_optimizer,
    nearest_workload,
    read_optimizer,
    with_warmup,
)
from factorize.encoding import JsonObject
from factorize.errors import InvalidParameter, InvalidSpec, Violation
from factorize.format.labels import describe_part
from factorize.plain_data import Count, Examples, Frozen, OpenUnit, Positive, read_union
from factorize.samplings import SAMPLINGS
from factorize.spec import Spec, parse_spec
from factorize.workloads import KINDS

DEFAULT_MEMORY = (4,)
"""Vectors of noise state, where nobody says how many: what most of the gain takes."""
DEFAULT_SECONDS = 10.0
"""Processor seconds for an answer, where nobody says how many."""
_CONSTANT_RATES = ("prefix", "momentum", *OPTIMIZERS)
"""The workloads and optimizers of a constant learning rate, where none are listed."""


class Run(NamedTuple):
    """The numbers that follow from those of a job.

    Attributes:
        title: the job in a few words.
        steps: steps of the run.
        divisor: what a mean is divided by.
        participation: participation of one example, or of one client, as plain data.
        numbers: the job's own, and those that follow from them.
        units: name of the field with the number of those whose data are protected.
        independent: what independent noise is called.
        notes: what is to be known of it, whatever the answer is.
        objective: objective by which rows are ordered, in place of the mean; a job's own comes first.
        sampled: what a comparison is told of sampling.
        loader: what has to be done that no sampling scheme says: `loader` and `secret`.
    """

    title: str
    steps: int
    divisor: int
    participation: JsonObject
    numbers: JsonObject
    units: str
    independent: str
    notes: list[str]
    objective: JsonObject | None = None
    sampled: Mapping[str, object] = MappingProxyType({})
    loader: Mapping[str, Any] = MappingProxyType({})


class Job(Frozen, use_attribute_docstrings=True):
    """A training job that wants a mechanism, whoever its data come from."""

    epsilon: Positive
    """The epsilon of (epsilon, delta)-DP, zero-out."""
    delta: OpenUnit
    """The delta that goes with `epsilon`."""
    memory: Budgets = list(DEFAULT_MEMORY)
    """Vectors of noise state that may be kept; of several budgets the answer is for the largest."""
    parameters: Parameters | None = None
    """Parameters of the model, which add the seconds of a step's noise."""
    workload: JsonObject | None = None
    """What the optimizer sums, without `n`, or the optimizer itself; running sums by default."""
    objective: JsonObject | None = None
    """The objective; by default the mean, or at a constant learning rate lambda_tau over all steps."""
    seconds: Positive = DEFAULT_SECONDS
    """Processor seconds for all: what promises most is tried first, and the answer says what was not."""

    @field_validator("workload")
    @classmethod
    def _take_class_names(cls, workload: JsonObject | None) -> JsonObject | None:
        """Read the name of an optimizer's class, `AdamW` say, as its name here."""
        name = str((workload or {}).get("kind")).lower()
        return {**(workload or {}), "kind": name} if name in OPTIMIZERS else workload

    @property
    @abstractmethod
    def run(self) -> Run:
        """Return what follows from the job's numbers.

        Raises:
            InvalidParameter: they do not fit each other.
        """

    @cached_property
    def optimizer(self) -> Optimizer | None:
        """The optimizer that `workload` names, if it is no workload.

        Raises:
            InvalidSpec: it is none.
        """
        if self.workload is None or not is_optimizer(self.workload):
            return None
        return read_optimizer(with_warmup(self.workload, self.run.steps)[0])

    @cached_property
    def sums(self) -> JsonObject:
        """The workload that is answered for, as plain data without `n`; see `optimizer`."""
        if self.optimizer is not None:
            return nearest_workload(self.optimizer)
        return with_warmup(self.workload or {"kind": "prefix"}, self.run.steps)[0]

    def notes(self) -> list[str]:
        """Return notes that hold whatever the answer is."""
        units, count = self.run.units, getattr(self, self.run.units)
        nearest = None if self.optimizer is None else self.optimizer.approximation(describe_part(self.sums))
        warmup = with_warmup(self.workload or {}, self.run.steps)[1]
        notes = [*(note for note in (nearest, warmup) if note is not None), *self.run.notes]
        if self.delta <= 1 / count:
            return notes
        return [
            *notes,
            f"delta={self.delta:g} is above 1 / {units} = {1 / count:.2g}, so publishing the data of one at random "
            "would satisfy it; give a smaller one",
        ]


class RecommendRequest(Job, use_attribute_docstrings=True):
    """A training job on a data set."""

    examples: Examples
    """Examples in the data set."""
    batch_size: Examples
    """Examples of a step; expected ones where batches are random."""
    epochs: Count = 1
    """Passes over the data."""
    samplings: SamplingNames | None = Field(default=None, json_schema_extra=ALL_SAMPLINGS)
    """What the loader can do, beside a fixed order; all by default."""

    @cached_property
    def run(self) -> Run:
        """Return the run of full batches of an epoch, times epochs; each example is once in an epoch."""
        check_batch(self.examples, self.batch_size)
        steps, left = self.epochs * (self.examples // self.batch_size), self.examples % self.batch_size
        sizes = {"batch_size": self.batch_size, "samplings": self.samplings}
        if self.samplings is None and self.epochs == 1:  # random allocation of one step each is balls in bins
            sizes["samplings"] = [name for name in SAMPLINGS if name != "random_allocation"]
        notes = [f"{left} of {self.examples} examples are in no batch (drop-last)"] if left else []
        workload, objective = self.workload or {"kind": "prefix"}, self.objective
        if objective is None and workload.get("kind") in _CONSTANT_RATES and not workload.get("learning_rates"):
            objective = {"kind": "lambda_tau", "tau": steps}
            notes.append(
                "the learning rate is constant, so the noise of the last steps stays in the weights. Rows are "
                f"therefore ordered by the objective lambda_tau with tau={steps}, not by the mean. In our study "
                "(docs/choose.md), models were more accurate with a rate that falls to zero (learning_rates: cosine)"
            )
        passes = f"{self.epochs} epoch{'s' if self.epochs > 1 else ''}"
        return Run(
            title=f"{self.examples} examples in batches of {self.batch_size}, {passes}",
            steps=steps,
            divisor=self.batch_size,
            participation={"kind": "single"} if self.epochs == 1 else {"kind": "fixed_epochs", "epochs": self.epochs},
            numbers={"examples": self.examples, "batch_size": self.batch_size, "epochs": self.epochs},
            units="examples",
            independent="DP-SGD (independent noise), its best sampling",
            notes=notes,
            objective=objective,
            sampled={"dataset_size": self.examples, **sizes},
        )


class FleetRequest(Job, use_attribute_docstrings=True):
    """A federated training job: the guarantee is of one client, whose rounds a timer keeps apart."""

    clients: Examples
    """Clients in the fleet."""
    clients_a_round: Examples
    """Clients that are asked in each round."""
    rounds: Examples
    """Rounds of the whole run."""
    check_in: Count | None = None
    """Rounds after which a client returns by itself; by default the server chooses among all."""
    offline: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the fleet that does not answer in a round."""

    @cached_property
    def run(self) -> Run:
        """Return the rounds, how far apart those of a client can be, and timers; the choice of clients may be known."""
        sizes = (self.clients, self.clients_a_round, self.rounds)
        fleet = advise_fleet(*sizes, check_in=self.check_in, offline=self.offline)
        rule = (
            f"Ask a client in at most {fleet.max_participations} of the rounds, at least {fleet.min_sep} apart; divide "
            "by a public constant, never by the number of answers."
        )
        names = ("clients", "clients_a_round", "rounds", "check_in", "offline")
        limits = {"min_sep": fleet.min_sep, "max_participations": fleet.max_participations}
        return Run(
            title=f"{self.clients} clients, {self.clients_a_round} in each of {self.rounds} rounds",
            steps=self.rounds,
            divisor=self.clients_a_round,  # a constant, however many answer
            participation=dict(fleet.spec["participation"]),
            numbers={**{name: getattr(self, name) for name in names}, **limits},
            units="clients",
            independent="independent noise, with the same timers",
            notes=[fleet.spread],
            loader={"loader": rule, "secret": "nothing"},
        )


JobKind = TypeVar("JobKind", bound=Job)


def kind_of(names: Iterable[str]) -> type[Job]:
    """Return which kind of job is meant by fields of such names: a fleet's where one of them is of fleets alone."""
    return FleetRequest if set(names) & (set(FleetRequest.model_fields) - set(Job.model_fields)) else RecommendRequest


def read_job(document: Mapping[str, object], kind: type[JobKind]) -> JobKind:
    """Read a training job from plain data, and check its workload and objective at its number of steps.

    Args:
        document: see `kind`.
        kind: `RecommendRequest` or `FleetRequest`.

    Raises:
        InvalidSpec: it is none; pointers to the fields.
        InvalidParameter: a batch that is larger than the data set, or a fleet that is too small.
    """
    request: JobKind = read_union(document, kind)
    steps = request.run.steps
    if "n" in (request.workload or {}):
        raise InvalidSpec([Violation("/workload/n", "leave out n, which is the number of the job's steps")])
    kind_of_sums = (request.workload or {"kind": "prefix"}).get("kind")
    if kind_of_sums not in (*KINDS, *OPTIMIZERS):
        why = (
            f"{str(kind_of_sums)[:40]!r} is not a known optimizer or workload; give one of {', '.join(OPTIMIZERS)} "
            f"(other takes any optimizer's momentum and learning_rates), or of {', '.join(KINDS)}"
        )
        raise InvalidSpec([Violation("/workload/kind", why)])
    workload = request.sums
    if workload.get("kind") == "matrix":
        why = "your own matrix fixes the number of steps; compare mechanisms for it at POST /v1/compare"
        raise InvalidSpec([Violation("/workload/kind", why)])
    objective = {"objective": request.objective} if request.objective else {}
    parse_spec({"workload": {**workload, "n": steps}, **objective})
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


def about(document: Mapping[str, Any]) -> JsonObject:
    """Return the workload and the objective of a spec of which nothing else is given.

    Raises:
        InvalidParameter: something else is.
    """
    other = [name for name in document if name not in ("workload", "objective")]
    workload = document.get("workload")
    if other or (isinstance(workload, Mapping) and "n" in workload):
        other = other or ["n"]
        raise InvalidParameter(
            f"leave out {', '.join(other)}, which the job or the recommendation decides; give only a workload and an "
            "objective",
            field=other[0],
        )
    return dict(document)


def schemas(reference: str) -> JsonObject:
    """Return the schemas of jobs and of the workloads that they may name, by name.

    Args:
        reference: template of references, with `{model}`.
    """
    named: dict[str, object] = {}
    for optimizer in OPTIMIZERS.values():
        schema = optimizer.model_json_schema(ref_template=reference)
        schema.pop("$defs", None)
        named[optimizer.__name__] = schema
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
        request["properties"] = {**own, **request["properties"]}  # the job's own fields come first
        request["properties"]["workload"] = {"anyOf": [*kinds, {"type": "null"}], "default": None}
        request["properties"]["objective"] = {"anyOf": [*objective, {"type": "null"}], "default": None}
        named[job.__name__] = request
    return named
