"""Readiness: what a service is missing, each by a name that does not change and in a sentence.

Each part is asked in a thread of its own and has a few seconds to answer. A part that is still silent is not asked a
second time meanwhile, so that whoever asks often cannot pile questions up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Silence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from factorize.api.jobs.database import SCHEMA_VERSION, other_version, read_version
from factorize.errors import FactorizeError, NotFound

if TYPE_CHECKING:
    from factorize.api.jobs.engine import JobEngine
    from factorize.api.jobs.ledger import Ledger
    from factorize.storage.store import Store


ANSWER_SECONDS = 5.0
PROBE_SECONDS = 30.0
"""A store that took a file is not given another before."""
STATES = {
    "ledger-unreachable": "the database does not answer",
    "ledger-other-release": "its tables are not those of this release",
    "ledger-read-only": "it answers, and takes no writes",
    "store-gone": "the folder or bucket is not there, or is no store",
    "store-forbidden": "the credentials or permissions do not suffice",
    "store-overwrites": "the bucket has no conditional put, or shows what it should not",
    "store-clock": "this machine's clock is off",
    "store-full": "there is no room",
    "store-unreachable": "it does not answer",
    "scheduler-gone": "no scheduler answers; jobs wait in the ledger",
    "scheduler-unreadable": "what answers at its address is no scheduler of this release's dask",
    "no-workers": "a scheduler answers and no worker of this release; jobs wait",
    "other-worker": "a worker of another release is there, and is given nothing",
    "loading": "the service is young: solves may wait for code that is loaded once",
}
NOTES = ("no-workers", "other-worker", "loading")
"""What keeps solves waiting, and no request from being answered."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that is missing.

    Args:
        check: `database`, `store` or `engine`.
        state: one of `STATES`.
        detail: what happened, and the way out.
    """

    check: str
    state: str
    detail: str

    def document(self) -> dict[str, str]:
        """Return plain JSON data."""
        return asdict(self)


class Readiness:
    """Asks the parts of a service. Safe for threads.

    Args:
        ledger: its job ledger.
        store: its store.
        engine: its engine.
        scheduler: address of the scheduler elsewhere, or None.
    """

    def __init__(self, ledger: Ledger, store: Store, engine: JobEngine, scheduler: str | None) -> None:
        self._ledger, self._store, self._engine, self._scheduler = ledger, store, engine, scheduler
        self._threads = ThreadPoolExecutor(3, "readiness")
        self._asked: dict[str, Future[list[Missing]]] = {}
        self._lock = threading.Lock()
        self._probed = float("-inf")

    def look(self, seconds: float = ANSWER_SECONDS) -> list[Missing]:
        """Return all that is missing and all that is noteworthy; blocks for so many seconds at most."""
        parts: dict[str, Callable[[], list[Missing]]] = {
            "database": self._look_at_ledger,
            "store": self._look_at_store,
            "engine": self._look_at_engine,
        }
        asked = {name: self._ask(name, look) for name, look in parts.items()}
        end = time.monotonic() + seconds
        return [found for name, future in asked.items() for found in _answer(name, future, end - time.monotonic())]

    def close(self) -> None:
        """Ask nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, name: str, look: Callable[[], list[Missing]]) -> Future[list[Missing]]:
        with self._lock:
            known = self._asked.get(name)
            if known is None or known.done():
                known = self._asked[name] = self._threads.submit(look)
        return known

    def _look_at_ledger(self) -> list[Missing]:
        try:
            found = read_version(self._ledger.engine)
            if found != SCHEMA_VERSION:
                return [Missing("database", "ledger-other-release", other_version(found))]
        except (DBAPIError, FactorizeError) as error:
            return [Missing("database", "ledger-unreachable", _said(error))]
        try:
            self._ledger.get("0" * 64)
        except DBAPIError as error:
            return [Missing("database", "ledger-other-release", f"{_said(error)}; take another database")]
        if not self._engine.writes:
            detail = "the last sign of life could not be written; give the database room and the role its rights"
            return [Missing("database", "ledger-read-only", detail)]
        return []

    def _look_at_store(self) -> list[Missing]:
        try:
            self._store.check_format(create=False)
            if time.monotonic() - self._probed > PROBE_SECONDS:
                self._write()
                self._probed = time.monotonic()
        except (FactorizeError, OSError) as error:
            self._probed = float("-inf")
            state = "store-gone" if isinstance(error, NotFound) else getattr(error, "state", "store-unreachable")
            return [Missing("store", state, _said(error))]
        return []

    def _write(self) -> None:
        """Write a file as every put does, and remove it."""
        objects = self._store.objects
        objects.probe()
        with objects.stage() as staged:
            staged.write(b"ready")

    def _look_at_engine(self) -> list[Missing]:
        if not self._engine.solves.up:
            if self._engine.solves.unreadable:
                return [Missing("engine", "scheduler-unreadable", self._engine.solves.unreadable)]
            detail = f"the scheduler {self._scheduler} does not answer; start it, or check its address and certificates"
            return [Missing("engine", "scheduler-gone", detail)]
        found = [Missing("engine", "other-worker", text) for text in self._engine.solves.other_workers()]
        if self._engine.capacity_mb is None:
            found.append(Missing("engine", "no-workers", "start `factorize worker` of this release"))
        if self._engine.solves.loads:
            detail = "the first workers load code; that takes some seconds"
            found.append(Missing("engine", "loading", detail))
        return found


def _answer(name: str, future: Future[list[Missing]], seconds: float) -> list[Missing]:
    try:
        return future.result(max(0.0, seconds))
    except Silence:
        state = {"database": "ledger-unreachable", "store": "store-unreachable"}.get(name, "scheduler-gone")
        return [Missing(name, state, "it has not answered within some seconds")]


def _said(error: Exception) -> str:
    """What an error says, in a line: a database's own words, without its statement."""
    own = getattr(error, "orig", None) or error
    return " ".join(str(own).split())[:500]
