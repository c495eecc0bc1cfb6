"""Stores in buckets: cut short at every request, locked across machines, refused where they are unsafe."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from bucket_cases import WatchedBucket, failing, store_on
from obstore.store import MemoryStore
from patience import wait_for
from store_cases import factorization
from test_store_crash import ACTIONS, ANSWER, PUT

from factorize.errors import CorruptObject, InvalidParameter, NotFound, StoreUnavailable
from factorize.storage.blobs import CHUNK_BYTES, blob_key
from factorize.storage.fsck import fsck
from factorize.storage.gc import gc
from factorize.storage.medium import bucket as bucket_module
from factorize.storage.medium import bucket_lock
from factorize.storage.medium.bucket import Bucket, connect
from factorize.storage.medium.bucket_lock import BucketLock
from factorize.storage.medium.location import MARKER, bucket_of
from factorize.storage.objects import STAGING
from factorize.storage.store import Store, open_store

HERE = Path(__file__).parent


def in_memory(watch: Callable[[str, int, bool], None] | None = None, medium: MemoryStore | None = None) -> Store:
    """A store on obstore's bucket in memory, which keeps the same promises as S3 and takes microseconds."""
    return store_on(WatchedBucket(medium or MemoryStore(), watch))


def calls_of(store: Store) -> WatchedBucket:
    assert isinstance(store.objects, WatchedBucket)
    return store.objects


def keys(store: Store, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.objects.list(prefix)]


# Cut short at every request


@pytest.mark.parametrize("action", ["checked put", "revoke", "delete"])
@pytest.mark.parametrize("done", [False, True], ids=["request lost", "answer lost"])
def test_a_cut_at_any_request_is_named_and_leaves_a_sound_store(action, done):
    def begun(watch: Callable[[str, int, bool], None] | None = None) -> Store:
        medium = MemoryStore()
        before = in_memory(medium=medium)
        before.put(ANSWER)
        return Store(WatchedBucket(medium, watch), "s3://bucket")

    whole = begun()
    ACTIONS[action](whole)
    count = len(calls_of(whole).calls)
    assert count > 6
    refused = 0
    for at in range(count):
        store = begun(failing(at, done))
        try:
            ACTIONS[action](store)
        except StoreUnavailable as error:
            refused += 1
            assert "the wire was cut" in str(error)
        calls_of(store).watch = lambda name, count, done: None
        for key in keys(store, STAGING):
            store.objects.delete(key)  # a marker of the lock whose removal was cut; others wait for its lease to end
        assert {finding.kind for finding in fsck(store).findings if finding.error} <= {"missing"}, at
        assert store.digest_of(PUT.spec_digest) in (None, PUT.digest)
        if at % 5:
            continue
        with suppress(NotFound):
            ACTIONS[action](store)
        assert fsck(store).clean
        if action.endswith("put"):
            assert store.load(PUT.spec_digest).digest == PUT.digest
        else:
            assert store.digest_of(ANSWER.spec_digest) is None
    assert refused > count / 2


WRITER = """
import os, sys
sys.path[:0] = sys.argv[2:]
from bucket_cases import WatchedBucket, killing, store_on
from factorize.storage.medium.bucket import connect
from factorize.storage.medium.location import bucket_of
from store_cases import factorization
import safetensors.numpy
import obstore.store
put = factorization(3)
at = 0
while True:
    child = os.fork()
    if child == 0:
        calls = WatchedBucket(connect(f"{sys.argv[1]}/{at}")._store, killing(at, at % 2 == 1))
        store_on(calls, "s3://bucket").put(put)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(at, status, flush=True)
    if status == 0:
        break
    at += 1
"""


def test_a_writer_killed_at_any_request_leaves_a_sound_store(bucket, monkeypatch, tmp_path):
    """On the real server; every second one dies when the request was carried out already."""
    monkeypatch.setattr(bucket_lock, "LEASE_SECONDS", 0.2)
    url = bucket_of(bucket)
    paths = [str(HERE), str(HERE.parents[1] / "support"), str(HERE.parents[2])]
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", WRITER, url, *paths], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    statuses = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert statuses == [9] * (len(statuses) - 1) + [0] and len(statuses) > 20
    put = factorization(3)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with connect(url).stage() as ours:  # the newest; only what is older and nobody holds is swept
        assert len(list(tmp_path.iterdir())) > 2
        for folder in tmp_path.iterdir():
            os.utime(folder, (0, 0))
        bucket_module._sweep.cache_clear()
        connect(url)
        assert list(tmp_path.iterdir()) == [ours.path.parent]
    for at in range(len(statuses)):
        store = store_on(connect(f"{url}/{at}"), url)
        assert fsck(store).clean and store.digest_of(put.spec_digest) in (None, put.digest)
        if at % 8 == 3:
            store.put(put)
            gc(store)  # waits for the marker of the dead, and removes it
            assert store.load(put.spec_digest).digest == put.digest and keys(store, "tmp/locks") == []


