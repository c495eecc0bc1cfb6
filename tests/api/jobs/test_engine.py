"""The engine with real child processes: one solve per spec, whatever is cancelled, lost or killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import toy_solver
from distributed import LocalCluster
from patience import alive, wait_for
from ports import free_ports
from servers import shared_pool
from toy_solver import RESULT

from factorize.api.jobs import dask_cluster, one_solve, solve_job
from factorize.api.jobs import engine as engine_module
from factorize.api.jobs.engine import JobEngine
from factorize.api.jobs.ledger import Ledger
from factorize.api.jobs.solve_job import JobOrder, SolveJob, has_ended, has_fallen, new_owner
from factorize.api.workers.pool import Pool
from factorize.errors import StoreUnavailable

ROOT = str(Path(engine_module.__file__).parents[3])
SUPPORT = str(Path(toy_solver.__file__).parent)
HOST = """
import os, sys, time
sys.path[:0] = {folders!r}
import toy_solver
from contextlib import closing
from factorize.api.jobs.engine import JobEngine
from factorize.api.jobs.ledger import Ledger
from factorize.api.workers.pool import Pool
toy_solver.install()
def find(digest):
    path = os.path.join({store!r}, digest)
    return open(path).read() if os.path.exists(path) else None
pool = Pool(1000, 2, toy_solver.MODULES)
options = dict(find=find, store={store!r}, pool=pool, tick=0.2)
with Ledger({url!r}) as ledger, closing(JobEngine(ledger, **options, **{more!r}).start()):
    print("ready", flush=True)
    sys.stdin.read()
