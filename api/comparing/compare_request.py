"""The request for a comparison, as plain data: the same over HTTP and on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, model_validator

from factorize.accounting.schemes import SAMPLINGS
from factorize.plain_data import Count, Frozen, NonNegative, Positive, read_union
from factorize.spec import Spec

SamplingNames = Annotated[
    list[Annotated[str, Field(max_length=40, json_schema_extra={"enum": list(SAMPLINGS)})]],
    Field(max_length=8),
]
"""Schemes that rows may count on: what the loader can do. A fixed order always counts."""
ALL_SAMPLINGS: dict[str, Any] = {"x-default": list(SAMPLINGS), "description": "A fixed order always counts."}


class CompareRequest(Frozen):
    """A spec, a memory budget and a privacy target.

    Attributes:
        spec: its mechanism is one row among the others; `auto` adds none.
        buffers: vectors of noise state that may be kept for each parameter.
        budgets: several numbers of vectors in one run, in place of `buffers`.
        bytes_per_parameter: the same budget in bytes.
        epsilon: of the noise that is stated for each row, with `delta`.
        delta: see `epsilon`.
        dataset_size: with `batch_size`, for the Poisson schemes.
        batch_size: expected examples per step.
        samplings: schemes that rows may count on, beside a fixed order; by default all where sizes are given, and the
            spec's own.
        max_seconds: mechanisms that would take longer are listed as refused.
        seconds: for all; what promises most is tried first, and the rest is listed as refused.
        parameters: of the model, for the seconds that a step of each row's noise takes.
    """

    spec: Spec
    buffers: Annotated[int, Field(ge=0, le=10**6)] | None = None
    budgets: Annotated[list[Annotated[int, Field(ge=0, le=10**6)]], Field(min_length=1, max_length=8)] | None = None
    bytes_per_parameter: NonNegative | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = None
    dataset_size: Count | None = None
    batch_size: Count | None = None
    samplings: SamplingNames | None = Field(default=None, json_schema_extra=ALL_SAMPLINGS)
    max_seconds: Positive | None = None
    seconds: Positive | None = None
    parameters: Annotated[int, Field(ge=1, le=10**13)] | None = None

    @model_validator(mode="after")
    def _pairs(self) -> CompareRequest:
        if (self.epsilon is None) != (self.delta is None):
            raise ValueError("epsilon and delta come together; give both or neither")
        if (self.dataset_size is None) != (self.batch_size is None):
            raise ValueError("dataset_size and batch_size come together; give both or neither")
        if self.budgets is not None and (self.buffers, self.bytes_per_parameter) != (None, None):
            raise ValueError("budgets is in place of buffers and bytes_per_parameter; give one of them")
        private = self.epsilon is not None or self.spec.sampling is not None
        if (self.dataset_size is not None or self.samplings) and not private:
            raise ValueError("sampling amplifies an (epsilon, delta) guarantee; give epsilon and delta too")
        return self


_ADAPTER: TypeAdapter[CompareRequest] = TypeAdapter(CompareRequest)


def read_request(document: Mapping[str, Any]) -> CompareRequest:
    """Read a request from plain data.

    Raises:
        InvalidSpec: it is none, or its spec is none; pointers to the fields.
    """
    request = read_union(_ADAPTER, document, CompareRequest)
    return request.model_copy(update={"spec": request.spec.canonical()})


def request_for(spec: Spec, **options: Any) -> CompareRequest:
    """Return the request about a spec in memory, with the numbers of its matrices; an option of None is left out.

    Raises:
        InvalidSpec: see `read_request`.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return read_request({"spec": spec.document(), **given}).model_copy(update={"spec": spec})
