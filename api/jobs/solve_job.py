"""A job: what was asked of the engine, how far it is, how its solve has ended, and which engine owns it.

The end of a solve is plain data, written by whoever ran it and read by a service. A job of another engine is taken up
when its lease in the ledger has run out, or at once where the engine's process was one of this machine and is gone.
"""

import os
import secrets
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeGuard, get_args

from factorize.api.workers.worker import Ending, without_places
from factorize.encoding import is_digest, sha256
from factorize.factors.solution import PHASES

State = Literal["queued", "running", "done", "failed", "cancelled"]
STATES: tuple[State, ...] = get_args(State)
_OUTAGE_PROBLEMS = ("store-unavailable", "service-unreachable")
SHARED_DEATHS = 2
"""The deaths after which a job is run alone on its worker; the next death is the last."""
TERMINAL = frozenset({"done", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class JobOrder:
    """An order to the engine.

    Args:
        spec_digest: sha256 of the canonical spec, 64 hex digits.
        spec: the canonical spec, JSON on one line.
        workload: the workload's kind, for the list.
        memory_mb: memory the solve is admitted with, in units of 2^20 bytes.
        seconds_limit: wall limit in seconds.
        threads: threads of the solve.
        caller: the one who asked first; callers take turns.
        request_id: id of the request that asked.
        client_request_id: what its client calls it, or nothing.
        traceparent: the trace that it belongs to (W3C Trace Context), or nothing.
    """

    spec_digest: str
    spec: str
    workload: str
    memory_mb: int
    seconds_limit: float
    threads: int = 1
    caller: str = ""
    request_id: str = ""
    client_request_id: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class SolveJob(JobOrder):
    """One row of the ledger, as it was when it was read.

    Args:
        state: queued, running, done, failed or cancelled.
        attempts: how often a solve of this claim was started.
        deaths: how many of those starts ended because the child process was killed, or the machine went down with
            nothing else on it.
        seq: number of the last change; never falls.
        owner: id of the engine that looks after the job.
        task: name of this start in the engine; another one after an end that dask has told.
        turn: its place in the queue, smallest first; see `Ledger.claim`.
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
        return self.deaths >= SHARED_DEATHS

    def about(self) -> dict[str, str]:
        """The words of the log for the job."""
        names = {name: getattr(self, name) for name in ("request_id", "client_request_id", "spec_digest")}
        return {name: value for name, value in {**names, "job": self.task}.items() if value}

    def document(self) -> dict[str, Any]:
        """The job document of the HTTP interface."""
        names = ("spec_digest", "state", "progress", "error", "submitted", "updated")
        return {name: getattr(self, name) for name in names} | {"error": shown_error(self.error)}


def shown_error(error: dict[str, str] | None) -> dict[str, str] | None:
    """Return what callers are told of a failed job: paths and hosts are the operator's, whose log has them."""
    if error is None:
        return None
    if error["type"] in _OUTAGE_PROBLEMS:
        return {**error, "message": "the service could not use its store; try again, or ask the operator"}
    return {**error, "message": without_places(error["message"])}


_MAX_MESSAGE_CHARACTERS = 2000
_MAX_STAGES = 10
_MAX_TIME = 1e11  # seconds since 1970


@dataclass(frozen=True, slots=True)
class SolveEnding:
    """The end of one solve.

    Args:
        ending: the kind of end.
        digest: what was stored (a claim until the store confirms it); None unless done.
        error: ``{"type", "message"}``; None when done.
        seconds: wall time.
        timings: when each of its stages began and ended, in seconds since 1970.
        progress: the last progress that it told; None unless done.
    """

    ending: Ending
    digest: str | None
    error: dict[str, str] | None
    seconds: float
    timings: dict[str, tuple[float, float]] = field(default_factory=dict)
    progress: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Return it as plain JSON data; see `read`."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "ending": self.ending.name}

    @classmethod
    def read(cls, said: object) -> Self | None:
        """Return the end that a document tells, or None: on a network a stranger may have written it."""
        if not isinstance(said, dict):
            return None
        ending = Ending.__members__.get(str(said.get("ending")))
        digest, error, seconds = said.get("digest"), None, said.get("seconds")
        match said.get("error"):
            case {"type": str() as kind, "message": str() as message}:
                error = {"type": kind[:100], "message": message[:_MAX_MESSAGE_CHARACTERS]}
        done = ending is Ending.DONE
        if ending is None or done != is_digest(digest) or done != (error is None):
            return None
        if not (_is_finite(seconds) and 0 <= seconds < _MAX_TIME):
            return None
        progress = read_progress(said.get("progress"))
        return cls(ending, digest if done else None, error, seconds, _timings(said), progress)


def read_progress(said: object) -> dict[str, object] | None:
    """Return the fields of a progress event; None if it lacks a count of steps and seconds, and so is no event.

    The other fields are a finite number, a known word or None each.
    """
    if not isinstance(said, dict):
        return None
    iteration, seconds, phase = (said.get(name) for name in ("iteration", "seconds", "phase"))
    if type(iteration) is not int or iteration < 0 or not _is_finite(seconds):
        return None
    numbers = {name: said.get(name) for name in ("relative_gap", "class_gap", "seconds_left")}
    return {
        "iteration": iteration,
        "seconds": seconds,
        "phase": phase if phase in PHASES else None,
        **{name: value if _is_finite(value) else None for name, value in numbers.items()},
    }


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _timings(document: dict[str, object]) -> dict[str, tuple[float, float]]:
    """Return when each stage began and ended, where that can be."""
    said = document.get("timings")
    timings: dict[str, tuple[float, float]] = {}
    for name, times in list(said.items())[:_MAX_STAGES] if isinstance(said, dict) else ():
        match times:
            case [int() | float() as begun, int() | float() as ended] if 0 <= begun <= ended < _MAX_TIME:
                timings[str(name)[:20]] = (float(begun), float(ended))
    return timings


def new_owner() -> str:
    """Return a name for an engine of this process: machine, boot, namespace; its number and start; and chance."""
    return " ".join([*_here(), str(os.getpid()), _started(os.getpid()), secrets.token_hex(4)])


def has_ended(owner: str) -> bool:
    """Say whether an engine's process was one of this machine and is gone; another may have its number now."""
    import psutil

    parts = owner.split()
    if parts[:3] != _here():
        return False
    try:
        number = int(parts[3])
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE or _started(number) != parts[4]
    except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
        return True


def _started(number: int) -> str:
    """Return when a process was started: on Linux since the boot, which stays as it is while the clock is set."""
    import psutil

    if sys.platform == "linux":
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{psutil.Process(number).create_time():.2f}"


def has_fallen(owner: str) -> bool:
    """Say whether an engine's machine was this one, before it was started anew."""
    parts, here = owner.split(), _here()
    return parts[:1] == here[:1] and parts[1:2] != here[1:2]


def _here() -> list[str]:
    """Return in short what processes share whose numbers mean the same: machine, boot, namespace."""
    parts = [socket.gethostname(), "", ""]
    with suppress(OSError):  # Linux only
        parts[1:] = Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")
    return [sha256(part.encode())[:8] for part in parts]