pool.close()
print("distributed" in sys.modules, flush=True)
"""


class Place:
    """A folder with a store, a ledger and a child script, and whatever engines a test starts on them."""

    def __init__(self, folder: Path, stack: ExitStack, url: str | None = None) -> None:
        self.store = folder / "store"
        self.store.mkdir()
        self.database = folder / "jobs.sqlite"
        self.url = url or f"sqlite:///{self.database}"
        self.stack = stack
        self.ledger = stack.enter_context(Ledger(self.url))

    def engine(self, **options: Any) -> JobEngine:
        pool = shared_pool(toy_solver.MODULES, options.pop("capacity_mb", 1000), options.pop("processors", 4))
        options = {"tick": 0.2} | options
        ledger = self.ledger
        if "lease_seconds" in options:
            ledger = self.stack.enter_context(Ledger(self.url, lease_seconds=options.pop("lease_seconds")))
        engine = JobEngine(ledger, find=self.find, store=str(self.store), pool=pool, **options)
        return self.stack.enter_context(closing(engine.start()))

    def host(self, **more: Any) -> subprocess.Popen[str]:
        """An engine in a process of its own that a test may kill."""
        code = HOST.format(folders=[ROOT, SUPPORT], store=str(self.store), url=self.url, more=more)
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    def stop(self, host: subprocess.Popen[str]) -> None:
        """Stop a process of `host`, not in the midst of a write: SQLite would keep everybody else from writing."""
        with closing(sqlite3.connect(self.database, timeout=600, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")  # nobody else writes until this connection is closed
            os.kill(host.pid, signal.SIGSTOP)
            os.waitpid(host.pid, os.WUNTRACED)  # returns when its last thread has stopped

    def find(self, spec_digest: str) -> str | None:
        path = self.store / spec_digest
        return path.read_text() if path.exists() else None

    def starts(self) -> list[tuple[str, int]]:
        """Name and process number of every child that was started."""
        path = self.store / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(name, int(pid)) for name, pid in (line.split() for line in lines)]

    def open(self, gate: str) -> None:
        (self.store / gate).touch()

    def state(self, spec_digest: str) -> str:
        job = self.ledger.get(spec_digest)
        return "none" if job is None else job.state

    def ended(self, spec_digest: str) -> SolveJob:
        def finished() -> SolveJob | None:
            job = self.ledger.get(spec_digest)
            return job if job is not None and job.finished else None

        return wait_for(finished)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Place]:
    monkeypatch.setattr(one_solve, "make_and_store", toy_solver.make_and_store)
    shared = hasattr(request, "param") and request.param == "postgresql"
    with ExitStack() as stack:
        yield Place(tmp_path, stack, request.getfixturevalue("postgres").database() if shared else None)


on_either_ledger = pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)


def digest(number: int) -> str:
    return f"{number:064x}"


def order(number: int = 0, *, memory_mb: int = 100, seconds: float = 600, **acts: Any) -> JobOrder:
    spec = json.dumps({"name": digest(number), "mechanism": {"kind": "toy"}, **acts})
    return JobOrder(digest(number), spec, "prefix", memory_mb, seconds, 1)


def test_a_failure_keeps_the_childs_message_and_a_new_post_tries_again(place):
    engine = place.engine()
    engine.submit(order(fail="the residual is 3e-4, limit 1e-9"))
    job = place.ended(digest(0))
    assert job.state == "failed"
    assert job.error == {"type": "certificate-error", "message": "the residual is 3e-4, limit 1e-9"}
    assert engine.submit(order()).state == "queued"
    assert place.ended(digest(0)).state == "done" and engine.solves_total == 2


def test_an_outage_of_the_store_is_not_the_specs_fault(place, monkeypatch):
    engine = place.engine(tick=0.05)
    engine.submit(order(outage=2))
    assert place.ended(digest(0)).state == "done" and engine.solves_total == 3
    monkeypatch.setattr(engine_module, "MAX_OUTAGES", 2)
    engine.submit(order(1, outage=99))
    job = place.ended(digest(1))
    assert (job.state, job.error["type"], job.attempts) == ("failed", "store-unavailable", 2)


def test_a_failing_solve_whose_end_is_never_heard_is_not_solved_for_ever(place, monkeypatch):
    monkeypatch.setattr(engine_module.JobEngine, "_hear", lambda engine, event: None)
    monkeypatch.setattr(engine_module, "MAX_OUTAGES", 3)
    place.engine(tick=0.01).submit(order(fail="the residual is 3e-4, limit 1e-9"))
    job = place.ended(digest(0))
    assert (job.state, job.error["type"], job.attempts) == ("failed", "not_stored", 2)
    assert "the store has nothing of it" in job.error["message"] and "scheduler" in job.error["message"]


def test_an_outage_of_the_ledger_is_said_once_and_so_is_its_end(place, monkeypatch, caplog):
    engine = place.engine(tick=0.01)
    refused: list[int] = []

    def refuse(_id: str) -> None:
        refused.append(1)
        raise StoreUnavailable("the job database does not answer: gone; try again")

    with monkeypatch.context() as outage:
        outage.setattr(place.ledger, "renew", refuse)
        wait_for(lambda: len(refused) > 5)
    wait_for(lambda: "answer again" in caplog.text)
    assert engine.writes
    said = [record for record in caplog.records if record.name == "factorize.api.jobs.engine"]
    assert [record.getMessage().partition(":")[0] for record in said] == [
        "the engine waits", "ledger and store answer again; the engine goes on"
    ]  # fmt: skip
    assert not any(record.exc_info for record in said)


def test_what_is_stored_counts_whatever_the_child_says(place):
    (place.store / digest(0)).write_text(RESULT)
    engine = place.engine()
    engine.submit(order(fail="I stored it and then I stumbled"))
    assert place.ended(digest(0)).digest == RESULT
    engine.submit(order(1, store=False))
    job = place.ended(digest(1))
    assert job.state == "failed" and job.error is not None and job.error["type"] == "not_stored"


def test_a_done_job_is_solved_again_only_when_its_result_is_gone(place):
    engine = place.engine()
    engine.submit(order())
    place.ended(digest(0))
    assert engine.submit(order()).state == "done"
    (place.store / digest(0)).unlink()
    assert engine.submit(order()).state == "queued"
    assert place.ended(digest(0)).state == "done" and len(place.starts()) == 2


def test_cancel_kills_the_child(place):
    engine = place.engine()
    engine.submit(order(gate="never"))
    pid = wait_for(place.starts)[0][1]
    job = engine.cancel(digest(0))
    assert job is not None and job.state == "cancelled"
    wait_for(lambda: not alive(pid))
    assert engine.cancel(digest(0)) is None and engine.cancel(digest(1)) is None
    assert place.state(digest(0)) == "cancelled"


def test_a_queued_job_can_be_cancelled_and_never_starts(place):
    engine = place.engine(capacity_mb=100)
    engine.submit(order(0, gate="go"))
    wait_for(place.starts)
    engine.submit(order(1))
    wait_for(lambda: len(engine._sent) == 2)
    assert engine.cancel(digest(1)) is not None
    place.open("go")
    place.ended(digest(0))
    engine.submit(order(2))
    place.ended(digest(2))
    assert [name for name, _ in place.starts()] == [digest(0), digest(2)]


def test_a_storm_of_submits_and_cancels_leaves_the_engine_free(place):
    engine = place.engine()
    for number in range(20):
        engine.submit(order(number, gate="never"))
        engine.cancel(digest(number))
    engine.submit(order(99, memory_mb=1000))  # has its turn only if no cancelled solve holds anything for ever
    assert place.ended(digest(99)).state == "done"
    assert place.ledger.counts()["cancelled"] == 20


def test_wall_and_memory_limits_are_named(place):
    engine = place.engine()
    engine.submit(order(0, gate="never", seconds=0.5))
    engine.submit(order(1, allocate_mb=3000))
    for number, kind in [(0, "timeout"), (1, "out_of_memory")]:
        job = place.ended(digest(number))
        assert job.state == "failed" and job.error is not None and job.error["type"] == kind


def test_callers_take_turns_on_the_workers(place):
    engine = place.engine(processors=1)
    engine.submit(order(0, gate="go"))
    wait_for(place.starts)
    for number, caller in [(1, "many"), (2, "many"), (3, "few")]:
        engine.submit(replace(order(number), caller=caller))
    wait_for(lambda: len(engine._sent) == 4)
    place.open("go")
    for number in (1, 2, 3):
        place.ended(digest(number))
    assert [int(name, 16) for name, _ in place.starts()] == [0, 1, 3, 2]


async def collect(engine: JobEngine, spec_digest: str, after_seq: int = 0) -> list[SolveJob]:
    return [job async for job in engine.changes(spec_digest, after_seq) if job is not None]


def test_changes_follow_a_job_to_its_end_and_resume_from_any_number(place):
    engine = place.engine()

    async def scenario() -> list[SolveJob]:
        await asyncio.to_thread(engine.submit, order(progress=5, every=0.1, gate="go"))
        found = []
        async for job in engine.changes(digest(0)):
            found += [] if job is None else [job]
            if found[-1].progress is not None and found[-1].progress["iteration"] == 4:
                place.open("go")  # it ends once its last step was seen
        return found

    jobs = asyncio.run(scenario())
    numbers = [job.seq for job in jobs]
    assert numbers == sorted(set(numbers)) and jobs[-1].state == "done"
    progress = [job.progress for job in jobs if job.progress is not None]
    known = {"iteration": 4, "relative_gap": 0.2, "class_gap": None, "phase": "refine", "seconds_left": None}
    last = progress[-1]
    assert len(progress) >= 2 and last["seconds"] >= 0.4  # more where the machine kept the child waiting
    assert {name: value for name, value in last.items() if name != "seconds"} == known
    for seen in (0, numbers[0], numbers[-2]):
        assert asyncio.run(collect(engine, digest(0), seen)) == [jobs[-1]]
    assert asyncio.run(collect(engine, digest(0), numbers[-1])) == []
    assert asyncio.run(collect(engine, digest(7))) == []
    assert asyncio.run(collect(engine, digest(0), 10**6)) == [jobs[-1]]  # numbers of a ledger that was lost


@pytest.mark.parametrize("tick", [0.02, 0.2])
@pytest.mark.parametrize("end", ["lost", "ended from outside"])
def test_a_solve_that_ends_without_an_answer_is_started_again_and_not_cancelled(place, tick, end):
    """Only a user's wish ends a job as `cancelled`."""
    engine = place.engine(tick=tick)
    engine.submit(order(gate="go"))
    pid = wait_for(place.starts)[0][1]
    if end == "lost":
        (_, future) = next(iter(engine._sent.values()))
        future.cancel()
    else:
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: len(place.starts()) == 2)
    assert place.state(digest(0)) in ("queued", "running")
    place.open("go")
    job = place.ended(digest(0))
    assert (job.state, job.attempts, job.deaths) == ("done", 2, 0)


