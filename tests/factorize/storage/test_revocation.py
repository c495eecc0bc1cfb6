"""A result that is taken back: the reason at every address, never again an answer, nothing deleted."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from bucket_cases import WatchedBucket, store_on
from bucket_cases import failing as cut_at
from command_line import CommandLine
from obstore.store import MemoryStore
from servers import serving
from specs import spec_of
from store_cases import factorization, failing, flip, overwrite, path_of, recording, toeplitz

from factorize.client import Service as RemoteService
from factorize.client import fetch
from factorize.encoding import json_digest
from factorize.errors import InvalidParameter, NotFound, Revoked, ServiceError, StoreUnavailable
from factorize.factors.factor_file import cast
from factorize.format.files import Files
from factorize.format.manifest import manifest_digest
from factorize.storage.fsck import fsck
from factorize.storage.medium.bucket import Bucket
from factorize.storage.records import manifest_key, seal
from factorize.storage.revocation import revocation_key
from factorize.storage.store import Store, open_store

REASON = "sensitivity understated for more than 8 epochs"
PUT = factorization(4)
SWEPT = """
import sys, tracemalloc
from factorize.storage.fsck import fsck
from factorize.storage.gc import gc
from factorize.storage.store import open_store
sweep, digest, small, large = sys.argv[1:]
run = {"revoke": lambda store: store.revoke(digest, "wrong"), "gc": gc, "fsck": fsck}[sweep]
run(open_store(small))  # loads what a sweep imports late
tracemalloc.start()
run(open_store(large))
print(tracemalloc.get_traced_memory()[1])
"""
"""Its peak of memory in a process of its own: other threads of the tests' process take memory too."""


def kinds(store: Store) -> list[str]:
    return [finding.kind for finding in fsck(store).findings]


def test_every_name_of_it_answers_with_the_reason(store):
    manifest = store.put(factorization(4))
    other = store.put(factorization(5))
    digest, file = manifest["digest"], manifest.file.sha256
    (revoked,) = store.revoke(digest, f"  {REASON} ")
    assert (revoked.digest, revoked.file, revoked.reason) == (digest, file, REASON)
    for reading in (store, open_store(store.url)):
        for ask in (reading.manifest, reading.load):
            for name in (digest, manifest["spec_digest"]):
                with pytest.raises(Revoked, match=REASON) as caught:
                    ask(name)
                assert caught.value.digest == digest and caught.value.reason == REASON
        with pytest.raises(Revoked):
            reading.blob(file)
        assert reading.digest_of(manifest["spec_digest"]) is None and reading.find(spec_of(4, "identity")) is None
        assert [each["digest"] for each in reading.items()] == [other["digest"]]
    report = fsck(store)
    assert report.clean and [finding.kind for finding in report.findings] == ["revoked"]


def test_a_tighter_answer_that_was_revoked_answers_nothing(store):
    store.revoke(store.put(factorization(tolerance=1e-9))["digest"], REASON)
    assert store.find(spec_of(4, "identity", tolerance=1e-3)) is None


