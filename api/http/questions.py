"""Questions that a worker answers for one request: predictions, comparisons, recommendations, calibrations.

Each waits for a place of its kind, is bounded, ends with its connection and is stored nowhere. The newest answers are
kept in memory by the digest of their question.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from starlette.responses import Response

from factorize.accounting.calibration_request import read_calibration_request
from factorize.api.access.caller import Caller
from factorize.api.http.access import READ, SUBMIT
from factorize.api.http.answers import AskingCaller, RunningService, result_of
from factorize.api.http.problems import ProblemAnswer, problem_of, request_id
from factorize.api.http.request_guard import read_body
from factorize.api.http.routes import event, paced
from factorize.api.http.schema import answers, json_body
from factorize.api.http.work_gate import EventStream, gate_of, owner_of, working
from factorize.api.questions.comparison import read_request
from factorize.api.questions.training_job import read_job
from factorize.api.service import AboveCapacity, SolverService
from factorize.api.workers.ending import Ending, WorkerEnded, without_places
from factorize.encoding import canonical_json, check_digest, json_digest, read_json
from factorize.errors import FactorizeError, InvalidSpec, Violation

LIMIT_SECONDS = 600.0
PREDICTION_SECONDS = 60.0
KEPT, LARGEST_KEPT = 256, 1 << 18
"""Answers that are kept, and the bytes of the largest."""
MOST_UNREAD = 64
"""Progress events that wait for a client."""
_LOOK_SECONDS = 0.2
_LEAST_MB, _UNKNOWN_MB = 1024, 2048
_PREDICTION_MB = 512
_OPENING = 8  # times the file's bytes, while a question about it is answered

Document = dict[str, Any]
Report = Callable[[Document], object]
router = APIRouter(default_response_class=Response)


@dataclass(frozen=True)
class Question:
    """One kind of question.

    Attributes:
        read: checks what was posted, and returns what the worker is asked and the memory that it takes, in units of
            2^20 bytes; 0 for half of what all solves may take. Gets the name in the address too; looks at the disk.
        work: kind of place; see `work_gate.py`.
        remedy: what to do about one that takes too much.
        seconds: wall limit.
        threads: that it may use; 0 for all of the solves.
    """

    read: Callable[[Document, SolverService, Caller, str], tuple[Document, int]]
    work: str
    remedy: str
    seconds: float = LIMIT_SECONDS
    threads: int = 0


def _prediction(document: Document, service: SolverService, caller: Caller, _name: str) -> tuple[Document, int]:
    from factorize.predict import parse_question

    unknown = sorted(set(document) - {"question", "factorization"})
    name = document.get("factorization")
    problems = [Violation(f"/{field[:40]}", "unknown field; use question and factorization") for field in unknown]
    if not isinstance(document.get("question"), dict):
        problems.append(Violation("/question", "a question is a JSON object with its kind; docs/predict.md lists them"))
    if name is not None and not isinstance(name, str):
        problems.append(Violation("/factorization", "a factorization is named by its digest or spec digest, a string"))
    if problems:
        raise InvalidSpec(problems)
    parse_question(document["question"])
    if name is None:
        return {"request": document["question"], "digest": None}, _PREDICTION_MB
    about = result_of(service, check_digest(name), caller)
    size, limit_mb = _OPENING * int(about.manifest()["files"][0]["bytes"]), service.engine.capacity_mb
    if limit_mb is not None and size > limit_mb << 20:
        message = (
            f"a question about this file takes about {size / 2**30:.1f} GiB; the limit is {limit_mb / 1024:.1f} GiB; "
            "download it and ask `factorize predict`"
        )
        raise AboveCapacity(message, {"bytes": size, "seconds": PREDICTION_SECONDS})
    return {"request": document["question"], "digest": about.digest}, _PREDICTION_MB + (size >> 20)


def _comparison(document: Document, service: SolverService, caller: Caller, _name: str) -> tuple[Document, int]:
    comparison = read_request(document)
    service.keep_matrices(comparison.spec, caller, within="/spec")
    return {"request": comparison.document()}, 0


def _recommendation(document: Document, _service: SolverService, _caller: Caller, _name: str) -> tuple[Document, int]:
    read_job(document)
    return {"request": document}, 0


def _calibration(document: Document, service: SolverService, caller: Caller, name: str) -> tuple[Document, int]:
    calibration = read_calibration_request(document)
    return {"request": calibration.document(), "digest": result_of(service, name, caller).digest}, 0


QUESTIONS = {
    "predict": Question(
        _prediction,
        "question",
        "ask for less, or ask `factorize predict`, which has no limit",
        PREDICTION_SECONDS,
        threads=1,
    ),
    "compare": Question(_comparison, "comparison", "use a smaller n, or `factorize compare` with --max-seconds"),
    "recommend": Question(
        _recommendation, "comparison", "give fewer seconds, or ask `factorize recommend`, which has no limit"
    ),
    "calibrate": Question(
        _calibration, "calibration", "use fewer bins, method 'deterministic', or `factorize calibrate`"
    ),
}
"""By the worker's name of each (api/workers/solver.py)."""