def test_kill_9_leaves_no_orphan_and_a_restart_finishes_everything(place):
    host = place.host()
    for number in range(3):
        place.ledger.claim(order(number, gate="go"), owner="")
    wait_for(lambda: place.ledger.counts()["running"] == 2 and len(place.starts()) == 2)
    host.kill()
    host.wait()
    wait_for(lambda: not [pid for _, pid in place.starts() if alive(pid)])
    assert place.ledger.counts()["running"] == 2  # nobody had the time to write anything
    place.open("go")
    engine = place.engine()
    jobs = [place.ended(digest(number)) for number in range(3)]
    assert [job.state for job in jobs] == ["done"] * 3 and engine.solves_total == 3
    assert sorted(job.attempts for job in jobs) == [1, 2, 2]
    assert {job.deaths for job in jobs} == {0}, "a service that is killed is not the fault of a spec"
    assert place.ledger.living() == set()


def test_a_result_that_was_stored_before_the_crash_is_found(place):
    job, _ = place.ledger.claim(order(), owner="")
    place.ledger.start(job)
    (place.store / digest(0)).write_text(RESULT)
    engine = place.engine()
    assert place.ended(digest(0)).digest == RESULT
    assert engine.solves_total == 0 and place.starts() == []


def test_close_kills_children_and_hands_their_jobs_back(place):
    engine = place.engine()
    engine.submit(order(gate="go"))
    pid = wait_for(place.starts)[0][1]
    wait_for(lambda: place.state(digest(0)) == "running")
    engine.close()
    assert not alive(pid)
    job = place.ledger.get(digest(0))
    assert job is not None and (job.state, job.attempts) == ("queued", 0)
    assert place.ledger.living() == set()
    place.open("go")
    place.engine()
    assert place.ended(digest(0)).attempts == 1