# Several machines


def test_shared_holders_go_together_and_exclusive_ones_alone():
    medium = MemoryStore()
    inside: list[str] = []
    wrong: list[list[str]] = []

    def hold(name: str, exclusive: bool) -> None:
        for _ in range(5):
            with BucketLock(Bucket(medium), "tmp/locks", exclusive=exclusive).hold():
                inside.append(name)
                seen = list(inside)
                if exclusive and seen != [name] or any(other.startswith("x") for other in seen if other != name):
                    wrong.append(seen)
                time.sleep(0.002)
                inside.remove(name)

    threads = [threading.Thread(target=hold, args=(f"{'x' if k < 2 else 's'}{k}", k < 2)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()
    assert wrong == []


def test_a_dead_holders_marker_is_removed_and_a_slow_one_is_told(monkeypatch):
    monkeypatch.setattr(bucket_lock, "LEASE_SECONDS", 0.2)
    medium = MemoryStore()
    dead = BucketLock(Bucket(medium), "tmp/locks", exclusive=True)
    dead._take()  # and then its machine is gone
    with BucketLock(Bucket(medium), "tmp/locks", exclusive=False).hold():
        pass
    with (
        pytest.raises(StoreUnavailable, match="stalled for more than 0.2 s"),
        BucketLock(Bucket(medium), "tmp/locks", exclusive=False).hold(),
        BucketLock(Bucket(medium), "tmp/locks", exclusive=True).hold(),  # waits until the first one counts as dead
    ):
        pass


def test_a_holder_that_may_count_as_dead_removes_nothing(monkeypatch):
    monkeypatch.setattr(bucket_lock, "BEAT_SECONDS", 600.0)
    store = in_memory()
    kept = store.put(factorization(4))
    with store.objects.lock(MARKER, exclusive=True) as confirm:
        confirm()
        monkeypatch.setattr(bucket_lock, "LEASE_SECONDS", 0.0)
        with pytest.raises(StoreUnavailable, match="stalled for more than 0 s"):
            confirm()
    with pytest.raises(StoreUnavailable, match="stalled"):
        gc(store, delete=[kept.digest])
    assert store.load(kept.digest).digest == kept.digest


def test_a_marker_that_was_removed_does_not_come_back(monkeypatch):
    monkeypatch.setattr(bucket_lock, "BEAT_SECONDS", 0.01)
    medium = MemoryStore()
    lock = BucketLock(Bucket(medium), "tmp/locks", exclusive=True)
    with pytest.raises(StoreUnavailable, match="stalled"), lock.hold():
        Bucket(medium).remove(lock._key)  # as whoever takes it for dead does
        time.sleep(0.1)
        assert list(Bucket(medium).list("tmp/locks")) == []


def test_a_living_holder_is_waited_for_beyond_the_lease(monkeypatch):
    monkeypatch.setattr(bucket_lock, "LEASE_SECONDS", 0.3)
    monkeypatch.setattr(bucket_lock, "BEAT_SECONDS", 0.02)
    medium, order = MemoryStore(), []

    def sweep() -> None:
        with BucketLock(Bucket(medium), "tmp/locks", exclusive=True).hold():
            order.append("sweep")

    living = BucketLock(Bucket(medium), "tmp/locks", exclusive=False)
    # The clock goes on with each beat: on a loaded machine a beat may come later than a lease.
    clock = SimpleNamespace(monotonic=lambda: 0.02 * living._beats, sleep=time.sleep)
    monkeypatch.setattr(bucket_lock, "time", clock)
    with living.hold():
        thread = threading.Thread(target=sweep)
        thread.start()
        wait_for(lambda: living._beats > 50 or order)
        order.append("put")
    thread.join(600)
    assert order == ["put", "sweep"]


def test_a_sweep_waits_for_a_put_that_finds_its_file():
    """A file that a killed put has left is found by the next, and would be swept before a manifest names it."""
    medium = MemoryStore()
    first = in_memory(medium=medium)
    first.put(PUT)
    for key in keys(first):
        if key.startswith(("manifests/", "specs/", "families/")):
            first.objects.delete(key)
    thread = threading.Thread(target=lambda: gc(in_memory(medium=medium), grace_seconds=-60))
    begun: list[str] = []

    def watch(name: str, count: int, done: bool) -> None:
        begun.extend([name] if name == "create" and not done else [])
        if len(begun) == 2 and not thread.ident:  # the file was found, and its manifest is to come
            thread.start()
            thread.join(0.5)

    Store(WatchedBucket(medium, watch), "s3://bucket").put(PUT)
    thread.join(600)
    assert fsck(first).clean and first.load(PUT.digest).digest == PUT.digest


# Reading


def test_a_large_file_goes_to_anybody_with_a_signed_url_and_to_nobody_once_damaged(bucket):
    store = open_store(bucket)
    name = store.put(factorization(800))["files"][0]["sha256"]
    data, url = b"".join(store.blob(name).read()), store.objects.sign(blob_key(name), 60)
    assert url is not None and len(data) > CHUNK_BYTES + 5
    blob = open_store(store.url, cache_bytes=1).blob(name)
    assert b"".join(blob.read(CHUNK_BYTES - 5, CHUNK_BYTES + 5)) == data[CHUNK_BYTES - 5 : CHUNK_BYTES + 5]
    with urlopen(url, timeout=600) as answer:
        assert answer.read() == data
    store.objects.write(blob_key(name), data[:-1] + b"!")
    with pytest.raises(CorruptObject, match="is damaged"):
        open_store(store.url).blob(name)


def test_a_large_blob_goes_in_parts_and_is_not_sent_twice(bucket, monkeypatch):
    monkeypatch.setattr("factorize.storage.medium.bucket.MIN_PARTS_BYTES", 1 << 10)
    calls = WatchedBucket(connect(bucket_of(bucket))._store)
    store = store_on(calls)
    store.put(factorization(40))
    assert calls.calls.count("upload") == 1
    calls.calls.clear()
    store.put(factorization(40))
    assert "upload" not in calls.calls and fsck(store).clean


def test_a_refreshed_matrix_counts_as_new(bucket):
    store = open_store(bucket)
    name = store.put_matrix([[1.0, 0.0], [2.0, 1.0]])  # type: ignore[arg-type]  # a list will do
    before = store.objects.status(blob_key(name))
    time.sleep(1.1)  # the server's times are whole seconds
    store.keep(name)
    assert store.objects.status(blob_key(name)).modified > before.modified
    assert keys(store, STAGING) == [] and store.blobs.sound(name)


# What is refused


class Overwriting(Bucket):
    """A bucket that ignores the condition, as some servers do."""

    def create(self, key: str, data: Any) -> bool:
        self.upload(key, data) if isinstance(data, Path) else self.write(key, data)
        return True


class Blind(Bucket):
    """A bucket whose list lags behind."""

    def list(self, prefix: str = "") -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(("kind", "why"), [(Overwriting, "overwrites an object"), (Blind, "does not list")])
def test_a_bucket_that_breaks_a_promise_is_refused_and_left_empty(kind, why):
    medium = MemoryStore()
    with pytest.raises(StoreUnavailable, match=why):
        store_on(kind(medium))
    assert keys(Store(Bucket(medium), "x")) == []
    with pytest.raises(StoreUnavailable, match=why):
        kind(medium).probe()


def test_a_bucket_that_is_not_there_is_named(bucket):
    with pytest.raises(StoreUnavailable, match="create the bucket"):
        open_store("s3://no-such-bucket/prefix")
    with pytest.raises(NotFound, match="there is no store at"):
        open_store(bucket, create=False)


def test_a_server_that_is_gone_is_unavailable(bucket, monkeypatch):
    monkeypatch.setattr("factorize.storage.medium.bucket.RETRY_SECONDS", 0.1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreUnavailable, match="the bucket does not answer"):
        open_store(bucket)


@pytest.mark.parametrize(
    "url",
    [
        "s3://", "s3:///prefix", "s3://bucket/../up", "s3://user:secret@bucket/x", "s3://bucket/a b", "s3://bucket?x=1",
        "s3://bucket#part", "ftp://bucket/x",
    ],
)  # fmt: skip
def test_other_urls_are_refused_without_repeating_a_secret(url):
    with pytest.raises(InvalidParameter) as caught:
        open_store(url)
    assert caught.value.field == "store" and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [("NoSuchBucket", "create the bucket"), ("Timeout", "try again"), ("status 403", "check the credentials")],
)
def test_digits_of_a_request_id_are_no_status(code: str, remedy: str) -> None:
    with pytest.raises(StoreUnavailable, match=remedy), Bucket(None)._reported("a key"):
        raise OSError(f"{code} <RequestID>7b4031507a401b</RequestID>")
