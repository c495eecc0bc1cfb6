"""The jobs table: one winner per claim, no way out of a terminal state but a claim, pages without gaps."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from factorize.api.jobs import database
from factorize.api.jobs.ledger import Ledger, ListQuery, write_cursor
from factorize.api.jobs.solve_job import STATES, TERMINAL, JobOrder, SolveJob
from factorize.errors import InvalidParameter, MissingExtra, StoreUnavailable

A, B, RESULT = "a" * 64, "b" * 64, "c" * 64


def order(spec_digest: str = A, workload: str = "prefix") -> JobOrder:
    return JobOrder(spec_digest, '{"workload":{"kind":"prefix","n":4}}', workload, 100, 60.0, 2)


@pytest.fixture
def ledger(database_url: str):
    with Ledger(database_url) as opened:
        yield opened


@pytest.fixture
def sqlite_ledger(tmp_path: Path):
    with Ledger(f"sqlite:///{tmp_path}/service/jobs.sqlite") as opened:
        yield opened


def claim(ledger: Ledger, spec_digest: str = A, **options: object) -> SolveJob:
    job, mine = ledger.claim(order(spec_digest), **options)  # type: ignore[arg-type]  # passed on as given
    assert mine
    return job


RACE = """
import sys
sys.path.insert(0, {root!r})
from factorize.api.jobs.solve_job import JobOrder
from factorize.api.jobs.ledger import Ledger, read_cursor
with Ledger({url!r}) as ledger:
    for digit in "0123456789":
        print(ledger.claim(JobOrder(digit * 64, "{{}}", "prefix", 1, 1.0))[1])