def test_a_spec_whose_child_is_killed_thrice_is_run_alone_and_then_given_up(place):
    engine = place.engine()
    engine.submit(order(0, gate="never"))
    for count in (1, 2):
        wait_for(lambda count=count: len(place.starts()) == count)
        if count == 2:
            engine.submit(order(1, gate="go"))
            wait_for(lambda: len(place.starts()) == 3)
        os.kill(place.starts()[count - 1][1], signal.SIGKILL)
        wait_for(lambda count=count: place.ledger.get(digest(0)).deaths == count)
    wait_for(lambda: place.ledger.get(digest(0)).task in engine._sent)
    time.sleep(0.4)  # some rounds in which it could start beside the other
    assert len(place.starts()) == 3, "it runs alone, so not beside another solve"
    place.open("go")
    assert place.ended(digest(1)).state == "done"
    alone = wait_for(lambda: place.starts()[3:])[0][1]
    os.kill(alone, signal.SIGKILL)
    job = place.ended(digest(0))
    assert job.state == "failed" and (job.deaths, job.attempts) == (2, 3)
    assert job.error["type"] == "gave_up" and "SIGKILL" in job.error["message"]
    again = engine.submit(order(0))
    assert (again.state, again.deaths) == ("queued", 0)
    assert place.ended(digest(0)).state == "done"


def before_a_reboot(place: Place, *digests: str) -> None:
    """Jobs that ran on this machine when it went down."""
    machine, boot, *rest = new_owner().split()
    owner = " ".join([machine, boot[::-1], *rest])
    for spec_digest in digests:
        place.ledger.start(place.ledger.claim(order(int(spec_digest, 16), gate="go"), owner=owner)[0])


