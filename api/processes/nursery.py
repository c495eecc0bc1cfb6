"""The nursery: a process that has everything imported, from which children are forked in milliseconds.

It serves this process only, and ends with it or when nobody needs it any more. Starting it takes a second or two of a
processor, and it keeps some 160 MB. Where there is none (another system than Linux, or it refuses), whoever asked
starts a Python for each child.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from factorize.api.isolated import NURSERY, child_command
from factorize.api.processes.guards import THREAD_VARIABLES, ForkedGuard, child_environment
from factorize.api.processes.sibling import MESSAGE_BYTES

SUPPORTED = sys.platform == "linux" and hasattr(os, "pidfd_open")
_END_SECONDS = 5.0
_PATIENCE_SECONDS = 15.0  # that the nursery gets to fork; it may be compiling, once after an installation

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Process:
    """The nursery's process and the socket on which it is asked."""

    process: subprocess.Popen[bytes]
    asking: socket.socket

    @property
    def loads(self) -> bool:
        """Whether it has still to load code, whose end it says on its stdout."""
        assert self.process.stdout is not None
        return self.process.poll() is None and not select.select([self.process.stdout], [], [], 0)[0]

    def end(self) -> None:
        self.asking.close()  # it ends when nobody can ask any more
        assert self.process.stdout is not None
        self.process.stdout.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Nursery:
    """Starts the nursery's process when it is first needed, asks it for children, and replaces it when it has died.

    Safe for threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: _Process | None = None
        self._holders = 0
        self._owed = False

    def hold(self) -> None:
        """Keep the process, once somebody has asked for a child, until `release`."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """Say that it is not needed any more; the last holder ends it."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._end()

    def start(self) -> None:
        """Start the process, so that the first child need not wait for it; does not wait itself."""
        if SUPPORTED:
            with self._lock, suppress(OSError):
                self._process()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    @property
    def pid(self) -> int | None:
        """Process number, or None while there is none."""
        with self._lock:
            return None if self._running is None else self._running.process.pid

    @property
    def loads(self) -> bool:
        """Whether there is a process that still loads code, so that a child may have to wait for it; does not wait."""
        running = self._running  # without the lock, which whoever waits for a child holds
        try:
            return running is not None and running.loads
        except ValueError:  # it is ended meanwhile
            return False

    def fork(
        self, module: str, *, threads: int, data_bytes: int, variables: Mapping[str, str], stdin: int
    ) -> ForkedGuard | None:
        """Have a child forked under a guard of its own.

        Args:
            module: whose `main` it calls; see `child_command`.
            threads: threads per BLAS, OpenMP or numba pool.
            data_bytes: private memory that it may reserve; 0 for no limit.
            variables: further variables of its environment.
            stdin: descriptor of a file; stays open here.

        Returns:
            The guard; None where there is no nursery to be had.
        """
        if not SUPPORTED:
            return None
        order = {
            "module": module,
            "threads": threads,
            "data_bytes": data_bytes,
            "environment": dict.fromkeys(THREAD_VARIABLES, str(threads)) | dict(variables),
        }
        with self._lock:
            for _ in range(2):  # the second is for a process that was killed meanwhile
                try:
                    asking = self._process().asking
                    if self._owed:
                        _drop_answer(asking)
                        self._owed = False
                    return _forked(asking, json.dumps(order).encode(), stdin)
                except _BusyError as error:
                    self._owed = error.owed or self._owed
                    return None
                except _RefusedError as error:
                    _log.warning("the nursery forks no child (%s); a Python is started for it", error)
                    return None
                except OSError as error:
                    _log.warning("the nursery has died (%s)", error)
                    self._end()
        return None

    def _process(self) -> _Process:
        if self._running is not None and self._running.process.poll() is not None:
            self._end()
        if self._running is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    child_command(NURSERY),
                    stdin=theirs.fileno(),
                    stdout=subprocess.PIPE,
                    env=child_environment(1),
                    start_new_session=True,
                )
            self._running = _Process(process, ours)
        return self._running

    def _end(self) -> None:
        if self._running is not None:
            self._running.end()
            self._running, self._owed = None, False


class _RefusedError(Exception):
    """The nursery lives and does not fork."""


class _BusyError(Exception):
    """The nursery has not answered in time.

    Args:
        owed: whether it has been asked, and will answer some day.
    """

    def __init__(self, *, owed: bool) -> None:
        super().__init__()
        self.owed = owed


def _drop_answer(asking: socket.socket) -> None:
    """Take the late answer to an earlier question; its guard has ended, since nobody watched it.

    Raises:
        _BusyError: it has not come yet.
        OSError: the nursery is gone.
    """
    if not select.select([asking], [], [], 0)[0]:
        raise _BusyError(owed=False)
    message, handles, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, 1)
    for handle in handles:
        os.close(handle)
    if not message:
        raise ConnectionResetError("it has closed its socket")


def _forked(asking: socket.socket, order: bytes, stdin: int) -> ForkedGuard:
    """Ask for one child.

    Raises:
        OSError: the nursery is gone.
        _RefusedError: it does not fork.
        _BusyError: it has not answered in time.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    streams = (open(out_read, "rb", buffering=0), open(err_read, "rb", buffering=0))
    try:
        try:
            socket.send_fds(asking, [order], [stdin, out_write, err_write, theirs.fileno()])
        finally:
            theirs.close()
            os.close(out_write)
            os.close(err_write)
        if not select.select([asking], [], [], _PATIENCE_SECONDS)[0]:
            raise _BusyError(owed=True)
        message, handles, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, 1)
        if not message:
            raise ConnectionResetError("it has closed its socket")
        answer = json.loads(message)
        if "pid" not in answer:
            raise _RefusedError(answer["refused"])
    except BaseException:
        ours.close()
        for stream in streams:
            stream.close()
        raise
    return ForkedGuard(answer["pid"], handle=handles[0] if handles else None, watch=ours, streams=streams)


NURSERY_OF_THIS_PROCESS = Nursery()
atexit.register(NURSERY_OF_THIS_PROCESS.close)
