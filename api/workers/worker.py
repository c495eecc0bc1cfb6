"""A worker from the caller's side: a process that stays, is bounded for each question, and is replaced at its end.

A worker that crashes, is cancelled, or passes a limit costs its question and nothing else: the next one starts another.
`worker_process.py` describes the protocol. The remains of a process tell how it ended.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any

from factorize.api.workers.search_path import search_path
from factorize.encoding import JsonObject
from factorize.errors import CacheUnusable, FactorizeError, InvalidParameter, InvalidSpec, LimitExceeded, SolveFailed

_MAX_MESSAGE_CHARACTERS = 2000
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
    OUT_OF_MEMORY = "the solve needed more memory than it was admitted with; use a smaller n or a structured mechanism"
    TIMEOUT = "the solve ran past its wall limit; use a larger tolerance or a cheaper mechanism, or raise the limit"
    CANCELLED = "the solve was cancelled; post the spec again to solve it"
    CRASHED = "the solver process was killed; post the spec again, and report it if it happens again"
    LOST = "the workers of the solve died; such a job is tried once more, on a worker of its own"
    INTERRUPTED = "the solver process was ended from outside; the service tries again by itself"
    UNHEARD = "the solve is over, but its service was away; the service tries again by itself"


class WorkerEnded(LimitExceeded):
    """A worker was ended, or ended by itself, without an answer.

    Args:
        ending: why; its name is the type of a job's error.
        message: the same for people; by default what is said of every such end.
    """

    def __init__(self, ending: Ending, message: str = "") -> None:
        super().__init__((message or ending.value)[:_MAX_MESSAGE_CHARACTERS])
        self.ending = ending


def without_places(message: str) -> str:
    """Return a message as callers are told it: paths and hosts are the operator's, whose log has them."""
    return _PLACE.sub("(a place of the service)", message)


def out_of_memory(memory_mb: int, detail: str = "") -> WorkerEnded:
    """Return the error of a question that wanted more memory than it was admitted with, in units of 2^20 bytes."""
    text = f"the solve was admitted with {memory_mb} MB and needed more: {Ending.OUT_OF_MEMORY.value}"
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
        return error.at(message.removeprefix(f"{field}: "), field or "")
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


