"""Places for work: in turn, counted by kind and by caller, given back however the work ends, and 429 beyond them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from servers import serving

from factorize.api.http import app
from factorize.api.http.problems import ProblemAnswer
from factorize.api.http.work_gate import WORK_KINDS, WorkGate

PREDICTION = {"question": {"kind": "mean_estimation", "learning_rate": 0.05, "rho": 0.5}}


def refused(gate: WorkGate, name: str, owner: str) -> int:
    """The seconds of Retry-After."""
    with pytest.raises(ProblemAnswer) as caught:
        gate.check(name, owner)
    assert caught.value.kind.status == 429
    return int(caught.value.headers["Retry-After"])


class Workers:
    """Requests that hold their places until they are let go."""

    def __init__(self, gate: WorkGate) -> None:
        self.gate = gate
        self.done = asyncio.Event()
        self.begun: list[int] = []

    def start(self, name: str, owner: str, count: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._work(number, name, owner)) for number in range(count)]

    async def _work(self, number: int, name: str, owner: str) -> None:
        async with self.gate.place(name, owner):
            self.begun.append(number)
            await self.done.wait()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_places_are_taken_in_turn_and_given_back() -> None:
    kind = WORK_KINDS["calibration"]
    workers = Workers(WorkGate(1000, 1000))
    tasks = workers.start("calibration", "", kind.places + kind.line)
    await turns()
    assert workers.begun == list(range(kind.places))
    assert workers.gate.at_work()["calibration"] == (kind.places, kind.line)
    seconds = refused(workers.gate, "calibration", "")
    assert seconds >= kind.seconds * kind.line / kind.places  # as long as those in line are taken to last
    workers.gate.check("rows", "")  # another kind has places of its own
    workers.done.set()
    await asyncio.gather(*tasks)
    assert workers.begun == list(range(kind.places + kind.line))
    assert set(workers.gate.at_work().values()) == {(0, 0)}
    workers.gate.check("calibration", "")
    assert workers.gate.refused == {"calibration": 1}


@pytest.mark.anyio
async def test_keys_take_turns_for_comparisons_and_small_ones_overtake() -> None:
    gate, begun, end = (
        WorkGate(1000, 1000),
        list[str](),
        {name: asyncio.Event() for name in "a1 a2 a3 b1 c1 small".split()},
    )

    async def work(name: str, seconds: float) -> None:
        async with gate.place("comparison", f"key:{name[0]}", seconds):
            begun.append(name)
            await end[name].wait()

    tasks = []
    for name, seconds in (("a1", 100), ("a2", 100), ("a3", 100), ("b1", 100), ("c1", 100), ("small", 1)):
        tasks.append(asyncio.create_task(work(name, seconds)))
        await turns()
    assert begun == ["a1", "b1", "small"]  # one place for each key, and one that is kept for what is small
    end["b1"].set()
    await turns()
    assert begun[3:] == ["c1"]
    end["c1"].set()
    await turns()
    assert begun[4:] == []  # the key has its place
    end["a1"].set()
    await turns()
    assert begun[4:] == ["a2"]
    for event in end.values():
        event.set()
    await asyncio.gather(*tasks)
    assert begun[5:] == ["a3"] and gate.at_work()["comparison"] == (0, 0)


@pytest.mark.anyio
async def test_one_key_cannot_hold_all_places() -> None:
    workers = Workers(WorkGate(100, 2))
    tasks = workers.start("rows", "key:a", 2)
    await turns()
    refused(workers.gate, "question", "key:a")
    workers.gate.check("question", "key:b")
    workers.done.set()
    await asyncio.gather(*tasks)
    workers.gate.check("question", "key:a")


@pytest.mark.anyio
async def test_who_leaves_the_line_or_fails_gives_the_place_back() -> None:
    workers = Workers(WorkGate(100, 100))
    first, second, third = workers.start("calibration", "key:a", 3)
    await turns()
    second.cancel()
    first.cancel()
    await turns()
    assert workers.begun == [0, 2]  # the third has the place of the first
    third.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert workers.gate.at_work()["calibration"] == (0, 0)
    with pytest.raises(ZeroDivisionError):
        async with workers.gate.place("calibration", "key:a"):
            raise ZeroDivisionError
    assert workers.gate.at_work()["calibration"] == (0, 0)


def test_a_service_without_places_says_when_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate: Any = WorkGate(0, 10)
    monkeypatch.setattr(app, "WorkGate", lambda *_: gate)
    with serving(tmp_path / "store") as service:
        for path, body in (
            ("/v1/predict", PREDICTION),
            ("/v1/compare", {"spec": {"workload": {"kind": "prefix", "n": 4}}}),
        ):
            answer = service.send("POST", path, body)
            answer.problem(429, "busy")
            assert int(answer.headers["retry-after"]) >= 1
        service.send("GET", "/v1/factorizations").problem(429, "busy")
        assert service.send("GET", "/healthz").status == 200
        gate._most = 10
        assert service.send("POST", "/v1/predict", PREDICTION).status == 200