class KeptAnswers(OrderedDict[str, bytes]):
    """The newest answers of one service that are not large, by the digest of their question."""

    def keep(self, key: str, answer: bytes) -> None:
        """Keep one."""
        if len(answer) <= LARGEST_KEPT:
            self[key] = answer
            if len(self) > KEPT:
                self.popitem(last=False)


def _route(path: str, access: list[Any], body: str, document: str) -> Callable[[Any], Any]:
    statuses = answers(200, 400, 404, 410, 413, 422, 429, 503, document=document)
    return router.post(path, openapi_extra=json_body(body), responses=statuses, dependencies=access)


@_route("/v1/predict", READ, "PredictionRequest", "Prediction")
async def predict(request: Request, service: RunningService, caller: AskingCaller) -> Response:
    """Answer a question of `factorize.predict`, about a stored factorization where it is about one."""
    return await _answered("predict", request, service, caller)


@_route("/v1/compare", SUBMIT, "CompareRequest", "Comparison")
async def compare(request: Request, service: RunningService, caller: AskingCaller) -> Response:
    """Compare all mechanisms that fit a spec.

    The answer is the table; with `Accept: text/event-stream` events: `progress` {done, total, mechanism, seconds},
    then `done` with the table or `failed` with the problem. Closing the connection ends the comparison.
    """
    return await _answered("compare", request, service, caller)


@_route("/v1/recommend", SUBMIT, "RecommendRequest", "Advice")
async def recommend(request: Request, service: RunningService, caller: AskingCaller) -> Response:
    """Recommend one mechanism for a training job, with its noise, what the loader does, its spec and code.

    The answer is what `factorize recommend --output json` prints, and `table`, the comparison that it rests on. Events
    and the end are as those of `POST /v1/compare`.
    """
    return await _answered("recommend", request, service, caller)


@_route("/v1/factorizations/{name}/calibrations", SUBMIT, "CalibrationRequest", "Calibration")
async def calibrate(request: Request, service: RunningService, caller: AskingCaller, name: str) -> Response:
    """Compute the noise for a privacy target, with the claim where epsilon counts on balls in bins.

    The answer is what `factorize calibrate --output json` prints. One is worked out at a time, ten minutes at most;
    closing the connection ends it. Events are as those of `POST /v1/compare`.
    """
    return await _answered("calibrate", request, service, caller, name)


