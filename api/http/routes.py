"""The routes of factorizations and jobs, and the events of a job (text/event-stream).

A handler only reads the request and writes the answer.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext, suppress
from typing import Annotated, TypeVar

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query
from starlette.responses import Response

from factorize.api.catalog import list_items
from factorize.api.form import ANY_FORM, Form, read_form
from factorize.api.http.access import Call, ReadCall, SubmitCall
from factorize.api.http.answers import digest_in, heavy, json_response, known_of, known_response, result_of, wanted_wait
from factorize.api.http.problems import ProblemAnswer, problem_of
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import SPEC_BODY, answers
from factorize.api.http.work_gate import EventStream, working
from factorize.api.jobs.ledger import ListQuery
from factorize.api.jobs.solve_job import SolveJob, shown_error
from factorize.encoding import JsonObject, canonical_json
from factorize.errors import FactorizeError, StoreUnavailable
from factorize.spec import parse_spec
from factorize.storage.index import Result

Answer = TypeVar("Answer")
LONG_BODY_BYTES = 64 << 10
Matrices = Annotated[str | None, Query(max_length=40, description="Matrices that the file is to hold: C,C_inv,B.")]
Dtype = Annotated[str | None, Query(max_length=16, description="Type of the file's matrices: float64 or float32.")]
router = APIRouter(default_response_class=Response)


@router.post(
    "/v1/factorizations",
    openapi_extra=SPEC_BODY,
    responses=answers(200, 202, 413, document={200: "Manifest", 202: "Job"}),
)
async def post_factorization(call: SubmitCall, matrices: Matrices = None, dtype: Dtype = None) -> Response:
    """Give the stored factorization of a spec, or have it solved.

    `Prefer: wait=N` (at most 30 seconds) waits for the end of the job.
    """
    service, form = call.service, read_form(matrices, dtype)

    def obtain(body: bytes) -> tuple[Result | SolveJob, list[str]]:
        posted = parse_spec(body)
        known = service.obtain(posted, form, call.caller)
        return known, service.notes(posted) if isinstance(known, SolveJob) else []

    known, notes = await _about_body(call, obtain, form)
    headers: dict[str, str] = {}
    seconds = wanted_wait(call.request)
    if isinstance(known, SolveJob) and seconds is not None:
        headers["Preference-Applied"] = f"wait={seconds}"
        await service.engine.wait(known.spec_digest, seconds)
        known = await run_sync(known_of, call, known.spec_digest)
        if isinstance(known, Result) and form:
            known = await _make_form(call, known, form)
    return known_response(call, known, headers, notes)


@router.post("/v1/canonicalize", openapi_extra=SPEC_BODY, responses=answers(200, 413, document="CanonicalSpec"))
async def canonicalize(call: ReadCall) -> Response:
    """Give a spec's canonical form, digest and estimate, without solving it."""
    return json_response(await _about_body(call, call.service.canonicalize))


@router.get("/v1/factorizations", responses=answers(200, document="FactorizationPage"))
async def list_factorizations(call: ReadCall, query: Annotated[ListQuery, Query()]) -> Response:
    """List jobs, and stored results that came from elsewhere, the newest first."""
    service = call.service
    async with working(call, "list"):
        items, following = await run_sync(
            list_items, service.catalog, service.ledger, query, call.caller, limiter=heavy
        )
    return json_response({"items": items, "next": following, "whole": service.catalog.whole})


@router.get("/v1/factorizations/{name}", responses=answers(200, 304, 404, 410, document="Manifest | Job"))
async def get_factorization(call: ReadCall, name: str, matrices: Matrices = None, dtype: Dtype = None) -> Response:
    """Give the manifest that a digest or spec digest names, or the job's document.

    A form of the file that nobody has had made is not found; a `POST` to the same address makes it.
    """
    return known_response(call, await run_sync(known_of, call, digest_in(name), read_form(matrices, dtype)))


@router.post("/v1/factorizations/{name}", responses=answers(200, 404, 410, 413, document="Manifest"))
async def post_form(call: SubmitCall, name: str, matrices: Matrices = None, dtype: Dtype = None) -> Response:
    """Have the file of a result made with further matrices, or in another type, and give its manifest.

    It is made, certified and stored the first time, and counts for the caller who asked first.
    """
    form, result = read_form(matrices, dtype), await run_sync(result_of, call, name)
    return known_response(call, await _make_form(call, result, form) if form else result)