def test_a_damaged_record_revokes_at_every_moment_of_its_replacement(tmp_path, store, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # it is the order of the calls that counts
    (revocation,) = store.revoke(store.put(PUT)["digest"], REASON)
    flipped, linked = (path_of(store, key) for key in revocation.keys)
    flip(flipped, 77)
    linked.rename(linked.with_suffix(".away"))
    linked.symlink_to(linked.with_suffix(".away"))
    calls = recording()
    open_store(shutil.copytree(path_of(store, ""), tmp_path / "whole", symlinks=True), files=calls).revoke(
        PUT.digest, REASON
    )
    moments = [at for at, name in enumerate(calls.calls) if name in ("link", "rename", "sync_directory")]
    assert [calls.calls[at] for at in moments].count("rename") == 2
    for at in moments:
        root = shutil.copytree(path_of(store, ""), tmp_path / str(at), symlinks=True)
        with suppress(StoreUnavailable):
            open_store(root, files=failing(errno.EIO, at)).revoke(PUT.digest, REASON)
        for name in (PUT.digest, revocation.file):
            assert open_store(root).revocations.find(name) is not None, (at, calls.calls[at])
    assert {finding.kind for finding in fsck(store, repair=True).findings if finding.error} == {"damaged"}
    assert store.revocations.find(PUT.digest) is not None, "a repair takes no record away"
    assert fsck(open_store(tmp_path / "whole")).clean


@pytest.mark.parametrize("done", [False, True], ids=["request lost", "answer lost"])
def test_a_damaged_record_in_a_bucket_revokes_at_every_moment_of_its_replacement(done):
    def damaged() -> MemoryStore:
        medium = MemoryStore()
        store = store_on(Bucket(medium))
        (revocation,) = store.revoke(store.put(PUT)["digest"], REASON)
        Bucket(medium).write(revocation.keys[0], b"{}")
        return medium

    whole = WatchedBucket(damaged())
    Store(whole, "s3://bucket").revoke(PUT.digest, REASON)
    assert whole.calls.count("copy") == 1
    for at in range(len(whole.calls)):
        medium = damaged()
        with suppress(StoreUnavailable):
            Store(WatchedBucket(medium, cut_at(at, done)), "s3://bucket").revoke(PUT.digest, REASON)
        left = Store(Bucket(medium), "s3://bucket")
        assert left.revocations.find(PUT.digest) is not None, (at, whole.calls[at])


def test_a_version_that_has_changed_is_not_overwritten(bucket):
    for medium in (Bucket(MemoryStore()), open_store(bucket).objects):
        medium.create("key", b"first")
        version = medium.get("key", 5)[1]
        medium.write("key", b"other", version)
        with pytest.raises(StoreUnavailable):
            medium.write("key", b"third", version)
        assert medium.content("key") == b"other"


def test_what_was_rounded_from_it_is_revoked_with_it(store):
    base = factorization(4)
    digest = store.put(base)["digest"]
    rounded = store.put(cast(base, "float32"))["digest"]
    assert {each.digest for each in store.revoke(digest, REASON)} == {digest, rounded}
    again = factorization(5)
    other = store.put(again)["digest"]
    alone = store.put(cast(again, "float32"))["digest"]
    assert {each.digest for each in store.revoke(alone, REASON)} == {alone}
    assert store.manifest(other)["digest"] == other


def test_files_with_further_matrices_are_revoked_with_it(store):
    base = factorization(4, strategy=toeplitz(4))
    larger = store.put(base.with_matrices(["B"]))["digest"]
    digest = store.put(base)["digest"]
    sibling = store.put(factorization(4, strategy=toeplitz(4, decay=0.25)))["digest"]
    assert {each.digest for each in store.revoke(larger, REASON)} == {larger, digest}
    assert store.manifest(sibling)["digest"] == sibling


def test_its_claim_does_not_come_back_with_further_matrices_or_rounded(store):
    """What was not stored yet when the result was revoked is refused when it comes."""
    base = factorization(4, strategy=toeplitz(4))
    digest = store.put(base)["digest"]
    store.revoke(digest, REASON)
    for late in (base.with_matrices(["C_inv"]), cast(base, "float32")):
        assert late.digest != digest
        with pytest.raises(Revoked, match=REASON) as caught:
            store.put(late)
        assert caught.value.digest == digest
        with pytest.raises(NotFound):
            store.manifest(late.digest)
    for other in (
        factorization(4, strategy=toeplitz(4, decay=0.25)),
        factorization(4, strategy=toeplitz(4), tolerance=1e-3),
    ):
        assert store.put(other)["digest"] == other.digest


def test_a_result_that_is_stored_while_its_like_is_revoked_falls_too(store, monkeypatch):
    """The one who revokes lists the results before this one is there, and this one looked for revocations before."""
    base = factorization(4, strategy=toeplitz(4))
    digest = store.put(base)["digest"]
    other = open_store(store.url)
    larger = base.with_matrices(["B"])
    publish = store.objects.put

    def put(key, staged):
        if key == manifest_key(larger.digest):
            assert [each.digest for each in other.revoke(digest, REASON)] == [digest]
        return publish(key, staged)

    monkeypatch.setattr(store.objects, "put", put)
    with pytest.raises(Revoked, match=REASON):
        store.put(larger)
    monkeypatch.undo()
    assert store.digest_of(base.spec_digest) is None
    assert fsck(store).clean and kinds(store).count("revoked") == 2


def test_a_result_that_is_stored_between_look_and_revocation_falls_too(store, monkeypatch):
    """The put ends before there is a record that it could see, and after the results were listed."""
    base = factorization(4, strategy=toeplitz(4))
    digest, sibling = store.put(base)["digest"], base.with_matrices(["B"])
    rounded, names = cast(sibling, "float32"), store.objects.names
    store.put(sibling)

    def put_at_the_end(folder, *after):
        """Store what was rounded from the sibling before the sibling is revoked, and after it is listed."""
        yield from [key for key in names(folder, *after) if rounded.digest not in key]
        monkeypatch.setattr(store.objects, "names", names)

    store.put(rounded)
    monkeypatch.setattr(store.objects, "names", put_at_the_end)
    revoked = {revocation.digest for revocation in store.revoke(digest, "wrong")}
    assert revoked == {digest, sibling.digest, rounded.digest}
    with pytest.raises(Revoked):
        store.manifest(rounded.digest)


def test_the_named_result_is_revoked_before_any_other_is_read(tmp_path):
    """A search of 10^5 results takes minutes, and may be cut off at any moment."""
    home = open_store(tmp_path)
    digest = home.put(factorization(4))["digest"]
    for n in range(5, 20):
        home.put(factorization(n))
    read: list[bool] = []

    class Watched(Files):
        def open(self, path: Path) -> int:
            if path.parent.parent.name == "manifests" and path.stem != digest:
                read.append(home.revocations.sound(revocation_key(digest)))
            return super().open(path)

    recorded: list[str] = []
    open_store(tmp_path, files=Watched()).revoke(digest, REASON, on_each=lambda each: recorded.append(each.digest))
    assert read == [True] * 15 and recorded == [digest]


@pytest.mark.parametrize("sweep", ["revoke", "gc", "fsck"])
def test_memory_does_not_grow_with_the_manifests(tmp_path, sweep):
    """No sweep keeps the manifests that it has read."""
    small, large = tmp_path / "small", tmp_path / "large"
    digest = open_store(small).put(factorization(4))["digest"]
    shutil.copytree(small, large)
    store = open_store(large)
    manifest = store.manifest(digest)
    long = manifest["certificate"] | {"warnings": [f"{number} " + "x" * 4000 for number in range(5)]}
    for number in range(300):
        spec = {**manifest["spec"], "tolerance": 1e-9 + number * 1e-12}
        other = {**manifest, "spec": spec, "spec_digest": json_digest(spec), "certificate": long}
        other["digest"] = manifest_digest(other)
        store.objects.publish((manifest_key(other["digest"]), seal(other), lambda: True))
    assert store.manifest(other["digest"]) == other, "a manifest that is refused is not kept either"
    command = [sys.executable, "-c", SWEPT, sweep, digest, small, large]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 3e6, "the manifests have 6 MB"


def test_the_spec_is_answered_anew_and_by_other_bytes_only(store):
    first, second = factorization(4), factorization(4, strategy=toeplitz(4))
    store.put(first)
    store.revoke(first.digest, REASON)
    with pytest.raises(Revoked, match=REASON):
        store.put(first)
    store.put(second)
    assert store.digest_of(first.spec_digest) == open_store(store.url).digest_of(first.spec_digest) == second.digest
    with pytest.raises(Revoked):
        store.manifest(first.digest)
    assert fsck(store).clean


def test_revoking_twice_keeps_the_first_reason(store):
    digest = store.put(factorization(4))["digest"]
    first = store.revoke(digest, REASON)
    assert store.revoke(digest, "another reason") == first


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "x" * 1001, "\x1b[31m"])
def test_a_reason_is_one_printable_line(store, reason):
    digest = store.put(factorization(4))["digest"]
    with pytest.raises(InvalidParameter, match="reason"):
        store.revoke(digest, reason)
    assert store.manifest(digest)["digest"] == digest


