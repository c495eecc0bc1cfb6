"""Questions whose answer a worker works out: predictions and plans, bounded before they begin."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Request

from factorize.api.access.caller import Caller
from factorize.api.http.child_answers import ChildQuestion, while_connected
from factorize.api.http.gateway.work_gate import working
from factorize.api.http.problems import ProblemAnswer, problem_of
from factorize.api.results import Result
from factorize.api.service import AboveCapacity, SolverService
from factorize.errors import (
    CorruptObject,
    FactorizeError,
    InvalidParameter,
    NotFound,
    Revoked,
    TooLarge,
    UnsupportedProblem,
)

MEBIBYTE = 1 << 20
_LEAST_MB = 512
_OPENING = 8  # times the file's bytes, while a question about it is answered


async def answered(
    request: Request,
    service: SolverService,
    caller: Caller,
    document: Mapping[str, Any],
    about: Result | None = None,
) -> dict[str, Any]:
    """Return the answer to a question that was read and found to be one.

    Args:
        request: the request; when its client goes, the worker ends.
        service: for the store and the limits.
        caller: who asks.
        document: the question.
        about: the factorization that it is about, if it is about one.

    Raises:
        ProblemAnswer: there is none, or no room to look for it.
        QuotaExhausted: no core-seconds are left to the caller.
    """
    service.meter.check_left(caller)
    child = ChildQuestion(
        "predict",
        {"request": document, "digest": None if about is None else about.digest},
        service.settings.question_seconds,
        "ask for less, or ask `factorize predict`, which has no limit",
        "invalid-parameter",
        memory_mb=_LEAST_MB if about is None else _memory(service, about),
        threads=1,
        caller=caller,
    )
    stop = threading.Event()
    async with working(request, "question"):
        try:
            return await while_connected(request, run_sync(child.answer, service, stop), stop)
        except FactorizeError as error:
            raise _refusal(error) from None


def _memory(service: SolverService, about: Result) -> int:
    """Return what the worker may take, from the size of the file: nothing of it is read yet.

    Raises:
        AboveCapacity: more than this service has for all its solves.
    """
    needed = _OPENING * int(about.manifest()["files"][0]["bytes"])
    limit_mb = service.engine.capacity_mb
    if limit_mb is not None and needed > limit_mb * MEBIBYTE:
        message = (
            f"a question about this file takes about {needed / 2**30:.1f} GiB; the limit is {limit_mb / 1024:.1f} GiB; "
            "download it and ask `factorize predict`"
        )
        raise AboveCapacity(message, {"bytes": needed, "seconds": service.settings.question_seconds})
    return _LEAST_MB + needed // MEBIBYTE


def _refusal(error: FactorizeError) -> ProblemAnswer:
    """Return the problem of a refused question."""
    if isinstance(error, NotFound):
        return ProblemAnswer("not-found", str(error))
    if isinstance(error, CorruptObject | Revoked):  # since it was looked up
        return ProblemAnswer("corrupt-object", str(error))
    if isinstance(error, TooLarge | UnsupportedProblem):
        return problem_of(error)
    return problem_of(InvalidParameter(str(error), field=getattr(error, "field", None)))
