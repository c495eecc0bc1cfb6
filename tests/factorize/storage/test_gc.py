"""Removal: what nothing names goes when it is old, what a manifest names stays, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine
from specs import spec_of
from store_cases import factorization, flip, path_of, toeplitz

from factorize.errors import InvalidParameter, NotFound, Revoked, StoreUnavailable
from factorize.factors.factor_file import cast
from factorize.format.files import Files
from factorize.storage.blobs import blob_key
from factorize.storage.fsck import fsck
from factorize.storage.gc import GRACE_SECONDS, Removed, gc
from factorize.storage.objects import STAGING
from factorize.storage.records import answer_order, manifest_key, seal
from factorize.storage.store import Store, open_store

LOWER = [[1.0, 0.0], [2.0, 1.0]]
DAY = 86_400.0


def age(store: Store, key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path_of(store, key), (then, then))


def everything(store: Store) -> set[str]:
    return {entry.key for entry in store.objects.list()}


def removed(found: Removed) -> list[tuple[str, str]]:
    return [(removal.kind, removal.key) for removal in found.removals]


def test_a_store_without_waste_is_left_alone(store):
    store.put(factorization(of=spec_of({"kind": "matrix", "rows": LOWER}, "identity")))
    store.put(factorization(5))
    store.put(factorization(5, strategy=toeplitz(5)))
    before = everything(store)
    for entry in list(store.objects.list()):
        age(store, entry.key, 100 * DAY)
    assert not gc(store).removals and not gc(store, grace_seconds=0).removals
    assert everything(store) == before
    assert store.load(factorization(5, strategy=toeplitz(5)).digest)


def test_old_waste_goes_and_young_waste_stays(store):
    store.put(factorization(4))
    before = everything(store)
    waste = {}
    for number, name in enumerate(("old", "young")):
        waste[name] = [blob_key(store.put_matrix(np.array(LOWER) * (2 + number))), f"{STAGING}/1-{name}"]
        path_of(store, waste[name][1]).write_bytes(b"left")
    waste["young"].append(f"{STAGING}/locks/exclusive-1")  # whoever waits for a bucket's lock judges of its age
    path_of(store, waste["young"][-1]).parent.mkdir()
    path_of(store, waste["young"][-1]).touch()
    for key in (*waste["old"], waste["young"][-1]):
        age(store, key, GRACE_SECONDS + 60)
    shown = gc(store, dry_run=True)
    assert everything(store) == before | set(waste["old"] + waste["young"]), "shown and not removed"
    found = gc(store)
    assert removed(found) == removed(shown) == [("unnamed-blob", waste["old"][0]), ("temporary", waste["old"][1])]
    assert found.bytes == 32 + 4 and not found.dry_run and shown.dry_run
    assert everything(store) == before | set(waste["young"])
    assert removed(gc(store, grace_seconds=-60)) == [("unnamed-blob", waste["young"][0])]
    assert everything(store) == before | set(waste["young"][1:]), "a put that runs may own a temporary file"
    age(store, waste["young"][1], DAY + 60)
    assert removed(gc(store, grace_seconds=0)) == [("temporary", waste["young"][1])]
    fsck(store, repair=True)
    assert everything(store) == before | {waste["young"][2]}


def test_using_a_matrix_starts_its_grace_anew_and_no_sweep_comes_between(store, monkeypatch):
    """An upload of a matrix that is there already answers with its name only if it stays."""
    array = np.array(LOWER)
    name = store.put_matrix(array)
    swept = threading.Event()

    def sweep() -> None:
        gc(open_store(store.url))
        swept.set()

    for use in (lambda: store.put_matrix(array), lambda: store.keep(name)):
        age(store, blob_key(name), GRACE_SECONDS + 60)
        swept.clear()
        refresh = store.objects.refresh
        thread = threading.Thread(target=sweep)

        def late(key: str, thread: threading.Thread = thread, refresh=refresh) -> None:
            thread.start()
            assert not swept.wait(0.1), "the sweep waits"
            refresh(key)

        monkeypatch.setattr(store.objects, "refresh", late)
        use()
        monkeypatch.undo()
        thread.join()
        assert store.blob(name).size == 32
    store.keep("0" * 64)


def test_a_damaged_manifest_protects_every_blob(store):
    manifest = store.put(factorization(4))
    key = manifest_key(manifest["digest"])
    flip(path_of(store, key), 77)
    age(store, blob_key(manifest.file.sha256), 100 * DAY)
    found = gc(store)
    assert not found.removals and found.damaged == (key,)
    with pytest.raises(NotFound, match="damaged"):
        gc(store, delete=[manifest["digest"]])


def test_deleting_a_result_takes_its_entries_and_its_file(store):
    kept = store.put(factorization(5))
    rest = everything(store)
    put = factorization(of=spec_of({"kind": "matrix", "rows": LOWER}, "identity"))
    manifest = store.put(put)
    shown = gc(store, delete=[put.digest], dry_run=True)
    found = gc(store, delete=[put.digest])
    assert [kind for kind, _ in removed(found)] == ["entry", "entry", "manifest", "blob"]
    assert removed(shown) == removed(found) and found.deleted == (put.digest,)
    matrix = blob_key(put.spec.workload.canonical().sha256)
    assert everything(store) == rest | {matrix}, "a user's matrix goes with the grace"
    assert store.find(put.spec) is None
    with pytest.raises(NotFound):
        store.manifest(put.digest)
    assert open_store(store.url).load(kept["digest"])
    assert fsck(store).clean
    assert store.put(put)["files"] == manifest["files"]


def test_the_next_answer_takes_the_place_of_a_deleted_one(store):
    *answers, last = [factorization(4, strategy=toeplitz(4, decay=decay)) for decay in (0.5, 0.25, 0.125, 0.0625)]
    for each in (*answers, last):
        store.put(each)
    assert [kind for kind, _ in removed(gc(store, delete=[last.digest]))] == ["manifest", "blob"]
    assert store.digest_of(last.spec_digest) == answers[0].digest
    revoked, kept = sorted(answers[1:], key=lambda one: answer_order(store.manifest(one.digest)))
    store.revoke(revoked.digest, "wrong")
    gc(store, delete=[answers[0].digest])
    assert store.digest_of(answers[0].spec_digest) == kept.digest
    gc(store, delete=[kept.digest])
    assert store.digest_of(answers[0].spec_digest) is None
    assert fsck(store).clean


def test_the_next_answer_is_not_one_that_was_rounded(store):
    """Both were stored in the same second, and the digest of the rounded one may come first."""
    for decay in (0.5, 0.25, 0.125, 0.0625):
        first, second = factorization(4), factorization(4, strategy=toeplitz(4, decay=decay))
        for each in (first, second, cast(second, "float32")):
            store.put(each)
        gc(store, delete=[first.digest])
        assert store.digest_of(first.spec_digest) == second.digest
        gc(store, created_before=datetime.now(UTC) + timedelta(hours=1))


def test_a_revocation_outlives_what_it_revokes(store):
    manifest = store.put(factorization(4))
    store.revoke(manifest["digest"], "wrong")
    gc(store, delete=[manifest["digest"]], grace_seconds=0)
    for ask in (lambda: store.manifest(manifest["digest"]), lambda: store.blob(manifest.file.sha256)):
        with pytest.raises(Revoked):
            ask()
    before = everything(store)
    with pytest.raises(Revoked):
        store.put(factorization(4))
    assert everything(store) == before and fsck(store).clean


def test_retention_deletes_by_age(store):
    manifests = [store.put(factorization(n)) for n in (3, 4)]
    now = datetime.now(UTC)
    assert not gc(store, created_before=now - timedelta(hours=1)).deleted
    assert set(gc(store, created_before=now + timedelta(hours=1)).deleted) == {m["digest"] for m in manifests}
    assert not list(store.items()) and fsck(store).clean


def test_others_wait_only_for_what_has_come_since_the_sweep_began(tmp_path):
    """Reading the manifests of a large store takes minutes, in which puts go on."""
    store, late = open_store(tmp_path), factorization(5)
    store.put(factorization(4))
    opened: list[str] = []

    class Watched(Files):
        def open(self, path: Path) -> int:
            opened.append(path.stem)
            return super().open(path)

        def lock(self, path: Path, exclusive: bool) -> int:
            assert factorization(4).digest in opened
            store.put(late)
            opened.clear()
            return super().lock(path, exclusive)

    watched = open_store(tmp_path, files=Watched())
    opened.clear()
    gc(watched)
    assert opened == [late.digest]


def test_what_is_not_there_cannot_be_deleted(store):
    store.put(factorization(4))
    before = everything(store)
    with pytest.raises(NotFound, match="nothing was removed"):
        gc(store, delete=[factorization(4).digest, "0" * 64])
    with pytest.raises(InvalidParameter):
        gc(store, delete=["../x"])
    assert everything(store) == before


def test_a_put_waits_for_a_sweep_and_a_sweep_for_a_put(store):
    """The blob of a put that has not come to its manifest is never taken for waste, even without any grace."""
    stop = threading.Event()

    def sweep() -> None:
        other = open_store(store.url)
        while not stop.is_set():
            gc(other, grace_seconds=0)

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        for n in range(2, 12):
            put = factorization(of=spec_of({"kind": "matrix", "rows": [[1.0, 0.0], [float(n), 1.0]]}, "identity"))
            store.put(put)
            assert store.load(put.digest).digest == put.digest
    finally:
        stop.set()
        thread.join()
    assert fsck(store).clean and len(list(store.items())) == 10


class Lockless(Files):
    """A file system without locks."""

    def lock(self, path: Path, exclusive: bool) -> int:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_without_locks_puts_go_on_and_nothing_is_removed(tmp_path):
    store = open_store(tmp_path, files=Lockless())
    store.put(factorization(4))
    store.keep(store.put_matrix(np.array(LOWER)))
    with pytest.raises(StoreUnavailable, match="has no file locks"):
        gc(store)


def test_the_command_line(tmp_path):
    command = CommandLine(tmp_path)
    manifest = command("solve", '{"workload": {"kind": "prefix", "n": 4}}', "--output", "json").json()
    assert "0 objects, 0 bytes removed" in command("gc", "--grace", "0").out
    shown = command("gc", "--delete", manifest["digest"], "--dry-run", "--output", "json").json()
    assert shown["deleted"] == [manifest["digest"]] and shown["dry_run"]
    assert command("verify", manifest["digest"]).code == 0
    text = command("gc", "--delete", manifest["digest"]).out
    assert "manifest" in text and "4 objects" in text
    assert "no factorization" in command("verify", manifest["digest"]).error(2)
    assert "nothing was removed" in command("gc", "--delete", manifest["digest"]).error(2)
    command("solve", '{"workload": {"kind": "prefix", "n": 4}}')
    assert command("gc", "--retention", "0", "--output", "json").json()["deleted"] == [manifest["digest"]]


def test_a_file_that_another_manifest_names_too_stays(store):
    first, twin = store.put(factorization(4)), factorization(5)
    sealed = seal({**twin.manifest, "files": first["files"], "created": first["created"]})
    store.objects.publish((manifest_key(twin.digest), sealed, lambda: True))
    found = gc(store, delete=[first["digest"]])
    assert [kind for kind, _ in removed(found)] == ["entry", "entry", "manifest"]
    assert store.blob(first.file.sha256).size


def test_a_manifest_that_goes_while_it_is_read_is_no_damage(store, monkeypatch):
    store.put(factorization(4))

    def gone(key: str) -> bytes:
        raise NotFound(key)

    monkeypatch.setattr(store.index, "stored", gone)
    assert gc(store, dry_run=True).damaged == ()


def test_a_result_that_is_deleted_while_it_is_stored_again_is_an_error_to_try_again(store, monkeypatch):
    put = factorization(4)
    store.put(put)
    whole = store.intact
    monkeypatch.setattr(store, "intact", lambda digest: whole(digest) and bool(gc(store, delete=[digest])))
    with pytest.raises(StoreUnavailable, match="was deleted while"):
        store.put(put)
    monkeypatch.undo()
    assert store.put(put)["digest"] == put.digest
