"""The routes of factorizations and jobs, and the events of a job (text/event-stream).

A handler only reads the request and writes the answer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from factorize.api.catalog import listed
from factorize.api.http.access import Call, ReadCall, SubmitCall
from factorize.api.http.answers import (
    digest_in,
    heavy,
    job_response,
    json_response,
    manifest_response,
    not_known,
    wanted_wait,
)
from factorize.api.http.problems import ProblemAnswer, problem_of
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import SPEC_BODY, answers
from factorize.api.http.work_gate import EventStream, working
from factorize.api.jobs.job import Job, State, shown_error
from factorize.api.workers.publishing import ANY_FORM, Form, read_form
from factorize.encoding import canonical_json
from factorize.errors import FactorizeError, StoreUnavailable
from factorize.storage.index import Result

Answer = TypeVar("Answer")
LONG_BODY = 64 << 10
Matrices = Annotated[str | None, Query(max_length=40, description="Matrices that the file is to hold: C,C_inv,B.")]
Dtype = Annotated[str | None, Query(max_length=16, description="Type of the file's matrices: float64 or float32.")]
router = APIRouter(default_response_class=Response)


@router.post(
    "/v1/factorizations",
    openapi_extra=SPEC_BODY,
    responses=answers(200, 202, 400, 413, 422, 429, 503, document={200: "Manifest", 202: "Job"}),
)
async def post_factorization(call: SubmitCall, matrices: Matrices = None, dtype: Dtype = None) -> Response:
    """Give the stored factorization of a spec, or have it solved.

    `Prefer: wait=N` (at most 30 seconds) waits for the end of the job.
    """
    service, form = call.service, read_form(matrices, dtype)

    def asked(body: bytes) -> tuple[Result | Job, list[str]]:
        answer = service.obtain(body, form, call.caller)
        return answer, service.notes(body, answer) if isinstance(answer, Job) else []

    found, notes = await _about_body(call, asked, form)
    headers: dict[str, str] = {}
    seconds = wanted_wait(call.request)
    if isinstance(found, Job) and seconds is not None:
        headers["Preference-Applied"] = f"wait={seconds}"
        await service.engine.wait(found.spec_digest, seconds)
        found = await _lookup(call, found.spec_digest, form) or found
    if isinstance(found, Result):
        return manifest_response(call.request, found, pinned=False, headers=headers)
    told = {**headers, "Location": f"/v1/factorizations/{found.spec_digest}"}
    return job_response(found, 202, told, notes=notes)


@router.post(
    "/v1/canonicalize",
    openapi_extra=SPEC_BODY,
    responses=answers(200, 400, 413, 422, 429, 503, document="CanonicalSpec"),
)
async def canonicalize(call: ReadCall) -> Response:
    """Give a spec's canonical form, digest and estimate, without solving it."""
    return json_response(await _about_body(call, call.service.canonicalize))


@router.get("/v1/factorizations", responses=answers(200, 422, 429, 503, document="FactorizationPage"))
async def list_factorizations(
    call: ReadCall,
    state: Annotated[State | None, Query(description="Only jobs in this state.")] = None,
    workload: Annotated[str | None, Query(max_length=64, description="Only this kind of workload.")] = None,
    cursor: Annotated[str | None, Query(max_length=200, description="`next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Entries per page.")] = 50,
    search: Annotated[
        str, Query(max_length=200, description="Only specs with these words, or beginnings of digests.")
    ] = "",
) -> Response:
    """List jobs, and stored results that came from elsewhere, the newest first."""
    service = call.service
    async with working(call, "list"):
        look = partial(listed, service.catalog, service.ledger, state=state, workload=workload, cursor=cursor)
        items, following = await run_sync(partial(look, limit=limit, caller=call.caller, search=search), limiter=heavy)
    return json_response({"items": items, "next": following, "whole": service.catalog.whole})


@router.head("/v1/factorizations/{name}", include_in_schema=False)
@router.get(
    "/v1/factorizations/{name}", responses=answers(200, 304, 404, 410, 422, 429, 503, document="Manifest | Job")
)
async def get_factorization(call: ReadCall, name: str, matrices: Matrices = None, dtype: Dtype = None) -> Response:
    """Give the manifest that a digest or spec digest names, or the job's document."""
    found = await _lookup(call, digest_in(name), read_form(matrices, dtype))
    if found is None:
        raise not_known(name)
    if isinstance(found, Job):
        return job_response(found, 200, {})
    return manifest_response(call.request, found, pinned=found.digest == name, headers={})


