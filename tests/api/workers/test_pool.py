"""The pool: places by memory and processors in order of rank, pairs that are shared or fresh, and its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import wait_for
from servers import serving_apart
from specs import document_of

from factorize.api.workers import pool as pool_module
from factorize.api.workers.pool import Pool, SolvePlace
from factorize.api.workers.worker import AnswerLimits, Ending, WorkerEnded
from factorize.storage.store import open_store

TOYS = ("toy_worker", "toy_worker")


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(1000, 2, TOYS)
    yield made
    made.close()


class Gates:
    """Calls that wait to be let go, and the order in which they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._open: dict[str, threading.Event] = {}

    def call(self, name: str) -> Callable[[SolvePlace, Callable[[], bool]], str]:
        gate = self._open[name] = threading.Event()

        def wait(_place: SolvePlace, cancelled: Callable[[], bool]) -> str:
            self.began.append(name)
            while not gate.wait(0.01) and not cancelled():
                pass
            return name

        return wait

    def let_go(self, *names: str) -> None:
        for name in names:
            self._open[name].set()


def test_what_fits_runs_and_the_rest_waits_in_order_of_rank(pool: Pool) -> None:
    gates = Gates()
    first = [pool.submit(gates.call(name), memory_mb=500) for name in "ab"]
    wait_for(lambda: sorted(gates.began) == ["a", "b"])
    later = [
        pool.submit(gates.call(name), memory_mb=memory, rank=rank)
        for name, rank, memory in (("c", 0, 100), ("d", 5, 900), ("e", 1, 100))
    ]
    gates.let_go("a")
    wait_for(lambda: len(gates.began) == 3)
    assert gates.began[2] == "e", "d comes first and does not fit yet"
    gates.let_go("b", "c", "d", "e")
    assert [future.result(600) for future in (*first, *later)] == ["a", "b", "c", "d", "e"]


def test_what_waits_can_be_cancelled_and_what_runs_is_told(pool: Pool) -> None:
    gates = Gates()
    running, waiting = (pool.submit(gates.call(name), memory_mb=1000) for name in "ab")
    wait_for(lambda: gates.began)
    assert waiting.cancel() and not running.cancel()
    assert running.result(600) == "a" and gates.began == ["a"]
    assert pool.submit(gates.call("c"), memory_mb=1000).cancel() in (True, False)


def test_a_place_that_is_given_back_early_is_another_call_s(pool: Pool) -> None:
    held = threading.Event()

    def early(place: SolvePlace, _cancelled: Callable[[], bool]) -> str:
        place.release()
        place.release()
        held.wait(600)
        return "early"

    first = pool.submit(early, memory_mb=1000, threads=2)
    assert pool.submit(lambda _place, _cancelled: "later", memory_mb=1000, threads=2).result(600) == "later"
    held.set()
    assert first.result(600) == "early"


def pids(pool: Pool, *, fresh: bool = False) -> tuple[int, int]:
    with pool.place(fresh=fresh) as place:
        return tuple(one.ask("do", {"do": "echo"})["pid"] for one in (place.pair.solver, place.pair.prover))


def test_solver_and_prover_are_two_processes_that_stay_and_a_fresh_pair_is_nobody_else_s(pool: Pool) -> None:
    first = pids(pool)
    assert len(set(first)) == 2 and pids(pool) == first
    other = pids(pool, fresh=True)
    assert not set(other) & set(first) and pids(pool) == first


def test_pairs_that_nobody_needs_end_but_for_one(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        places = [stack.enter_context(pool.place()) for _ in range(2)]
        for place in places:
            place.pair.solver.ask("do", {"do": "echo"})
    pool.end_idle()
    assert len(pool._idle) == 2
    monkeypatch.setattr(pool_module, "IDLE_SECONDS", 0.0)
    pool.end_idle()
    assert len(pool._idle) == 1


def test_its_end_kills_what_runs_and_keeps_the_rest_from_running() -> None:
    pool = Pool(1000, 1, TOYS)
    asked = threading.Event()

    def sleep(place: SolvePlace, _cancelled: Callable[[], bool]) -> Any:
        asked.set()
        return place.pair.solver.ask("do", {"do": "sleep"})

    running, waiting = (pool.submit(sleep, memory_mb=100) for _ in range(2))
    assert asked.wait(600)
    pool.close()
    with pytest.raises(WorkerEnded) as end:
        running.result(0)
    assert end.value.ending is Ending.CANCELLED and waiting.cancelled()


SUITE = [
    document_of(n, mechanism)
    for n in (5, 12)
    for mechanism in ("dense", "square_root", "identity", {"kind": "blt", "buffers": 2}, {"kind": "banded", "bands": 3})
]


def test_a_worker_that_has_solved_others_writes_the_same_bytes(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    pool, path = Pool(1000, 1), str(tmp_path / "file")

    def written() -> list[bytes]:
        files = []
        for document in SUITE:
            about = {"store": store.url, "path": path}
            place.pair.solver.ask("solve", {"spec": document, **about}, AnswerLimits(threads=1))
            place.pair.prover.ask("certify", about, AnswerLimits(threads=1))
            files.append(Path(path).read_bytes())
        return files

    try:
        with pool.place(fresh=True) as place:
            first = written()
            pid = place.pair.solver.pid
            assert [without_seconds(data) for data in written()] == [without_seconds(data) for data in first]
            assert place.pair.solver.pid == pid
    finally:
        pool.close()


def without_seconds(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """The tensors of a factor file, and its manifest without how long the solve took."""
    from factorize.format.container import Container
    from factorize.format.manifest import Manifest

    container = Container(data)
    manifest = Manifest.read(container)
    manifest["solver"] = {name: value for name, value in manifest["solver"].items() if name != "seconds"}
    manifest.pop("digest")
    return b"".join(container.read(name).tobytes() for name in container.names), manifest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_service_that_ends_leaves_no_process_behind(tmp_path: Path, number: int) -> None:
    with serving_apart(tmp_path / "store") as (client, process):
        client.solve(document_of(5, "identity"))
        processes = psutil.Process(process.pid).children(recursive=True)
        assert len(processes) >= 2, "a solver and a prover"
        process.send_signal(number)
        process.wait(600)
        gone, alive = psutil.wait_procs(processes, 600)
        assert len(gone) == len(processes) and not alive
