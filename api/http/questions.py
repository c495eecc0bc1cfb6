"""The routes of questions that a worker answers for one request; `api/questions/registry.py` lists them.

Each waits for a place of its kind, is bounded, ends when nobody waits for it and is stored nowhere. The newest answers
are kept in memory by the digest of their question.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from inspect import getdoc
from math import isfinite
from threading import Event
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends
from starlette.responses import Response

from factorize.api.access.caller import Caller
from factorize.api.http.access import Access, Call, ReadCall, SubmitCall
from factorize.api.http.answers import RETRY_SECONDS, digest_in, json_response, result_of, wanted_wait
from factorize.api.http.pending import REFUSAL, WAIT_SECONDS, PendingAnswer, PendingAnswers, Work
from factorize.api.http.problems import ProblemAnswer, problem_of, request_id
from factorize.api.http.request_guard import read_body
from factorize.api.http.routes import PING, PING_SECONDS, event
from factorize.api.http.schema import answers, json_body
from factorize.api.http.work_gate import EventStream, gate_of, working
from factorize.api.questions.registry import POSTED_KINDS, QuestionKind
from factorize.api.service import SolverService
from factorize.api.workers.worker import AnswerLimits, Ending, WorkerEnded, without_places
from factorize.encoding import JsonObject, canonical_json, json_digest, read_json
from factorize.errors import FactorizeError, StoreUnavailable
from factorize.storage.blobs import Cache
from factorize.storage.index import Result

KEPT_BYTES = 1 << 26
"""The bytes of the newest answers, which are kept by the digest of their question."""
MAX_UNREAD_EVENTS = 64
"""The most progress events that wait for a client."""
_MIN_MB, _UNKNOWN_MB = 1024, 2048

Report = Callable[[JsonObject], object]
_ANSWERS = {200: " | ".join(dict.fromkeys(question.reply for question in POSTED_KINDS.values())), 202: "PendingAnswer"}
router = APIRouter(default_response_class=Response)


def _route(kind: str, question: QuestionKind[Any]) -> None:
    """Add the route of a question."""
    access = Depends(Access(question.scope))

    async def ask(call: Call = access) -> Response:
        return await _answer(kind, call)

    named = [Depends(_name)] if "{name}" in question.path else []
    router.post(
        question.path,
        name=kind,
        description=getdoc(question),
        openapi_extra=json_body(question.body.__name__),
        responses=answers(200, 202, 404, 410, 413, document={200: question.reply, 202: "PendingAnswer"}),
        dependencies=named,
    )(ask)


async def _name(name: str) -> None:
    """Declare the digest in an address."""


for _kind, _question in POSTED_KINDS.items():
    _route(_kind, _question)


async def _answer(kind: str, call: Call) -> Response:
    """Have a question answered, and return the answer, a stream of its events, or 202 where it takes long.

    Raises:
        ProblemAnswer: there is no answer, or no place to look for it.
        QuotaExhausted, TooLarge: it is estimated to take more core-seconds than the caller has left, or has in a day.
    """
    question, http = POSTED_KINDS[kind], call.request
    service, caller = call.service, call.caller
    kept: Cache[bytes] = http.app.state.kept_answers

    def find(name: str | None) -> Result:
        return result_of(call, name or http.path_params["name"])

    body = await read_body(http)
    try:
        asked = await run_sync(question.read, read_json(body))
        digest, memory_mb = await run_sync(question.check, asked, service, caller, find)
        seconds = await run_sync(question.estimate_seconds, asked)
    except FactorizeError as error:
        raise problem_of(error, body=body, part=question.part) from error
    core_seconds = (question.threads or service.pool.processors) * seconds if isfinite(seconds) else 0.0
    request = {"request": asked.document(), "digest": digest}
    key = json_digest({"question": kind, **request})
    known = kept.get(key)
    if known is None:
        service.holdings.check_left(caller, core_seconds)
        gate_of(call).check(question.work, caller.owner)

    async def work(stop: Event, report: Report) -> bytes:
        if known is not None:
            return known
        async with working(call, question.work, seconds):
            answer = kept.get(key)  # it may have been answered while this waited
            if answer is None:
                await run_sync(
                    service.holdings.check_left, caller, core_seconds
                )  # the caller may have used up what was left, too
                answer = await run_sync(_ask, kind, request, memory_mb, service, caller, stop, report)
                kept.put(key, answer)
            return answer

    if "text/event-stream" in http.headers.get("accept", ""):
        return EventStream(_frames(work, request_id(http)), call)
    if known is not None:
        return Response(known, media_type="application/json")
    if _pending(call).find(caller.owner, key) is None:
        with suppress(StoreUnavailable):  # it can be worked out here without a ledger
            if (reply := await _reply_of_another(call, key, again=True)) is not None:
                return reply
    return await _reply(call, key, _pending(call).start(caller.owner, key, work))


async def _reply(call: Call, key: str, pending: PendingAnswer) -> Response:
    """Return an answer, or where it will be if it takes longer than the client waits."""
    wanted = wanted_wait(call.request)
    answer = await pending.wait(call.request, WAIT_SECONDS if wanted is None else wanted)
    if answer is None:
        await _pending(call).give_out(call.caller.owner, key, pending)
    return _response(key, wanted, answer, pending.progress)


async def _reply_of_another(call: Call, key: str, *, again: bool = False) -> Response | None:
    """Return the reply about an answer that another service works out, or None where none does.

    Args:
        call: asks for it.
        key: digest of the question.
        again: whether a question that was refused is to be asked again.

    Raises:
        ProblemAnswer: it was refused.
    """
    wanted, loop = wanted_wait(call.request), asyncio.get_running_loop()
    end = loop.time() + (WAIT_SECONDS if wanted is None else wanted)
    while (known := await run_sync(_pending(call).elsewhere.look, call.caller.owner, key)) is not None:
        if known.answer is not None and known.answer.startswith(REFUSAL):
            if again:
                return None
            slug, detail, extra = json.loads(known.answer.removeprefix(REFUSAL))
            raise ProblemAnswer(slug, detail, extra=extra)
        if known.answer is not None or loop.time() >= end or await call.request.is_disconnected():
            answer = None if known.answer is None else known.answer.encode("ascii")
            return _response(key, wanted, answer, None if known.progress is None else json.loads(known.progress))
        await asyncio.sleep(min(1.0, max(0.0, end - loop.time())))
    return None


def _response(key: str, wanted: int | None, answer: bytes | None, progress: dict[str, object] | None) -> Response:
    """Return an answer, or the news of it with its address."""
    headers = {} if wanted is None else {"Preference-Applied": f"wait={wanted}"}
    if answer is not None:
        return Response(answer, 200, headers, "application/json")
    headers |= {"Location": f"/v1/answers/{key}", "Retry-After": str(RETRY_SECONDS)}
    return json_response({"digest": key, "state": "running", "progress": progress}, 202, headers)


def _pending(call: Call) -> PendingAnswers:
    return call.request.app.state.pending_answers


@router.get("/v1/answers/{digest}", responses=answers(200, 202, 404, document=_ANSWERS))
async def get_answer(call: ReadCall, digest: str) -> Response:
    """Give the answer to a question that took long, or say how far it is. `Prefer: wait=N` waits for it."""
    pending = _pending(call).find(call.caller.owner, digest_in(digest))
    try:
        reply = await (_reply_of_another(call, digest) if pending is None else _reply(call, digest, pending))
    except (ProblemAnswer, FactorizeError):
        if pending is None or not pending.stop.is_set():
            raise
        reply = None  # it was ended meanwhile
    if reply is None:
        raise ProblemAnswer("not-found", "the service is not working on this answer for you; post the question again")
    return reply


@router.delete("/v1/answers/{digest}", status_code=202, responses=answers(202, 404, document="PendingAnswer"))
async def cancel_answer(call: SubmitCall, digest: str) -> Response:
    """End the work on an answer that its caller does not want any more."""
    pending = _pending(call).find(call.caller.owner, digest_in(digest))
    elsewhere, owner = _pending(call).elsewhere, call.caller.owner
    known = await run_sync(elsewhere.look, owner, digest) if pending is None else pending.news
    if known is None or known.answer is not None or (pending is not None and pending.task.done()):
        raise ProblemAnswer("not-found", "the service is not working on this answer for you; nothing to end")
    await run_sync(elsewhere.stop, owner, digest)
    if pending is not None:
        pending.stop.set()
    progress = None if known.progress is None else json.loads(known.progress)
    return json_response({"digest": digest, "state": "cancelled", "progress": progress}, 202)


def _ask(
    kind: str, request: JsonObject, memory_mb: int, service: SolverService, caller: Caller, stop: Event, report: Report
) -> bytes:
    """Return a worker's answer as JSON; blocks.

    Raises:
        ProblemAnswer: there is none.
    """
    question = POSTED_KINDS[kind]
    threads = question.threads or service.pool.processors
    with service.holdings.working(caller, threads), service.pool.place() as place:
        try:
            limits = AnswerLimits(
                min(question.seconds, service.settings.max_solve_seconds),
                memory_mb or max(_MIN_MB, (service.engine.capacity_mb or _UNKNOWN_MB) // 2),
                threads,
                lambda: stop.is_set() or service.engine.closed,
            )
            answer = place.pair.solver.ask(kind, {**request, "store": service.store.url}, limits, report)
        except FactorizeError as error:
            raise _problem(error, question) from error
    return canonical_json(answer)


def _problem(error: FactorizeError, question: QuestionKind[Any]) -> ProblemAnswer:
    """Return the problem of a question without an answer: a refusal in its own words, else no word of where it ran."""
    if isinstance(error, WorkerEnded) and error.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
        return ProblemAnswer("too-large", f"{without_places(str(error))}; {question.remedy}")
    if isinstance(error, WorkerEnded) and error.ending is not Ending.FAILED:
        return ProblemAnswer("unavailable", without_places(str(error)))
    problem = problem_of(error, part=question.part)
    if problem.slug != "internal":
        return problem
    return ProblemAnswer("unsupported-problem", without_places(str(error)))


async def _next(news: asyncio.Queue[bytes | None]) -> bytes | None:
    """Return the next frame, or a comment after `PING_SECONDS` without one."""
    try:
        async with asyncio.timeout(PING_SECONDS):
            return await news.get()
    except TimeoutError:
        return PING


async def _frames(work: Work, about: str) -> AsyncGenerator[bytes, None]:
    """Yield the events of a question; the worker ends with the stream."""
    loop, news, stop = asyncio.get_running_loop(), asyncio.Queue[bytes | None](), Event()

    def tell(progress: JsonObject) -> None:
        if news.qsize() < MAX_UNREAD_EVENTS:  # a client that does not read misses news, and no memory fills
            data = {name: value for name, value in progress.items() if name != "event"}
            news.put_nowait(event("progress", canonical_json(data)))

    task = asyncio.ensure_future(work(stop, lambda progress: loop.call_soon_threadsafe(tell, progress)))
    task.add_done_callback(lambda _ended: news.put_nowait(None))
    try:
        while (frame := await _next(news)) is not None:
            yield frame
        try:
            yield event("done", task.result())
        except ProblemAnswer as problem:
            yield event("failed", problem.body(about))
        except FactorizeError as error:
            yield event("failed", problem_of(error).body(about))
    finally:
        stop.set()
