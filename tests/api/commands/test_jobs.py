"""The commands that look after jobs and ledgers: against a service, an SQLite ledger and one on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Run
from servers import LiveService

from factorize.api.jobs.job import JobOrder
from factorize.api.jobs.ledger import Ledger

A, B, C = "a" * 64, "b" * 64, "c" * 64
SPEC: dict[str, Any] = {"workload": {"kind": "prefix", "n": 6}, "mechanism": {"kind": "square_root"}}
Command = Callable[..., Run]


@pytest.fixture
def factorize(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Commands in this process, whose settings and default store are the test's own."""
    from factorize.api.commands.application import run

    for name in ("FACTORIZE_STORE", "FACTORIZE_DATABASE", "FACTORIZE_SERVICE", "FACTORIZE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: Run(run([str(argument) for argument in arguments]), *capsys.readouterr())


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.sqlite"
    return request.getfixturevalue("postgres").database()


def order(spec_digest: str, kind: str = "prefix") -> JobOrder:
    return JobOrder(spec_digest, json.dumps(SPEC), kind, 100, 60.0)


def test_the_jobs_of_a_ledger_are_listed_shown_cancelled_retried_and_watched(factorize, url):
    with Ledger(url) as ledger:
        for spec_digest, kind in ((A, "prefix"), (B, "momentum")):
            ledger.claim(order(spec_digest, kind))
        ledger.fail(ledger.get(B), {"type": "crashed", "message": "by SIGKILL"})

        def run(*arguments: str) -> Any:
            return factorize("jobs", *arguments, "--database", url, "--output", "json")

        listed = run("list").json()["items"]
        assert [(job["spec_digest"], job["state"]) for job in listed] == [(B, "failed"), (A, "queued")]
        assert [job["spec_digest"] for job in run("list", "--workload", "prefix").json()["items"]] == [A]
        assert run("show", B).json()["error"] == {"type": "crashed", "message": "by SIGKILL"}
        text = factorize("jobs", "show", B, "--database", url).out
        assert "state         failed" in text and "error         crashed: by SIGKILL" in text
        assert run("cancel", A).json()["state"] == "cancelled" == ledger.get(A).state
        assert run("retry", B).json()["state"] == "queued" == ledger.get(B).state
        assert run("cancel", A).code == run("retry", B).code == run("show", C).code == 2
        ledger.finish(B, C)
        assert run("watch", B).json()["digest"] == C
        watched = factorize("jobs", "watch", A, "--database", url)
        assert watched.code == 3 and "retry" in watched.err


def test_the_jobs_of_a_service(factorize, slow_service: LiveService):
    def run(*arguments: str) -> Any:
        return factorize("jobs", *arguments, "--service", slow_service.url, "--output", "json")

    name = slow_service.post(SPEC).json()["spec_digest"]
    assert [job["spec_digest"] for job in run("list", "--state", "queued").json()["items"]] in ([], [name])
    assert run("show", name).json()["state"] in ("queued", "running")
    assert run("retry", name).code == 2
    assert run("cancel", name).json()["state"] == "cancelled"
    assert factorize("jobs", "watch", name, "--service", slow_service.url).code == 3
    assert run("retry", name).json()["state"] == "queued"
    slow_service.go()
    ended = run("watch", name)
    assert ended.json()["state"] == "done" and run("show", name).json() == ended.json()
    assert run("show", C).code == 2
    assert factorize("jobs", "list", "--service", slow_service.url, "--database", "sqlite:////x").code == 2


def test_a_ledger_that_is_not_there_is_not_made(factorize, tmp_path):
    done = factorize("jobs", "list")
    assert done.code == 2 and "there is no job ledger" in done.err
    assert not list(tmp_path.rglob("*.sqlite"))
    assert factorize("jobs", "list", "--store", "s3://bucket").code == 2
