"""fsck finds every kind of damage, changes nothing unless asked to, and mends what it may."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from specs import spec_of
from store_cases import factorization, flip, overwrite, path_of, toeplitz

from factorize.errors import NotFound, StoreUnavailable
from factorize.format.files import Files
from factorize.storage.blobs import CHUNK_BYTES, Blobs, blob_key
from factorize.storage.fsck import ERRORS, fsck
from factorize.storage.gc import gc
from factorize.storage.records import SpecEntry, family_key, manifest_key, seal, spec_key
from factorize.storage.store import Store, open_store

LOWER = [[1.0, 0.0], [2.0, 1.0]]
PUT = factorization(of=spec_of({"kind": "matrix", "rows": LOWER}, "identity"))
MATRIX = PUT.spec.workload.sha256
OTHER = factorization(3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = open_store(tmp_path)
    opened.put(PUT)
    opened.put(OTHER)
    return opened


def file_of(store: Store) -> Path:
    return path_of(store, blob_key(store.manifest(PUT.digest).file.sha256))


def entry_of(store: Store, which: int = 1) -> Path:
    return path_of(store, SpecEntry.of(store.manifest(PUT.digest)).keys[which])


def kinds(report) -> list[str]:
    return sorted(finding.kind for finding in report.findings)


def snapshot(root: Path) -> dict[str, object]:
    """Everything in a store: names, content, modes, times."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(root))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def to_link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_temporary(store: Store, age: float) -> None:
    path = path_of(store, "tmp/1-abc")
    path.write_bytes(b"half a file")
    os.utime(path, (time.time() - age, time.time() - age))


def put_beside(store: Store) -> None:
    for name in ("jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"):
        path_of(store, name).write_bytes(b"of a service")


def spoil_manifest(store: Store) -> None:
    flip(path_of(store, manifest_key(PUT.digest)), 555)


def drop_entries(store: Store) -> None:
    for which in (0, 1):
        entry_of(store, which).unlink()


def revoke_another(store: Store) -> list[Path]:
    """Revoke a result that no other case is about; where the revocation stands."""
    (revocation,) = store.revoke(store.put(factorization(2))["digest"], "wrong")
    return [path_of(store, key) for key in revocation.keys]


def revoke_all_but_one(store: Store) -> None:
    """As if one that stores B beside the same C had been stored meanwhile, by a process that was killed then."""
    base = factorization(2, strategy=toeplitz(2))
    for put in (base, base.with_matrices(["B"])):
        store.put(put)
    for revocation in store.revoke(base.digest, "wrong"):
        for key in () if revocation.digest == base.digest else revocation.keys:
            path_of(store, key).unlink()


def revoke_all_but_one_and_drop_entries(store: Store) -> None:
    revoke_all_but_one(store)
    for key in SpecEntry.of(store.manifest(factorization(2, strategy=toeplitz(2)).with_matrices(["B"]).digest)).keys:
        path_of(store, key).unlink()


Damage = Callable[[Store], object]
FILE_LOST = ["dangling", "dangling", "missing", "orphan"]
MANIFEST_LOST = ["dangling", "dangling", "orphan", "orphan"]


def replace_by(store: Store, path: Path, change: Callable[[bytes], bytes]) -> None:
    overwrite(path, change(path.read_bytes()))


def swap_manifest(store: Store) -> None:
    overwrite(path_of(store, manifest_key(PUT.digest)), path_of(store, manifest_key(OTHER.digest)).read_bytes())


def misdirect(store: Store) -> None:
    overwrite(entry_of(store), path_of(store, spec_key(OTHER.spec_digest)).read_bytes())


def loosen(store: Store) -> None:
    entry = SpecEntry.of(store.manifest(PUT.digest))
    overwrite(entry_of(store, 0), seal({**asdict(entry), "tolerance": 0.5}))


