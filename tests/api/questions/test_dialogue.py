"""The dialogue: what is asked, what counts as an answer, and what happens when nobody answers."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
from pathlib import Path
from typing import Any

import pytest

from factorize.api.commands.application import run
from factorize.api.questions.dialogue import QUESTIONS, answers, read
from factorize.api.questions.training_job import FleetRequest, RecommendRequest

NAMES = ("examples", "batch_size", "epochs", "epsilon", "delta", "memory")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Keep the questions of the command, and answer each with an end: the comparison has its own tests."""
    monkeypatch.setenv("FACTORIZE_STORE", str(tmp_path / "store"))
    kept: list[Any] = []

    def advise(question: Any, *_: Any) -> dict[str, Any]:
        kept.append(question)
        return {"spec": {"workload": {"kind": "prefix", "n": question.run.steps}}}

    monkeypatch.setattr("factorize.api.commands.recommend.advise", advise)
    monkeypatch.setattr("factorize.api.commands.recommend.advice_text", lambda *_: "take it")
    return kept


def test_questions_are_asked_until_each_has_an_answer() -> None:
    typed = iter(["60k", "60_000", "70000", "600", "", "2", "2", "1e-5", "4,16, 1"])
    shown: list[str] = []
    told: list[str] = []

    def ask(text: str) -> str:
        shown.append(text)
        return next(typed)

    found = answers(RecommendRequest, dict.fromkeys(NAMES), ask, told.append)
    assert found == dict(zip(NAMES, (60_000, 600, 1, 2.0, 1e-5, [4, 16, 1]), strict=True))
    assert len(QUESTIONS[RecommendRequest]) == 6 and len(dict.fromkeys(shown)) == 6 and len(shown) == 9
    assert "examples: Input should be a valid integer; got '60k'" in told[0]
    assert "batch_size=70000 makes no full batch of 60000 examples; give at most 60000" in told[1]
    assert "delta: Input should be less than 1; got '2'" in told[2]


def test_a_wrong_answer_of_a_pipe_is_not_followed_by_the_next_line(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("60000\nsix hundred\n10\n2\n1e-5\n\n"))
    assert run(["recommend"]) == 2 and not asked
    assert "batch_size: Input should be a valid integer; got 'six hundred'" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * 10_000))
    assert run(["recommend"]) == 2 and sys.stdin.read(1)  # one that never ends is not read to its end


def test_a_fleet_is_asked_for_its_own_numbers(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("10\n30\n4\n1e-5\n\n"))
    assert run(["recommend", "--clients", "50", "--check-in", "7"]) == 0
    (job,) = asked
    assert isinstance(job, FleetRequest) and (job.clients, job.clients_a_round, job.rounds) == (50, 10, 30)
    assert job.check_in == 7 and job.memory == [4] and job.run.participation["min_sep"] == 5


def test_what_options_say_is_not_asked() -> None:
    given = dict.fromkeys(NAMES) | {"examples": 100, "batch_size": 10, "epochs": 2, "epsilon": 1.0, "memory": [4]}
    shown: list[str] = []
    found = answers(RecommendRequest, given, lambda text: shown.append(text) or "1e-6", shown.append)
    assert shown == ["And which delta (like 1e-5)? "] and found["delta"] == 1e-6
    assert read("examples", "6e4") == 60_000 and read("memory", "8") == [8]


def test_the_command_asks_in_a_terminal(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    master, slave = pty.openpty()
    try:
        os.write(master, b"6000\n60\n\n2\n1e-5\n\n")
        with os.fdopen(slave, "r", closefd=True) as terminal:
            assert terminal.isatty()
            monkeypatch.setattr(sys, "stdin", terminal)
            assert run(["recommend", "momentum", "--momentum", "0.9"]) == 0
    finally:
        os.close(master)
    out, err = capsys.readouterr()
    assert out == "take it\n" and all(text in err for text in QUESTIONS[RecommendRequest].values())
    (question,) = asked
    assert (question.examples, question.batch_size, question.epochs) == (6000, 60, 1)
    assert (question.epsilon, question.delta, question.memory) == (2.0, 1e-5, [4])
    assert question.workload == {"kind": "momentum", "momentum": 0.9} and question.samplings is None


OPTIONS = "--examples 6000 --batch-size 60 --epochs 3 --epsilon 2 --delta 1e-5 --memory 2".split()


def test_options_ask_nothing(asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "spec.json"
    assert run(["recommend", *OPTIONS, "--sampling", "poisson", "--to", str(to), "--output", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["spec"] == json.loads(to.read_text())
    assert "How many" not in err and "6000 examples in batches of 60, 3 epochs: 300 steps of prefix" in err
    assert asked[0].samplings == ["poisson"] and asked[0].run.steps == 300
    assert (
        run(["recommend", '{"workload": {"kind": "decay", "rate": 0.5}, "objective": {"kind": "max"}}', *OPTIONS]) == 0
    )
    assert asked[1].workload == {"kind": "decay", "rate": 0.5} and asked[1].objective == {"kind": "max"}
    assert run(["recommend", "identity", *OPTIONS]) == 0 and asked[2].workload == {"kind": "identity"}
    assert run(["recommend", "AdamW", "--learning-rates", "cosine", *OPTIONS]) == 0
    assert asked.pop(3).workload["learning_rates"] == {"kind": "cosine"}
    assert run(["recommend", *OPTIONS, "--parameters", "1000000"]) == 0 and asked[3].parameters == 10**6
