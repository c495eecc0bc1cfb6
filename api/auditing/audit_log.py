"""The audit log: adds lines to a chain that several processes of one machine share.

A line is on the disk before what it says is answered. Writers of one machine take turns by a lock on the folder;
services on other machines have a folder, and a chain, of their own.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorize.api.auditing.audit_chain import (
    LONGEST_LINE,
    RECOVERED,
    ChainHead,
    chain_files,
    file_after,
    sealed,
    whole_line,
)
from factorize.encoding import read_json, sha256
from factorize.errors import CorruptObject, StoreUnavailable
from factorize.storage.records import now

FILE_BYTES = 64 << 20
REFUSALS_SECONDS = 60.0
_LOCK = "audit.lock"
_MOST_REFUSALS = 4096  # callers and statuses that are counted apart; the rest is counted together


@dataclass
class _Count:
    since: float
    more: int = 0


class AuditLog:
    """The audit log in a folder. Safe for threads, and for several processes of one machine.

    Args:
        folder: where its files are; it is made with the first line.
        file_bytes: size from which on another file is begun.
    """

    def __init__(self, folder: Path, *, file_bytes: int = FILE_BYTES) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._lock = threading.Lock()
        self._refusals: dict[tuple[str, str], _Count] = {}

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self._folder

    def add(
        self,
        event: str,
        *,
        actor: str,
        subject: str | None = None,
        request_id: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> ChainHead:
        """Add a line; it is on the disk when this returns.

        Args:
            event: what was done: `submission`, `upload`, `revocation`, ...
            actor: who did it: a caller's owner, or `operator:<user>` for commands.
            subject: id of what it was done to.
            request_id: of the request, as in its answer.
            detail: plain data, a few numbers and names; never a secret or a body.

        Raises:
            StoreUnavailable: the line cannot be written, so what it says must not be done.
        """
        line = {"time": now(), "event": event, "actor": actor, "request_id": request_id, "subject": subject}
        try:
            with self._lock, _locked(self._folder):
                return self._append({**line, "detail": dict(detail or {})})
        except OSError as error:
            raise StoreUnavailable(f"the audit log in {self._folder} cannot be written: {error}") from error

    def refuse(self, actor: str, kind: str, *, request_id: str | None = None) -> None:
        """Note a refusal: the first of its kind and caller as a line, those of the next minute as a number in the next.

        Args:
            actor: who was refused.
            kind: why.
            request_id: of the request.
        """
        at = time.monotonic()
        with self._lock:
            key = (
                (actor, kind) if len(self._refusals) < _MOST_REFUSALS or (actor, kind) in self._refusals else ("", kind)
            )
            count = self._refusals.get(key)
            if count is not None and at - count.since < REFUSALS_SECONDS:
                count.more += 1
                return
            before = 0 if count is None else count.more
            self._refusals[key] = _Count(at)
        self.add(
            "refusal", actor=key[0] or "others", request_id=request_id, detail={"kind": kind, "more_before": before}
        )

    def close(self) -> None:
        """Write down the refusals that were counted and are in no line yet."""
        with self._lock:
            counts, self._refusals = self._refusals, {}
        for (actor, kind), count in counts.items():
            if count.more:
                self.add("refusal", actor=actor or "others", detail={"kind": kind, "more_before": count.more})

    def _append(self, line: dict[str, Any]) -> ChainHead:
        files = chain_files(self._folder)
        path = files[-1] if files else file_after(None, self._folder)
        head, piece = _end(files)
        data = b""
        whole = whole_line(piece, head)
        if whole is not None:  # all of it but its end was written
            data, head = b"\n", whole
        elif piece:
            found = {"event": RECOVERED, "subject": None, "detail": {"bytes": len(piece), "sha256": sha256(piece)}}
            ended, head = sealed({**line, **found, "actor": "factorize", "request_id": None}, head)
            data = b"\n" + ended
        elif files and path.stat().st_size >= self._file_bytes:
            path = file_after(path, self._folder)
        text, head = sealed(line, head)
        if len(text) > LONGEST_LINE:
            raise StoreUnavailable(f"a line of the audit log has {len(text)} bytes; the limit is {LONGEST_LINE}")
        _write(path, data + text, new=not path.exists())
        return head


def _end(files: list[Path]) -> tuple[ChainHead, bytes]:
    """Return the head of a chain, and the piece of a line after it; older lines are not looked at."""
    left = b""
    for path in reversed(files):
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - 4 * LONGEST_LINE))
            whole, newline, piece = file.read().rpartition(b"\n")
        left = piece if path == files[-1] else left
        for raw in reversed(whole.split(b"\n") if newline else []):
            head = _head_of(raw)
            if head is not None:
                return head, left
        if size > 4 * LONGEST_LINE:
            raise CorruptObject(f"the end of {path} is no line of an audit log; run `factorize audit verify`")
    return ChainHead(), left


def _head_of(raw: bytes) -> ChainHead | None:
    try:
        line = read_json(raw, limit=LONGEST_LINE)
        return ChainHead(line["seq"], line["hash"])
    except (ValueError, KeyError, TypeError):
        return None


def _write(path: Path, data: bytes, *, new: bool) -> None:
    """Add bytes to a file, in one call and to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(descriptor, data)
        if written != len(data):
            raise OSError(f"{written} of {len(data)} bytes were written; the disk may be full")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Be the only writer of a folder on this machine; the lock of a process that was killed is free."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
