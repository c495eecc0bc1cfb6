"""A worker of a batch: a process that stays, is asked one thing after the other, and is replaced when it has died.

It speaks the child protocol, one request per line (`serve_each` in api/child_protocol.py). A worker that crashes, is
killed or takes too long costs what it was asked, and nothing else: the next request starts another.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from typing import IO

from factorize.api.child_protocol import Document
from factorize.api.isolated import child_command
from factorize.api.processes.guards import child_environment
from factorize.errors import FactorizeError, InvalidSpec, LimitExceeded, SolveFailed

_LAST_WORDS_SECONDS = 10.0


class Worker:
    """One process of a module, started when it is first needed. For one thread; only `kill` is for any.

    Args:
        module: of `factorize.api.isolated`.
        name: what it is, for messages.
        threads: of its numerical routines.
    """

    def __init__(self, module: str, name: str, *, threads: int = 1) -> None:
        self._module, self._name, self._threads = module, name, threads
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._unread = b""
        self._closed = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process, or None where none runs."""
        return None if self._process is None else self._process.pid

    def ask(self, request: Document, *, seconds: float) -> Document:
        """Return the last event of an answer.

        Args:
            request: what is asked.
            seconds: how long the answer may take.

        Raises:
            FactorizeError: what the worker said.
            LimitExceeded: it died, or took too long and was killed.
        """
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode("ascii") + b"\n")
            process.stdin.flush()
        except OSError:
            raise self._died("it was killed") from None
        event = self._last_event(process, time.monotonic() + seconds, seconds)
        if event["event"] == "done":
            return event
        raise _error(event["error"]["type"], event["error"]["message"])

    def kill(self) -> None:
        """End the process, whatever it does, and start no other: whoever waits for its answer gets LimitExceeded."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Kill, and wait for the end; nobody waits for an answer any more."""
        self.kill()
        self._forget()

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise LimitExceeded(f"the {self._name} was closed")
            if self._process is None:
                self._unread, self._log = b"", tempfile.TemporaryFile()
                self._process = subprocess.Popen(
                    child_command(self._module),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    env=child_environment(self._threads),
                    process_group=0,  # Ctrl-C in a terminal is for whoever asks
                )
            return self._process

    def _last_event(self, process: subprocess.Popen[bytes], deadline: float, seconds: float) -> Document:
        assert process.stdout is not None
        while True:
            line, found, self._unread = self._unread.partition(b"\n")
            if found:
                event: Document = json.loads(line)
                if event["event"] in ("done", "failed"):
                    return event
                continue
            self._unread = line
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                process.kill()
                raise self._died(f"it took longer than {seconds:.3g} s and was killed")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                raise self._died("it was killed, perhaps for memory")
            self._unread += data

    def _died(self, otherwise: str) -> LimitExceeded:
        """Return the error of a process that has ended in the middle of an answer."""
        process, log = self._process, self._log
        assert process is not None and log is not None
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS_SECONDS)  # one that crashes closes its stdout before it says why
        process.kill()
        status = process.wait()
        log.seek(0)
        last = log.read()[-4000:].decode("utf-8", "replace").strip().splitlines()[-1:] or [otherwise]
        self._forget()
        message = f"the {self._name} ended with status {status} and without an answer: {last[0]}; nothing is stored"
        return LimitExceeded(message)

    def _forget(self) -> None:
        with self._lock:
            process, log, self._process, self._log = self._process, self._log, None, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):  # what was never written is not needed
                    if stream is not None:
                        stream.close()
        if log is not None:
            log.close()


def _error(kind: str, message: str) -> FactorizeError:
    """Return what a worker said as the error that it was."""
    if kind == MemoryError.__name__:
        return LimitExceeded(f"{kind} {message}".strip())
    found = _kinds(FactorizeError).get(kind, SolveFailed)
    return SolveFailed(message) if issubclass(found, InvalidSpec) else found(message)


def _kinds(base: type[FactorizeError]) -> dict[str, type[FactorizeError]]:
    found = {base.slug: base}
    for kind in base.__subclasses__():
        found |= _kinds(kind)
    return found
