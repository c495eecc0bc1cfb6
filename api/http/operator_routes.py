"""Routes of those who look after a service: keys (list, show, make, take back), probes, metrics; and who a caller is.

A token stands in the answer to the request that had it made, and in no other. Where a service asks for no keys, the
routes of keys are closed: everyone on the machine could make one there, of a ledger that may be another service's too.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path, Query
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import JSONResponse, PlainTextResponse, Response

from factorize.api.access.caller import AccessKey, Scope
from factorize.api.access.key_register import KEY_ID, KeyRegister, KeyRequest
from factorize.api.http.access import AdminCall, Call, DetailsCall, MonitorCall, OpenCall, ReadCall
from factorize.api.http.answers import compressed_response, json_response
from factorize.api.http.problems import KINDS, ProblemAnswer, prefix, problem_of
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import answers, json_body
from factorize.api.http.work_gate import WorkGate
from factorize.api.readiness import NOTES
from factorize.api.service import SolverService
from factorize.api.settings import Settings
from factorize.encoding import read_json
from factorize.errors import FactorizeError
from factorize.plain_data import read_union

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_KEYS = "/v1/keys"
_NO_STORE = {"Cache-Control": "no-store"}
_Id = Annotated[str, Path(pattern=KEY_ID, description="Names the key; no secret.")]
_Cursor = Annotated[str | None, Query(pattern=KEY_ID, description="`next` of the page before.")]
keys, probes = APIRouter(default_response_class=Response), APIRouter(default_response_class=Response)


@keys.get("/v1/caller", responses=answers(200, document="Caller"))
async def get_caller(call: ReadCall) -> Response:
    """Say who asks: name, scopes, quotas, and whether they may look after keys here."""
    caller, settings = call.caller, call.service.settings
    document = {
        "owner": caller.owner or None,
        "name": caller.name,
        "scopes": sorted(caller.scopes),
        "quotas": caller.quotas.document(),
        "asks_for_keys": settings.asks_for_keys,
        "looks_after_keys": _closed(settings) is None and caller.sees_all,
    }
    return json_response(document, headers=_NO_STORE)


@keys.get(_KEYS, responses=answers(200, 404, document="AccessKeyPage"))
async def list_keys(
    call: AdminCall,
    state: Annotated[Literal["active", "expired", "revoked"] | None, Query(description="Only such keys.")] = None,
    cursor: _Cursor = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Keys per page.")] = 50,
) -> Response:
    """List keys, the newest first; no secrets."""
    register = _register(call)
    page = await run_sync(partial(register.keys, state=state, after=cursor, limit=limit + 1))
    following = page[limit - 1].id if len(page) > limit else None
    document = {"items": [_shown(key, call) for key in page[:limit]], "next": following}
    return json_response(document, headers=_NO_STORE)


@keys.post(
    _KEYS,
    status_code=201,
    openapi_extra=json_body("KeyRequest"),
    responses=answers(201, 413, document="AccessKeyWithToken"),
)
async def post_key(call: AdminCall) -> Response:
    """Make a key, whose token is in this answer and nowhere else.

    It ends with the caller's token of an issuer at the latest: who may no longer ask there keeps no key here.
    """
    register = _register(call)
    key, token = await run_sync(partial(register.create, await _read(call), latest=call.caller.ends))
    headers = {**_NO_STORE, "Location": f"{_KEYS}/{key.id}"}
    return json_response({**_shown(key, call), "token": token.text}, 201, headers)


@keys.get(f"{_KEYS}/{{key_id}}", responses=answers(200, 404, document="AccessKey"))
async def get_key(call: AdminCall, key_id: _Id) -> Response:
    """Give one key: scopes, end and quotas; no secret."""
    key = await run_sync(_register(call).get, key_id)
    return json_response(_shown(key, call), headers=_NO_STORE)


@keys.post(f"{_KEYS}/{{key_id}}/revoke", responses=answers(200, 404, document="AccessKey"))
async def revoke_key(call: AdminCall, key_id: _Id) -> Response:
    """Take a key back for ever; every service on the ledger refuses it within a second."""
    key = await run_sync(_register(call).revoke, key_id)
    return json_response(_shown(key, call), headers=_NO_STORE)


def _closed(settings: Settings) -> str | None:
    """Return why keys are not looked after here, or None."""
    if not settings.asks_for_keys:
        return "this service does not require keys, so it makes none; set require_keys, or use `factorize keys`"
    if not settings.key_routes:
        return "the setting key_routes is off; change keys with `factorize keys` on the machine of the service"
    return None


def _register(call: Call) -> KeyRegister:
    closed = _closed(call.service.settings)
    if closed is not None:
        raise ProblemAnswer("keys-closed", closed)
    return call.service.keys(call.caller.actor)


def _shown(key: AccessKey, call: Call) -> dict[str, object]:
    return {**key.document(time.time()), "own": key.id == call.caller.key}


async def _read(call: Call) -> KeyRequest:
    body = await read_body(call.request)
    try:
        return read_union(read_json(body), KeyRequest)
    except FactorizeError as error:
        problem = problem_of(error, body=body)
        if problem.slug == "invalid-spec":  # it is no spec, and its fields are named all the same
            problem = ProblemAnswer("invalid-parameter", problem.detail, extra=problem.extra)
        raise problem from error


@probes.get("/healthz", responses=answers(200, document="Health"))
async def healthz(_call: OpenCall) -> Response:
    """Say that the process answers."""
    return json_response({"status": "ok"})


@probes.get("/readyz", responses=answers(200, 503, document="Readiness"))
async def readyz(call: DetailsCall) -> Response:
    """Say whether database, store and engine can be used, and to whoever may monitor the service what is missing."""
    parts = await run_sync(call.service.readiness.look)
    missing = [asdict(part) for part in parts if part.state not in NOTES]
    document: dict[str, object] = {}
    failing = ""
    if call.caller.may(Scope.MONITOR):
        notes = [asdict(part) for part in parts if part.state in NOTES]
        checks = {name: all(one["check"] != name for one in missing) for name in ("database", "store", "engine")}
        document = {"checks": checks, "missing": missing, "notes": notes}
        failing = ": " + ", ".join(f"{one['check']} ({one['state']})" for one in missing)
    if not missing:
        return json_response({"status": "ready", **document})
    raise ProblemAnswer("unavailable", f"not ready{failing}", extra=document)


@probes.get("/metrics", responses=answers(200, media="text/plain", schema={"type": "string"}))
async def metrics(call: MonitorCall) -> Response:
    """Give counters and gauges in Prometheus' text format."""
    text = await run_sync(generate_latest, call.service.counts)
    return Response(text, headers={"Content-Type": METRICS_TYPE})


