"""One solve in a process of its own: bounded in memory and time, killed on request, never left behind.

``run`` is called in a thread (a dask worker's, or any other) and blocks until the child has ended. The
child is asked ``{"spec": ..., "store": ...}`` and keeps to api/child_protocol.py. Its progress has the fields
``iteration``, ``relative_gap``, ``class_gap``, ``seconds``, ``phase`` and ``seconds_left``, and its end names a
``digest`` of 64 hex digits.

Anything else that a child may do (crash, hang, babble, exhaust its memory, leave processes behind)
becomes a named ``Ending`` with a message. Between this process and the child stands ``reaper.py``, which
ends the child when we die.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Self

from factorize.api.isolated import SOLVE, child_command
from factorize.api.jobs.ending import Ending, Remains, SolveEnding, judge, read_progress
from factorize.api.processes.guards import AnyGuard, StartedGuard, child_environment
from factorize.api.processes.nursery import NURSERY_OF_THIS_PROCESS
from factorize.api.telemetry.log_lines import relay
from factorize.storage.medium.scratch_folders import ScratchFolder

MEBIBYTE = 1 << 20
FIRST_SECONDS = 0.1  # before a child's progress is told at all: the end of a small solve comes sooner, and says it too
SILENT_SECONDS = 1.5  # after which a child's last progress is told again
GRACE_SECONDS = 5.0  # what a guard gets to kill and reap before it is killed itself

_KERNEL_LIMITS_DATA = sys.platform == "linux"  # elsewhere RLIMIT_DATA is accepted and ignored
_LINE_LIMIT = 64 * 1024
_MOST_LINES = 1000  # of a child's log
_TAIL_LIMIT = 8 * 1024

Event = dict[str, Any]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What the supervisor has to know about one solve.

    Args:
        spec_digest: sha256 of the canonical spec, 64 hex digits.
        spec: the canonical spec, JSON on one line.
        store: URL of the store that the child writes to.
        memory_mb: what the solve was admitted with, in units of 2^20 bytes.
        seconds_limit: wall limit in seconds, counted from the start of the child process.
        threads: threads per BLAS, OpenMP or numba pool.
        command: command line of a child that is no module of ours; never forked.
        module: the child, see api/isolated.py.
        forked: whether the child may be forked from the nursery (api/processes/nursery.py), where there is one.
        about: what a line of the log says of the solve.
    """

    spec_digest: str
    spec: str
    store: str
    memory_mb: int
    seconds_limit: float
    threads: int = 1
    command: tuple[str, ...] | None = None
    module: str = SOLVE
    forked: bool = True
    about: dict[str, str] = field(default_factory=dict)

    @property
    def data_limit_mb(self) -> int:
        """Private memory that the child may reserve: what it was admitted with, libraries and stacks.

        Measured: numpy and scipy reserve 160 MB with one thread, 250 MB with two or more, before any work.
        """
        return self.memory_mb + 512 + 64 * self.threads

    @property
    def stdin(self) -> bytes:
        """The line that the child reads."""
        more = ',"log":true' if _log.isEnabledFor(logging.INFO) else ""
        return f'{{"spec":{self.spec},"store":{json.dumps(self.store)}{more}}}\n'.encode()


def run(
    request: Request,
    *,
    report: Callable[[Event], None],
    cancelled: Callable[[], bool],
    stored: Callable[[SolveEnding], None] = lambda _ending: None,
    poll: float = 0.1,
    report_interval: float = 0.5,
) -> SolveEnding:
    """Solve one spec in a child process and wait for its end.

    The child is started by the calling thread and does not outlive it. On return, and on every exception,
    the child and all that it started are dead and reaped.

    Args:
        request: the solve.
        report: gets the newest progress event, at most one per ``report_interval``, none in the first 0.1 s.
        cancelled: asked every ``poll`` seconds; True kills the child, unless its result is stored.
        stored: told, once, what the child says of its result as soon as it says it, some time before its end.
        poll: seconds between two looks at the child and the limits.
        report_interval: seconds between two reports.

    Returns:
        How it ended; a failure is an outcome and not an exception.
    """
    with ScratchFolder("solve") as folder, _Child(request, str(folder.path)) as child:
        reason = None
        reported, last, told = time.monotonic() - report_interval + min(FIRST_SECONDS, report_interval), None, False
        while reason is None and child.returncode is None:
            child.read(poll)
            if not told and (said := child.ended(None, 0)).ending is Ending.DONE:
                told = True
                stored(said)
            quiet = time.monotonic() - reported
            if told:
                quiet = 0.0
            elif child.progress is not None and quiet >= report_interval:
                last = child.take_progress()
            elif last is not None and quiet >= SILENT_SECONDS:
                last = child.newest = _later(last, quiet)
            else:
                quiet = 0.0
            if quiet and last is not None:
                reported = time.monotonic()
                report(last)
            reason = child.limit_passed() or (Ending.CANCELLED if not told and cancelled() else None)
        child.end()
        if child.progress is not None and reason is None and not told:
            report(child.take_progress())
        return child.ended(reason)


