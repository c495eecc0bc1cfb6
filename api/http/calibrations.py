"""The routes of calibrations: the noise of a stored factorization, found by a worker, nothing stored."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from factorize.accounting.calibration_request import CalibrationRequest, read_calibration_request
from factorize.api.http.answers import RETRY_SECONDS, AskingCaller, RunningService, find, json_response, wanted_wait
from factorize.api.http.calibration_jobs import CalibrationJob, CalibrationJobs, request_in
from factorize.api.http.gateway.access import SUBMIT
from factorize.api.http.problems import ProblemAnswer, problem_of
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import CALIBRATION_QUERY, answers, json_body
from factorize.encoding import read_json
from factorize.errors import FactorizeError, InvalidSpec, Violation

DIRECT_SECONDS = 2
PATH = "/v1/factorizations/{name}/calibrations"
_NOT_ASKED = 'a calibration is asked for by a JSON object, {"epsilon": ..., "delta": ...}'
_TWICE = "a field is given twice; give each once"

router = APIRouter(default_response_class=Response)


async def _jobs_of(request: Request) -> CalibrationJobs:
    jobs: CalibrationJobs = request.app.state.calibrations
    return jobs


RunningJobs = Annotated[CalibrationJobs, Depends(_jobs_of)]


@router.post(
    PATH,
    openapi_extra=json_body("CalibrationRequest"),
    responses=answers(
        200, 202, 400, 404, 410, 413, 422, 429, 503, document={200: "Calibration", 202: "CalibrationJob"}
    ),
    dependencies=SUBMIT,
)
async def calibrate(
    request: Request, service: RunningService, caller: AskingCaller, jobs: RunningJobs, name: str
) -> Response:
    """Compute the noise for a privacy target, with the claim where epsilon counts on balls in bins.

    The answer comes at once where it is known or takes two seconds (`Prefer: wait=N`: N seconds, 30 at most); otherwise
    202 with the job, whose `Location` answers once it is done. One at a time, ten minutes at most.
    """
    body = await read_body(request, limit=service.settings.max_json_bytes)
    try:
        asked = _request(read_json(body))
    except FactorizeError as error:
        raise problem_of(error, body=body) from error
    job = jobs.obtain((await find(service, name, caller)).digest, asked, caller)
    return await _told(request, jobs, job, wait=DIRECT_SECONDS, pending=202)


@router.get(
    PATH,
    openapi_extra=CALIBRATION_QUERY,
    responses=answers(200, 404, 410, 422, 429, 503, document="Calibration | CalibrationJob"),
    dependencies=SUBMIT,
)
async def get_calibration(
    request: Request, service: RunningService, caller: AskingCaller, jobs: RunningJobs, name: str
) -> Response:
    """Give the answer to a calibration, or its job. One that the service does not know (any more) is begun."""
    asked = _asked(request)
    digest = (await find(service, name, caller)).digest
    job = jobs.known(digest, asked) or jobs.obtain(digest, asked, caller)
    return await _told(request, jobs, job, wait=0, pending=200)


@router.delete(
    PATH,
    status_code=202,
    openapi_extra=CALIBRATION_QUERY,
    responses=answers(202, 404, 409, 410, 422, 503, document="CalibrationJob"),
    dependencies=SUBMIT,
)
async def cancel_calibration(
    request: Request, service: RunningService, caller: AskingCaller, jobs: RunningJobs, name: str
) -> Response:
    """End a calibration that is queued or running."""
    job = jobs.known((await find(service, name, caller)).digest, _asked(request))
    if job is None or not (caller.sees_all or caller.owner in job.askers):
        raise ProblemAnswer("not-found", "no such calibration was asked for since the service was started")
    if job.open and not caller.sees_all and job.askers != {caller.owner}:
        job.askers.discard(caller.owner)  # it goes on for the others
        return json_response({**job.document(), "state": "cancelled"}, 202)
    if not job.cancel():
        raise ProblemAnswer("finished", f"the calibration is {job.state} already, so there is nothing to cancel")
    return json_response(job.document(), 202)


async def _told(request: Request, jobs: CalibrationJobs, job: CalibrationJob, *, wait: int, pending: int) -> Response:
    """Wait as long as the client prefers, and answer with what there is then."""
    seconds = wanted_wait(request)
    headers = {} if seconds is None or not job.open else {"Preference-Applied": f"wait={seconds}"}
    await jobs.wait(job, wait if seconds is None else seconds)
    if job.state == "done":
        return Response(job.answer, 200, headers, "application/json")
    if job.problem is not None:
        raise job.problem
    if job.open:
        headers["Retry-After"] = str(RETRY_SECONDS)
    return json_response(job.document(), pending, headers | ({"Location": job.address} if pending == 202 else {}))


def _asked(request: Request) -> CalibrationRequest:
    given = request.query_params.multi_items()
    if len(given) != len(dict(given)):
        raise InvalidSpec([Violation("", _TWICE)])
    return request_in(dict(given))


def _request(document: object) -> CalibrationRequest:
    if not isinstance(document, dict):
        raise InvalidSpec([Violation("", _NOT_ASKED)])
    return read_calibration_request(document)