@pytest.mark.parametrize(("count", "deaths"), [(1, 1), (2, 0)])
def test_a_machine_that_went_down_counts_against_a_spec_that_ran_there_alone(place, count, deaths):
    digests = [digest(number) for number in range(count)]
    before_a_reboot(place, *digests)
    place.engine(lease_seconds=0.0)
    wait_for(lambda: len(place.starts()) == count)
    assert [place.ledger.get(each).deaths for each in digests] == [deaths] * count
    place.open("go")
    assert {place.ended(each).state for each in digests} == {"done"}


def test_a_machine_that_goes_down_a_third_time_ends_the_job(place):
    before_a_reboot(place, digest(0))
    with place.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET deaths = 2")
    place.engine(lease_seconds=0.0)
    job = place.ended(digest(0))
    assert job.state == "failed" and job.error["type"] == "gave_up" and "went down" in job.error["message"]
    assert place.starts() == []


def test_a_solve_whose_end_was_not_heard_is_tried_again_and_not_counted_against_its_spec(place, monkeypatch):
    unheard = ["ended"]
    real = JobEngine._heard

    def heard(self: JobEngine, job: SolveJob, kind: str, event: dict[str, Any]) -> None:
        if kind in unheard:
            unheard.remove(kind)
        else:
            real(self, job, kind, event)

    monkeypatch.setattr(JobEngine, "_heard", heard)
    place.engine().submit(order(fail="no"))
    job = place.ended(digest(0))
    assert (job.state, job.attempts, job.deaths) == ("failed", 2, 0) and job.error["message"] == "no"


