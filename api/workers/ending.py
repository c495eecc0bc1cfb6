"""The ending of a question to a worker: one word for programs, one sentence for people."""

import re
import signal
from enum import Enum

from factorize.errors import FactorizeError, InvalidParameter, InvalidSpec, LimitExceeded, SolveFailed, Violation

_MESSAGE_LIMIT = 2000
_PLACE = re.compile(r"\w+://[^\s,;'\"]+|(?<![\w/.])(?:/[\w.+@~-]+){2,}/?|\b\d+\.\d+\.\d+\.\d+(?::\d+)?\b")
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


class WorkerEnded(LimitExceeded):
    """A worker was ended, or ended by itself, without an answer.

    Args:
        ending: why; its name is the type of a job's error.
        message: the same for people; by default what is said of every such end.
    """

    def __init__(self, ending: Ending, message: str = "") -> None:
        super().__init__((message or ending.value)[:_MESSAGE_LIMIT])
        self.ending = ending


def without_places(message: str) -> str:
    """Return a message as callers are told it: paths and hosts are the operator's, whose log has them."""
    return _PLACE.sub("(a place of the service)", message)


def out_of_memory(memory_mb: int, detail: str = "") -> WorkerEnded:
    """Return the error of a question that wanted more memory than it was admitted with, in units of 2^20 bytes."""
    text = f"the solve was admitted with {memory_mb} MB and wanted more: {Ending.OUT_OF_MEMORY.value}"
    return WorkerEnded(Ending.OUT_OF_MEMORY, f"{text} ({detail})" if detail else text)


def died(status: int, errors: str, *, memory_mb: int) -> WorkerEnded:
    """Return the error of a worker that ended by itself.

    Args:
        status: exit status, or minus the number of the signal that killed it.
        errors: the last lines of its stderr.
        memory_mb: what the question was admitted with, in units of 2^20 bytes.
    """
    last = errors.splitlines()[-1].strip() if errors else ""
    if any(text in errors for text in _OUT_OF_MEMORY_TEXTS):
        return out_of_memory(memory_mb, last)
    if status >= 0:
        message = f"the solver process ended with exit status {status} and without a result"
        return WorkerEnded(Ending.FAILED, f"{message}: {last or 'it wrote nothing to stderr'}")
    name = signal.Signals(-status).name
    if -status in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return WorkerEnded(Ending.INTERRUPTED, f"{Ending.INTERRUPTED.value} ({name})")
    hint = ", perhaps by the kernel because the machine ran out of memory" if -status == signal.SIGKILL else ""
    hint += f" ({last})" if last else ""
    message = f"the solver process was killed by {name}{hint}; {Ending.CRASHED.value}"
    return WorkerEnded(Ending.CRASHED, message)


def refused(kind: str, message: str, field: str | None, *, memory_mb: int) -> FactorizeError:
    """Return the error that a worker raised, as it is in this process.

    Args:
        kind: its slug, or the name of an error that is none of ours.
        message: its text.
        field: the field that it is about, if there is one.
        memory_mb: what the question was admitted with, in units of 2^20 bytes.
    """
    if _OUT_OF_MEMORY_TYPES.fullmatch(kind):
        return out_of_memory(memory_mb, message)
    error = _kinds(FactorizeError).get(kind, SolveFailed)
    if issubclass(error, InvalidSpec):
        return error([Violation(field or "", message.removeprefix(f"{field}: "))])
    if issubclass(error, InvalidParameter):
        return error(message, field=field)
    try:
        return error(message)
    except TypeError:  # it is made of more than a sentence
        return SolveFailed(message)


def _kinds(base: type[FactorizeError]) -> dict[str, type[FactorizeError]]:
    kinds = {base.slug: base}
    for kind in base.__subclasses__():
        kinds |= _kinds(kind)
    return kinds