CASES: dict[str, tuple[Damage, list[str], list[str]]] = {
    # name: damage, what is found, what is still found after a repair
    "flipped blob": (lambda s: flip(file_of(s), 801), [*FILE_LOST, "damaged"], ["orphan"]),
    "truncated blob": (
        lambda s: replace_by(s, file_of(s), lambda d: d[:-1]),
        [*FILE_LOST, "damaged"],
        ["orphan"],
    ),
    "missing blob": (lambda s: file_of(s).unlink(), FILE_LOST, ["orphan"]),
    "linked blob": (lambda s: to_link(file_of(s)), [*FILE_LOST, "foreign", "damaged"], ["foreign", "orphan"]),
    "fifo for a blob": (lambda s: to_fifo(file_of(s)), [*FILE_LOST, "damaged"], ["orphan"]),
    "damaged matrix": (
        lambda s: flip(path_of(s, blob_key(MATRIX)), 7),
        ["damaged", "missing"],
        ["missing"],
    ),
    "missing matrix": (lambda s: path_of(s, blob_key(MATRIX)).unlink(), ["missing"], ["missing"]),
    "flipped manifest": (spoil_manifest, [*MANIFEST_LOST, "damaged"], ["orphan"] * 2),
    "missing manifest": (
        lambda s: path_of(s, manifest_key(PUT.digest)).unlink(),
        MANIFEST_LOST,
        ["orphan"] * 2,
    ),
    "swapped manifest": (swap_manifest, [*MANIFEST_LOST, "damaged"], ["orphan"] * 2),
    "flipped entry": (lambda s: flip(entry_of(s), 99), ["damaged", "unindexed"], []),
    "entry of another spec": (misdirect, ["unindexed", "damaged"], []),
    "entry with another tolerance": (loosen, ["unindexed", "damaged"], []),
    "entry that is no entry": (lambda s: overwrite(entry_of(s), seal({"a": 1})), ["damaged", "unindexed"], []),
    "missing entry": (lambda s: entry_of(s).unlink(), ["unindexed"], []),
    "missing entries": (drop_entries, ["unindexed", "unindexed"], []),
    "linked entry": (lambda s: to_link(entry_of(s)), ["foreign", "damaged", "unindexed"], ["foreign"]),
    "orphan blob": (lambda s: s.put_matrix(np.eye(2)), ["orphan"], ["orphan"]),
    "second answer": (
        lambda s: s.put(factorization(3, strategy=toeplitz(3))),
        ["orphan"],
        ["orphan"],
    ),
    "fresh temporary": (lambda s: put_temporary(s, 60), ["temporary"], ["temporary"]),
    "stale temporary": (lambda s: put_temporary(s, 90_000), ["temporary"], []),
    "ledger of a service": (put_beside, [], []),
    "foreign file": (lambda s: path_of(s, ".DS_Store").write_bytes(b""), ["foreign"], ["foreign"]),
    "foreign file among blobs": (lambda s: path_of(s, "blobs/sha256/a.txt").write_bytes(b""), ["foreign"], ["foreign"]),
    "blob in a wrong folder": (lambda s: path_of(s, f"blobs/{'0' * 64}").write_bytes(b""), ["foreign"], ["foreign"]),
    "revoked result": (revoke_another, ["revoked"], ["revoked"]),
    "damaged revocation": (lambda s: flip(revoke_another(s)[0], 9), ["damaged", "revoked"], ["revoked"]),
    "missing revocation": (
        lambda s: revoke_another(s)[1].unlink(),
        ["missing", "revoked"],
        ["revoked"],
    ),
    "missing revocation of the digest": (
        lambda s: revoke_another(s)[0].unlink(),
        ["missing", "revoked"],
        ["revoked"],
    ),
    "revocation that does not reach all": (
        revoke_all_but_one,
        ["missing", "orphan", "revoked"],
        ["orphan", "revoked", "revoked"],
    ),
    "revocation that does not reach one that answers nothing yet": (
        revoke_all_but_one_and_drop_entries,
        ["missing", "orphan", "orphan", "revoked"],
        ["orphan", "orphan", "revoked", "revoked"],
    ),
    "foreign revocation": (
        lambda s: revoke_another(s)[0].with_name("a.json").write_bytes(b""),
        ["foreign", "revoked"],
        ["foreign", "revoked"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_damage_is_found_and_mended(store, case, tmp_path):
    damage, found, left = CASES[case]
    damage(store)
    before = snapshot(tmp_path)
    report = fsck(open_store(tmp_path))
    assert kinds(report) == sorted(found)
    assert report.clean == (not set(found) & ERRORS)
    assert all(finding.action is None for finding in report.findings)
    assert snapshot(tmp_path) == before, "nothing is changed without repair"

    repaired = fsck(open_store(tmp_path), repair=True)
    assert {finding.kind for finding in repaired.findings} >= set(found) & ERRORS
    again = fsck(open_store(tmp_path))
    assert kinds(again) == sorted(left)
    assert again.clean == repaired.clean == (not set(left) & ERRORS)
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for name, (_, _, content) in before.items():
        assert content is None or content in contents or name.startswith("tmp/"), (
            "nothing is deleted but stale temporaries"
        )
    fresh = open_store(tmp_path)
    fresh.load(OTHER.spec_digest).verify()
    fresh.put(PUT)
    fresh.load(PUT.spec_digest).verify()


def test_a_repair_says_what_it_did(store):
    put_temporary(store, 90_000)
    entry_of(store).unlink()
    flip(path_of(store, blob_key(MATRIX)), 7)
    actions = {finding.kind: finding.action for finding in fsck(store, repair=True).findings}
    assert actions == {
        "temporary": "removed", "unindexed": "rebuilt", "damaged": "quarantined",
        "missing": None,
    }  # fmt: skip


def test_the_index_is_rebuilt_from_the_manifests_alone(tmp_path, store):
    """The earliest answer to a spec gets its entry back."""
    late = factorization(3, strategy=toeplitz(3))
    store.put(late)
    more = [factorization(n, tolerance=t) for n in (4, 5) for t in (1e-9, 1e-6)]
    for each in more:
        store.put(each)
    manifest = {**store.manifest(late.digest), "created": "2999-01-01T00:00:00+00:00"}
    overwrite(path_of(store, manifest_key(late.digest)), seal(manifest))
    before = {path: path.read_bytes() for name in ("specs", "families") for path in (tmp_path / name).rglob("*.json")}
    for path in before:
        path.unlink()
    assert open_store(tmp_path).find(more[0].spec) is None
    report = fsck(open_store(tmp_path), repair=True)
    assert {(finding.kind, finding.action) for finding in report.findings} == {
        ("unindexed", "rebuilt"),
        ("orphan", None),
    }
    assert {path: path.read_bytes() for path in before} == before
    assert open_store(tmp_path).digest_of(OTHER.spec_digest) == OTHER.digest


def test_a_missing_family_entry_is_that_of_the_answer_not_of_the_earliest(tmp_path, store):
    late = factorization(3, strategy=toeplitz(3))
    store.put(late)
    entry = SpecEntry.of(store.manifest(late.digest))
    overwrite(path_of(store, entry.keys[1]), seal(asdict(entry)))
    path_of(store, family_key(entry.family, entry.spec_digest)).unlink()
    fsck(store, repair=True)
    assert path_of(store, entry.keys[0]).read_bytes() == seal(asdict(entry))


def test_what_is_published_during_the_check_is_no_error(tmp_path, store):
    """The listing is older than what is read later: an entry whose manifest came since, a manifest whose file did."""
    late = factorization(4)

    class Late(Files):
        """Shows the store as it was before the last put to the first listings of manifests and blobs."""

        def list(self, path: Path) -> list[str]:
            hidden = {late.digest, store.manifest(late.digest).file.sha256 if self.hide_file else ""}
            return [name for name in super().list(path) if name.removesuffix(".json") not in hidden]

        hide_file = False

    store.put(late)
    report = fsck(open_store(tmp_path, files=Late()))
    assert kinds(report) == ["orphan"]

    class Later(Late):
        hide_file = True

        def list(self, path: Path) -> list[str]:
            names = super().list(path)
            shard = path.name == late.digest[:2] and path.parent.name == "manifests"
            return sorted({*names, f"{late.digest}.json"}) if shard else names

    assert kinds(fsck(open_store(tmp_path, files=Later()))) == []


def test_what_is_taken_away_during_the_check_is_not_counted_as_damage(tmp_path, store):
    gone = store.put_matrix(np.eye(2))

    class Vanishing(Files):
        def open(self, path: Path) -> int:
            if path.name == gone:
                raise FileNotFoundError
            return super().open(path)

    assert kinds(fsck(open_store(tmp_path, files=Vanishing()))) == []


def test_progress_and_figures(tmp_path, store):
    store.put(factorization(800))
    seen, began = [], time.monotonic()
    report = fsck(store, progress=lambda done, total: seen.append((done, total)))
    files = [entry for entry in store.objects.list() if entry.key != "store.json"]
    total = sum(entry.size for entry in files)
    assert 0 <= report.seconds <= time.monotonic() - began
    assert seen[-1] == (total, total) and seen == sorted(seen) and len(seen) == len(files) == report.objects
    assert report.bytes == total > CHUNK_BYTES
    document = report.document()
    assert document["clean"] is True and document["findings"] == [] and document["bytes"] == total
    path_of(store, "note").write_text("x")
    (finding,) = fsck(store).document()["findings"]
    assert finding == {"kind": "foreign", "key": "note", "error": False, "action": None, "message": finding["message"]}


def test_what_is_deleted_while_it_is_checked_is_no_damage(store, monkeypatch):
    """gc takes a result away after its manifest was read and before its file is."""
    verify = Blobs.verify

    def late(blobs: Blobs, sha256: str) -> int:
        with suppress(NotFound):
            gc(open_store(store.url), delete=[OTHER.digest])
        return verify(blobs, sha256)

    monkeypatch.setattr(Blobs, "verify", late)
    report = fsck(store, repair=True)
    monkeypatch.undo()
    assert report.clean and not [finding for finding in report.findings if finding.error]
    assert [manifest["digest"] for manifest in store.items()] == [PUT.digest]


def test_a_store_that_is_away_is_not_clean(tmp_path, store):
    store.put(PUT)
    root, elsewhere = path_of(store, ""), tmp_path.with_name(f"{tmp_path.name} elsewhere")
    root.rename(elsewhere)
    root.mkdir()  # where its disk is mounted
    with pytest.raises(StoreUnavailable, match="mount its disk again"):
        fsck(store)
    root.rmdir()
    root.symlink_to(elsewhere)
    assert fsck(store).clean and store.digest_of(PUT.spec.digest) == PUT.digest