def test_only_what_is_there_can_be_revoked(store):
    put = factorization(4)
    store.put(put)
    for name in ("0" * 64, put.spec_digest):
        with pytest.raises(NotFound):
            store.revoke(name, REASON)


def test_no_flipped_bit_lifts_a_revocation(store):
    manifest = store.put(factorization(4))
    store.revoke(manifest["digest"], REASON)
    for name in (manifest["digest"], manifest.file.sha256):
        path = path_of(store, revocation_key(name))
        for bit in range(0, 8 * path.stat().st_size, 3):  # in turn each of the eight of a byte
            flip(path, bit)
            with pytest.raises(Revoked):
                store.revocations.check(name)
            flip(path, bit)
    assert kinds(store) == ["revoked"]
    assert store.revocations.sound(revocation_key(manifest["digest"])) is True
    assert store.revocations.sound(revocation_key("0" * 64)) is False


def test_a_revocation_that_is_damaged_under_both_names_is_made_again(store):
    manifest = store.put(factorization(4))
    (revocation,) = store.revoke(manifest["digest"], REASON)
    for key in revocation.keys:
        flip(path_of(store, key), 99)
    assert not fsck(store, repair=True).clean, "there is no sound record of it left"
    with pytest.raises(Revoked, match="damaged"):
        store.manifest(manifest["digest"])
    store.revoke(manifest["digest"], "the reason again")
    with pytest.raises(Revoked, match="the reason again"):
        store.manifest(manifest["digest"])
    assert fsck(store).clean