@router.delete("/v1/factorizations/{name}", status_code=202, responses=answers(202, 404, 409, 410, document="Job"))
async def cancel_factorization(call: SubmitCall, name: str) -> Response:
    """End a job that is queued or running. Results are never deleted."""
    job = await run_sync(call.service.cancel, digest_in(name), call.caller)
    if job is not None:
        return json_response(job.document(), 202)
    known = await run_sync(known_of, call, name)
    state = known.state if isinstance(known, SolveJob) else "done"
    raise ProblemAnswer("finished", f"the job is {state} already, so there is nothing to cancel")


@router.post(
    "/v1/factorizations/{name}/retry",
    status_code=202,
    responses=answers(200, 202, 404, document={200: "Manifest", 202: "Job"}),
)
async def retry_factorization(call: SubmitCall, name: str) -> Response:
    """Queue a failed or cancelled job again, as posting its spec does."""
    return known_response(call, await run_sync(call.service.retry, digest_in(name), call.caller))


async def _about_body(call: Call, answer: Callable[[bytes], Answer], form: Form = ANY_FORM) -> Answer:
    body = await read_body(call.request)
    try:
        long = len(body) > LONG_BODY_BYTES or b"learning_rates" in body  # a number for each step: few at once are read
        async with working(call, "file" if form else "spec") if form or long else nullcontext():
            return await run_sync(answer, body)
    except FactorizeError as error:
        raise problem_of(error, body=body) from error


async def _make_form(call: Call, result: Result, form: Form) -> Result:
    """Return a result whose file has a form, and make it for the caller if it does not exist yet."""
    async with working(call, "file"):
        return await run_sync(call.service.forms.make, result, form, call.caller)


PING_SECONDS = 15.0
PING = b": ping\n\n"
_EVENT = {
    "type": "object",
    "description": "One of the events that are sent.",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["state", "progress", "done", "failed", "cancelled"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


@router.get(
    "/v1/factorizations/{name}/events", responses=answers(200, 404, 410, media="text/event-stream", schema=_EVENT)
)
async def get_events(call: ReadCall, name: str) -> Response:
    """Follow a job: its `state` while it has no progress, `progress`, then `done`, `failed` or `cancelled`, the last.

    The id of an event is the number of the job's change; `Last-Event-ID` takes a stream up where it broke off.
    """
    known = await run_sync(known_of, call, digest_in(name))
    if call.request.method == "HEAD":
        return EventStream([], call)
    if isinstance(known, SolveJob) and not known.finished:
        text = call.request.headers.get("last-event-id", "")
        seen = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
        return EventStream(frames_of(call.service.engine.changes(name, seen), call.admitted), call)
    if isinstance(known, SolveJob):
        return EventStream([frame(known)], call)
    data = {"spec_digest": known.entry.spec_digest, "digest": known.digest}
    return EventStream([event("done", canonical_json(data))], call)


async def frames_of(
    changes: AsyncGenerator[SolveJob | None, None], admitted: Callable[[], Awaitable[bool]] | None = None
) -> AsyncGenerator[bytes, None]:
    """Turn the changes of a job into frames, with a comment after `PING_SECONDS` without one.

    The stream ends where `admitted` says that its caller would not be let in any more, or the ledger does not answer.
    """
    last = time.monotonic()
    with suppress(StoreUnavailable):
        async with aclosing(changes):
            async for job in changes:
                if admitted is not None and not await admitted():
                    return
                now = time.monotonic()
                if job is not None or now - last >= PING_SECONDS:
                    last = now
                    yield PING if job is None else frame(job)


def frame(job: SolveJob) -> bytes:
    """Return a job's newest event; that of a job that waits, or has said nothing yet, is its state."""
    ends: JsonObject = {"done": {"digest": job.digest}, "failed": {"error": shown_error(job.error)}}
    about: JsonObject = {"spec_digest": job.spec_digest}
    if job.finished:
        return _numbered(job, job.state, about | ends.get(job.state, {}))
    if job.progress is None:
        return _numbered(job, "state", about | {"state": job.state})
    return _numbered(job, "progress", job.progress)


def _numbered(job: SolveJob, name: str, data: dict[str, object]) -> bytes:
    return f"id: {job.seq}\n".encode() + event(name, canonical_json(data))


def event(name: str, data: bytes) -> bytes:
    """Return the frame of an event whose data is JSON text on one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