"""


def test_one_winner_among_processes_that_also_race_to_create_the_database(database_url):
    code = RACE.format(root=str(Path(database.__file__).parents[3]), url=database_url)
    command = [sys.executable, "-c", code]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [racer.communicate(timeout=600)[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 3
    assert [column.count("True") for column in zip(*outputs, strict=True)] == [1] * 10


@pytest.mark.parametrize("terminal", sorted(TERMINAL))
def test_only_a_claim_leaves_a_terminal_state(ledger, terminal):
    job = claim(ledger)
    end = {
        "done": lambda: ledger.finish(A, RESULT),
        "failed": lambda: ledger.fail(job, {"type": "failed", "message": "no"}),
        "cancelled": lambda: ledger.cancel(A),
    }
    before = end[terminal]()
    assert before is not None and before.state == terminal
    late = [ledger.start(job), ledger.update_progress(job, {}), ledger.release(job), ledger.adopt(job, "x", ended=True)]
    late += [ledger.died(job)]
    assert late == [None] * 5
    assert [change() for change in end.values()] == [None] * 3
    assert ledger.get(A) == before


def begun_anew(ledger: Ledger, job: SolveJob, way: str) -> SolveJob:
    if way == "adopted":
        again = ledger.adopt(job, "new", ended=True)
    elif way == "dead":
        again = ledger.died(job, deaths=0)
    else:
        if way == "failed":
            ledger.fail(job, {"type": "failed", "message": "no"})
        else:
            ledger.cancel(A)
        again, _ = ledger.claim(replace(order(), threads=9), owner="new")
    assert again is not None
    return again


@pytest.mark.parametrize("way", ["failed", "cancelled", "adopted", "dead"])
def test_a_job_that_begins_anew_hears_nothing_more_of_its_first_start(ledger, way):
    first = ledger.start(claim(ledger, owner="old"))
    assert first is not None
    ledger.update_progress(first, {"iteration": 1})
    again = begun_anew(ledger, first, way)
    claimed = way in ("failed", "cancelled")
    assert (again.state, again.attempts, again.deaths) == ("queued", 0 if claimed else 1, 0)
    assert again.owner == ("old" if way == "dead" else "new")
    assert again.error is None and (again.progress is None) is claimed
    assert again.seq > first.seq and (again.task == first.task) is (way == "adopted")
    late = [
        ledger.fail(first, {"type": "crashed", "message": "late"}),
        ledger.died(first),
        ledger.adopt(first, "other", ended=True),
        ledger.update_progress(first, {"iteration": 2}),
    ]
    assert late == [None] * 4 and (way == "adopted" or ledger.start(first) is None)
    assert ledger.get(A) == again
    second = ledger.start(again)
    assert second is not None and (second.attempts, second.task) == (again.attempts + 1, again.task)


def test_leases_say_whose_owners_live(ledger):
    job = claim(ledger, owner="me")
    claim(ledger, B, owner="other")
    claim(ledger, "c" * 64)
    assert ledger.living() == {"me", "other"}
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET lease = lease - 16")
    assert ledger.living() == set()
    ledger.renew("me")
    assert ledger.living() == {"me"} and ledger.get(A) == job, "nobody who follows it hears of that"
    ledger.renew("me", last=True)
    assert ledger.living() == set()
    ledger.adopt(job, "heir")
    assert ledger.living() == {"heir"}
    ledger.finish(A, RESULT)
    assert ledger.living() == set()


def test_a_job_is_taken_only_while_its_lease_is_over_or_its_owner_has_ended(ledger):
    job = claim(ledger, owner="stopped")
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET lease = lease - 16")
    assert ledger.living() == set()
    ledger.renew("stopped")  # it goes on after another engine has read that its lease was over
    assert ledger.adopt(job, "other") is None and ledger.get(A) == job
    mine = ledger.adopt(job, "stopped")
    assert mine is not None
    taken = ledger.adopt(mine, "other", ended=True)
    assert taken is not None and taken.owner == "other"


def test_a_lease_ends_when_the_clock_of_the_database_is_set_back(ledger):
    claim(ledger, owner="me")
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE jobs SET lease = lease + 3600")
    assert ledger.living() == set()
    ledger.renew("me")
    assert ledger.living() == {"me"}


@pytest.mark.parametrize("in_one_microsecond", [False, True])
def test_pages_have_no_gap_and_no_repetition_while_jobs_arrive(ledger, monkeypatch, in_one_microsecond):
    if in_one_microsecond:
        monkeypatch.setattr("factorize.api.jobs.ledger._now", lambda: "2026-01-01T00:00:00.000000Z")
    digests = [f"{number:064x}" for number in range(25)]
    for digest in digests:
        claim(ledger, digest)
    seen: list[str] = []
    cursor = None
    for step in range(10):
        jobs = ledger.page(ListQuery(cursor=cursor, limit=7))
        seen += [job.spec_digest for job in jobs]
        claim(ledger, f"{step + 1000:064x}")
        if len(jobs) < 7:
            break
        cursor = write_cursor(jobs[-1].submitted, jobs[-1].spec_digest)
    assert seen == digests[::-1]


def test_pages_filter_by_state_and_workload(ledger):
    ledger.claim(order(A, "prefix"))
    ledger.claim(order(B, "momentum"))
    ledger.cancel(A)
    for filters, expected in [
        ({"state": "cancelled"}, [A]),
        ({"workload": "momentum"}, [B]),
        ({"state": "queued", "workload": "prefix"}, []),
        ({"search": f"PREFIX {A[:9]}"}, [A]),
        ({"search": "n_64"}, []),
        ({"search": " ,\0()"}, [B, A]),
    ]:
        assert [job.spec_digest for job in ledger.page(ListQuery(**filters))] == expected


@given(cursor=st.text(max_size=40))
def test_any_text_as_cursor_is_a_page_or_a_refusal(cursor, shared_ledger):
    try:
        shared_ledger.page(ListQuery(cursor=cursor))
    except InvalidParameter as error:
        assert error.field == "cursor" and "next" in str(error)


@pytest.fixture(scope="module")
def shared_ledger(tmp_path_factory):
    with Ledger(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/jobs.sqlite") as opened:
        yield opened


def test_every_change_of_a_running_job_is_numbered_without_gaps_among_threads(ledger):
    job = claim(ledger)
    with ThreadPoolExecutor(8) as pool:
        numbers = [j.seq for j in pool.map(lambda i: ledger.update_progress(job, {"iteration": i}), range(40))]
    assert sorted(numbers) == list(range(2, 42))


PRAGMAS = ("journal_mode", "synchronous", "busy_timeout")


def test_an_sqlite_database_is_private_and_durable_on_every_connection(sqlite_ledger, tmp_path):
    path = tmp_path / "service" / "jobs.sqlite"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with sqlite_ledger.engine.connect() as one, sqlite_ledger.engine.connect() as two:
        for connection in (one, two):
            found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in PRAGMAS]
            assert found == ["wal", 2, 30000]  # 2 is FULL


def test_a_connection_in_use_at_the_end_is_closed_when_it_is_given_back(sqlite_ledger):
    with sqlite_ledger.engine.connect() as connection:
        used = connection.connection.dbapi_connection
        sqlite_ledger.close()
        assert connection.scalar(sa.text("SELECT 1")) == 1
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        used.execute("SELECT 1")


def test_a_database_of_another_release_is_refused(ledger, database_url):
    with ledger.engine.begin() as connection:
        connection.execute(sa.text("UPDATE schema_version SET version = 99"))
    with pytest.raises(StoreUnavailable, match="version 99"):
        Ledger(database_url)


def test_a_damaged_database_is_refused_with_the_path(tmp_path):
    path = tmp_path / "jobs.sqlite"
    path.write_bytes(b"this is not a database " * 400)
    with pytest.raises(StoreUnavailable, match=r"jobs\.sqlite") as refusal:
        Ledger(f"sqlite:///{path}")
    assert refusal.value.__traceback__  # which would keep the connection open
    assert str(path) not in {file.path for file in psutil.Process().open_files()}


@pytest.mark.parametrize(
    "url",
    ["postgresql+psycopg://user:secret@127.0.0.1:1/jobs", "nosuch://user:secret@host/jobs", "secret"],
)
def test_a_database_that_cannot_be_reached_is_refused_without_its_password(url):
    with pytest.raises(StoreUnavailable) as caught:
        Ledger(url)
    assert "secret" not in str(caught.value)


def test_a_ledger_on_postgresql_names_the_extra_that_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'factorize\[postgres\]'") as caught:
        Ledger("postgresql+psycopg://user:secret@127.0.0.1:1/jobs")
    assert "secret" not in str(caught.value)


def test_a_kill_at_any_moment_leaves_a_ledger_that_opens_and_counts(database_url):
    """Claims that were answered before a kill -9 are there afterwards."""
    code = RACE.format(root=str(Path(database.__file__).parents[3]), url=database_url).replace(
        '"0123456789"', "map(chr, range(33, 3000))"
    )
    code = code.replace("[1])", "[1], flush=True)").replace("digit * 64", "digit")
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    answered = [writer.stdout.readline() for _ in range(20)]
    os.kill(writer.pid, 9)
    writer.communicate()
    assert answered == ["True\n"] * 20
    with Ledger(database_url) as ledger:
        assert sum(ledger.counts().values()) >= 20
        assert set(ledger.counts()) == set(STATES)


def asked(ledger: Ledger, caller: str, number: int) -> SolveJob:
    spec_digest = f"{number:064x}"
    job, mine = ledger.claim(replace(order(spec_digest), caller=caller))
    assert mine
    return job


def test_callers_take_turns(ledger):
    many = [asked(ledger, "many", number) for number in range(6)]
    assert [job.turn for job in many] == [0, 1, 2, 3, 4, 5]
    few = [asked(ledger, "few", 10 + number) for number in range(2)]
    assert [job.caller for job in ledger.list_unfinished()] == [
        "many",
        "few",
        "many",
        "few",
        "many",
        "many",
        "many",
        "many",
    ]
    for job in (*many[:4], *few):
        ledger.finish(job.spec_digest, RESULT)
    # Whoever was away has saved nothing up, and whoever is new goes before the rest of the others' jobs.
    again, new = asked(ledger, "few", 20), asked(ledger, "new", 30)
    assert again.turn == new.turn == many[4].turn == 4


def test_a_job_that_is_asked_for_again_takes_a_new_turn(ledger):
    first, _, third = (asked(ledger, "one", number) for number in range(3))
    ledger.cancel(first.spec_digest)
    assert asked(ledger, "one", 0).turn == third.turn + 1
    # Alone on the ledger, its own last turn does not count against it.
    for number in range(3):
        ledger.cancel(f"{number:064x}")
    assert asked(ledger, "one", 1).turn == 0


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="write sqlite:////path/jobs.sqlite"):
        Ledger(url)
