"""The pace of a machine: what is made of an estimate, and when it is measured. Nothing here depends on how fast it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from specs import spec_of

from factorize import solvers
from factorize.api import pace
from factorize.api.pace import (
    Pace,
    known_pace,
    measured_pace,
    pace_document,
    pace_file,
)
from factorize.api.questions.registry import QUESTIONS
from factorize.api.service import SolverService
from factorize.api.settings import Settings
from factorize.api.workers.pool import Pool
from factorize.errors import StoreUnavailable
from factorize.solvers import Estimate

SLOW = Pace(multiplications=1e10, tiny=0.2, start=2.0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_measurement_has_positive_numbers_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_pace() is None
    found = measured_pace()
    assert found.multiplications > 0 and found.tiny > 0 and found.start > 0
    monkeypatch.setattr(pace, "measure", lambda: pytest.fail("measured twice"))
    assert measured_pace() == known_pace() == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        json.dumps({"machine": {"node": "another"}, "pace": pace_document(SLOW)["pace"]}),
        json.dumps(pace_document(SLOW) | {"pace": {"tiny": 1.0}}),
        json.dumps(pace_document(Pace(multiplications=-1.0))),
        json.dumps(pace_document(Pace(tiny=0.0))),
        "x" * (1 << 17),
    ],
)
def test_what_is_no_measurement_of_this_machine_is_replaced(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pace_file().parent.mkdir(parents=True)
    pace_file().write_text(text)
    assert known_pace() is None
    monkeypatch.setattr(pace, "measure", lambda: SLOW)
    assert measured_pace() == known_pace() == SLOW


def test_a_busy_machine_is_measured_again_after_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "measure", lambda: SLOW)
    monkeypatch.setattr("os.getloadavg", lambda: (1e3, 1e3, 1e3))
    assert measured_pace() == SLOW
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    quick = Pace(multiplications=5e9, tiny=0.1, start=1.0)
    monkeypatch.setattr(pace, "measure", lambda: quick)
    assert measured_pace() == SLOW  # too early
    early = pace_file().stat().st_mtime - pace.BUSY_SECONDS - 1
    os.utime(pace_file(), (early, early))
    best = Pace(multiplications=1e10, tiny=0.1, start=1.0)
    assert measured_pace() == known_pace() == best
    os.utime(pace_file(), (early, early))
    monkeypatch.setattr(pace, "measure", lambda: pytest.fail("measured again, though it was idle"))
    assert measured_pace() == best


def test_nobody_is_refused_an_estimate_for_want_of_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Pace:
        raise StoreUnavailable("no room")

    monkeypatch.setattr(pace, "measure", refused)
    assert measured_pace() == Pace()
    monkeypatch.setattr(pace, "measure", lambda: SLOW)
    pace_file().parent.parent.mkdir(parents=True, exist_ok=True)
    pace_file().parent.write_text("a file stands where the folder should be")
    assert measured_pace() == SLOW


def test_a_service_that_has_no_measurement_starts_and_has_a_worker_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(Pool, "warm_up", lambda _pool: begun.append("warm"))
    monkeypatch.setattr(Pool, "submit", lambda _pool, _call, **room: begun.append(f"threads {room['threads']}"))
    with SolverService(Settings(store=str(tmp_path / "store"))) as service:
        service.warm_up()
        assert begun == ["warm", "threads 0"]
        monkeypatch.setattr(pace, "measure", lambda: SLOW)
        assert QUESTIONS["pace"]({}, lambda **_step: None) == {"multiplications": 1e10, "tiny": 0.2, "start": 2.0}
        begun.clear()
        service.warm_up()
        assert begun == ["warm"] and known_pace() == SLOW


def test_seconds_are_processes_and_work_at_this_pace() -> None:
    tiny = solvers.choose(spec_of(12, "square_root"))
    nothing = solvers.estimate(tiny)
    rows = 0.2 * 12 / 200
    assert SLOW.work(tiny, nothing) == pytest.approx(rows + (3 * 12**3 + 3e10 * (nothing.seconds - 0.05)) / 1e10)
    assert SLOW.command(tiny, Estimate(0.05, 0)) == pytest.approx(0.2 + 2.0 + rows, rel=1e-5)
    assert SLOW.service(tiny, Estimate(0.05, 0)) == pytest.approx(0.2 + rows, rel=1e-5)
    assert SLOW.lane(tiny, Estimate(0.05, 0)) == pytest.approx(0.2 + rows, rel=1e-5)
    assert SLOW.service(tiny, Estimate(6.0, 0)) - SLOW.lane(tiny, Estimate(6.0, 0)) == pytest.approx(2.0)
    assert SLOW.work(tiny, Estimate(1.05, 0)) - SLOW.work(tiny, Estimate(0.05, 0)) == pytest.approx(3.0)