async def _answered(kind: str, http: Request, service: SolverService, caller: Caller, name: str = "") -> Response:
    """Have a question answered, and return the answer or a stream of its events.

    Raises:
        ProblemAnswer: there is no answer, or no place to look for it.
        QuotaExhausted: no core-seconds are left to the caller.
    """
    question, kept = QUESTIONS[kind], http.app.state.kept_answers
    body = await read_body(http)
    try:
        document = read_json(body)
        if not isinstance(document, dict):
            raise InvalidSpec([Violation("", "a question is a JSON object; docs/http.md shows one of each kind")])
        asked, memory_mb = await run_sync(question.read, document, service, caller, name)
    except FactorizeError as error:
        raise problem_of(error, body=body) from error
    key, stop = json_digest({"question": kind, **asked}), threading.Event()
    if key not in kept:
        service.meter.check_left(caller)
        gate_of(http).check(question.work, owner_of(http))

    async def run(report: Report) -> bytes:
        if key not in kept:
            async with working(http, question.work):
                if key not in kept:  # nor was it answered while this waited
                    answer = await run_sync(_ask, kind, asked, memory_mb, service, caller, stop, report)
                    kept.keep(key, answer)
                    return answer
        answer = kept[key]
        kept.move_to_end(key)
        return bytes(answer)

    if "text/event-stream" in http.headers.get("accept", ""):
        return EventStream(paced(_frames(run, stop, request_id(http))), http.app.state.streams)
    return Response(await _while_connected(http, run(lambda _event: None), stop), media_type="application/json")


def _ask(
    kind: str,
    asked: Document,
    memory_mb: int,
    service: SolverService,
    caller: Caller,
    stop: threading.Event,
    report: Report,
) -> bytes:
    """Return a worker's answer as JSON; blocks.

    Raises:
        ProblemAnswer: there is none.
    """
    question = QUESTIONS[kind]
    threads = question.threads or service.pool.processors
    with service.meter.working(caller, threads), service.pool.place() as place:
        try:
            answer = place.pair.solver.ask(
                kind,
                {**asked, "store": service.store.url},
                seconds=min(question.seconds, service.settings.max_solve_seconds),
                memory_mb=memory_mb or max(_LEAST_MB, (service.engine.capacity_mb or _UNKNOWN_MB) // 2),
                threads=threads,
                progress=report,
                cancelled=lambda: stop.is_set() or service.engine.closed,
            )
        except FactorizeError as error:
            raise _problem(error, question.remedy) from None
    return canonical_json(answer)


def _problem(error: FactorizeError, remedy: str) -> ProblemAnswer:
    """Return the problem of a question without an answer: a refusal in its own words, else no word of where it ran."""
    if isinstance(error, WorkerEnded) and error.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
        return ProblemAnswer("too-large", f"{without_places(str(error))}; {remedy}")
    if isinstance(error, WorkerEnded) and error.ending is not Ending.FAILED:
        return ProblemAnswer("unavailable", without_places(str(error)))
    problem = problem_of(error)
    if problem.slug != "internal":
        return problem
    return ProblemAnswer("unsupported-problem", without_places(str(error)))


async def _while_connected(http: Request, work: Awaitable[bytes], stop: threading.Event) -> bytes:
    """Wait for an answer, and stop the work when the client has gone."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=_LOOK_SECONDS))[0]:
            if await http.is_disconnected():
                stop.set()
        return task.result()
    finally:
        stop.set()


async def _frames(
    run: Callable[[Report], Awaitable[bytes]], stop: threading.Event, about: str
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a question; the worker ends with the stream."""
    loop, news = asyncio.get_running_loop(), asyncio.Queue[Document | None]()

    def tell(progress: Document) -> None:
        if news.qsize() < MOST_UNREAD:  # a client that does not read misses news, and no memory fills
            news.put_nowait({name: progress[name] for name in progress if name != "event"})

    task = asyncio.ensure_future(run(lambda progress: loop.call_soon_threadsafe(tell, progress)))
    task.add_done_callback(lambda _ended: news.put_nowait(None))
    try:
        while (progress := await news.get()) is not None:
            yield event("progress", canonical_json(progress))
        try:
            yield event("done", task.result())
        except ProblemAnswer as problem:
            yield event("failed", problem.body(about))
        except FactorizeError as error:
            yield event("failed", problem_of(error).body(about))
    finally:
        stop.set()
