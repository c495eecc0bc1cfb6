"""The routes of comparisons and recommendations: all that fits, solved in one worker, nothing stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from factorize.api.comparing.compare_request import CompareRequest, read_request
from factorize.api.http.answers import AskingCaller, RunningService
from factorize.api.http.child_answers import ChildQuestion, while_connected
from factorize.api.http.gateway.access import SUBMIT
from factorize.api.http.gateway.work_gate import gate_of, owner_of
from factorize.api.http.problems import ProblemAnswer, problem_of
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import answers, json_body
from factorize.api.recommending.recommend_request import read_job
from factorize.api.service import SolverService
from factorize.encoding import canonical_json, read_json
from factorize.errors import FactorizeError, InvalidSpec, Violation

LIMIT_SECONDS = 600.0

router = APIRouter(default_response_class=Response)


@router.post(
    "/v1/compare",
    openapi_extra=json_body("CompareRequest"),
    responses=answers(200, 400, 413, 422, 429, 503, document="Comparison"),
    dependencies=SUBMIT,
)
async def compare(request: HttpRequest, service: RunningService, caller: AskingCaller) -> Response:
    """Compare all mechanisms that fit a spec.

    The answer is the table; with `Accept: text/event-stream` events: `progress` {done, total, mechanism, seconds},
    then `done` with the table or `failed` with the problem. Closing the connection ends the comparison.
    """
    body = await read_body(request, limit=service.settings.max_json_bytes)
    try:
        asked = _request(read_json(body))
        await run_sync(partial(service.keep_matrices, asked.spec, caller, within="/spec"))
    except FactorizeError as error:
        raise problem_of(error, body=body) from error
    question = ChildQuestion(
        "compare",
        {"request": asked.document()},
        LIMIT_SECONDS,
        "use a smaller n, or `factorize compare` with --max-seconds",
        "unsupported-problem",
        caller=caller,
    )
    return await answered_run(request, service, question)


@router.post(
    "/v1/recommend",
    openapi_extra=json_body("RecommendRequest"),
    responses=answers(200, 400, 413, 422, 429, 503, document="Advice"),
    dependencies=SUBMIT,
)
async def recommend(request: HttpRequest, service: RunningService, caller: AskingCaller) -> Response:
    """Recommend one mechanism for a training job, with its noise, what the loader does, its spec and code.

    The answer is what `factorize recommend --output json` prints, and `table`, the comparison that it rests on. Events
    and the end are as those of `POST /v1/compare`.
    """
    body = await read_body(request, limit=service.settings.max_json_bytes)
    try:
        document = read_json(body)
        if not isinstance(document, dict):
            raise InvalidSpec([Violation("", 'a training job is a JSON object, {"examples": 60000, ...}')])
        read_job(document)
    except FactorizeError as error:
        raise problem_of(error, body=body) from error
    question = ChildQuestion(
        "recommend",
        {"request": document},
        LIMIT_SECONDS,
        "give max_seconds, or ask `factorize recommend`, which has no limit",
        "unsupported-problem",
        own_slugs=True,
        caller=caller,
    )
    return await answered_run(request, service, question)


async def answered_run(request: HttpRequest, service: SolverService, question: ChildQuestion) -> Response:
    """Take the place of a comparison, and return its answer or a stream of its events.

    Raises:
        Problem: there is no place, or no answer.
        QuotaExhausted: no core-seconds are left to the caller.
    """
    service.meter.check_left(question.caller)
    gate, owner = gate_of(request), owner_of(request)
    gate.check("comparison", owner)
    run = ComparisonRun(question, service, partial(gate.place, "comparison", owner))
    if "text/event-stream" in request.headers.get("accept", ""):
        return StreamingResponse(run.events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
    return Response(await run.answer(request), media_type="application/json")


def _request(document: Any) -> CompareRequest:
    if not isinstance(document, dict):
        raise InvalidSpec([Violation("", 'a comparison is asked for by a JSON object, {"spec": {...}}')])
    return read_request(document)


class ComparisonRun:
    """One comparison: a question to a worker, followed from the event loop.

    Args:
        question: what is asked of the worker.
        service: for the store and the limits.
        place: the place that it takes while it runs.
    """

    def __init__(
        self, question: ChildQuestion, service: SolverService, place: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        self._service = service
        self._place = place
        self._question = question
        self._stop = threading.Event()
        self._progress: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=64)

    async def answer(self, http: HttpRequest) -> bytes:
        """Wait for the answer; stop when the client has gone.

        Raises:
            Problem: there is none.
        """
        return await while_connected(http, self._run(), self._stop)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events; the worker ends with the stream."""
        task = asyncio.ensure_future(self._run())
        try:
            while not task.done():
                waiting = asyncio.ensure_future(self._progress.get())
                await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    yield _event("progress", canonical_json(waiting.result()))
                else:
                    waiting.cancel()
            try:
                yield _event("done", task.result())
            except ProblemAnswer as problem:
                yield _event("failed", canonical_json({"type": problem.slug, "detail": problem.detail}))
        finally:
            self._stop.set()

    async def _run(self) -> bytes:
        loop = asyncio.get_running_loop()

        def report(event: dict[str, Any]) -> None:
            news = {name: event[name] for name in ("done", "total", "mechanism", "seconds")}
            loop.call_soon_threadsafe(self._tell, news)

        async with self._place():
            return await run_sync(self._question.ask, self._service, self._stop, report)

    def _tell(self, news: dict[str, Any]) -> None:
        if not self._progress.full():  # a client that does not read misses news, and no memory fills
            self._progress.put_nowait(news)


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
