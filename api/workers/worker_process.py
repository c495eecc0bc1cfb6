"""The process of a worker: answers the questions of one module, one after the other, until nobody can ask any more.

`worker.py` starts it. A question is one JSON object on one line of stdin; the answer is JSON lines on stdout:

* ``{"event": "progress", ...}``, some twenty a second at most;
* ``{"event": "warning", "text": ...}``, of a cache that cannot be used;
* ``{"event": "done", "answer": ..., "worn": ...}``, or ``{"event": "failed", "error": {"type", "message", "field"}}``.

An error that is none of ours ends the process, with its traceback on stderr. The process is `worn`, and is replaced,
once it holds more than 1 GiB. It ends when its parent does, whatever it does: on Linux by SIGIO from a pipe that the
parent holds, even within a routine that keeps the interpreter's lock.
"""

import fcntl
import gc
import json
import os
import resource
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from factorize.encoding import JsonObject
from factorize.errors import CacheUnusable, FactorizeError

MAX_BYTES = 1 << 30
SPARE_MB = 384
"""Memory beside what a question was admitted with: libraries that are loaded late, cvxpy and its solvers above all."""
THREAD_MB = 64
_QUIET_SECONDS = 0.05


class Tell(Protocol):
    """Says how far an answer is."""

    def __call__(self, **progress: Any) -> None:
        """Say it, as the fields of a progress event."""


class _Stream:
    """The stdout of the protocol; whatever else is printed goes to stderr. Progress is told not too often."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="ascii")
        os.dup2(2, 1)
        self._next = 0.0
        self._unsaid: JsonObject = {}

    def say(self, event: str, **more: Any) -> None:
        """Write an event, after the last step of progress that was not told."""
        steps = [{"event": "progress", **self._unsaid}] if self._unsaid else []
        self._unsaid = {}
        for said in (*steps, {"event": event, **more}):
            self._out.write(json.dumps(said) + "\n")
        self._out.flush()

    def tell(self, **progress: Any) -> None:
        self._unsaid = progress
        if time.monotonic() >= self._next:
            self._unsaid, self._next = {}, time.monotonic() + _QUIET_SECONDS
            self.say("progress", **progress)


def main(name: str, watch: int) -> None:
    """Answer the questions of a module, its `QUESTIONS`, after its `make_ready`.

    Args:
        name: name of the module.
        watch: descriptor of a pipe whose other end the parent alone holds.
    """
    _end_with_parent(watch)
    gc.set_threshold(10_000, 10, 10)  # imports make much and drop little of it
    stream = _Stream()
    _relay_warnings(stream)
    module = import_module(name)
    module.make_ready()
    gc.freeze()
    for line in sys.stdin:
        document = json.loads(line)
        _answer(document, module.QUESTIONS[document["question"]], stream)


def _relay_warnings(stream: _Stream) -> None:
    """Have warnings of caches reach whoever asks; all others stay on stderr."""
    show = warnings.showwarning

    def relay(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, CacheUnusable):
            stream.say("warning", text=str(message))
        else:
            show(message, category, *rest)

    warnings.showwarning = cast(Any, relay)


def _answer(document: JsonObject, question: Callable[[JsonObject, Tell], object], stream: _Stream) -> None:
    try:
        with _limit(document["memory_mb"], document["threads"]):
            answer = question(document["request"], stream.tell)
    except (FactorizeError, MemoryError) as error:
        kind = error.slug if isinstance(error, FactorizeError) else type(error).__name__
        field = getattr(error, "field", None)
        stream.say("failed", error={"type": kind, "message": str(error), "field": field})
    else:
        stream.say("done", answer=answer, worn=_status_bytes("VmRSS:") > MAX_BYTES)


@contextmanager
def _limit(memory_mb: int, threads: int) -> Iterator[None]:
    """Set threads, and the memory that may be reserved beside what is reserved now; 0 for no limit."""
    _set_threads(threads)
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _status_bytes("VmData:") + (memory_mb + SPARE_MB + THREAD_MB * threads << 20)
    if memory_mb and (most == resource.RLIM_INFINITY or limit < most):
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


_threads = 1  # the environment that the process was started with says so


def _set_threads(threads: int) -> None:
    global _threads
    if threads != _threads:
        from threadpoolctl import ThreadpoolController

        ThreadpoolController().limit(limits=threads)
        _threads = threads


def _status_bytes(name: str) -> int:
    """Return a size from this process's status on Linux, 0 elsewhere: `VmData:` is reserved, `VmRSS:` is resident."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0


def _end_with_parent(watch: int) -> None:
    """End this process when the other end of a pipe is closed."""

    def wait() -> None:
        os.read(watch, 1)
        os._exit(0)

    if sys.platform == "linux":  # elsewhere SIGIO is ignored
        fcntl.fcntl(watch, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(watch, fcntl.F_SETFL, fcntl.fcntl(watch, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
