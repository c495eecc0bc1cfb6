"""The audit chain: lines of JSON, each with the sha256 of the line before, in files that are only ever added to.

A line is the canonical JSON of `{seq, time, event, actor, request_id, subject, detail, previous, hash}`; `hash` is the
sha256 of that JSON without `hash`, `previous` the hash of the line before (zeros for the first). A writer that is
killed within a line leaves a piece without a line's end. It is kept, and the next line, `recovered`, names its length
and sha256 (unless it lacks nothing but its end); a piece that no such line names is damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factorize.encoding import canonical_json, read_json, sha256
from factorize.errors import CorruptObject, InvalidParameter, MalformedJson, NotFound

BEGINNING = "0" * 64
LONGEST_LINE = 1 << 16
RECOVERED = "recovered"
_FIELDS = {"seq", "time", "event", "actor", "request_id", "subject", "detail", "previous", "hash"}
_FILE = re.compile(r"audit-(\d{8})\.jsonl")


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The end of a chain: what is written down elsewhere, so that lines cut off from the end are missed.

    Args:
        seq: number of the last line; 0 before the first.
        hash: of the last line.
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
    found = re.fullmatch(r"(\d{1,15}):([0-9a-f]{64})", text)
    if found is None:
        raise InvalidParameter(f"{text[:90]!r} is not SEQ:HASH, as `factorize audit verify` prints it", field="expect")
    return ChainHead(int(found[1]), found[2])


def sealed(line: dict[str, Any], before: ChainHead) -> tuple[bytes, ChainHead]:
    """Return a line with its number and hashes, ended, and the head that it makes.

    Args:
        line: the other fields.
        before: the head that it follows.
    """
    numbered = {**line, "seq": before.seq + 1, "previous": before.hash}
    digest = sha256(canonical_json(numbered))
    return canonical_json({**numbered, "hash": digest}) + b"\n", ChainHead(before.seq + 1, digest)


def whole_line(text: bytes, before: ChainHead) -> ChainHead | None:
    """Return the head that a line without its end makes after another head; None where it is none, or no whole one."""
    line = _line_in(text + b"\n")
    if line is None:
        return None
    try:
        _check(line, before, None, "")
    except CorruptObject:
        return None
    return ChainHead(line["seq"], line["hash"])


def chain_files(folder: Path) -> list[Path]:
    """Return the files of a chain, the oldest first."""
    return sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name)) if folder.is_dir() else []


def file_after(path: Path | None, folder: Path) -> Path:
    """Return the file that comes after another one, or the first."""
    found = None if path is None else _FILE.fullmatch(path.name)
    return folder / f"audit-{1 + (int(found[1]) if found else 0):08d}.jsonl"


@dataclass(frozen=True, slots=True)
class VerifiedChain:
    """What a check has found.

    Args:
        lines: that fit, each to the one before.
        files: that they are in.
        head: of the chain.
        since: time of the first line, or None.
        pieces: pieces of lines whose writers were killed; each is named by the line after it.
        unfinished: bytes of a piece at the end, which the next writer will name.
        first: number of the first line; above 1 where older files were removed.
        expected: whether the head that was asked for is among the lines; None where none was.
    """

    lines: int
    files: int
    head: ChainHead
    since: str | None
    pieces: int
    unfinished: int
    first: int
    expected: bool | None


def verify_chain(folder: Path, expect: ChainHead | None = None) -> VerifiedChain:
    """Check every line of a chain; the memory that it takes is that of a line.

    Args:
        folder: where the files are.
        expect: a head that was written down earlier.

    Raises:
        NotFound: there is no chain.
        CorruptObject: a line does not fit; file and line are named.
    """
    files = chain_files(folder)
    if not files:
        raise NotFound(f"{folder} has no audit log")
    head, since, first, lines, pieces, unfinished = ChainHead(), None, 0, 0, 0, 0
    met = None if expect is None else expect == ChainHead()
    piece: bytes | None = None
    for path, number, raw in _raw_lines(files):
        where = f"{path.name} line {number}"
        if not raw.endswith(b"\n"):
            if path != files[-1]:
                raise CorruptObject(f"{where} of the audit log is cut off, and a later file follows")
            unfinished = len(raw)
            break
        line = _line_in(raw)
        if line is None:
            if piece is not None:
                raise CorruptObject(f"{where} of the audit log is no line, nor the one before it")
            piece = raw[:-1]
            continue
        if not lines:
            head, first, since = ChainHead(line["seq"] - 1, line["previous"]), line["seq"], line["time"]
        _check(line, head, piece, where)
        pieces += piece is not None
        piece = None
        head, lines = ChainHead(line["seq"], line["hash"]), lines + 1
        met = True if met is not None and head == expect else met
    if piece is not None:
        raise CorruptObject(f"the last line of {files[-1].name} in the audit log is no line")
    return VerifiedChain(lines, len(files), head, since, pieces, unfinished, first or 1, met)


def _raw_lines(files: list[Path]) -> Iterator[tuple[Path, int, bytes]]:
    for path in files:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(LONGEST_LINE + 1):
                number += 1
                yield path, number, raw


def _line_in(raw: bytes) -> dict[str, Any] | None:
    try:
        line = read_json(raw[:-1], limit=LONGEST_LINE)
    except MalformedJson:
        return None
    fits = isinstance(line, dict) and set(line) == _FIELDS and isinstance(line["seq"], int)
    return line if fits and canonical_json(line) == raw[:-1] else None


def _check(line: dict[str, Any], head: ChainHead, piece: bytes | None, where: str) -> None:
    body = {name: value for name, value in line.items() if name != "hash"}
    if line["hash"] != sha256(canonical_json(body)):
        raise CorruptObject(f"{where} of the audit log was changed: it does not hash to its own hash")
    if (line["seq"], line["previous"]) != (head.seq + 1, head.hash):
        raise CorruptObject(f"{where} of the audit log does not follow line {head.seq}: lines are missing or moved")
    named = line["detail"] if line["event"] == RECOVERED else None
    if piece is not None and named != {"bytes": len(piece), "sha256": sha256(piece)}:
        raise CorruptObject(f"{where} of the audit log follows a piece that it does not name")
    if piece is None and named is not None:
        raise CorruptObject(f"{where} of the audit log names a piece that is not there")