SOLVER, PROVER = "factorize.api.questions.registry", "factorize.api.proof"
"""The modules of the two workers. The prover has solved nothing."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
POLL_SECONDS = 0.1
_LAST_WORDS_SECONDS = 10.0
_TAIL_BYTES = 8192
_KERNEL_LIMITS_DATA = sys.platform == "linux"  # elsewhere RLIMIT_DATA is accepted and ignored

Progress = Callable[[JsonObject], object]
"""A function that gets the events of an answer that is worked out."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """The limits of an answer.

    Args:
        seconds: wall limit.
        memory_mb: private memory that it is admitted with, in units of 2^20 bytes; 0 for no limit.
        threads: threads per BLAS or OpenMP pool.
        cancelled: looked at ten times a second; True kills the process.
    """

    seconds: float = float("inf")
    memory_mb: int = 0
    threads: int = 1
    cancelled: Callable[[], bool] = lambda: False


UNLIMITED = AnswerLimits()


class Worker:
    """One process, started when it is first needed. One question at a time; `start` and `kill` are for any thread.

    Args:
        module: the module whose questions it answers.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._asking, self._lock = threading.Lock(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._release: weakref.finalize[Any, Worker] | None = None
        self._unread = b""
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, or None where none runs."""
        return None if self._process is None else self._process.pid

    def ask(
        self,
        question: str,
        request: JsonObject,
        limits: AnswerLimits = UNLIMITED,
        progress: Progress = lambda _event: None,
    ) -> Any:
        """Return the answer to a question; blocks.

        Args:
            question: name of one of the module's questions.
            request: what it is about.
            limits: what the answer may take.
            progress: gets progress events.

        Raises:
            WorkerEnded: the process gave no answer.
            FactorizeError: what the answer raised, in its own words.
        """
        room = {"memory_mb": limits.memory_mb, "threads": limits.threads}
        document = {"question": question, "request": request, **room}
        with self._asking:
            process = self.start()
            try:
                event = self._ask(process, document, limits, progress)
            except BaseException:
                self._end()
                raise
            if event["event"] == "failed":
                named = event["error"]
                error = refused(named["type"], named["message"], named["field"], memory_mb=limits.memory_mb)
                if isinstance(error, WorkerEnded):
                    self._end()
                raise error
            if event["worn"]:
                self._end()
            return event["answer"]

    def kill(self) -> None:
        """End the process, whatever it does, and start no other: whoever waits for its answer gets WorkerEnded."""
        with self._lock:
            self._closed = True
            _kill(self._process)

    def close(self) -> None:
        """Kill, and wait for the end."""
        self.kill()
        with self._asking:
            self._end()

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process, which imports what it needs meanwhile, and return it."""
        with self._lock:
            if self._closed:
                raise WorkerEnded(Ending.CANCELLED)
            if self._process is None:
                self._unread = b""
                errors, (theirs, watch) = tempfile.TemporaryFile("ab+"), os.pipe()
                try:
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", "-m", "factorize.api.workers.worker_process", self._module, str(theirs)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        env=_environment(),
                        pass_fds=(theirs,),
                        process_group=0,  # Ctrl-C in a terminal is for whoever asks
                    )
                except BaseException:
                    errors.close()
                    os.close(watch)
                    raise
                finally:
                    os.close(theirs)
                self._errors = errors
                self._release = weakref.finalize(self, _release, os.getpid(), self._process, errors, watch)
                self._release.atexit = False  # the process ends with this one by itself
            return self._process

    def _ask(
        self, process: subprocess.Popen[bytes], document: JsonObject, limits: AnswerLimits, progress: Progress
    ) -> JsonObject:
        """Return the last event of an answer."""
        assert process.stdin is not None and process.stdout is not None and self._errors is not None
        memory_mb, deadline = limits.memory_mb, time.monotonic() + limits.seconds
        with suppress(OSError):  # it has died, which is seen below
            self._errors.truncate(0)
            process.stdin.write(json.dumps(document).encode("ascii") + b"\n")
            process.stdin.flush()
        while True:
            line, complete, self._unread = self._unread.partition(b"\n")
            if complete:
                event: JsonObject = json.loads(line)
                if event["event"] == "progress":
                    progress(event)
                elif event["event"] == "warning":
                    warnings.warn(event["text"], CacheUnusable, stacklevel=1)
                else:
                    return event
                continue
            self._unread = line
            if limits.cancelled():
                raise WorkerEnded(Ending.CANCELLED)
            if time.monotonic() > deadline:
                raise WorkerEnded(Ending.TIMEOUT, f"{Ending.TIMEOUT.value} (it was {limits.seconds:g} s)")
            if not _KERNEL_LIMITS_DATA and memory_mb and _resident_mb(process.pid) > memory_mb + 512:
                raise out_of_memory(memory_mb)
            if not select.select([process.stdout], [], [], POLL_SECONDS)[0]:
                continue
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                raise self._bury(process, memory_mb)
            self._unread += data

    def _bury(self, process: subprocess.Popen[bytes], memory_mb: int) -> WorkerEnded:
        """Return the error of a process that ended within an answer."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS_SECONDS)  # a process that crashes closes its stdout before it says why
        process.kill()
        status = process.wait()
        assert self._errors is not None
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
        if self._closed:
            return WorkerEnded(Ending.CANCELLED)
        return died(status, self._errors.read().decode(errors="replace").strip(), memory_mb=memory_mb)

    def _end(self) -> None:
        """Kill the process, and wait for its end."""
        with self._lock:
            release, self._process, self._errors = self._release, None, None
            self._release = None
        if release is not None and (pending := release.detach()):  # A call does nothing while the interpreter ends.
            _owner, end, arguments, _named = pending
            end(*arguments)


def _release(owner: int, process: subprocess.Popen[bytes], errors: IO[bytes], watch: int) -> None:
    """Kill a process, wait for its end and close what led to it, also where nobody has closed its `Worker`."""
    if os.getpid() != owner:  # this is a fork of the process that started it
        return
    _kill(process)
    process.wait()
    for stream in (process.stdin, process.stdout, errors):
        with suppress(OSError):  # words that were never written are not needed
            if stream is not None:
                stream.close()
    os.close(watch)


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    """Kill a process that has not been waited for, and what it may have started in its group."""
    if process is not None and process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def _environment() -> dict[str, str]:
    """Return the environment of a worker: one thread until more are given, no setting or secret of the service."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FACTORIZE_")}
    return kept | dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONPATH": os.pathsep.join(search_path())}


def _resident_mb(pid: int) -> float:
    """Return the resident memory of a process, in units of 2^20 bytes."""
    import psutil

    with suppress(psutil.Error):
        return float(psutil.Process(pid).memory_info().rss) / (1 << 20)
    return 0.0
