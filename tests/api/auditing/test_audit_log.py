"""The audit log: every change is seen, every kill is survived, and writers take turns."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine

from factorize.api.auditing import audit_log
from factorize.api.auditing.audit_chain import BEGINNING, ChainHead, chain_files, read_head, verify_chain
from factorize.api.auditing.audit_log import AuditLog
from factorize.encoding import canonical_json, sha256
from factorize.errors import CorruptObject, InvalidParameter, NotFound, StoreUnavailable


def filled(folder: Path, lines: int = 4) -> AuditLog:
    log = AuditLog(folder)
    for number in range(lines):
        log.add("submission", actor="key:a", subject=f"{number:064x}", request_id="r", detail={"workload": "prefix"})
    return log


def only_file(folder: Path) -> Path:
    (found,) = chain_files(folder)
    return found


def test_the_hashes_are_those_of_the_page(tmp_path: Path) -> None:
    """Recomputed here from the lines, as an auditor's own script would."""
    filled(tmp_path)
    before = BEGINNING
    lines = [json.loads(text) for text in only_file(tmp_path).read_text().splitlines()]
    for number, line in enumerate(lines, 1):
        digest = line.pop("hash")
        assert (line["seq"], line["previous"]) == (number, before)
        assert digest == sha256(json.dumps(line, sort_keys=True, separators=(",", ":")).encode())
        before = digest
    found = verify_chain(tmp_path)
    assert (found.lines, found.head, found.first) == (4, ChainHead(4, before), 1)


def test_whatever_byte_is_changed_is_seen(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    path = only_file(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = verify_chain(tmp_path, read_head(str(ChainHead(3, json.loads(whole.splitlines()[2])["hash"]))))
        except CorruptObject:
            continue
        assert found.unfinished or found.expected is False, place  # the last line's end: it is unfinished then


@pytest.mark.parametrize("change", ["take out", "swap", "repeat", "insert"])
def test_lines_that_are_moved_are_seen(tmp_path: Path, change: str) -> None:
    filled(tmp_path)
    path = only_file(tmp_path)
    a, b, c, d = path.read_bytes().splitlines(keepends=True)
    forged = {"take out": [a, c, d], "swap": [a, c, b, d], "repeat": [a, b, b, c, d], "insert": [a, b, b"{}\n", c, d]}
    path.write_bytes(b"".join(forged[change]))
    with pytest.raises(CorruptObject, match="audit log"):
        verify_chain(tmp_path)


def test_lines_cut_off_the_end_are_seen_by_a_head_written_down(tmp_path: Path) -> None:
    filled(tmp_path)
    head = verify_chain(tmp_path).head
    assert verify_chain(tmp_path, head).expected is True
    path = only_file(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert verify_chain(tmp_path).lines == 3
    assert verify_chain(tmp_path, head).expected is False


def test_a_writer_killed_at_any_byte_of_a_line_loses_only_that_line(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    path = only_file(tmp_path)
    whole = path.read_bytes()
    start = len(whole) - len(whole.splitlines(keepends=True)[-1])
    for cut in (start, start + 1, *range(start + 2, len(whole) - 2, 41), len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        found = verify_chain(tmp_path)
        assert (found.lines, found.unfinished) == (2, cut - start)
        AuditLog(tmp_path).add("upload", actor="key:b")
        found = verify_chain(tmp_path)
        if cut == start:  # before the first byte
            assert (found.lines, found.pieces) == (3, 0)
        else:  # the line that names the piece, or all of the line but its end
            assert (found.lines, found.pieces) == (4, 0 if cut == len(whole) - 1 else 1)
        assert path.read_bytes().startswith(whole[:cut])  # nothing that was written is taken out
    path.write_bytes(whole[: start + 9] + b"\n" + whole[start:])
    with pytest.raises(CorruptObject, match="piece"):
        verify_chain(tmp_path)


def test_a_piece_at_the_beginning_of_a_file_is_named_too(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, file_bytes=1)  # a file for each line
    log.add("upload", actor="a")
    log.add("upload", actor="a")
    chain_files(tmp_path)[-1].write_bytes(b'{"act')
    log.add("upload", actor="b")
    found = verify_chain(tmp_path)
    assert (found.lines, found.files, found.pieces) == (3, 2, 1)
    chain_files(tmp_path)[0].unlink()  # what an operator does with old files
    assert verify_chain(tmp_path).first == 2


def write_until_killed(folder: str, number: int) -> None:
    log = AuditLog(Path(folder))
    while True:
        log.add("submission", actor=f"key:{number}", detail={"number": number})


def test_writers_that_are_killed_leave_a_chain(tmp_path: Path) -> None:
    """Three processes write as fast as they can, and are killed wherever they are."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_until_killed, args=(str(tmp_path), number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for count, writer in enumerate(writers, 1):
        while not chain_files(tmp_path) or verify_now(tmp_path) < 10 * count:
            pass
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        writer.close()
    AuditLog(tmp_path).add("submission", actor="key:last")
    found = verify_chain(tmp_path)
    assert found.lines > 30
    assert found.unfinished == 0


def verify_now(folder: Path) -> int:
    return verify_chain(folder).lines


def test_refusals_are_counted_and_not_all_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(audit_log.time, "monotonic", lambda: clock[0])
    log = AuditLog(tmp_path)
    for _ in range(1000):
        log.refuse("address:10.0.0.9", "401 not known", request_id="r")
    log.refuse("key:a", "429 too much")
    clock[0] += 61
    log.refuse("address:10.0.0.9", "401 not known")
    log.refuse("address:10.0.0.9", "401 not known")
    log.close()
    lines = [json.loads(text) for text in only_file(tmp_path).read_text().splitlines()]
    found = [(line["actor"], line["detail"]["kind"][:3], line["detail"]["more_before"]) for line in lines]
    nine = "address:10.0.0.9"
    assert found == [(nine, "401", 0), ("key:a", "429", 0), (nine, "401", 999), (nine, "401", 1)]
    assert verify_chain(tmp_path).lines == 4


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        AuditLog(tmp_path / "file" / "audit").add("upload", actor="a")
    with pytest.raises(StoreUnavailable, match="bytes"):
        AuditLog(tmp_path).add("upload", actor="a", detail={"text": "x" * 70_000})
    with pytest.raises(NotFound):
        verify_chain(tmp_path / "nothing")
    with pytest.raises(InvalidParameter, match="SEQ:HASH"):
        read_head("1:xyz")


def test_the_command_verifies(tmp_path: Path) -> None:
    factorize = CommandLine(tmp_path)
    folder = tmp_path / "log"
    filled(folder)
    document: dict[str, Any] = factorize("audit", "verify", "--audit", folder, "--output", "json").json()
    assert (document["lines"], document["folder"]) == (4, str(folder))
    assert "head" in factorize("audit", "verify", "--audit", folder, "--expect", document["head"]).out
    path = only_file(folder)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert "cut off" in factorize("audit", "verify", "--audit", folder, "--expect", document["head"]).error(4)
    path.write_bytes(path.read_bytes().replace(b"key:a", b"key:b", 1))
    assert "line 1" in factorize("audit", "verify", "--audit", folder).error(4)
    assert canonical_json({"a": 1}) == b'{"a":1}'