@on_either_ledger
def test_two_engines_on_one_ledger_run_each_spec_once(place):
    first, second = place.engine(), place.engine()
    with ThreadPoolExecutor(8) as pool:
        engines = [first, second] * 8
        list(pool.map(lambda pair: pair[1].submit(order(pair[0] // 4, gate="go")), enumerate(engines)))
    wait_for(lambda: len(place.starts()) == 4)
    time.sleep(0.6)  # some rounds of reconciliation, in which neither may touch the other's jobs
    place.open("go")
    assert [place.ended(digest(number)).attempts for number in range(4)] == [1] * 4
    assert len(place.starts()) == 4 and first.solves_total + second.solves_total == 4


@on_either_ledger
def test_a_job_of_another_engine_can_be_followed_and_cancelled(place):
    first, second = place.engine(), place.engine()
    first.submit(order(gate="never"))
    pid = wait_for(place.starts)[0][1]

    async def scenario() -> list[SolveJob]:
        listener = asyncio.create_task(collect(second, digest(0)))
        await asyncio.to_thread(second.cancel, digest(0))
        return await asyncio.wait_for(listener, 600)

    assert asyncio.run(scenario())[-1].state == "cancelled"
    wait_for(lambda: not alive(pid))


FULL = (
    "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
    "'could not extend file \"base/5/1259\": No space left on device' USING ERRCODE = 'disk_full'; END $$",
    *(f"CREATE TRIGGER full_{name} BEFORE INSERT OR UPDATE ON {name} EXECUTE FUNCTION no_room()"
      for name in ("jobs", "schema_version")),
)  # fmt: skip
"""What PostgreSQL says where its disk is full, to whoever writes."""


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_a_database_that_is_full_or_dies_and_comes_back_loses_nothing(place, postgres):
    engine = place.engine()
    engine.submit(order(0, gate="go"))
    engine.submit(order(2, gate="room"))
    wait_for(lambda: place.ledger.counts()["running"] == 2)
    with place.ledger.engine.begin() as connection:
        for statement in FULL:
            connection.exec_driver_sql(statement)
    with pytest.raises(StoreUnavailable, match="No space left on device.* try again"):
        engine.submit(order(1))
    place.open("room")
    wait_for(lambda: place.find(digest(2)) and not engine.writes)  # by which /readyz knows it
    assert place.state(digest(2)) == "running"
    with place.ledger.engine.begin() as connection:
        connection.exec_driver_sql("DROP FUNCTION no_room CASCADE")
    assert place.ended(digest(2)).state == "done"
    wait_for(lambda: engine.writes)
    postgres.kill()
    try:
        with pytest.raises(StoreUnavailable, match="does not answer"):
            engine.submit(order(1))
        place.open("go")
        wait_for(lambda: not engine.writes)
        time.sleep(0.5)  # some rounds in which nothing can be written
    finally:
        postgres.start()
    assert place.ended(digest(0)).state == "done"
    engine.submit(order(1))
    assert place.ended(digest(1)).state == "done" and len(place.starts()) == 3


def test_a_stopped_engine_loses_its_jobs_and_keeps_quiet_when_it_comes_back(place):
    host = place.host()
    place.ledger.claim(order(gate="go"), owner="")
    old = wait_for(place.starts)[0][1]
    place.stop(host)
    engine = place.engine(lease_seconds=10.0)  # the lease of the other is longer than this one can give: it is over
    wait_for(lambda: len(place.starts()) == 2)
    os.kill(host.pid, signal.SIGCONT)
    wait_for(lambda: not alive(old))  # it notices that the job is no longer its own
    place.open("go")
    job = place.ended(digest(0))
    assert (job.state, job.owner) == ("done", engine.id)


def test_an_engine_of_this_machine_is_gone_with_its_process():
    owner = new_owner()
    machine, boot, namespace, pid, started, chance = owner.split()
    dead = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    dead.wait()
    assert not has_ended(owner) and not has_fallen(owner) and len(owner) <= 64
    assert has_ended(" ".join([machine, boot, namespace, str(dead.pid), started, chance]))
    assert has_ended(" ".join([machine, boot, namespace, pid, "0", chance])), "our number, another start"
    for other in ("elsewhere", "", " ".join(["0" * 8, boot, namespace, str(dead.pid), started, chance])):
        assert not has_ended(other) and not has_fallen(other), "its lease says whether it lives"
    rebooted = " ".join([machine, boot[::-1], namespace, str(dead.pid), started, chance])
    assert has_fallen(rebooted) and not has_ended(rebooted), "another machine may have the same name"


def test_an_engine_lives_whatever_the_clock_is_set_to(monkeypatch):
    slow = SimpleNamespace(time=lambda: time.time() - 3600.0)
    monkeypatch.setattr(solve_job, "time", slow, raising=False)
    owner = new_owner()
    monkeypatch.undo()
    assert not has_ended(owner), "two services of one machine would take each other's jobs for ever"


def dask_process(stack: ExitStack, *arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([ROOT, SUPPORT])}
    process = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


LOOPBACK = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0", "--no-dashboard")


def dask_worker(place: Place, address: str, folder: Path, processors: int = 2) -> subprocess.Popen[bytes]:
    return dask_process(
        place.stack, "worker", address, *LOOPBACK, "--no-nanny", "--nthreads", "2", "--memory-limit", "0",
        "--resources", f"MB=700 CPU={processors} {dask_cluster.RELEASE}=9", "--local-directory", str(folder / "dask"),
        "--preload", "toy_solver",
    )  # fmt: skip


def test_a_job_asks_for_what_the_workers_have_also_when_smaller_ones_replace_them(place, tmp_path):
    (port,) = free_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    dask_process(place.stack, "scheduler", "--port", str(port), *LOOPBACK)
    engine = place.engine(scheduler=address)
    wait_for(lambda: engine.solves.up)
    engine.submit(replace(order(gate="go"), threads=4))
    time.sleep(1.0)  # no worker is known
    worker = dask_worker(place, address, tmp_path, processors=2)
    wait_for(lambda: len(place.starts()) == 1)
    worker.kill()
    worker.wait()
    dask_worker(place, address, tmp_path, processors=1)
    wait_for(lambda: len(place.starts()) == 2)
    place.open("go")
    job = place.ended(digest(0))
    assert (job.state, job.deaths) == ("done", 0)


def test_a_scheduler_elsewhere_that_starts_late_dies_and_comes_back(place, tmp_path, caplog):
    (port,) = free_ports(1)
    address = f"tcp://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as hasty:
        hasty.setattr(dask_cluster, "CONNECT_SECONDS", 0.2)  # nobody is there yet
        engine = place.engine(scheduler=address)
    assert not engine.solves.up and engine.capacity_mb is None
    assert engine.submit(order(gate="go")).state == "queued"

    def start_both() -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        scheduler = dask_process(place.stack, "scheduler", "--port", str(port), *LOOPBACK)
        return scheduler, dask_worker(place, address, tmp_path)

    scheduler, worker = start_both()
    pid = wait_for(place.starts)[0][1]
    wait_for(lambda: engine.capacity_mb == 700)
    wait_for(lambda: place.state(digest(0)) == "running")
    scheduler.kill()
    scheduler.wait()
    worker.kill()
    worker.wait()
    wait_for(lambda: not alive(pid))
    assert place.state(digest(0)) == "running"  # a lost scheduler is nobody's wish
    start_both()
    place.open("go")
    job = place.ended(digest(0))
    assert (job.state, job.attempts) == ("done", 2)
    assert f"the scheduler at {address} was lost" in caplog.text and "Traceback" not in caplog.text


def one_worker(place: Place, **resources: float) -> LocalCluster:
    dask_cluster.configure()
    return LocalCluster(
        processes=False, n_workers=1, threads_per_worker=1, memory_limit=0, protocol="tcp://", host="127.0.0.1",
        dashboard_address="127.0.0.1:0", worker_dashboard_address="127.0.0.1:0", local_directory=str(place.store),
        resources=resources,
    )  # fmt: skip


def test_contract_of_the_workers_record_of_a_cancelled_task(place, monkeypatch):
    """``worker.state.tasks[key].state`` is how a cancel reaches a running solve; dask does not promise it."""
    monkeypatch.setattr(dask_cluster, "pool", lambda: toy_solver.POOL)
    with one_worker(place, **dask_cluster.offer(700, 2)) as cluster:
        engine = place.engine(scheduler=cluster.scheduler_address)
        engine.submit(order(gate="never"))
        wait_for(place.starts)
        task, (_, future) = next(iter(engine._sent.items()))
        (worker,) = cluster.workers.values()
        assert worker.state.tasks[task].state == "executing" and dask_cluster.is_wanted(worker, task)
        future.cancel(force=True)
        wait_for(lambda: not dask_cluster.is_wanted(worker, task))
        record = worker.state.tasks.get(task)
        assert record is None or record.state in {"cancelled", "released", "forgotten"}
        assert not dask_cluster.is_wanted(worker, "a task that never was")
        engine.close()


def test_an_engine_without_a_scheduler_listens_nowhere_and_imports_no_dask(place):
    host = place.host()
    place.ledger.claim(order(), owner="")
    place.ended(digest(0))
    assert not [c for c in psutil.Process(host.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    out, _ = host.communicate("")
    assert out == "False\n"


def test_an_engine_that_is_closed_twice_or_never_started_closes(place):
    engine = JobEngine(place.ledger, find=place.find, store="store", pool=Pool())
    engine.close()
    engine.close()


def test_a_worker_of_another_release_is_named_and_given_nothing(place, monkeypatch):
    ours = dask_cluster.RELEASE
    with one_worker(place, **{"MB": 700, "CPU": 2, "factorize-0.0.1": 1}) as other:
        engine = place.engine(scheduler=other.scheduler_address)
        wait_for(lambda: engine.solves.up)
        engine.submit(order(gate="never"))
        stranger, nobody = wait_for(lambda: engine.solves.missing()[1:] and engine.solves.missing())
        assert (stranger.state, nobody.state) == ("other-worker", "no-workers")
        assert "runs factorize-0.0.1" in stranger.detail and ours in stranger.detail
        assert engine.capacity_mb is None
        (worker,) = other.workers.values()
        job = place.ledger.get(digest(0))
        assert job.task not in other.scheduler.tasks
        task = engine.solves.submit(job, (100, 1)).key  # as if the worker had been replaced just now
        wait_for(lambda: other.scheduler.tasks.get(task) and other.scheduler.tasks[task].state == "no-worker")
        assert not place.starts() and task not in worker.state.tasks
        engine.close()
