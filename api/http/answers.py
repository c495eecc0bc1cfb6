"""Answers, and what the routes share: ids from addresses, and answers that caches may keep."""

import asyncio
import gzip
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import lru_cache, partial

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request
from starlette.responses import Response, StreamingResponse

from factorize.api.form import ANY_FORM, Form
from factorize.api.http.access import Call
from factorize.api.http.problems import ProblemAnswer
from factorize.api.jobs.solve_job import SolveJob
from factorize.api.service import SolverService
from factorize.encoding import canonical_json, is_digest, sha256
from factorize.storage.index import Result

RETRY_SECONDS = 1
MAX_PIECE_BYTES = 1 << 20
MIN_PIECE_BYTES = 1 << 18
IN_FLIGHT_BYTES = 1 << 27
LASTING_CACHE = "private, max-age=31536000, immutable, no-transform"
MAX_WAIT_SECONDS = 30
NO_HEADERS: Mapping[str, str] = {}
RAW = "application/octet-stream"
_WAIT = re.compile(r'(?:^|[,;])\s*wait\s*=\s*"?(\d{1,6})"?\s*(?:[,;]|$)', re.ASCII | re.IGNORECASE)
_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?(?:,|\s|$))")
_STRONG_TAG = re.compile(r'(?<!/)("[^"]*"|\*)')
_TAG = re.compile(r'\s*(?:W/)?("[^"]*"|\*)\s*(?:,|$)')

heavy = CapacityLimiter(4)
"""Threads for work that keeps a processor busy, so that quick answers are not queued behind it."""


def digest_in(name: str) -> str:
    """Return an id from an address.

    Raises:
        ProblemAnswer: it is not 64 lower-case hexadecimal digits, so nothing has it; it is not repeated in the answer.
    """
    if not is_digest(name):
        raise ProblemAnswer("not-found", "this is not an id: ids are 64 lower-case hexadecimal digits")
    return name


def not_known(name: str) -> ProblemAnswer:
    """Return the answer for an id that nothing has."""
    return ProblemAnswer("not-found", f"nothing has the digest {name}; post its spec to have it solved")


def known_of(call: Call, name: str, form: Form = ANY_FORM) -> Result | SolveJob:
    """Return the result or job that a digest or spec digest names; it looks at the disk.

    Raises:
        ProblemAnswer: nothing that the caller may see has it.
    """
    known = call.service.lookup(name, form, call.caller)
    if known is None:
        raise not_known(name)
    return known


def result_of(call: Call, name: str) -> Result:
    """Return the result that a digest or spec digest in an address names; it looks at the disk.

    Raises:
        ProblemAnswer: nothing that the caller may see has it, or its job is not done.
    """
    known = known_of(call, digest_in(name))
    if isinstance(known, Result):
        return known
    raise ProblemAnswer("not-found", f"the job of {name} is {known.state}, so there is no result to read yet")