class Gauges(Collector):
    """The numbers that are read when they are asked for."""

    def __init__(self, service: SolverService, gate: WorkGate) -> None:
        self._service, self._gate = service, gate

    def collect(self) -> Iterator[Metric]:
        """Read them."""
        service = self._service
        yield CounterMetricFamily("factorize_solves", "Solver processes started.", value=service.engine.solves_total)
        yield CounterMetricFamily("factorize_known", "Specs answered from the store.", value=service.known_total)
        yield CounterMetricFamily("factorize_sent_bytes", "Bytes of files and rows.", value=service.sent_bytes)
        oldest, memory_mb = service.ledger.load()
        age = 0.0 if oldest is None else (datetime.now(UTC) - datetime.fromisoformat(oldest)).total_seconds()
        meaning = "How long the oldest queued job has waited."
        yield GaugeMetricFamily("factorize_queue_oldest_seconds", meaning, value=max(0.0, age))
        meaning = "Memory that running solves were admitted with."
        yield GaugeMetricFamily("factorize_memory_admitted_bytes", meaning, value=memory_mb << 20)
        yield _gauge("factorize_jobs", "Jobs by state.", "state", service.ledger.counts())
        loads = service.engine.solves.worker_loads()
        solves, memory = {one.address: one.solves for one in loads}, {one.address: one.memory_mb << 20 for one in loads}
        yield _gauge("factorize_worker_solves", "Solves that a worker runs.", "worker", solves)
        yield _gauge("factorize_worker_memory_bytes", "Memory that a worker offers.", "worker", memory)
        meaning = "Requests that compute, or wait for a place."
        work = GaugeMetricFamily("factorize_work", meaning, labels=["kind", "state"])
        refused = CounterMetricFamily("factorize_refused", "Requests that found no place (429).", labels=["kind"])
        for kind, (running, waiting) in self._gate.at_work().items():
            work.add_metric([kind, "running"], running)
            work.add_metric([kind, "waiting"], waiting)
            refused.add_metric([kind], self._gate.refused[kind])
        yield work
        yield refused


def _gauge(name: str, meaning: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


@probes.get("/openapi.json", include_in_schema=False)
async def openapi(call: ReadCall) -> Response:
    """Give the OpenAPI document; its fields are in the order of the models, which forms of the page follow."""
    document = await run_sync(call.request.app.openapi)
    text = JSONResponse({**document, "servers": [{"url": prefix() or "/"}]}).body
    return compressed_response(call.request, bytes(text), {}, "application/json")


@probes.get("/problems/{slug}", responses=answers(200, 404, media="text/plain", schema={"type": "string"}))
async def problem(_call: OpenCall, slug: str) -> Response:
    """Say what a type of problem means."""
    if slug not in KINDS:
        raise ProblemAnswer("not-found", "the problems of this service are listed in its documentation")
    kind = KINDS[slug]
    return PlainTextResponse(f"{kind.title} ({kind.status})\n\n{kind.meaning}\n")
