"""What a child says and how it ends, in processes of their own; and what the proof makes of each ending."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factorize.api import proof
from factorize.api.processes import sibling
from factorize.encoding import sha256
from factorize.errors import CertificateError, CorruptObject, FactorizeError, LimitExceeded, StoreUnavailable

CHILD = """
import sys
from factorize.api.child_protocol import serve, written
from factorize.errors import CorruptObject, StoreUnavailable, UnsupportedProblem

def answer(asked, tell):
    print("a library that talks on stdout")
    tell(iteration=1, seconds=0.5)
    {body}

sys.exit(serve(answer))
"""


def child(body: str) -> tuple[str, ...]:
    return (sys.executable, "-c", CHILD.format(body=body))


def run(body: str) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(child(body), input='{"to": "answer.json"}\n', capture_output=True, text=True, timeout=600)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_child_says_how_far_it_is_and_what_it_found() -> None:
    status, events, errors = run("return {'digest': 'x', **asked}")
    assert status == 0 and "talks on stdout" in errors
    assert events == [
        {"event": "progress", "iteration": 1, "seconds": 0.5},
        {"event": "done", "digest": "x", "to": "answer.json"},
    ]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise UnsupportedProblem('no such thing')", {"type": "unsupported-problem", "message": "no such thing"}),
        ("raise MemoryError('3 GiB')", {"type": "MemoryError", "message": "3 GiB"}),
    ],
)
def test_a_refusal_has_a_type_and_a_reason(body: str, error: dict[str, str]) -> None:
    status, events, _ = run(body)
    assert (status, events[-1]) == (1, {"event": "failed", "error": error})


def test_a_crash_has_no_last_word() -> None:
    status, events, errors = run("1 / 0")
    assert status == 1 and [event["event"] for event in events] == ["progress"]
    assert "ZeroDivisionError" in errors


def test_a_long_answer_is_written_and_named(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    _, events, _ = run(f"return written({str(path)!r}, {{'b': 1, 'a': 2.5}})")
    assert path.read_bytes() == b'{"a":2.5,"b":1}'
    assert events[-1]["digest"] == sha256(path.read_bytes())


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("raise CorruptObject('bytes')", CorruptObject, "bytes"),
        ("raise StoreUnavailable('disk')", StoreUnavailable, "disk"),
        ("raise UnsupportedProblem('claim')", CertificateError, "claim"),
        ("raise MemoryError('3 GiB')", LimitExceeded, "without an answer: MemoryError 3 GiB"),
        ("import os; os.kill(os.getpid(), 9)", LimitExceeded, "status -9 and without an answer: a library that talks"),
        ("1 / 0", LimitExceeded, "without an answer: ZeroDivisionError"),
        (
            "return {'answer': {'failed': True, 'refused': 'the loss'}}",
            CertificateError,
            "refuses the result.*the loss",
        ),
    ],
)
def test_the_proof_believes_no_other_ending(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str, kind: type[FactorizeError], message: str
) -> None:
    monkeypatch.setattr(sibling, "child_command", lambda _module: child(body))
    with pytest.raises(kind, match=message):
        proof.prove(tmp_path / "file", store=str(tmp_path))


def test_a_process_that_was_begun_ahead_answers_the_first_question_and_is_ended_where_none_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[str] = []

    def command(module: str) -> tuple[str, ...]:
        commands.append(module)
        return (sys.executable, "-I", "-S", "-c", "import os, sys; print(os.getpid(), sys.stdin.readline())")

    monkeypatch.setattr(sibling, "child_command", command)
    with sibling.begun("first"):
        process, _ = sibling._begun["first"]
        assert sibling.beside("first", "question\n").stdout.split() == [str(process.pid), "question"]
        assert sibling.beside("first", "again\n").stdout.split()[1] == "again"
    with sibling.begun("second"):
        process, _ = sibling._begun["second"]
    assert process.returncode == -9 and commands == ["first", "first", "second"]