def json_response(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON answer."""
    return Response(canonical_json(document), status, headers, "application/json")


def known_response(
    call: Call, known: Result | SolveJob, headers: Mapping[str, str] = NO_HEADERS, notes: Sequence[str] = ()
) -> Response:
    """Return the manifest of a result, or the document of a job, which has an address where it was posted.

    Args:
        call: of the request; an address that names the bytes of a manifest can be kept for ever.
        known: what was found.
        headers: further headers.
        notes: what is to be known of a job.
    """
    request = call.request
    if isinstance(known, Result):
        headers = {**headers, "ETag": f'"{known.digest}"', "Cache-Control": lasting(request, known)}
        return cacheable_response(request, known.text, headers, "application/json")
    posted = request.method == "POST"
    headers = {**headers, "Location": f"/v1/factorizations/{known.spec_digest}"} if posted else dict(headers)
    if not known.finished:
        headers["Retry-After"] = str(RETRY_SECONDS)
    notes = [*notes, *call.service.engine.notes_on(known)]
    return json_response(known.document() | ({"notes": notes} if notes else {}), 202 if posted else 200, headers)


def lasting(request: Request, result: Result) -> str:
    """Return the Cache-Control of an answer about a result: for ever, where the address names its bytes."""
    return LASTING_CACHE if request.path_params.get("name") == result.digest else "no-cache"


def cacheable_response(request: Request, body: bytes, headers: Mapping[str, str], media: str) -> Response:
    """Return an answer that clients keep by its ETag, or 304 where the client has it; see `check_match`."""
    check_match(request, headers["ETag"])
    if is_current(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(body, 200, headers, media)


def compressed_response(request: Request, body: bytes, headers: Mapping[str, str], media: str) -> Response:
    """Return an answer that is the same for all callers until the next release: with an ETag, in gzip where taken."""
    taken = request.headers.get("accept-encoding", "").lower()
    packed = _GZIP.search(taken) is not None
    sent = _packed(body) if packed else body
    encoding = {"Content-Encoding": "gzip"} if packed else {}
    about = {"ETag": f'"{sha256(sent)}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding", **encoding}
    return cacheable_response(request, sent, {**about, **headers}, media)


_packed = lru_cache(maxsize=128)(partial(gzip.compress, mtime=0))


def wanted_wait(request: Request) -> int | None:
    """Return the seconds of `Prefer: wait=N`, 30 at most, or None."""
    wait = _WAIT.search(request.headers.get("prefer", ""))
    return None if wait is None else min(int(wait[1]), MAX_WAIT_SECONDS)


def is_current(request: Request, tag: str) -> bool:
    """Say whether the client of a GET has what an entity tag names, by its If-None-Match."""
    named = _TAG.findall(request.headers.get("if-none-match", ""))
    return request.method in ("GET", "HEAD") and any(one in (tag, "*") for one in named)


def check_match(request: Request, tag: str) -> None:
    """Refuse a GET whose If-Match names other bytes.

    Raises:
        ProblemAnswer: it does.
    """
    wanted = request.headers.get("if-match")
    if wanted is not None and not any(one in (tag, "*") for one in _STRONG_TAG.findall(wanted)):
        raise ProblemAnswer("precondition-failed", f"the current ETag here is {tag}, which If-Match does not name")


async def whole(view: memoryview) -> AsyncIterator[memoryview]:
    """Yield a buffer that is there already; a change of threads would cost as much as sending a small one."""
    yield view


async def in_threads(views: Iterator[memoryview], limiter: CapacityLimiter | None = None) -> AsyncIterator[memoryview]:
    """Yield buffers that are made in threads."""
    while (view := await run_sync(next, views, None, limiter=limiter)) is not None:
        yield view


async def stream(
    call: Call, views: AsyncIterator[memoryview], *, status: int = 200, headers: dict[str, str]
) -> Response:
    """Return raw bytes as they are made; `headers` holds their Content-Length.

    The first buffer is made before the status is sent, so that what goes wrong there is still a problem document. Later
    the connection is closed early, which a client notices by the length.
    """
    if call.request.method == "HEAD":
        return Response(None, status, headers, RAW)
    first, service = await anext(views, None), call.service
    service.sent_bytes += int(headers["Content-Length"])
    return StreamingResponse(_pieces(service, first, views), status, headers, RAW)


async def _pieces(
    service: SolverService, view: memoryview | None, views: AsyncIterator[memoryview]
) -> AsyncIterator[memoryview]:
    """Cut buffers into the pieces that the kernel is given, without copies.

    The server keeps what a slow client has not taken of a piece, so many readers get smaller ones; few get the large
    ones, which cost least.
    """
    service.readers += 1
    try:
        while view is not None:
            size = max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, IN_FLIGHT_BYTES // service.readers))
            for start in range(0, len(view), size):
                yield view[start : start + size]
                await asyncio.sleep(0)  # the loop hears of a client that has left before more is written to it
            view = await anext(views, None)
    finally:
        service.readers -= 1
