"""Guards, seen from the supervisor: a child's guard (reaper.py) that was started by command, or forked by the nursery.

Both have the streams of the child, end it when they are dismissed or when this process dies, and end as it has ended.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from factorize.api.processes.sibling import STATUS_BYTES

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_REAPER = Path(__file__).with_name("reaper.py")
_END_SECONDS = 5.0


class AnyGuard(Protocol):
    """What the supervisor needs of a guard.

    Attributes:
        pid: its process number, and that of its session.
    """

    pid: int

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes]]:
        """The child's stdout and stderr, unbuffered."""

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal, by which the child ended; None before guard and child have."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for that; raises `subprocess.TimeoutExpired`."""

    def dismiss(self) -> None:
        """Have it kill the child and all that the child has started."""

    def kill(self) -> None:
        """Kill the guard itself."""

    def close(self) -> None:
        """Let go of all descriptors; for after the end."""


class StartedGuard:
    """A guard that is a Python of its own, of this thread.

    Args:
        command: the child's command line.
        data_bytes: private memory that the child may reserve; 0 for no limit.
        environment: all of the child's.
        stdin: a file.
    """

    def __init__(
        self, command: Sequence[str], *, data_bytes: int, environment: dict[str, str], stdin: IO[bytes]
    ) -> None:
        watch, self._watch = os.pipe()
        guard = (sys.executable, "-I", "-S", str(_REAPER), str(watch), str(os.getpid()), str(data_bytes))
        try:
            self._process = subprocess.Popen(
                (*guard, *command),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                pass_fds=(watch,),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            self.dismiss()
            raise
        finally:
            os.close(watch)
        self.pid = self._process.pid
        self.poll, self.wait, self.kill = self._process.poll, self._process.wait, self._process.kill

    @property
    def streams(self) -> tuple[IO[bytes], IO[bytes]]:
        """See `AnyGuard`."""
        assert self._process.stdout is not None and self._process.stderr is not None
        return self._process.stdout, self._process.stderr

    def dismiss(self) -> None:
        """See `AnyGuard`."""
        if self._watch >= 0:
            os.close(self._watch)
            self._watch = -1

    def close(self) -> None:
        """See `AnyGuard`."""
        self.dismiss()
        for stream in self.streams:
            stream.close()


class ForkedGuard:
    """A guard that the nursery has forked.

    Args:
        pid: its process number.
        handle: a pidfd of it; None where it was dead before there could be one.
        watch: the socket on which it says how the child ended.
        streams: the child's stdout and stderr.
    """

    def __init__(
        self, pid: int, *, handle: int | None, watch: socket.socket, streams: tuple[IO[bytes], IO[bytes]]
    ) -> None:
        self.pid, self.streams = pid, streams
        self._handle, self._watch = handle, watch
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """See `AnyGuard`."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self._returncode

    def wait(self, timeout: float | None = None) -> int:
        """See `AnyGuard`."""
        if self._returncode is None:
            if not select.select([self._watch], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("guard", timeout or 0)
            said = self._watch.recv(STATUS_BYTES)
            status = int.from_bytes(said, "little") if said else signal.SIGKILL  # it was killed and could not say
            self._returncode = os.waitstatus_to_exitcode(status)
            if self._handle is not None:
                select.select([self._handle], [], [], _END_SECONDS)
        return self._returncode

    def dismiss(self) -> None:
        """See `AnyGuard`."""
        with suppress(OSError):  # it has ended
            self._watch.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """See `AnyGuard`."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        """See `AnyGuard`."""
        self._watch.close()
        for stream in self.streams:
            stream.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def child_environment(threads: int, **variables: str) -> dict[str, str]:
    """Return the environment of a child: threads fixed before any import, no setting or secret of the service."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FACTORIZE_")}
    return kept | dict.fromkeys(THREAD_VARIABLES, str(threads)) | variables
