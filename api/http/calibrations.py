"""The route of calibrations: the noise of a stored factorization, found in a child process, nothing stored."""

from __future__ import annotations

import threading

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from starlette.responses import Response

from factorize.accounting.calibration_request import CalibrationRequest, read_calibration_request
from factorize.api.http.answers import RunningService, find
from factorize.api.http.child_answers import ChildQuestion, while_connected
from factorize.api.http.problems import problem_of
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import answers, json_body
from factorize.api.isolated import CALIBRATE
from factorize.encoding import read_json
from factorize.errors import FactorizeError, InvalidSpec, Violation

LIMIT_SECONDS = 120.0
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
    question = ChildQuestion(
        CALIBRATE,
        {"digest": digest, "request": asked.document()},
        LIMIT_SECONDS,
        "calibration",
        "use fewer bins, method 'deterministic', or `factorize calibrate`",
        "invalid-parameter",
        own_slugs=True,
    )
    work = run_sync(question.ask, service, stop, limiter=_running)
    return Response(await while_connected(request, work, stop), media_type="application/json")


def _request(document: object) -> CalibrationRequest:
    if not isinstance(document, dict):
        raise InvalidSpec(
            [Violation("", 'a calibration is asked for by a JSON object, {"epsilon": ..., "delta": ...}')]
        )
    return read_calibration_request(document)
