"""A comparison: its request as plain data, and the table with the use of each row in a training job; nothing is stored.

Seconds of a step's noise are a model of one processor core: what drawing a normal and what an operation on large arrays
took here, times how many of both a step has for each parameter. Both are measured once in a process, in some hundredths
of a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from factorize.accounting.schemes import SAMPLINGS
from factorize.plain_data import Count, Frozen, NonNegative, Positive, read_union
from factorize.spec import Spec

if TYPE_CHECKING:
    from factorize.client.events import Event
    from factorize.factorization import Factorization
    from factorize.storage.store import Store

WIDTH = 1 << 20
"""Entries of the arrays that are timed: beyond the caches."""
KEPT_BYTES = 256 << 20
"""Of Z, where C has no recurrence; above, earlier rows are drawn again, for `ROWS_AT_ONCE` steps at a time."""
ROWS_AT_ONCE = 16
Report = Callable[[int, int, str], None]
"""Told mechanisms done, their total, and the one that runs."""


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


def read_request(document: Mapping[str, Any]) -> CompareRequest:
    """Read a request from plain data.

    Raises:
        InvalidSpec: it is none, or its spec is none; pointers to the fields.
    """
    request: CompareRequest = read_union(document, CompareRequest)
    return request.model_copy(update={"spec": request.spec.canonical()})


def request_for(spec: Spec, **options: Any) -> CompareRequest:
    """Return the request about a spec in memory, with the numbers of its matrices; an option of None is left out.

    Raises:
        InvalidSpec: see `read_request`.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return read_request({"spec": spec.document(), **given}).model_copy(update={"spec": spec})


def comparison(
    request: CompareRequest,
    store: Store | None,
    report: Report,
    service: str | None = None,
    keep: Callable[[Factorization], object] | None = None,
    *,
    fitting: bool = False,
) -> dict[str, Any]:
    """Return the table as plain data.

    Args:
        request: what is asked.
        store: where a user's matrices are, if there is one.
        report: see `Report`; what it raises ends the comparison.
        service: URL of a service that compares, in place of this process.
        keep: given the factorization that is recommended, where this process has solved it.
        fitting: leave out what no recommendation within the budgets names; a service compares all.

    Raises:
        FactorizeError: from `solvers.compare`, or of the service.
    """
    if service is not None:
        from factorize.client.service import Service

        def hear(event: Event) -> None:
            if event.kind == "progress":
                report(event.data["done"], event.data["total"], event.data["mechanism"])

        return Service(service).compare(request.document() | {"spec": request.spec.document()}, progress=hear)
    from factorize.privacy import PrivacyTarget
    from factorize.solvers.comparing.compare import Sampling, compare

    spec = request.spec
    privacy = sampling = None
    if request.epsilon is not None:
        privacy = PrivacyTarget(epsilon=request.epsilon, delta=request.delta)
    if request.dataset_size is not None and request.batch_size is not None:
        sampling = Sampling(request.dataset_size, request.batch_size)
    table = compare(
        spec if store is None else store.matrices.bind(spec),
        buffers=request.buffers,
        bytes_per_parameter=request.bytes_per_parameter,
        privacy=privacy,
        sampling=sampling,
        samplings=request.samplings,
        progress=lambda step: report(step.done, step.total, step.mechanism),
        most_seconds=request.max_seconds,
        budgets=request.budgets,
        seconds=request.seconds,
        fitting=fitting,
    )
    if keep is not None and table.solved is not None:
        keep(table.solved)
    return with_use(table.to_dict(), request.parameters)


class StepPace(NamedTuple):
    """Seconds of one core for each parameter.

    Attributes:
        normal: drawing a normal and putting it away.
        operation: an addition or a multiplication of the recurrence, with its traffic to memory.
    """

    normal: float
    operation: float

    def seconds(self, row: Mapping[str, Any], parameters: int, steps: int | None) -> float:
        """Return the seconds of one step's noise for a model of so many parameters.

        Args:
            row: of a comparison.
            parameters: of the model.
            steps: n, None where training has no end.
        """
        redraws = float(row["redraws"])
        if steps is not None and row["noise_vectors"] >= steps and 8 * steps * parameters > KEPT_BYTES:
            redraws += steps / 2 / ROWS_AT_ONCE
        return parameters * (self.normal * (1 + redraws) + self.operation * float(row["flops"]))


@cache
def measured() -> StepPace:
    """Return the pace of this machine."""
    import numpy as np

    draw = np.random.Generator(np.random.SFC64(0))
    kept, made = np.ones(WIDTH, np.float32), np.empty(WIDTH)

    def normals() -> None:
        made[:] = draw.standard_normal(WIDTH, dtype=np.float32)

    def operations() -> None:
        np.multiply(kept, 0.5, out=made)
        np.add(kept, made, out=made)

    return StepPace(_least(normals) / WIDTH, _least(operations) / WIDTH / 2)


def _least(work: Callable[[], None]) -> float:
    """Return the least processor seconds of three runs."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def with_use(table: dict[str, Any], parameters: int | None) -> dict[str, Any]:
    """Return the table with `loader` in each row, and with `seconds_per_step` where the model's size is known.

    Args:
        table: as plain data.
        parameters: of the model, or None.
    """
    from factorize.accounting.schemes import SCHEMES

    steps = table["spec"]["workload"].get("n")
    pace = None if parameters is None else measured()
    known = steps if isinstance(steps, int) else None
    for row in table["rows"]:
        row["loader"] = SCHEMES[row["sampling"] or "fixed"].loader
        row["seconds_per_step"] = None if pace is None else pace.seconds(row, parameters or 0, known)
    basis = "a model of one core: measured seconds for each normal and each operation, times their number"
    step = None if pace is None else {"parameters": parameters, **pace._asdict(), "basis": basis}
    return {**table, "step_pace": step}