class _Child:
    """The child process with its guard, its pipes and what it has said so far."""

    def __init__(self, request: Request, folder: str) -> None:
        self.request = request
        self.progress: Event | None = None
        self.verdict: Event | None = None
        self.newest: Event | None = None
        self.started = time.monotonic()
        self._line = b""
        self._line_too_long = False
        self._tail = b""
        self._next_look = self.started
        self._lines_left = _MOST_LINES
        self._guard = self._start(folder)
        self.started = time.monotonic()
        self._selector = selectors.DefaultSelector()
        for stream, take in zip(self._guard.streams, (self._take_output, self._take_errors), strict=True):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, take)

    def _start(self, folder: str) -> AnyGuard:
        request = self.request
        data_bytes = request.data_limit_mb * MEBIBYTE if _KERNEL_LIMITS_DATA else 0
        if request.forked and request.command is None:
            with self._asked(folder) as stdin:
                forked = NURSERY_OF_THIS_PROCESS.fork(
                    request.module,
                    threads=request.threads,
                    data_bytes=data_bytes,
                    variables={"TMPDIR": folder},
                    stdin=stdin.fileno(),
                )
            if forked is not None:
                return forked
        # A file of its own: a nursery that was too slow may still have a child read the other one.
        with self._asked(folder) as stdin:
            return StartedGuard(
                request.command or child_command(request.module),
                data_bytes=data_bytes,
                environment=child_environment(request.threads, TMPDIR=folder),
                stdin=stdin,
            )

    @contextmanager
    def _asked(self, folder: str) -> Iterator[IO[bytes]]:
        """Give the question as a file, so that a child that never reads it blocks nobody."""
        with tempfile.TemporaryFile(dir=folder) as stdin:
            stdin.write(self.request.stdin)
            stdin.seek(0)
            yield stdin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._selector.close()
        self._guard.close()

    @property
    def returncode(self) -> int | None:
        return self._guard.poll()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def ended(self, reason: Ending | None, status: int | None = None) -> SolveEnding:
        """How it ended, or what that is if it ends with this status."""
        errors = self._tail.decode(errors="replace").strip()
        returncode = self._guard.wait() if status is None else status
        remains = Remains(self.verdict, returncode, errors, self.seconds, self.newest)
        return judge(remains, reason, memory_mb=self.request.memory_mb, seconds_limit=self.request.seconds_limit)

    def take_progress(self) -> Event:
        progress, self.progress = self.progress, None
        assert progress is not None
        return progress

    def limit_passed(self) -> Ending | None:
        if self.seconds > self.request.seconds_limit:
            return Ending.TIMEOUT
        if _KERNEL_LIMITS_DATA or time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + 0.5
        return Ending.OUT_OF_MEMORY if _resident_mb(self._guard.pid) > self.request.data_limit_mb else None

    def read(self, timeout: float) -> None:
        """Take what the child has written; wait for that, or for its end, at most ``timeout`` seconds."""
        if not self._selector.get_map():
            with suppress(subprocess.TimeoutExpired):
                self._guard.wait(timeout)
            return
        for key, _ in self._selector.select(timeout):
            stream: IO[bytes] = key.fileobj  # type: ignore[assignment]  # typeshed: or a descriptor
            data = stream.read(_LINE_LIMIT)
            if data:
                key.data(data)
            elif data is not None:
                self._selector.unregister(stream)

    def end(self) -> None:
        """Kill what still runs, reap the guard, take the last words."""
        self._guard.dismiss()
        try:
            ended = self._guard.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            ended = self._guard.wait()
        if ended == -signal.SIGKILL:  # perhaps the guard itself was killed
            _kill_session(self._guard.pid)
        deadline = time.monotonic() + 1
        while self._selector.get_map() and self._selector.select(0) and time.monotonic() < deadline:
            self.read(0)

    def _take_errors(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-_TAIL_LIMIT:]

    def _take_output(self, data: bytes) -> None:
        *lines, rest = (self._line + data).split(b"\n")
        for line in lines:
            if not self._line_too_long and len(line) <= _LINE_LIMIT:
                self._take_line(line)
            self._line_too_long = False
        self._line_too_long |= len(rest) > _LINE_LIMIT
        self._line = b"" if self._line_too_long else rest

    def _take_line(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return
        match event:
            case {"event": "progress"} if (progress := read_progress(event)) is not None:
                self.progress = self.newest = progress
            case {"event": "done" | "failed"}:
                self.verdict = event
            case {"event": "log"} if self._lines_left:
                self._lines_left -= 1
                relay(event, self.request.about)


def _later(event: Event, seconds: float) -> Event:
    """The same progress, so many seconds later: the child is inside a long routine."""
    left = event["seconds_left"]
    left = None if left is None or left <= seconds else left - seconds
    return {**event, "seconds": event["seconds"] + seconds, "seconds_left": left}


def _resident_mb(pid: int) -> float:
    """Resident memory of a process and all its descendants, in units of 2^20 bytes."""
    import psutil

    total = 0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                total += member.memory_info().rss
    return total / MEBIBYTE


def _kill_session(leader: int) -> None:
    """Kill every process of a session whose leader is dead."""
    import psutil

    for pid in psutil.pids():
        with suppress(OSError):
            if pid != leader and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
