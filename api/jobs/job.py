"""A job: what was asked of the engine, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from factorize.api.workers.ending import without_places

State = Literal["queued", "running", "done", "failed", "cancelled"]
STATES: tuple[State, ...] = get_args(State)
_AWAY = ("store-unavailable", "service-unreachable")
ALONE_AFTER = 2
"""Deaths after which a job is run alone on its worker; the next death is the last."""
TERMINAL = frozenset({"done", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What is asked of the engine.

    Args:
        spec_digest: sha256 of the canonical spec, 64 hex digits.
        spec: the canonical spec, JSON on one line.
        workload: the workload's kind, for the list.
        memory_mb: memory the solve is admitted with, in units of 2^20 bytes.
        seconds_limit: wall limit in seconds.
        threads: threads of the solve.
        priority: larger runs first.
        caller: who asked first; callers of equal priority take turns.
        request_id: of the request that asked.
        client_request_id: what its client calls it, or nothing.
        traceparent: of the trace that it belongs to (W3C Trace Context), or nothing.
    """

    spec_digest: str
    spec: str
    workload: str
    memory_mb: int
    seconds_limit: float
    threads: int = 1
    priority: int = 0
    caller: str = ""
    request_id: str = ""
    client_request_id: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Job(JobOrder):
    """One row of the ledger, as it was when it was read.

    Args:
        state: queued, running, done, failed or cancelled.
        attempts: how often a solve of this claim was started.
        deaths: how many of those starts ended because the child process was killed, or the machine went down with
            nothing else on it.
        seq: number of the last change; never falls.
        owner: id of the engine that looks after the job.
        task: name of this start in the engine; another one after an end that dask has told.
        turn: its place among the jobs of equal priority, smallest first; see `Ledger.claim`.
        progress: the newest progress event, or None.
        error: ``{"type", "message"}`` of a failed job, or None.
        digest: digest of the stored factorization of a job that is done, or None.
        submitted: when it was claimed, UTC, ISO 8601.
        updated: when it last changed, UTC, ISO 8601.
    """

    state: State = "queued"
    attempts: int = 0
    deaths: int = 0
    seq: int = 0
    owner: str = ""
    task: str = ""
    turn: int = 0
    progress: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    digest: str | None = None
    submitted: str = ""
    updated: str = ""

    @property
    def finished(self) -> bool:
        """True in a state that only a new claim can leave."""
        return self.state in TERMINAL

    @property
    def suspect(self) -> bool:
        """True for a job that may be what ends its process: it is run alone, once more."""
        return self.deaths >= ALONE_AFTER

    def about(self) -> dict[str, str]:
        """What a line of the log says of it."""
        asked = {name: getattr(self, name) for name in ("request_id", "client_request_id", "spec_digest")}
        return {name: value for name, value in {**asked, "job": self.task}.items() if value}

    def order(self) -> JobOrder:
        """What was asked, to be asked again."""
        return JobOrder(**{name: getattr(self, name) for name in JobOrder.__dataclass_fields__})

    def document(self) -> dict[str, Any]:
        """The job document of the HTTP interface."""
        names = ("spec_digest", "state", "progress", "error", "submitted", "updated")
        return {name: getattr(self, name) for name in names} | {"error": shown_error(self.error)}


def shown_error(error: dict[str, str] | None) -> dict[str, str] | None:
    """Return what callers are told of a failed job: paths and hosts are the operator's, whose log has them."""
    if error is None:
        return None
    if error["type"] in _AWAY:
        return {**error, "message": "the service could not use its store; try again, or ask the operator"}
    return {**error, "message": without_places(error["message"])}


@dataclass(frozen=True, slots=True)
class EngineRow:
    """An engine that has announced itself: where it runs, and a number that moves while it lives."""

    id: str
    host: str
    pid: int
    started: float
    beat: int
