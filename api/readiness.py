"""Readiness of one service: what it is missing.

Each missing part has a name that does not change, and a sentence. Every part is asked in a thread of its own and has a
few seconds to answer. A part that is still silent is not asked again meanwhile, so that frequent probes cannot pile
questions up.
"""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from sqlalchemy.exc import DBAPIError

from factorize.api.jobs.database import SCHEMA_VERSION, other_version, read_version
from factorize.api.jobs.engine import JobEngine
from factorize.api.jobs.ledger import Ledger
from factorize.api.jobs.one_solve import Missing
from factorize.errors import FactorizeError, NotFound
from factorize.storage.store import Store

ANSWER_SECONDS = 5.0
PROBE_SECONDS = 30.0
"""Seconds for which a store that took a file is not given another."""
_SILENT_STATES = {"database": "ledger-unreachable", "store": "store-unreachable", "engine": "scheduler-gone"}
NOTES = ("no-workers", "other-worker", "loading", "store-read-only")
"""The states that keep solves waiting, and no request from being answered."""


class Readiness:
    """Asks the parts of a service. Safe for threads.

    Args:
        ledger: its job ledger.
        store: its store.
        engine: its engine.
    """

    def __init__(self, ledger: Ledger, store: Store, engine: JobEngine) -> None:
        self._ledger, self._store, self._engine = ledger, store, engine
        self._threads = ThreadPoolExecutor(3, "readiness")
        self._answers: dict[str, Future[list[Missing]]] = {}
        self._lock = threading.Lock()
        self._probed: float | None = None
        """The time at which the store took a file; None where it never has, which is by intention."""

    def look(self, seconds: float = ANSWER_SECONDS) -> list[Missing]:
        """Return all that is missing and all that is noteworthy; blocks for so many seconds at most."""
        looks = {"database": self._look_at_ledger, "store": self._look_at_store, "engine": self._engine.solves.missing}
        with self._lock:
            for name, look in looks.items():
                if name not in self._answers or self._answers[name].done():
                    self._answers[name] = self._threads.submit(look)
            answers = dict(self._answers)
        heard, missing = wait(answers.values(), seconds).done, list[Missing]()
        for name, answer in answers.items():
            silence = Missing(name, _SILENT_STATES[name], "it did not answer within some seconds")
            missing += answer.result() if answer in heard else [silence]
        return missing

    def close(self) -> None:
        """Stop asking."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look_at_ledger(self) -> list[Missing]:
        try:
            version = read_version(self._ledger.engine)
            if version != SCHEMA_VERSION:
                return [Missing("database", "ledger-other-release", other_version(version))]
            self._ledger.get("0" * 64)
        except (DBAPIError, FactorizeError) as error:
            return [Missing("database", "ledger-unreachable", _said(error))]
        if not self._engine.writes:
            detail = "leases could not be renewed; give the database room and the role its rights"
            return [Missing("database", "ledger-read-only", detail)]
        return []

    def _look_at_store(self) -> list[Missing]:
        readable = False
        try:
            self._store.check_format(create=False)
            readable = True
            if self._probed is None or time.monotonic() - self._probed > PROBE_SECONDS:
                self._store.check_writable()
                self._probed = time.monotonic()
        except (FactorizeError, OSError) as error:
            if readable and self._probed is None and getattr(error, "state", "") == "store-forbidden":
                detail = f"stored results are served, and nothing is solved: {_said(error)}"
                return [Missing("store", "store-read-only", detail)]
            self._probed = float("-inf")
            state = "store-gone" if isinstance(error, NotFound) else getattr(error, "state", "store-unreachable")
            return [Missing("store", state, _said(error))]
        return []


def _said(error: Exception) -> str:
    """Return what an error says, in a line: a database's own words, without its statement."""
    own = getattr(error, "orig", None) or error
    return " ".join(str(own).split())[:500]
