"""A comparison, as workers and the command line make it, with the use of each row in a training job; nothing is stored.

Seconds of a step's noise are a model of one processor core: what drawing a normal and what an operation on large arrays
took here, times how many of both a step has for each parameter. Both are measured once in a process, in some hundredths
of a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from factorize.api.comparing.compare_request import CompareRequest
from factorize.client.events import Event
from factorize.factorization import Factorization
from factorize.storage.store import Store

WIDTH = 1 << 20
"""Entries of the arrays that are timed: beyond the caches."""
KEPT_BYTES = 256 << 20
"""Of Z, where C has no recurrence; above, earlier rows are drawn again, for `ROWS_AT_ONCE` steps at a time."""
ROWS_AT_ONCE = 16
Report = Callable[[int, int, str, float], None]
"""Told mechanisms done, their total, the one that runs, and seconds since the beginning."""


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
                report(event.data["done"], event.data["total"], event.data["mechanism"], 0.0)

        return Service(service).compare(request.document() | {"spec": request.spec.document()}, progress=hear)
    from factorize.privacy import PrivacyTarget
    from factorize.solvers.comparing.compare import CompareProgress, Sampling, compare

    def tell(progress: CompareProgress) -> None:
        report(progress.done, progress.total, progress.mechanism, progress.seconds)

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
        progress=tell,
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
