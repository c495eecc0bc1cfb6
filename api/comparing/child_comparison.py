"""A comparison, as workers and the command line make it; nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from factorize.api.comparing.compare_request import CompareRequest
from factorize.client.events import Event
from factorize.storage.store import Store

Report = Callable[[int, int, str, float], None]
"""Told mechanisms done, their total, the one that runs, and seconds since the beginning."""


def comparison(
    request: CompareRequest, store: Store | None, report: Report, service: str | None = None
) -> dict[str, Any]:
    """Return the table as plain data.

    Args:
        request: what is asked.
        store: where a user's matrices are, if there is one.
        report: see `Report`; what it raises ends the comparison.
        service: URL of a service that compares, in place of this process.

    Raises:
        FactorizeError: from `solvers.compare`, or of the service.
    """
    if service is not None:
        from factorize.client.service import Service

        def hear(event: Event) -> None:
            if event.kind == "progress":
                report(event.data["done"], event.data["total"], event.data["mechanism"], 0.0)

        return Service(service).compare(request.document() | {"spec": request.spec.document()}, progress=hear)
    from factorize.api.comparing.row_use import with_use
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
        spec if store is None else store.bind(spec),
        buffers=request.buffers,
        bytes_per_parameter=request.bytes_per_parameter,
        privacy=privacy,
        sampling=sampling,
        samplings=request.samplings,
        progress=tell,
        most_seconds=request.max_seconds,
        budgets=request.budgets,
    )
    return with_use(table.to_dict(), request.parameters)
