"""The ending of a solve: one word for programs, one sentence for people."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeGuard

from factorize.encoding import is_digest
from factorize.solution import PHASES

_MESSAGE_LIMIT = 2000
_MOST_STAGES = 10
_LATEST = 1e11  # seconds since 1970
_OUT_OF_MEMORY_TYPES = re.compile(r"_?(Array)?MemoryError|out_of_memory")
_OUT_OF_MEMORY_TEXTS = (
    "MemoryError",
    "std::bad_alloc",
    "Cannot allocate memory",
    "Memory allocation still failed",  # OpenBLAS
)


class Ending(Enum):
    """How a solve ended; the value is what the user reads when there is nothing more precise to say."""

    DONE = "the solve is stored"
    FAILED = "the solver stopped without an answer; its message says why"
    OUT_OF_MEMORY = "the solve wanted more memory than it was admitted with; use a smaller n or a structured mechanism"
    TIMEOUT = "the solve ran past its wall limit; use a larger tolerance or a cheaper mechanism, or raise the limit"
    CANCELLED = "the solve was cancelled; post the spec again to solve it"
    CRASHED = "the solver process was killed; post the spec again, and report it if it happens again"
    LOST = "workers died under the solve; a job that was lost so is tried once more, with a worker of its own"
    INTERRUPTED = "the solver process was told to end from outside; the service tries again by itself"
    UNHEARD = "the solve is over and its service was away; the service tries again by itself"


@dataclass(frozen=True, slots=True)
class SolveEnding:
    """How one solve ended.

    Args:
        ending: the kind of end.
        digest: what the child says it stored (a claim until the store confirms it); None unless done.
        error: ``{"type", "message"}``; None when done.
        seconds: wall time of the child process.
        timings: when each of its stages began and ended, in seconds since 1970, as the child says.
        progress: how far it last said it was; None unless done.
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
    def read(cls, said: object) -> SolveEnding | None:
        """Return the end that a document tells, or None: on a network a stranger may have written it."""
        if not isinstance(said, dict):
            return None
        digest, error, seconds = said.get("digest"), _read_error(said.get("error")), said.get("seconds")
        try:
            ending = Ending[str(said.get("ending"))]
        except KeyError:
            return None
        done = ending is Ending.DONE
        if done != is_digest(digest) or done != (error is None) or not (_is_finite(seconds) and 0 <= seconds < _LATEST):
            return None
        return cls(
            ending, digest if done else None, error, seconds, _timings(said), read_progress(said.get("progress"))
        )


def _read_error(said: object) -> dict[str, str] | None:
    match said:
        case {"type": str() as kind, "message": str() as message}:
            return {"type": kind[:100], "message": message[:_MESSAGE_LIMIT]}
    return None


def read_progress(said: object) -> dict[str, Any] | None:
    """Return the fields of a progress event; None of what is no event: one without a count of steps and seconds.

    The other fields are a finite number, a known word or None each. A comparison also says of how many mechanisms, and
    which one runs.
    """
    if not isinstance(said, dict):
        return None
    iteration, seconds, phase, total = (said.get(name) for name in ("iteration", "seconds", "phase", "total"))
    if type(iteration) is not int or iteration < 0 or not _is_finite(seconds):
        return None
    comparison = {"total": total, "mechanism": str(said.get("mechanism"))[:100]} if type(total) is int else {}
    numbers = {name: said.get(name) for name in ("relative_gap", "class_gap", "seconds_left")}
    return {
        "iteration": iteration,
        "seconds": seconds,
        "phase": phase if phase in PHASES else None,
        **{name: value if _is_finite(value) else None for name, value in numbers.items()},
        **comparison,
    }


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


@dataclass(frozen=True, slots=True)
class Remains:
    """What the supervisor holds after a child's end.

    Args:
        verdict: the child's last ``done`` or ``failed`` event, if it said one.
        returncode: exit status, or minus the number of the signal that killed it.
        errors: the last lines of its stderr.
        seconds: wall time.
        progress: how far it last said it was.
    """

    verdict: dict[str, Any] | None
    returncode: int
    errors: str
    seconds: float
    progress: dict[str, Any] | None = None


def judge(remains: Remains, reason: Ending | None, *, memory_mb: int, seconds_limit: float) -> SolveEnding:
    """Name the end of a child.

    Args:
        remains: what is left of it.
        reason: why the supervisor killed it, or None where it ended by itself.
        memory_mb: what it was admitted with, for the message.
        seconds_limit: its wall limit, for the message.
    """
    digest = (remains.verdict or {}).get("digest")
    if reason is None and remains.returncode == 0 and is_digest(digest):
        return SolveEnding(Ending.DONE, digest, None, remains.seconds, _timings(remains.verdict), remains.progress)
    memory = f"the solve was admitted with {memory_mb} MB and wanted more: {Ending.OUT_OF_MEMORY.value}"
    if reason is None:
        ending, kind, message = _explain_own_end(remains, memory)
    elif reason is Ending.OUT_OF_MEMORY:
        ending, kind, message = reason, "out_of_memory", memory
    elif reason is Ending.TIMEOUT:
        ending, kind, message = reason, "timeout", f"{reason.value} (it was {seconds_limit:g} s)"
    else:
        ending, kind, message = reason, reason.name.lower(), reason.value
    return SolveEnding(ending, None, {"type": kind[:100], "message": message[:_MESSAGE_LIMIT]}, remains.seconds)


def _timings(verdict: dict[str, Any] | None) -> dict[str, tuple[float, float]]:
    """What a child says of its stages, where that can be."""
    said = (verdict or {}).get("timings")
    found: dict[str, tuple[float, float]] = {}
    for name, times in list(said.items())[:_MOST_STAGES] if isinstance(said, dict) else ():
        match times:
            case [int() | float() as begun, int() | float() as ended] if 0 <= begun <= ended < _LATEST:
                found[str(name)[:20]] = (float(begun), float(ended))
    return found


def _explain_own_end(remains: Remains, memory: str) -> tuple[Ending, str, str]:
    error = (remains.verdict or {}).get("error")
    if isinstance(error, dict) and (error.get("message") or error.get("type")):
        kind = str(error.get("type") or "failed")
        message = str(error.get("message") or Ending.FAILED.value)
        if _OUT_OF_MEMORY_TYPES.fullmatch(kind):
            return Ending.OUT_OF_MEMORY, "out_of_memory", f"{memory} ({message})"
        return Ending.FAILED, kind, message
    last = _last_line(remains.errors)
    if any(text in remains.errors for text in _OUT_OF_MEMORY_TEXTS):
        return Ending.OUT_OF_MEMORY, "out_of_memory", f"{memory} ({last})"
    if remains.returncode < 0:
        return _explain_signal(-remains.returncode)
    message = f"the solver process ended with exit status {remains.returncode} and without a result"
    return Ending.FAILED, "failed", f"{message}: {last or 'it wrote nothing to stderr'}"


def _explain_signal(number: int) -> tuple[Ending, str, str]:
    name = signal.Signals(number).name
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return Ending.INTERRUPTED, "interrupted", f"{Ending.INTERRUPTED.value} ({name})"
    hint = ", perhaps by the kernel because the machine ran out of memory" if number == signal.SIGKILL else ""
    return Ending.CRASHED, "crashed", f"the solver process was killed by {name}{hint}; {Ending.CRASHED.value}"


def _last_line(text: str) -> str:
    return text.splitlines()[-1].strip() if text else ""
