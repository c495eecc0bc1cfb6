"""The request for a recommendation over HTTP: the training job's questions as one JSON object, and its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from factorize.api.recommending.training_question import (
    DEFAULT_MEMORY,
    MOST_BUDGETS,
    MOST_MEMORY,
    TrainingQuestion,
)
from factorize.errors import InvalidSpec, Violation
from factorize.plain_data import Count, Frozen, Positive, read_union
from factorize.spec import Spec, parse_spec
from factorize.workloads import KINDS

_Delta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
_Examples = Annotated[int, Field(ge=1, le=10**12)]
_Vectors = Annotated[int, Field(ge=0, le=MOST_MEMORY)]


class RecommendRequest(Frozen):
    """A training job that wants a mechanism; the fields are those of `TrainingQuestion`.

    Attributes:
        examples: in the data set.
        batch_size: examples of a step; expected ones where batches are random.
        epochs: passes over the data.
        epsilon: of (epsilon, delta)-DP, zero-out.
        delta: see `epsilon`.
        memory: budgets in vectors of noise state; the answer is for the largest.
        parameters: of the model, for seconds per step.
        workload: what the optimizer sums, without `n`; running sums by default.
        objective: the mean by default.
        samplings: that the loader can do, beside a fixed order; all by default.
        max_seconds: mechanisms that would take longer are left out.
    """

    examples: _Examples
    batch_size: _Examples
    epochs: Count = 1
    epsilon: Positive
    delta: _Delta
    memory: Annotated[list[_Vectors], Field(min_length=1, max_length=MOST_BUDGETS)] = list(DEFAULT_MEMORY)
    parameters: Annotated[int, Field(ge=1, le=10**13)] | None = None
    workload: dict[str, Any] | None = None
    objective: dict[str, Any] | None = None
    samplings: Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=8)] | None = None
    max_seconds: Positive | None = None


_ADAPTER: TypeAdapter[RecommendRequest] = TypeAdapter(RecommendRequest)


def read_job(document: Mapping[str, Any]) -> TrainingQuestion:
    """Read a training job from plain data, and check its workload and objective at its number of steps.

    Raises:
        InvalidSpec: it is none; pointers to the fields.
        InvalidParameter: an answer outside its limits.
    """
    request = read_union(_ADAPTER, document, RecommendRequest)
    parts = {name: part for name in ("workload", "objective") if (part := getattr(request, name)) is not None}
    if "n" in parts.get("workload", {}):
        raise InvalidSpec([Violation("/workload/n", "n follows from the job: its full batches, times its epochs")])
    asked = TrainingQuestion(
        examples=request.examples,
        batch_size=request.batch_size,
        epochs=request.epochs,
        epsilon=request.epsilon,
        delta=request.delta,
        memory=tuple(sorted(set(request.memory))),
        samplings=None if request.samplings is None else tuple(request.samplings),
        parameters=request.parameters,
        max_seconds=request.max_seconds,
        **parts,
    )
    _check_parts(asked)
    return asked


def _check_parts(asked: TrainingQuestion) -> None:
    if asked.workload.get("kind") == "matrix":
        told = "a matrix of one's own has no number of steps to choose; compare mechanisms for it at POST /v1/compare"
        raise InvalidSpec([Violation("/workload/kind", told)])
    spec: dict[str, Any] = {"workload": {**(asked.workload or {"kind": "prefix"}), "n": asked.steps}}
    if asked.objective:
        spec["objective"] = dict(asked.objective)
    parse_spec(spec)


def schemas(reference: str) -> dict[str, Any]:
    """Return the schema of a request and of the workloads that it may name, by name.

    Args:
        reference: template of references, with `{model}`.
    """
    found: dict[str, Any] = {}
    for kind in KINDS.values():
        schema = kind.model_json_schema(ref_template=reference)
        if "n" not in schema["properties"]:  # it lists its rows
            continue
        schema.pop("$defs", None)
        del schema["properties"]["n"]
        schema["required"] = [name for name in schema["required"] if name != "n"]
        found[f"{kind.__name__}OfJob"] = schema
    request = RecommendRequest.model_json_schema(ref_template=reference)
    kinds = [{"$ref": reference.format(model=name)} for name in found]
    request["properties"]["workload"] = {"anyOf": [*kinds, {"type": "null"}], "default": None}
    objective = Spec.model_json_schema(ref_template=reference)["properties"]["objective"]["oneOf"]
    request["properties"]["objective"] = {"anyOf": [*objective, {"type": "null"}], "default": None}
    return {**found, "RecommendRequest": request}
