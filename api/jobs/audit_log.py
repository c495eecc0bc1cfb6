"""The audit log: rows of the ledger, each with the sha256 that follows from the row before it.

A row is written in the transaction of the change that it tells of, so neither stands without the other. The hash of a
row is the sha256 of the canonical JSON of `{seq, time, event, actor, request_id, subject, detail, previous}`, where
`previous` is the hash of the row before (zeros for the first).
"""

import getpass
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from factorize.api.jobs.database import audit, reading, take_turns, writing
from factorize.api.telemetry import about
from factorize.encoding import canonical_json, read_json, sha256
from factorize.errors import CorruptObject, InvalidParameter, MalformedJson
from factorize.storage.records import now

BEGINNING = "0" * 64
REFUSALS_SECONDS = 60.0
_MAX_REFUSALS = 4096  # this many callers and statuses are counted apart; the rest is counted together


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The end of the log. Written down elsewhere, it shows when rows have been cut off from the end.

    Args:
        seq: number of the last row; 0 before the first.
        hash: hash of the last row.
    """

    seq: int = 0
    hash: str = BEGINNING

    def __str__(self) -> str:
        """Return the form that `read_head` reads."""
        return f"{self.seq}:{self.hash}"


def read_head(text: str) -> ChainHead:
    """Read `SEQ:HASH`.

    Raises:
        InvalidParameter: it is none.
    """
    parts = re.fullmatch(r"(\d{1,15}):([0-9a-f]{64})", text)
    if parts is None:
        raise InvalidParameter(f"{text[:90]!r} is not SEQ:HASH, as `factorize audit verify` prints it", field="expect")
    return ChainHead(int(parts[1]), parts[2])


def operator() -> str:
    """Return who a command's user is in the audit log."""
    try:
        return f"operator:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user has no name
        return "operator:unknown"


def add_row(
    connection: sa.Connection,
    event: str,
    *,
    actor: str,
    subject: str | None = None,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Add a row within a transaction that writes, as the last of its statements.

    Args:
        connection: a connection in the transaction of the change.
        event: what is done: `submission`, `upload`, `revocation`, ...
        actor: the one who does it: a caller's name, or `operator:<user>` for commands.
        subject: id of what it is done to.
        detail: plain data, a few numbers and names; never a secret or a body.
    """
    take_turns(connection)
    last = connection.execute(sa.select(audit.c.seq, audit.c.hash).order_by(audit.c.seq.desc()).limit(1)).first()
    before = ChainHead() if last is None else ChainHead(*last)
    row = {
        "seq": before.seq + 1,
        "time": now(),
        "event": event,
        "actor": actor,
        "request_id": about().get("request_id"),
        "subject": subject,
        "detail": dict(detail or {}),
    }
    text = canonical_json(row["detail"]).decode("ascii")
    connection.execute(audit.insert().values(**{**row, "detail": text, "hash": _hash(row, before.hash)}))


def _hash(row: Mapping[str, object], previous: str) -> str:
    return sha256(canonical_json({**row, "previous": previous}))


@dataclass
class _Count:
    since: float
    more: int = 0


class AuditLog:
    """The audit log of a ledger. Thread-safe.

    Args:
        engine: the ledger's database.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._refusals: dict[tuple[str, str], _Count] = {}

    def add(self, event: str, **fields: Any) -> None:
        """Add a row in a transaction of its own; it is on the disk when this returns. Fields as for `add_row`.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        with writing(self._engine) as connection:
            add_row(connection, event, **fields)

    def refuse(self, actor: str, kind: str) -> None:
        """Note a refusal: the first of its kind and caller as a row, those of the next minute as a number in the next.

        Args:
            actor: the one who was refused.
            kind: why.
        """
        at = time.monotonic()
        with self._lock:
            crowded = len(self._refusals) >= _MAX_REFUSALS and (actor, kind) not in self._refusals
            key = ("others" if crowded else actor, kind)
            count = self._refusals.get(key)
            if count is not None and at - count.since < REFUSALS_SECONDS:
                count.more += 1
                return
            self._refusals[key] = _Count(at)
        self.add("refusal", actor=key[0], detail={"kind": kind, "more_before": 0 if count is None else count.more})

    def close(self) -> None:
        """Write down the refusals that were counted and are in no row yet."""
        with self._lock:
            counts, self._refusals = self._refusals, {}
        for (actor, kind), count in counts.items():
            if count.more:
                self.add("refusal", actor=actor, detail={"kind": kind, "more_before": count.more})


@dataclass(frozen=True, slots=True)
class VerifiedLog:
    """The findings of a check.

    Args:
        rows: the number of rows that fit, each to the one before.
        head: the head of the log.
        since: time of the first row, or None.
        expected: whether the head that was asked for is among the rows; None where none was.
    """

    rows: int
    head: ChainHead
    since: str | None
    expected: bool | None


def verify_log(engine: sa.Engine, expect: ChainHead | None = None) -> VerifiedLog:
    """Check every row, a few rows in memory at a time.

    Args:
        engine: the ledger's database.
        expect: a head that was written down earlier.

    Raises:
        CorruptObject: a row does not fit; it is named.
        StoreUnavailable: the database does not answer.
    """
    head, since, met = ChainHead(), None, expect == ChainHead()
    with reading(engine) as connection:
        for stored in connection.execution_options(yield_per=500).execute(sa.select(audit).order_by(audit.c.seq)):
            row = dict(stored._mapping)
            digest, detail = row.pop("hash"), row["detail"]
            if row["seq"] != head.seq + 1:
                raise CorruptObject(f"row {row['seq']} of the audit log follows row {head.seq}: rows are missing")
            with suppress(MalformedJson):
                row["detail"] = read_json(detail)
            if canonical_json(row["detail"]).decode("ascii") != detail or digest != _hash(row, head.hash):
                raise CorruptObject(f"row {row['seq']} of the audit log, or the one before it, was changed")
            head, since = ChainHead(row["seq"], digest), since or row["time"]
            met = met or head == expect
    return VerifiedLog(head.seq, head, since, None if expect is None else met)
