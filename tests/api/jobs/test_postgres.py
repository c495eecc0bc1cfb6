"""An engine on a PostgreSQL ledger that fills up, dies and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import toy_solver
from patience import wait_for
from postgres_server import PostgresServer
from test_engine import Place, digest, order

from factorize.api.jobs import solving
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