@router.delete("/v1/factorizations/{name}", status_code=202, responses=answers(202, 404, 409, 410, document="Job"))
async def cancel_factorization(call: SubmitCall, name: str) -> Response:
    """End a job that is queued or running. Results are never deleted."""
    job = await run_sync(call.service.cancel, digest_in(name), call.caller)
    if job is not None:
        return json_response(job.document(), 202)
    found = await _lookup(call, name, ANY_FORM)
    if found is None:
        raise not_known(name)
    state = found.state if isinstance(found, Job) else "done"
    raise ProblemAnswer("finished", f"the job is {state} already, so there is nothing to cancel")


@router.post(
    "/v1/factorizations/{name}/retry",
    status_code=202,
    responses=answers(200, 202, 404, 422, document={200: "Manifest", 202: "Job"}),
)
async def retry_factorization(call: SubmitCall, name: str) -> Response:
    """Queue a failed or cancelled job again, as posting its spec does."""
    found = await run_sync(call.service.retry, digest_in(name), call.caller)
    if isinstance(found, Result):
        return manifest_response(call.request, found, pinned=False, headers={})
    return job_response(found, 202, {"Location": f"/v1/factorizations/{found.spec_digest}"})


async def _about_body(call: Call, answer: Callable[[bytes], Answer], form: Form = ANY_FORM) -> Answer:
    body = await read_body(call.request)
    try:
        async with working(call, "file") if form else _spec_place(call, body):
            return await run_sync(answer, body)
    except FactorizeError as error:
        raise problem_of(error, body=body) from error


def _spec_place(call: Call, body: bytes) -> AbstractAsyncContextManager[None]:
    """Return the place of a request for a spec: what may list a number for each step is read by few at once."""
    long = len(body) > LONG_BODY or b"learning_rates" in body
    return working(call, "spec") if long else nullcontext()


async def _lookup(call: Call, name: str, form: Form) -> Result | Job | None:
    async with working(call, "file") if form else nullcontext():
        return await run_sync(call.service.lookup, name, form, call.caller)


PING_SECONDS = 15.0
PING = b": ping\n\n"
_EVENT = {
    "type": "object",
    "description": "One of the events that are sent.",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["progress", "done", "failed", "cancelled"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


@router.get(
    "/v1/factorizations/{name}/events",
    responses=answers(200, 404, 410, 429, media="text/event-stream", schema=_EVENT),
)
async def get_events(call: ReadCall, name: str) -> Response:
    """Follow a job: `progress` events, then one of `done`, `failed` or `cancelled`, after which the stream ends.

    The id of an event is the number of the job's change; `Last-Event-ID` takes a stream up where it broke off.
    """
    found = await _lookup(call, digest_in(name), ANY_FORM)
    if found is None:
        raise not_known(name)
    if isinstance(found, Job) and not found.finished:
        changes = call.service.engine.changes(name, _last_seen(call.request))
        return EventStream(frames_of(changes, call.admitted), call)
    last = frame(found) if isinstance(found, Job) else _done(found.entry.spec_digest, found.digest)
    return EventStream([last], call)


async def frames_of(
    changes: AsyncGenerator[Job | None, None], admitted: Callable[[], Awaitable[bool]] | None = None
) -> AsyncGenerator[bytes, None]:
    """Turn the changes of a job into frames, with a comment after `PING_SECONDS` without one.

    The stream ends where `admitted` says that its caller would not be let in any more, or the ledger does not answer.
    """
    told = time.monotonic()
    with suppress(StoreUnavailable):
        async with aclosing(changes):
            async for job in changes:
                if admitted is not None and not await admitted():
                    return
                now = time.monotonic()
                if job is not None or now - told >= PING_SECONDS:
                    told = now
                    yield PING if job is None else frame(job)


def frame(job: Job) -> bytes:
    """Return a job's newest event; a job that waits or has said nothing yet has only a comment."""
    if job.state == "done":
        return _done(job.spec_digest, job.digest, job.seq)
    if job.state == "failed":
        return _event("failed", {"spec_digest": job.spec_digest, "error": shown_error(job.error)}, job.seq)
    if job.state == "cancelled":
        return _event("cancelled", {"spec_digest": job.spec_digest}, job.seq)
    return f": {job.state}\n\n".encode() if job.progress is None else _event("progress", job.progress, job.seq)


def _done(spec_digest: str, digest: str | None, seq: int | None = None) -> bytes:
    return _event("done", {"spec_digest": spec_digest, "digest": digest}, seq)


def _event(name: str, data: dict[str, Any], seq: int | None) -> bytes:
    number = b"" if seq is None else f"id: {seq}\n".encode()
    return number + event(name, canonical_json(data))


def event(name: str, data: bytes) -> bytes:
    """Return the frame of an event whose data is JSON text on one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _last_seen(request: Request) -> int:
    text = request.headers.get("last-event-id", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
