"""Unfinished work in a store: the newest whole state, none beside it, and none that is taken for a result."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from factorize.errors import CorruptObject, StoreUnavailable
from factorize.solution import LoopState
from factorize.storage.fsck import fsck
from factorize.storage.gc import gc
from factorize.storage.store import Store, open_store
from factorize.storage.unfinished import UnfinishedWork, read_state, state_bytes

SPEC, OTHER = "ab" * 32, "ab" * 31 + "cd"


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    url = str(tmp_path / "store") if request.param == "folder" else request.getfixturevalue("bucket")
    return open_store(url)


def work(store: Store, spec_digest: str = SPEC, seconds: float = 0.0) -> UnfinishedWork:
    return UnfinishedWork(store, spec_digest, "1", seconds=seconds)


def keys(store: Store) -> list[str]:
    return [entry.key for entry in store.objects.list("unfinished")]


def test_the_newest_state_is_kept_and_no_other(store: Store) -> None:
    unfinished = work(store)
    assert unfinished.step == 0 and unfinished.taken_up("loop") is None
    for step in range(1, 13):  # past the tenth, where names would be sorted wrongly without their zeros
        unfinished.offer("loop", step, z=np.arange(step, dtype=float), hessian=np.full((2, 3), step / 3))
    assert len(keys(store)) == 1
    work(store, OTHER).offer("loop", 7, z=np.ones(1))
    found = work(store).taken_up("loop")
    assert found is not None and found.step == 12 and work(store).taken_up("another") is None
    assert np.array_equal(found.arrays["z"], np.arange(12.0)) and (found.arrays["hessian"] == 4).all()
    again = work(store)
    again.offer("loop", 13, z=np.ones(1))  # another machine goes on
    assert work(store).step == 13 and len(keys(store)) == 2
    again.clear()
    assert work(store).step == 0 and work(store, OTHER).step == 7
    again.forget()
    assert again.step == 0


def test_states_are_written_so_often_and_not_oftener(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    unfinished = work(store, seconds=30.0)
    for at, step in ((0, 1), (29, 2), (30, 3), (59, 4), (61, 5)):
        now[0] = 100.0 + at
        unfinished.offer("loop", step, z=np.ones(1))
        assert work(store).step == {1: 0, 2: 0, 3: 3, 4: 3, 5: 5}[step]


def test_a_state_is_no_result(store: Store) -> None:
    work(store).offer("loop", 3, z=np.ones(4))
    assert list(store.items()) == [] and store.digest_of(SPEC) is None
    report = fsck(store)
    assert report.clean and [finding.kind for finding in report.findings] == ["unfinished"]
    assert not gc(store, grace_seconds=0).removals, "it may be a solve that runs"


def test_what_nobody_has_gone_on_with_is_removed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    work(store).offer("loop", 3, z=np.ones(4))
    (key,) = keys(store)
    old = time.time() - 2 * 86_400
    os.utime(tmp_path / "store" / key, (old, old))
    assert not gc(store).removals, "the grace is a week"
    (removal,) = gc(store, grace_seconds=0).removals
    assert (removal.kind, removal.key) == ("unfinished", key) and keys(store) == []


def test_a_damaged_state_gives_way_to_the_one_before(store: Store) -> None:
    one, two = (state_bytes(SPEC, "1", LoopState("loop", step, {"z": np.ones(2)})) for step in (4, 5))
    for name, data in (("000000004-aa", one), ("000000005-bb", two[:-1] + b"\0")):
        with store.objects.stage() as staged:
            staged.write(data)
            store.objects.put(f"unfinished/ab/{SPEC}-{name}", staged)
    assert work(store).step == 4
    resumed = work(store)
    resumed.offer("loop", 6, z=np.ones(2))
    assert work(store).step == 6 and len(keys(store)) == 1


def test_a_store_that_refuses_costs_only_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path / "store"))
    unfinished = work(store)

    def full(*_: object) -> bool:
        raise StoreUnavailable("no space")

    monkeypatch.setattr(store.objects, "put", full)
    unfinished.offer("loop", 3, z=np.ones(4))
    assert keys(store) == []


def test_every_flipped_bit_is_seen() -> None:
    whole = state_bytes(SPEC, "1", LoopState("loop", 3, {"z": np.array([1.0, 2.0])}))
    assert read_state(whole, SPEC, "1").step == 3
    for at in range(len(whole)):
        for bit in (0, 6):
            with pytest.raises(CorruptObject):
                read_state(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :], SPEC, "1")


@pytest.mark.parametrize("step", [0, -1, 10**9 + 1, 1.5, True])
def test_a_sealed_lie_about_the_step_is_refused(step: object) -> None:
    whole = state_bytes(SPEC, "1", LoopState("loop", step, {"z": np.ones(1)}))  # type: ignore[arg-type]
    with pytest.raises(CorruptObject):
        read_state(whole, SPEC, "1")
