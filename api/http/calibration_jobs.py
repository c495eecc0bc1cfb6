"""Calibration jobs: each question about a stored factorization is worked out once, by a worker, and kept.

A question has an address that says all of it, so nothing has to be stored: after a restart the answer is worked out
again when somebody asks for it, and a deterministic seed makes it the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

from factorize.accounting.calibration_request import CalibrationRequest, read_calibration_request
from factorize.api.access.caller import ANYONE, Caller
from factorize.api.http.child_answers import ChildQuestion
from factorize.api.http.problems import ProblemAnswer
from factorize.api.jobs.job import State
from factorize.api.service import SolverService
from factorize.encoding import json_digest, read_json
from factorize.errors import MalformedJson
from factorize.storage.records import now

LIMIT_SECONDS = 600.0
MOST_OPEN = 32
KEPT = 512
_AT_ONCE = 1  # a claim takes all processors
_TEXTS = {"adjacency", "sampling", "method"}


class CalibrationJob:
    """One question and how far it is.

    Args:
        digest: of the factorization.
        request: what is asked.
        caller: who has it begun, and to whom its core-seconds are counted.

    Attributes:
        id: sha256 of factorization and request.
        state: as of a solve.
        answer: JSON, once `done`.
        problem: why there is none, once `failed`.
        askers: owners that have asked for it.
    """

    def __init__(self, digest: str, request: CalibrationRequest, caller: Caller = ANYONE) -> None:
        self.digest = digest
        self.request = request
        self._caller = caller
        self.id = job_id(digest, request)
        self.state: State = "queued"
        self.answer: bytes | None = None
        self.problem: ProblemAnswer | None = None
        self.submitted = self.updated = now()
        self.askers: set[str] = {caller.owner}
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self.future: Future[None] = Future()

    @property
    def open(self) -> bool:
        """Whether it is queued or running."""
        return self.state in ("queued", "running")

    @property
    def address(self) -> str:
        """Where it is followed and cancelled: it holds the whole question."""
        asked = self.request.model_dump(exclude_defaults=True)
        return f"/v1/factorizations/{self.digest}/calibrations?{urlencode(asked)}"

    def document(self) -> dict[str, Any]:
        """Return the job's document."""
        return {
            "calibration": self.id,
            "digest": self.digest,
            "request": self.request.model_dump(exclude_defaults=True),
            "state": self.state,
            "progress": None,
            "error": None,
            "submitted": self.submitted,
            "updated": self.updated,
        }

    def run(self, service: SolverService) -> None:
        """Work it out; blocks, and raises nothing."""
        if self.stop.is_set():
            return
        self._become("running")
        try:
            self.answer = self._question().ask(service, self.stop)
            self._become("done")
        except ProblemAnswer as problem:
            self._fail(problem)
        except Exception as error:  # a thread's error would be seen by nobody
            self._fail(ProblemAnswer("unavailable", f"the calibration could not be run: {type(error).__name__}"))

    def cancel(self) -> bool:
        """End it; False where it has ended already."""
        self.stop.set()
        return self._become("cancelled")

    def _fail(self, problem: ProblemAnswer) -> None:
        with self._lock:
            if self.open:  # one that was cancelled has no problem: its process was ended by request
                self.problem, self.updated, self.state = problem, now(), "failed"

    def _become(self, state: State) -> bool:
        with self._lock:
            if not self.open:
                return False
            self.updated, self.state = now(), state
            return True

    def _question(self) -> ChildQuestion:
        return ChildQuestion(
            "calibrate",
            {"digest": self.digest, "request": self.request.document()},
            LIMIT_SECONDS,
            "use fewer bins, method 'deterministic', or `factorize calibrate`",
            "invalid-parameter",
            own_slugs=True,
            caller=self._caller,
        )


class CalibrationJobs:
    """The jobs of one service: one runs at a time, and the newest answers are kept. Safe for threads.

    Args:
        service: for the store and the limits.
    """

    def __init__(self, service: SolverService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, CalibrationJob] = OrderedDict()
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="factorize-calibration")

    def known(self, digest: str, request: CalibrationRequest) -> CalibrationJob | None:
        """Return the job of a question, however far it is, or None."""
        with self._lock:
            return self._jobs.get(job_id(digest, request))

    def obtain(self, digest: str, request: CalibrationRequest, caller: Caller = ANYONE) -> CalibrationJob:
        """Return the job of a question, begun now unless it is open or answered, with an asker more.

        Raises:
            ProblemAnswer: too many are open.
            QuotaExhausted: it has to be begun, and no core-seconds are left to the caller.
        """
        job = CalibrationJob(digest, request, caller)
        with self._lock:
            known = self._jobs.get(job.id)
            if known is not None and (known.open or known.state == "done"):
                self._jobs.move_to_end(job.id)
                known.askers.add(caller.owner)
                return known
            self._service.meter.check_left(caller)
            if sum(found.open for found in self._jobs.values()) >= MOST_OPEN:
                raise ProblemAnswer(
                    "unavailable", f"{MOST_OPEN} calibrations are waiting, which is the limit; try again, or cancel one"
                )
            self._jobs[job.id] = job
            self._jobs.move_to_end(job.id)
            ended = [name for name, found in self._jobs.items() if not found.open]
            for name in ended[: max(len(self._jobs) - KEPT, 0)]:
                del self._jobs[name]
            job.future = self._threads.submit(job.run, self._service)
        return job

    async def wait(self, job: CalibrationJob, seconds: float) -> None:
        """Wait for the end of a job, so many seconds at most."""
        if job.open:
            await asyncio.wait({asyncio.wrap_future(job.future)}, timeout=seconds)

    def close(self) -> None:
        """End what runs, and its worker with it."""
        with self._lock:
            for job in self._jobs.values():
                job.cancel()
        self._threads.shutdown(wait=True)


def job_id(digest: str, request: CalibrationRequest) -> str:
    """Return the sha256 that names a question about a factorization."""
    return json_digest({"digest": digest, "request": request.document()})


def request_in(query: Mapping[str, str]) -> CalibrationRequest:
    """Read a question from an address.

    Raises:
        InvalidSpec: it is none; pointers to the fields.
    """
    return read_calibration_request({name: _value(name, text) for name, text in query.items()})


def _value(name: str, text: str) -> Any:
    if name in _TEXTS:
        return text
    try:
        return read_json(text)
    except MalformedJson:
        return text  # which the reader refuses at its field
