"""Probes, which operators and monitors ask: is it alive, is it ready, what has it done."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import JSONResponse, PlainTextResponse, Response

from factorize.api.access.caller import Scope
from factorize.api.http.access import MONITOR, OPEN, OPEN_WITH_DETAILS, READ
from factorize.api.http.answers import AskingCaller, RunningService, json_response
from factorize.api.http.problems import KINDS, ProblemAnswer
from factorize.api.http.schema import answers
from factorize.api.http.work_gate import WorkGate, gate_of
from factorize.api.monitoring import NOTES
from factorize.api.service import SolverService

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(default_response_class=Response)


@router.get("/healthz", responses=answers(200, document="Health"), dependencies=OPEN)
async def healthz() -> Response:
    """Say that the process answers."""
    return json_response({"status": "ok"})


@router.get("/readyz", responses=answers(200, 503, document="Readiness"), dependencies=OPEN_WITH_DETAILS)
async def readyz(service: RunningService, caller: AskingCaller) -> Response:
    """Say whether database, store and engine can be used, and to whoever may monitor the service what is missing."""
    found = await run_sync(service.readiness.look)
    missing = [one.document() for one in found if one.state not in NOTES]
    document: dict[str, Any] = {}
    failing = ""
    if caller.may(Scope.MONITOR):
        notes = [one.document() for one in found if one.state in NOTES]
        checks = {name: all(one["check"] != name for one in missing) for name in ("database", "store", "engine")}
        document = {"checks": checks, "missing": missing, "notes": notes}
        failing = ": " + ", ".join(f"{one['check']} ({one['state']})" for one in missing)
    if not missing:
        return json_response({"status": "ready", **document})
    raise ProblemAnswer("unavailable", f"not ready{failing}", extra=document)


@router.get("/metrics", responses=answers(200, media="text/plain", schema={"type": "string"}), dependencies=MONITOR)
async def metrics(request: Request, service: RunningService) -> Response:
    """Give counters and gauges in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Counts(service, gate_of(request)))

    def text() -> bytes:
        registries = (registry, service.solve_counts.registry, request.app.state.http_counts.registry)
        return b"".join(map(generate_latest, registries))

    return Response(await run_sync(text), headers={"Content-Type": METRICS_TYPE})


class _Counts(Collector):
    """The numbers, read when they are asked for."""

    def __init__(self, service: SolverService, gate: WorkGate) -> None:
        self._service = service
        self._gate = gate

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield CounterMetricFamily("factorize_solves", "Solver processes started.", value=service.engine.solves_total)
        yield CounterMetricFamily("factorize_known", "Specs answered from the store.", value=service.known_total)
        yield CounterMetricFamily("factorize_sent_bytes", "Bytes of files and rows.", value=service.sent_bytes)
        states = GaugeMetricFamily("factorize_jobs", "Jobs by state.", labels=["state"])
        for state, count in service.ledger.counts().items():
            states.add_metric([state], count)
        yield states
        oldest, memory_mb = service.ledger.load()
        age = 0.0 if oldest is None else (datetime.now(UTC) - datetime.fromisoformat(oldest)).total_seconds()
        yield GaugeMetricFamily(
            "factorize_queue_oldest_seconds", "How long the oldest queued job has waited.", value=max(0.0, age)
        )
        yield GaugeMetricFamily(
            "factorize_memory_admitted_bytes", "Memory that running solves were admitted with.", value=memory_mb << 20
        )
        yield from self._workers()
        yield from self._work()

    def _workers(self) -> Iterator[Metric]:
        solves = GaugeMetricFamily("factorize_worker_solves", "Solves that a worker runs.", labels=["worker"])
        memory = GaugeMetricFamily("factorize_worker_memory_bytes", "Memory that a worker offers.", labels=["worker"])
        for load in self._service.engine.solves.worker_loads():
            solves.add_metric([load.address], load.solves)
            memory.add_metric([load.address], load.memory_mb << 20)
        yield solves
        yield memory

    def _work(self) -> Iterator[Metric]:
        work = GaugeMetricFamily(
            "factorize_work", "Requests that compute, or wait for a place.", labels=["kind", "state"]
        )
        refused = CounterMetricFamily("factorize_refused", "Requests that found no place (429).", labels=["kind"])
        for kind, (running, waiting) in self._gate.at_work().items():
            work.add_metric([kind, "running"], running)
            work.add_metric([kind, "waiting"], waiting)
            refused.add_metric([kind], self._gate.refused[kind])
        yield work
        yield refused


@router.get("/openapi.json", include_in_schema=False, dependencies=READ)
async def openapi(request: Request) -> Response:
    """Give the OpenAPI document; its fields are in the order of the models, which forms of the page follow."""
    return JSONResponse(await run_sync(request.app.openapi))


@router.get(
    "/problems/{slug}", responses=answers(200, 404, media="text/plain", schema={"type": "string"}), dependencies=OPEN
)
async def problem(slug: str) -> Response:
    """Say what a type of problem means."""
    if slug not in KINDS:
        raise ProblemAnswer("not-found", "the problems of this service are listed in its documentation")
    kind = KINDS[slug]
    return PlainTextResponse(f"{kind.title} ({kind.status})\n\n{kind.meaning}\n")
