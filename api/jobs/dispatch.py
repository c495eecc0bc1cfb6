"""Solves that one engine has handed on, to its own pool or to dask, and the names by which engines know each other.

Jobs of another engine are taken up when their lease in the ledger has run out, or at once where the engine's process
was one of this machine and is gone.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from factorize.api.jobs.job import Job
from factorize.encoding import sha256

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sent:
    """A job that was submitted, and the future of its solve."""

    job: Job
    future: Any


class Dispatch:
    """The solves that one engine has submitted. Safe for threads; who has to see no change meanwhile holds ``lock``.

    Args:
        solves: carries them out; not started.
        ended: called with task and future when a solve is over, in any thread; must not block.

    Attributes:
        room: memory in MB and threads of the largest worker; None while no worker is known.
    """

    def __init__(self, solves: Any, ended: Callable[[str, Any], None]) -> None:
        self.lock = threading.RLock()
        self.sent: dict[str, Sent] = {}
        self.stopped = False
        self._solves, self._ended = solves, ended
        self.room: tuple[int, int] | None = solves.capacity()

    def stop(self) -> bool:
        """Send nothing from now on; False if that was said before."""
        with self.lock:
            before, self.stopped = self.stopped, True
        return not before

    def close(self, release: Callable[[Job], object]) -> None:
        """Kill the workers that solve here, after giving up their jobs; solves elsewhere go on."""
        if self._solves.here:
            for entry in self.sent.values():
                with suppress(Exception):
                    release(entry.job)
        self._solves.close()

    def look_after(self) -> None:
        """Renew a connection that was lost, whose futures then mean nothing, and ask again what workers can take."""
        if self._solves.look_after():
            with self.lock:
                self.sent.clear()
        self.room = self._solves.capacity()

    def send(self, job: Job) -> None:
        """Hand a job on. Where that fails the job stays open, and its engine tries again."""
        with self.lock:
            if self.stopped or not self._solves.up:
                return
            largest_mb, processors = self.room or (None, job.threads)
            room = job.memory_mb, min(job.threads, processors)
            if job.suspect:
                if largest_mb is None:
                    return  # no worker is known that it could have for itself
                room = largest_mb, processors
            try:
                future = self._solves.submit(replace(job, threads=min(job.threads, processors)), room)
            except Exception:
                _log.warning("a job could not be submitted; it stays queued", exc_info=True)
                return
            self.sent[job.task] = Sent(job, future)
            future.add_done_callback(partial(self._ended, job.task))

    def get(self, task: str) -> Sent | None:
        """Return what was sent under that name and not dropped."""
        with self.lock:
            return self.sent.get(task)

    def drop(self, task: str, *, kill: bool) -> None:
        """Forget a solve, and end it if asked to."""
        with self.lock:
            entry = self.sent.pop(task, None)
        if entry is not None and kill:
            self._solves.cancel(entry.future)


_CLOCK_SECONDS = 5.0
"""That a machine's clock may have been set by since an engine was named."""


def new_owner() -> str:
    """Return a name for an engine of this process: machine, boot, namespace; its number and start; and chance."""
    return " ".join([*_here(), str(os.getpid()), f"{time.time():.0f}", secrets.token_hex(4)])


def has_ended(owner: str) -> bool:
    """Say whether an engine's process was one of this machine and is gone; another may have its number now."""
    import psutil

    parts = owner.split()
    if parts[:3] != _here():
        return False
    try:
        process = psutil.Process(int(parts[3]))
        return process.status() == psutil.STATUS_ZOMBIE or process.create_time() >= float(parts[4]) + _CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return True


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
