"""The catalog of a store: its rows follow whatever is put, revoked and removed, and a restart reads nothing again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from store_cases import factorization, toeplitz

from factorize.api import catalog as catalog_module
from factorize.api.catalog import Catalog
from factorize.api.form import matrices_key
from factorize.api.jobs.database import reading, results
from factorize.api.jobs.ledger import Ledger, ListQuery, write_cursor
from factorize.errors import StoreUnavailable
from factorize.storage import store as store_module
from factorize.storage.records import manifest_key
from factorize.storage.store import Store, open_store


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(f"sqlite:///{tmp_path}/jobs.sqlite") as opened:
        yield opened


@pytest.fixture(params=["directory", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "directory":
        return open_store(str(tmp_path / "store"))
    return open_store(request.getfixturevalue("bucket"))


@pytest.fixture(autouse=True)
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "LOOK_SECONDS", 0.0)


@pytest.fixture
def catalog(ledger: Ledger, store: Store) -> Catalog:
    return Catalog(ledger.engine, store)


def listed(catalog: Catalog, **query: object) -> list[str]:
    return [entry["digest"] for _, entry in catalog.page(ListQuery(limit=100).model_copy(update=query))]


def test_rows_follow_the_store(catalog: Catalog, ledger: Ledger, store: Store) -> None:
    assert listed(catalog) == []
    one, two = (store.put(factorization(n)) for n in (3, 4))
    other = store.put(factorization(3, workload={"kind": "decay", "n": 3, "rate": 0.5}))
    assert sorted(listed(catalog)) == sorted(each["digest"] for each in (one, two, other))
    assert listed(catalog, workload="decay") == [other["digest"]]
    assert listed(catalog, search="Decay(rate") == [other["digest"]] == listed(catalog, search=other["digest"][:8])
    assert listed(catalog, search="decay prefix") == listed(catalog, search="%") == []
    ages = [age for age, _ in catalog.page(ListQuery(limit=3))]
    assert ages == sorted(ages, reverse=True)
    assert [listed(catalog, cursor=write_cursor(*age), limit=1) for age in ages] == [
        [d] for d in listed(catalog)[1:]
    ] + [[]]

    form = store.put(store.load(one["digest"]).with_matrices(["B"]))
    assert form["digest"] not in listed(catalog) and one["digest"] in listed(catalog)
    assert catalog.form(matrices_key(form, ("C", "B"))) == form["digest"]
    assert catalog.form(matrices_key(form, ("C", "C_inv"))) is None

    store.revoke(one["digest"], "a test")
    assert sorted(listed(catalog)) == sorted(each["digest"] for each in (two, other))
    assert catalog.form(matrices_key(form, ("C", "B"))) is None
    store.objects.delete(manifest_key(two["digest"]))
    assert listed(catalog) == [other["digest"]]


def test_a_page_says_that_it_is_not_whole_while_a_large_store_is_read(
    catalog: Catalog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "MAX_READS", 3)
    put = {store.put(factorization(n))["digest"] for n in range(2, 9)}
    seen = []
    for _ in range(3):
        seen.append((len(listed(catalog)), catalog.whole))
    assert seen == [(3, False), (6, False), (7, True)] and set(listed(catalog)) == put


def test_a_store_is_looked_at_once_in_five_seconds_and_its_manifests_once(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(catalog_module, "LOOK_SECONDS", 5.0)
    monkeypatch.setattr(catalog_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    store = open_store(str(tmp_path / "store"))
    catalog = Catalog(ledger.engine, store)
    one = store.put(factorization(3))["digest"]
    assert listed(catalog) == [one]
    two = store.put(factorization(4))["digest"]
    clock[0] += 4.9
    assert listed(catalog) == [one]
    clock[0] += 0.2
    assert set(listed(catalog)) == {one, two}
    stored, names = store.put(factorization(5))["digest"], store.objects.names

    def stopped(prefix: str) -> Iterator[str]:
        clock[0] += 3600.0
        return names(prefix)

    with monkeypatch.context() as patched:
        patched.setattr(store.objects, "names", stopped)
        clock[0] += 5.0
        assert set(listed(catalog)) == {one, two, stored}
    last = store.put(factorization(6))["digest"]
    clock[0] += 120.0
    assert set(listed(catalog)) == {one, two, stored, last}, "a stop of an hour does not put the next look off for ten"
    monkeypatch.setattr(store.index, "manifest", None)
    assert set(listed(Catalog(ledger.engine, store))) == {one, two, stored, last}, "a restart reads no manifest again"


def test_damaged_manifests_are_passed_over(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "MAX_READS", 2)
    store = open_store(str(tmp_path / "store"))
    put = [store.put(factorization(n))["digest"] for n in range(3, 8)]
    for damaged in put[1:]:
        path = tmp_path / "store" / manifest_key(damaged)
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-9])
    catalog = Catalog(ledger.engine, store)
    for _ in range(3):
        found = listed(catalog)
    assert (found, catalog.whole) == (put[:1], True), "more are damaged than one look reads"


def test_an_answer_that_is_published_while_it_is_looked_at_is_listed_later(ledger: Ledger, tmp_path: Path) -> None:
    """A manifest is there before the entry of its spec."""
    store = open_store(str(tmp_path / "store"))
    put = store.put(factorization(3))
    (entry,) = (tmp_path / "store" / "specs").rglob("*.json")
    away = entry.with_suffix(".away")
    os.rename(entry, away)
    catalog = Catalog(ledger.engine, store)
    assert listed(catalog) == []
    os.rename(away, entry)
    assert listed(catalog) == [put["digest"]]


def test_rows_outlive_a_store_that_is_away(catalog: Catalog, store: Store, tmp_path: Path) -> None:
    put = store.put(factorization(4))
    assert listed(catalog) == [put.digest]
    if store.url.startswith("file:"):
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        (tmp_path / "store").mkdir()
        with pytest.raises(StoreUnavailable, match="mount its disk again"):
            listed(catalog)
        (tmp_path / "store").rmdir()
        (tmp_path / "elsewhere").rename(tmp_path / "store")
    assert listed(catalog) == [put.digest]


def test_what_was_stored_by_a_clock_ahead_is_not_young(
    catalog: Catalog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(factorization(4))
    monkeypatch.setattr(store_module, "now", lambda: "2099-01-01T00:00:00+00:00")
    later = store.put(factorization(4, strategy=toeplitz(4)))
    catalog.catch_up()
    with reading(catalog._engine) as connection:
        assert later.digest in set(connection.scalars(sa.select(results.c.digest)))
