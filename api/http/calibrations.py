"""The route of calibrations: the noise of a stored factorization, found in a child process, nothing stored."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
import threading
from pathlib import Path

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from starlette.responses import Response

from factorize.accounting.calibration_request import CalibrationRequest, read_calibration_request
from factorize.api.http.answers import RunningService, find
from factorize.api.http.problems import KINDS, ProblemAnswer, problem_of
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import answers, json_body
from factorize.api.isolated import CALIBRATE, child_command
from factorize.api.jobs import supervisor
from factorize.api.jobs.ending import Ending, SolveEnding
from factorize.api.service import SolverService
from factorize.encoding import read_json
from factorize.errors import FactorizeError, InvalidSpec, Violation

LIMIT_SECONDS = 120.0
_LOOK_SECONDS = 0.2
_running = CapacityLimiter(1)  # a claim takes all processors

router = APIRouter(default_response_class=Response)


@router.post(
    "/v1/factorizations/{name}/calibrations",
    openapi_extra=json_body("CalibrationRequest"),
    responses=answers(200, 400, 404, 410, 413, 422, 503),
)
async def calibrate(request: Request, service: RunningService, name: str) -> Response:
    """Compute the noise for a privacy target, with the claim where epsilon counts on balls in bins.

    One at a time, in a process of its own, two minutes at most; closing the connection ends it.
    """
    body = await read_body(request, limit=service.settings.max_json_bytes)
    try:
        asked = _request(read_json(body))
    except FactorizeError as error:
        raise problem_of(error, body=body) from error
    digest = (await find(service, name)).digest
    stop = threading.Event()
    task = asyncio.ensure_future(run_sync(_calibrate, service, digest, asked, stop, limiter=_running))
    try:
        while not (await asyncio.wait({task}, timeout=_LOOK_SECONDS))[0]:
            if await request.is_disconnected():
                stop.set()
        return Response(task.result(), media_type="application/json")
    finally:
        stop.set()


def _request(document: object) -> CalibrationRequest:
    if not isinstance(document, dict):
        raise InvalidSpec(
            [Violation("", 'a calibration is asked for by a JSON object, {"epsilon": ..., "delta": ...}')]
        )
    return read_calibration_request(document)


def _calibrate(service: SolverService, digest: str, asked: CalibrationRequest, stop: threading.Event) -> bytes:
    with tempfile.TemporaryDirectory(prefix="factorize-calibrate-") as folder:
        path = Path(folder) / "calibration.json"
        outcome = supervisor.run(
            supervisor.Request(
                spec_digest="0" * 64,
                spec=json.dumps({"digest": digest, "request": asked.document(), "to": str(path)}),
                store=service.results.store.url,
                memory_mb=max(1024, (service.engine.capacity_mb or 2048) // 2),
                seconds_limit=min(LIMIT_SECONDS, service.settings.max_solve_seconds),
                threads=service.settings.processors or 1,
                command=child_command(CALIBRATE),
            ),
            report=lambda event: None,
            cancelled=stop.is_set,
        )
        return _written(outcome, path)


def _written(outcome: SolveEnding, path: Path) -> bytes:
    """Return the answer that the child has written.

    Raises:
        Problem: it has not.
    """
    if outcome.ending is Ending.DONE:
        found = path.read_bytes()
        if hashlib.sha256(found).hexdigest() == outcome.digest:
            return found
        raise ProblemAnswer("unavailable", "the calibration was damaged on its way; post the request again")
    error = outcome.error or {}
    message = error.get("message", outcome.ending.value)
    if outcome.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
        raise ProblemAnswer("too-large", f"{message}; use fewer bins, method 'deterministic', or `factorize calibrate`")
    if outcome.ending is Ending.FAILED:
        slug = error.get("type", "")
        raise ProblemAnswer(slug if slug in KINDS and KINDS[slug].status < 500 else "invalid-parameter", message)
    raise ProblemAnswer("unavailable", message, headers={"Retry-After": "5"})
