"""A store in a directory: where it may lie, what damage does to it, and how a put mends it."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import asdict
from pathlib import Path

import pytest
from specs import spec_of
from store_cases import factorization, flip, overwrite, path_of, put_checked, recording

from factorize.encoding import canonical_json, sha256
from factorize.errors import CorruptObject, InvalidParameter, NotFound, StoreUnavailable
from factorize.factors import factor_file
from factorize.storage.blobs import Blobs, blob_key
from factorize.storage.fsck import fsck
from factorize.storage.index import Index
from factorize.storage.medium.directory import Directory
from factorize.storage.medium.location import directory_of
from factorize.storage.objects import QUARANTINE
from factorize.storage.records import SpecEntry, manifest_key, seal, spec_key
from factorize.storage.store import MARKER, Store, open_store

LOWER = [[1.0, 0.0], [2.0, 1.0]]


def quarantined(store: Store) -> list[str]:
    return [entry.key.split("/", 1)[1].rsplit(".", 1)[0] for entry in store.objects.list(QUARANTINE)]


def file_key(manifest: dict) -> str:
    return blob_key(manifest.file.sha256)


def replace(store: Store, key: str, record: dict) -> None:
    """Write a record with a right seal: damage that only its meaning gives away."""
    overwrite(path_of(store, key), seal(record))


def test_a_store_is_opened_by_path_and_by_url(tmp_path, monkeypatch):
    put = factorization()
    open_store(str(tmp_path / "a b")).put(put)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    url = f"{tmp_path.as_uri()}/a%20b"
    for name in (tmp_path / "a b", "a b", "~/a b", url, url.replace("//", "//localhost", 1)):
        opened = open_store(name, create=False)
        assert opened.digest_of(put.spec_digest) == put.digest
        assert opened.url == url
    bytes_alone = tmp_path / os.fsdecode(b"st\xf6re")  # as an earlier encoding wrote it
    assert directory_of(bytes_alone.as_uri()) == bytes_alone


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("memory://", "memory://"),
        ("file://host/path", "no host"),
        ("file://relative", "no host"),
        ("file://", "absolute path"),
        ("", "path"),
        ("a\0b", "path"),
        ("file:///a%00b", "path"),
    ],
)
def test_other_places_are_refused(name, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidParameter, match=says) as raised:
        open_store(name)
    assert raised.value.field == "store" and not list(tmp_path.iterdir())


def test_opening_creates_a_private_store_and_only_if_asked_to(tmp_path):
    with pytest.raises(NotFound, match="no store at file://"):
        open_store(tmp_path / "x", create=False)
    assert not (tmp_path / "x").exists()
    open_store(tmp_path / "x")
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o700
    assert (tmp_path / "x" / MARKER).read_bytes() == b'{"format":"factorize-store","version":1}'


def test_a_store_of_another_format_is_left_alone(tmp_path):
    open_store(tmp_path)
    overwrite(tmp_path / MARKER, b'{"format":"factorize-store","version":2}')
    with pytest.raises(StoreUnavailable, match="use the release that wrote it"):
        open_store(tmp_path)


def test_a_bit_flip_in_any_file_of_a_small_artifact_is_found(tmp_path):
    """One bit of each 11, some 3,600: each is refused by the reader of that file, and fsck sees those that it is shown."""
    store = open_store(tmp_path)
    put = factorization(1)
    name = store.put(put).file.sha256
    readers = {
        MARKER: lambda: store.check_format(create=False),
        "blobs": lambda: Blobs(store.objects).open(name),
        "manifests": lambda: Index(store.objects, store.blobs, cache_bytes=0).manifest(put.digest),
        "specs": lambda: found_or_corrupt(store.digest_of(put.spec_digest)),
        "families": lambda: found_or_corrupt(store.index.entry(SpecEntry.of(store.manifest(put.digest)).keys[0])),
    }

    def found_or_corrupt(answer):
        if answer is None:
            raise CorruptObject("passed over")

    for entry in list(store.objects.list()):
        path, reader = tmp_path / entry.key, readers[entry.key.split("/")[0]]
        path.chmod(0o644)
        descriptor = os.open(path, os.O_RDWR)
        data = path.read_bytes()
        reader()
        for bit in range(0, 8 * len(data), 11):
            os.pwrite(descriptor, bytes([data[bit // 8] ^ 1 << bit % 8]), bit // 8)
            with pytest.raises((CorruptObject, StoreUnavailable)):
                reader()
            if bit % 997 == 0 and entry.key != MARKER:
                assert not fsck(store).clean
            os.pwrite(descriptor, data[bit // 8 : bit // 8 + 1], bit // 8)
        os.close(descriptor)
        reader()
    assert fsck(store).clean


@pytest.mark.parametrize("part", ["file", "manifest", "spec", "family"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "symlink"])
def test_a_put_mends_what_is_damaged(store, part, damage):
    put = factorization(5)
    before = store.put(put)
    entry = SpecEntry.of(before)
    keys = {
        "file": file_key(before),
        "manifest": manifest_key(put.digest),
        "family": entry.keys[0],
        "spec": entry.keys[1],
    }
    path = path_of(store, keys[part])
    if damage == "flip":
        flip(path, 77)
    elif damage == "truncate":
        overwrite(path, path.read_bytes()[:-5])
    else:
        path.rename(path.with_suffix(".away"))
        if damage == "symlink":
            path.symlink_to(path.with_suffix(".away"))
    if part == "spec":
        assert store.find(put.spec) is None, "so the service solves it again"
        assert store.find(spec_of(5, "identity", tolerance=0.1)) == put.digest, "by its family's entry"
    again = factorization(5, seconds=7.0)
    after = store.put(again)
    assert after["digest"] == put.digest
    assert open_store(store.url).load(put.spec_digest).digest == put.digest
    assert store.find(spec_of(5, "identity", tolerance=0.1)) == put.digest
    if part == "file":  # the put had another, so nothing names this one any more, and only a repair meets it
        fsck(store, repair=True)
    moved = quarantined(store)
    if damage != "remove":
        assert keys[part] in moved
    assert set(moved) <= {keys[part], manifest_key(put.digest)}, "and nothing else but the manifest that named it"
    assert fsck(store).clean


def test_a_put_mends_what_became_a_folder(store):
    put = factorization()
    path = path_of(store, manifest_key(store.put(put)["digest"]))
    path.unlink()
    path.mkdir()
    store.put(put)
    assert store.load(put.digest).digest == put.digest and [
        left for left in path.parents[2].glob("quarantine/**/*.json.*")
    ]


def test_a_file_that_cannot_be_read_back_is_named(store, monkeypatch):
    def refuse(path, matrices):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))

    monkeypatch.setattr(factor_file, "load", refuse)
    with pytest.raises(StoreUnavailable, match="cannot be read back"):
        store.put(factorization())
    assert not list(store.objects.list("tmp"))


def test_an_answer_whose_file_was_found_damaged_is_no_answer_until_it_is_mended(store):
    put = factorization()
    manifest = store.put(put)
    path = path_of(store, file_key(manifest))
    flip(path, 3)
    assert store.find(put.spec) == put.digest, "nobody has read the file yet"
    with pytest.raises(CorruptObject):
        store.load(put.digest)
    assert store.find(put.spec) is None, "so the service solves it again"
    store.put(factorization())
    assert store.find(put.spec) == put.digest
    store.load(put.digest).verify()


def test_an_answer_that_another_process_has_mended_is_one_again(store):
    put = factorization()
    flip(path_of(store, file_key(store.put(put))), 3)
    with pytest.raises(CorruptObject):
        store.load(put.digest)
    open_store(store.url).put(factorization())
    assert store.find(put.spec) == put.digest


def test_entries_that_name_another_spec_are_passed_over(store):
    one, other = factorization(4, tolerance=1e-6), factorization(5)
    store.put(one)
    store.put(other)
    mine, theirs = SpecEntry.of(store.manifest(one.digest)), SpecEntry.of(store.manifest(other.digest))
    for key in mine.keys:
        overwrite(path_of(store, key), seal(asdict(theirs)))
    assert store.digest_of(one.spec_digest) is None
    assert store.find(one.spec) is None and store.find(spec_of(4, "identity", tolerance=0.1)) is None
    for key in mine.keys:
        replace(store, key, {"spec_digest": one.spec_digest, "family": mine.family, "tolerance": 1e-9,
                             "converged": True, "digest": one.digest})  # fmt: skip
    assert store.find(one.spec) is None, "the tolerance is not the manifest's"
    for key in mine.keys:
        replace(store, key, {"unknown": 1})
    assert store.find(one.spec) is None
    assert store.put(one)["digest"] == store.find(one.spec) == one.digest


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.update(spec_digest="0" * 64), "does not hash to its own digest"),
        (lambda m: m.pop("files"), "does not name its file"),
        (lambda m: m.update(files=[{"sha256": "../../x", "bytes": 1}]), "does not name its file"),
    ],
)
def test_manifests_that_were_changed_and_sealed_again_are_refused(store, change, says):
    put = factorization()
    manifest = store.put(put)
    change(manifest)
    replace(store, manifest_key(put.digest), manifest)
    with pytest.raises(CorruptObject, match=says):
        store.manifest(put.digest)
    assert "damaged" in [finding.kind for finding in fsck(store).findings]


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b'{"record":[],"sha256":"x"}', b"\xff", b"[" * 100, "another spelling"]
)
def test_what_is_no_record_is_corrupt(store, text):
    put = factorization()
    store.put(put)
    store.load(put.digest)
    for key in (manifest_key(put.digest), spec_key(put.spec_digest)):
        path = path_of(store, key)
        spelt = path.read_bytes().replace(b'{"record":', b'{ "record":')
        overwrite(path, spelt if text == "another spelling" else text)
    for ask in (store.manifest, store.load):
        with pytest.raises(CorruptObject, match="fsck --repair"):
            ask(put.digest)
    assert store.digest_of(put.spec_digest) is None and list(store.items()) == []


def test_a_sound_blob_that_is_not_the_manifests_file_is_not_loaded(store):
    one, other = factorization(4), factorization(5)
    manifest, wrong = store.put(one), store.put(other)
    replace(store, manifest_key(one.digest), {**manifest, "files": wrong["files"]})
    with pytest.raises(CorruptObject, match="the file of .* contains"):
        store.load(one.digest)
    text = b"not a tensor file"
    store.objects.publish((blob_key(sha256(text)), text, lambda: True))
    replace(store, manifest_key(one.digest), {**manifest, "files": [{"sha256": sha256(text), "bytes": len(text)}]})
    with pytest.raises(CorruptObject, match="not a factor file"):
        store.load(one.digest)


def test_what_reads_back_differently_is_not_stored(store, monkeypatch):
    put, other = factorization(4), factorization(5)
    monkeypatch.setattr(type(put), "save", lambda self, path: _save(other, path))
    with pytest.raises(CorruptObject, match="reads back as another"):
        store.put(put)
    monkeypatch.setattr(type(put), "save", lambda self, path: Path(path).write_bytes(b"garbage"))
    with pytest.raises(CorruptObject):
        store.put(put)
    assert [entry.key for entry in store.objects.list()] == [MARKER]


def test_a_check_has_the_last_word_and_what_it_says_is_kept(store):
    put, seen = factorization(4), {}

    def check(path: Path) -> dict[str, object]:
        seen.update(digest=put.digest, sha256=sha256(path.read_bytes()))
        return {**seen, "checked": ["bytes"]}

    assert "proof" not in store.put(factorization(5))["files"][0]
    for wrong, why in (
        ({"digest": "0" * 64}, "reads back as another"),
        ({"sha256": "0" * 64}, "changed after it was checked"),
    ):
        with pytest.raises(CorruptObject, match=why):
            store.put(put, check=lambda path, wrong=wrong: check(path) | wrong)
    assert store.digest_of(put.spec_digest) is None
    made = store.put(put, check=check)
    (file,) = made["files"]
    assert made == store.manifest(put.digest) == open_store(store.url).manifest(put.digest)
    assert file["proof"] == {"checked": ["bytes"]} and file["sha256"] == seen["sha256"]


def test_of_two_that_create_a_store_at_once_the_second_keeps_the_marker_of_the_first(tmp_path, monkeypatch):
    look = Directory.open

    def before_the_other_came(self: Directory, key: str):
        monkeypatch.undo()
        open_store(tmp_path / "store")
        raise NotFound(key)

    monkeypatch.setattr(Directory, "open", before_the_other_came)
    store = open_store(tmp_path / "store")
    assert Directory.open is look
    assert [entry.key for entry in store.objects.list()] == [MARKER]


def _save(factorized, path):
    from safetensors.numpy import save_file

    save_file(factorized.tensors(), path, {"manifest": canonical_json(factorized.manifest).decode()})


def test_of_two_different_files_with_one_digest_the_first_stays(store, tmp_path):
    """Two solves may end with the same matrices and other times: same digest, other file."""
    other = open_store(store.url)
    put, twin = factorization(seconds=1.0), factorization(seconds=2.0)
    assert put.digest == twin.digest
    first = store.put(put)
    assert put_checked(other, twin) == first == other.put(twin)
    report = fsck(store)
    assert report.clean and [finding.kind for finding in report.findings] == ["orphan"]


def test_files_are_read_only_and_none_stays_behind(store, tmp_path):
    store.put(factorization(of=spec_of({"kind": "matrix", "rows": LOWER}, "identity")))
    entries = list(store.objects.list())
    assert not any(path_of(store, entry.key).stat().st_mode & 0o222 for entry in entries)
    assert not any(entry.key.startswith("tmp/") for entry in entries)


def test_a_store_that_may_only_be_read_is_read(store, monkeypatch):
    put = factorization()
    store.put(put)

    def refuse(*arguments, **keywords):
        raise AssertionError("nothing is written")

    for name in ("link", "unlink", "rename", "mkdir", "chmod", "fchmod", "fsync"):
        monkeypatch.setattr(os, name, refuse)
    opened = open_store(store.url)
    assert opened.find(put.spec) == put.digest
    opened.load(put.digest).verify()
    assert fsck(opened).clean


@pytest.mark.parametrize("part", ["entry", "manifest", "file"])
def test_what_is_missing_or_damaged_of_an_answer_is_said(store, part):
    manifest = store.put(factorization())
    store.check_answer(manifest["spec_digest"])
    keys = {
        "entry": spec_key(manifest["spec_digest"]),
        "manifest": manifest_key(manifest["digest"]),
        "file": blob_key(manifest["files"][0]["sha256"]),
    }
    path = path_of(store, keys[part])
    overwrite(path, path.read_bytes() + b" ")
    with pytest.raises(CorruptObject, match=("specs/" if part == "entry" else part) + ".* is damaged"):
        store.check_answer(manifest["spec_digest"])
    path.unlink()
    with pytest.raises(NotFound, match=f"the {part} .* is missing$"):
        store.check_answer(manifest["spec_digest"])
    store.put(factorization())
    store.check_answer(manifest["spec_digest"])


def test_an_answer_is_durable_before_a_job_ends_with_it(tmp_path):
    """Another process may have made its name and not synced the folder yet."""
    put = open_store(tmp_path / "store").put(factorization(4))
    files = recording()
    store = open_store(tmp_path / "store", files=files)
    files.calls.clear()
    assert store.digest_of(put.spec_digest) == put.digest and "sync_directory" not in files.calls
    assert store.durable_answer(put.spec_digest) == put.digest and "sync_directory" in files.calls
    assert store.durable_answer("0" * 64) is None
