"""The events of a job, as server-sent events (text/event-stream)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from starlette.responses import Response

from factorize.api.forms import ANY_FORM
from factorize.api.http.access import READ, admission_of
from factorize.api.http.answers import AskingCaller, RunningService, digest_in, not_known
from factorize.api.http.schema import answers
from factorize.api.http.work_gate import EventStream
from factorize.api.jobs.job import Job, shown_error
from factorize.encoding import canonical_json

PING_SECONDS = 15.0
LOOK_SECONDS = 0.4
"""How often a stream asks whether its caller's key is still good."""
_PING = b": ping\n\n"
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

router = APIRouter(default_response_class=Response)


@router.get(
    "/v1/factorizations/{name}/events",
    responses=answers(200, 404, 410, 429, media="text/event-stream", schema=_EVENT),
    dependencies=READ,
)
async def get_events(request: Request, service: RunningService, caller: AskingCaller, name: str) -> Response:
    """Follow a job: `progress` events, then one of `done`, `failed` or `cancelled`, after which the stream ends.

    The id of an event is the number of the job's change; `Last-Event-ID` takes a stream up where it broke off.
    """
    found = await run_sync(service.lookup, digest_in(name), ANY_FORM, caller)
    if found is None:
        raise not_known(name)
    if isinstance(found, Job) and not found.finished:
        changes = service.engine.changes(name, _last_seen(request))
        frames = paced(frames_of(changes), admitted=admission_of(request))
    else:
        frames = _once(frame(found) if isinstance(found, Job) else _done(found.spec_digest, found.digest))
    return EventStream(frames, request.app.state.streams)


async def frames_of(changes: AsyncGenerator[Job, None]) -> AsyncGenerator[bytes, None]:
    """Turn the changes of a job into frames."""
    async with aclosing(changes):
        async for job in changes:
            yield frame(job)


async def paced(
    frames: AsyncGenerator[bytes, None],
    *,
    ping: float = PING_SECONDS,
    admitted: Callable[[], Awaitable[bool]] | None = None,
) -> AsyncIterator[bytes]:
    """Pass frames on, with a comment whenever none has come for `ping` seconds.

    The stream ends where `admitted` says that its caller would not be let in any more.
    """
    clock = asyncio.get_running_loop().time
    pause = ping if admitted is None else min(ping, LOOK_SECONDS)
    coming = asyncio.ensure_future(anext(frames, None))
    told = clock()
    try:
        while True:
            arrived, _ = await asyncio.wait({coming}, timeout=pause)
            if admitted is not None and not await admitted():
                return
            if not arrived:
                if clock() - told >= ping:
                    told = clock()
                    yield _PING
                continue
            newest = coming.result()
            if newest is None:
                return
            told = clock()
            yield newest
            coming = asyncio.ensure_future(anext(frames, None))
    finally:
        coming.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await coming
        await frames.aclose()


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


async def _once(event: bytes) -> AsyncIterator[bytes]:
    yield event


def _last_seen(request: Request) -> int:
    text = request.headers.get("last-event-id", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0
