"""Engines on one PostgreSQL ledger: dead services, a database that dies and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import toy_solver
from postgres_server import PostgresServer
from test_engine import Place, alive, collect, digest, order, wait_for

from factorize.api.jobs import solving
from factorize.api.jobs.job import Job
from factorize.errors import StoreUnavailable

FULL = (
    "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
    "'could not extend file \"base/5/1259\": No space left on device' USING ERRCODE = 'disk_full'; END $$",
    *(f"CREATE TRIGGER full_{name} BEFORE INSERT OR UPDATE ON {name} EXECUTE FUNCTION no_room()"
      for name in ("jobs", "schema_version")),
)  # fmt: skip
"""What PostgreSQL says where its disk is full, to whoever writes."""


@pytest.fixture
def place(tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(solving, "published", toy_solver.published)
    with ExitStack() as stack:
        yield Place(tmp_path, stack, postgres.database())


def test_a_cancel_through_another_service_is_followed_and_reaches_the_child(place):
    first, second = place.engine(), place.engine()
    first.submit(order(gate="never"))
    pid = wait_for(place.starts)[0][1]

    async def scenario() -> list[Job]:
        listener = asyncio.create_task(collect(first, digest(0)))
        await asyncio.to_thread(second.cancel, digest(0))
        return await asyncio.wait_for(listener, 60)

    assert asyncio.run(scenario())[-1].state == "cancelled"
    wait_for(lambda: not alive(pid))


def test_two_services_start_each_spec_once(place):
    first, second = place.engine(), place.engine()
    for number in range(8):
        (first, second)[number % 2].submit(order(number // 2, gate="go"))
    wait_for(lambda: len(place.starts()) == 4)
    place.open("go")
    assert [place.ended(digest(number)).attempts for number in range(4)] == [1] * 4
    assert len(place.starts()) == 4


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