def test_entries_are_not_rebuilt_for_a_revoked_result(store):
    first, second = factorization(4), factorization(4, strategy=toeplitz(4))
    store.put(first)
    store.put(second)
    store.revoke(first.digest, REASON)
    for place in ("specs", "families"):
        for entry in list(store.objects.list(place)):
            store.objects.delete(entry.key)
    fsck(store, repair=True)
    assert store.digest_of(first.spec_digest) == second.digest


def test_http_answers_410_with_the_reason_at_every_address_and_solves_anew(tmp_path):
    asked = {"workload": {"kind": "prefix", "n": 6}}
    with serving(tmp_path / "store") as live:
        manifest = live.solve(asked)
        digest, file = manifest["digest"], manifest["files"][0]["sha256"]
        assert live.get(f"/v1/factorizations/{digest}/matrices/C").status == 200
        live.store.revoke(digest, REASON)
        addresses = [f"/v1/factorizations/{name}" for name in (digest, manifest["spec_digest"])]
        addresses += [f"{address}/matrices/{m}?rows=0:2" for address in addresses for m in ("C", "C_inv", "B")]
        addresses += [f"/v1/factorizations/{digest}?matrices=C,B", f"/v1/blobs/{file}"]
        for address in addresses:
            for headers in ({}, {"If-None-Match": "*"}, {"Range": "bytes=0-9"}):
                problem = live.get(address, headers).problem(410, "revoked")
                assert problem["reason"] == REASON and problem["digest"] == digest and REASON in problem["detail"]
        assert live.send("HEAD", f"/v1/blobs/{file}").status == 410
        with pytest.raises(ServiceError, match=REASON) as caught:
            RemoteService(live.url).manifest(digest)
        assert caught.value.status == 410
        with pytest.raises(ServiceError, match=REASON):
            fetch(digest, url=live.url, to=tmp_path / "f.safetensors")
        assert not (tmp_path / "f.safetensors").exists()
        before = live.solves()
        assert live.post(asked).status == 202
        job = live.until(f"/v1/factorizations/{manifest['spec_digest']}", lambda found: found["state"] == "failed")
        assert live.solves() == before + 1, "the spec is solved anew"
        assert job["error"]["type"] == "revoked", "and gives the revoked bytes again"
        assert live.get("/problems/revoked").status == 200


def test_the_command_line_revokes_and_refuses(tmp_path):
    command = CommandLine(tmp_path)
    manifest = command("solve", '{"workload": {"kind": "prefix", "n": 4}}', "--output", "json").json()
    digest = manifest["digest"]
    assert "reason" in command("revoke", digest).error(2)
    assert command("revoke", digest, "--reason", REASON, "--output", "json").json()["revoked"] == [digest]
    for arguments in (["get", digest, "--to", "f"], ["verify", digest], ["calibrate", digest, "--rho", "1"]):
        assert REASON in command(*arguments).error(4)
    assert command("fsck").code == 0
    assert "revoked" in command("solve", '{"workload": {"kind": "prefix", "n": 4}}').error(4)


@pytest.mark.parametrize("record", [{"a": 1}, {"digest": 5, "file": "0" * 64}, "another"])
def test_a_record_that_is_none_goes_on_revoking(store, record):
    manifest = store.put(factorization(4))
    (revocation,) = store.revoke(manifest["digest"], REASON)
    whole = asdict(revocation)
    spoilt = {**whole, "digest": "1" * 64, "file": "2" * 64} if record == "another" else record
    if isinstance(record, dict) and "digest" in record:
        spoilt = {**whole, **record}
    overwrite(path_of(store, revocation.keys[0]), seal(spoilt))
    with pytest.raises(Revoked, match="its record is damaged"):
        store.manifest(manifest["digest"])
    assert "damaged" in kinds(store)
    assert fsck(store, repair=True).clean
    with pytest.raises(Revoked, match=REASON):
        store.manifest(manifest["digest"])
