"""The presence of engines on a ledger: which are alive, judged without comparing clocks.

Every engine moves a number in its row of the ledger. Another engine counts as dead when its process is gone
(told at once, on the same machine) or when its number has stood still for long enough on the clock of
whoever looks.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from factorize.api.jobs.job import EngineRow
from factorize.api.jobs.ledger import Ledger

_CLOCK_SECONDS = 5.0
"""That a machine's clock may have been set by since an engine announced itself."""


class Presence:
    """One engine's sign of life, and its view of the others."""

    def __init__(self, ledger: Ledger, engine_id: str, patience: float) -> None:
        """Announce the engine.

        Args:
            ledger: where engines meet.
            engine_id: the engine that looks.
            patience: seconds without a sign of life after which another engine counts as dead.
        """
        self._ledger = ledger
        self._patience = patience
        self._me = EngineRow(engine_id, host_name(), os.getpid(), time.time(), 0)
        self._seen: dict[str, tuple[int, float]] = {}
        self.fallen: frozenset[str] = frozenset()
        ledger.announce(self._me)

    def beat(self) -> None:
        """Give a sign of life; announce again if the others have given us up."""
        if not self._ledger.beat(self._me.id):
            self._ledger.announce(self._me)

    def end(self) -> None:
        """Leave."""
        self._ledger.forget(self._me.id)

    def living(self) -> set[str]:
        """Ids of the engines that are alive, this one among them; the dead are removed from the ledger.

        Those among the dead whose machine has been started anew since are `fallen` until the next look.
        """
        engines = self._ledger.engines().values()
        dead = {engine.id for engine in engines if self._is_dead(engine)}
        self.fallen = frozenset(e.id for e in engines if e.id in dead and _has_restarted(e.host, self._me.host))
        for engine_id in dead:
            self._ledger.forget(engine_id)
        return {engine.id for engine in engines} - dead | {self._me.id}

    def _is_dead(self, engine: EngineRow) -> bool:
        if engine.id == self._me.id:
            return False
        if engine.host == self._me.host and not _is_running(engine):
            return True
        now = time.monotonic()
        beat, since = self._seen.get(engine.id, (None, now))
        if beat != engine.beat:
            self._seen[engine.id] = (engine.beat, now)
            return False
        return now - since > self._patience


def host_name() -> str:
    """A name for the set of processes whose numbers mean the same: one boot of one machine or container."""
    parts = [socket.gethostname()]
    with suppress(OSError):  # Linux only
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _has_restarted(before: str, now: str) -> bool:
    """Whether two names that `host_name` made are those of one machine, in two runs of it."""
    one, other = before.split(), now.split()
    return len(one) == len(other) == 3 and one[0] == other[0] and one[1] != other[1]


def _is_running(engine: EngineRow) -> bool:
    """True if the process that announced itself still runs, and is not a later one with its number."""
    import psutil

    try:
        process = psutil.Process(engine.pid)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() < engine.started + _CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return False
