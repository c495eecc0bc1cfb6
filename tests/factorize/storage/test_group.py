"""A group of results that are published together, whole and cut short at every point."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from power_loss import MemoryFiles, PowerModel, Tree, survivors, without_staging
from store_cases import factorization, failing, flip, path_of, put_together, recording, toeplitz

from factorize.errors import CorruptObject, Revoked, StoreUnavailable
from factorize.factorization import Factorization
from factorize.spec import parse_spec
from factorize.storage.blobs import blob_key
from factorize.storage.fsck import fsck
from factorize.storage.group import CheckedFile, Group
from factorize.storage.medium.files import Files
from factorize.storage.objects import STAGING
from factorize.storage.records import spec_key
from factorize.storage.store import MARKER, Store, open_store

PAIR = (factorization(3), factorization(5))


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is the order of the calls; the disk's own time adds nothing."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def answered(store: Store) -> list[bool]:
    """Which of the pair is stored, each whole or not at all."""
    report = fsck(store)
    assert not [finding for finding in report.findings if finding.error], report.findings
    found = [store.find(one.spec) for one in PAIR]
    for one, digest in zip(PAIR, found, strict=True):
        assert digest in (None, one.digest)
        assert digest is None or store.load(digest).digest == one.digest
    return [digest is not None for digest in found]


def test_a_group_is_stored_as_one_by_one(tmp_path: Path) -> None:
    single, store = open_store(tmp_path / "single"), open_store(tmp_path / "group")
    for one in PAIR:
        single.put(one)
    for one, found in zip(PAIR, put_together(store, *PAIR), strict=True):
        assert isinstance(found, dict)
        assert found == store.manifest(one.spec_digest)
        assert found["files"][0].pop("proof") == {"release": "test"}
        stored = single.manifest(one.spec_digest)
        assert {**found, "created": ""} == {**stored, "created": ""}
    assert answered(store) == [True, True]
    keys = [[entry.key for entry in one.objects.list()] for one in (single, store)]
    assert keys[0] == keys[1]
    assert not [entry.key for entry in store.objects.list(STAGING)]


def test_the_medium_is_waited_for_once_for_each_step(tmp_path: Path) -> None:
    class Counting(Files):
        waits = 0

        def sync_together(self, paths: list[Path]) -> None:
            self.waits += 1
            super().sync_together(paths)

        def sync_directories(self, paths: list[Path]) -> None:
            self.waits += 1
            super().sync_directories(paths)

    files = Counting()
    store = open_store(tmp_path, files=files)
    files.waits = 0
    put_together(store, *[factorization(n) for n in range(2, 12)])
    assert files.waits == 5
    files.waits = 0
    store.put(factorization(12))
    assert files.waits == 4


def test_what_is_wrong_with_one_file_leaves_the_others_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    revoked = factorization(4)
    store.put(revoked)
    store.revoke(revoked.digest, "wrong")
    with store.objects.stage() as good, store.objects.stage() as other:
        good.produce(PAIR[0].save)
        other.produce(PAIR[1].save)
        sound = {"digest": PAIR[0].digest, "sha256": sha_of(good.path)}
        wrong = {"digest": PAIR[1].digest, "sha256": "0" * 64}
        found = Group(store).publish([CheckedFile(other, wrong), CheckedFile(good, sound)])
    assert isinstance(found[0], CorruptObject)
    assert "is not what was checked" in str(found[0])
    assert isinstance(found[1], dict)
    assert answered(store) == [True, False]
    again, _ = put_together(store, revoked, PAIR[1])
    assert isinstance(again, Revoked)
    assert answered(store) == [True, True]


def test_a_group_of_what_is_there_already_changes_nothing_and_mends_what_is_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = store.put(PAIR[0])
    blob = path_of(store, blob_key(first["files"][0]["sha256"]))
    flip(blob, 900)
    flip(path_of(store, spec_key(PAIR[0].spec_digest)), 80)
    found = put_together(open_store(tmp_path), *PAIR)
    assert [isinstance(one, dict) and one["digest"] for one in found] == [one.digest for one in PAIR]
    fresh = open_store(tmp_path)
    assert [fresh.load(one.spec_digest).digest for one in PAIR] == [one.digest for one in PAIR]


def test_two_answers_to_one_spec_in_one_group(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    other = factorization(3, strategy=toeplitz(3))
    assert other.spec_digest == PAIR[0].spec_digest
    found = put_together(store, PAIR[0], other)
    assert [isinstance(one, dict) and one["digest"] for one in found] == [PAIR[0].digest, other.digest]
    assert store.digest_of(other.spec_digest) == PAIR[0].digest
    assert store.load(other.digest).digest == other.digest


def sha_of(path: Path) -> str:
    from factorize.encoding import sha256

    return sha256(path.read_bytes())


@pytest.mark.usefixtures("_no_waiting")
def test_an_error_at_any_call_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """One error ends a step of the group; the results are then published one by one, and only its own has a reason."""
    files = recording()
    put_together(open_store(tmp_path / "whole", files=files), *PAIR)
    before = recording()
    open_store(tmp_path / "empty", files=before)
    for at in range(len(before.calls), len(files.calls)):
        root = tmp_path / str(at)
        try:
            found = put_together(open_store(root, files=failing(errno.EIO, at)), *PAIR)
        except StoreUnavailable:  # while a worker wrote its file
            found = []
        errors = [one for one in found if isinstance(one, Exception)]
        for error in errors:
            assert isinstance(error, StoreUnavailable)
            assert os.strerror(errno.EIO) in str(error)
        if files.calls[at] != "unlink":
            assert not list((root / STAGING).glob("*"))
        store = open_store(root)
        assert len(errors) <= 1
        assert all(
            there or not isinstance(one, dict) for there, one in zip(answered(store), found or errors, strict=False)
        )
        put_together(store, *PAIR)
        assert answered(open_store(root)) == [True, True]
        shutil.rmtree(root)


KILLED = """
import os, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from store_cases import killing, put_together
from test_group import PAIR
from factorize.storage.store import open_store
os.fsync = lambda descriptor: None
at = 0
while True:
    child = os.fork()
    if child == 0:
        put_together(open_store(Path(sys.argv[1]) / str(at), files=killing(at)), *PAIR)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    at += 1
print(at)
"""


@pytest.mark.usefixtures("_no_waiting")
def test_a_group_killed_at_any_call_leaves_a_sound_store(tmp_path: Path) -> None:
    here = Path(__file__).parent
    root = here.parents[2]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(here), str(root / "tests" / "support"), str(root)],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout)
    assert kills > 100
    seen = set()
    for at in range(kills):
        place = tmp_path / str(at)
        if not place.exists():
            continue
        store = open_store(place)
        seen.add(tuple(answered(store)))
        put_together(store, *PAIR)
        assert answered(open_store(place)) == [True, True]
        assert fsck(open_store(place), repair=True, grace_seconds=-1).clean
        assert not list((place / STAGING).glob("*"))
        shutil.rmtree(place)
    assert seen == {(False, False), (True, False), (True, True)}


class Forgetful(PowerModel):
    """Leaves out the sync of one file or folder, the `left_out`-th of a group."""

    def __init__(self, root: Path, left_out: int = 0) -> None:
        super().__init__(root)
        self.left_out = left_out
        self.asked: list[Path] = []

    def _together(self, sync: Callable[[Path], None], paths: Sequence[Path], *, few: int = 1) -> None:
        for path in paths:
            self.asked.append(path)
            if len(self.asked) != self.left_out:
                sync(path)


def states(model: PowerModel) -> Iterator[tuple[Tree, int]]:
    """What may be left at any moment, each once."""
    seen = set()
    for moment in model.moments:
        for tree in survivors(without_staging(moment)):
            key = (moment.done, frozenset((path, hash(content)) for path, content in tree.items()))
            if key not in seen:
                seen.add(key)
                yield tree, moment.done


def lost(home: Path, tree: Tree, done: int) -> bool:
    """Whether a state is unsound, or an acknowledged result is not in it."""
    if home / "store" / MARKER not in tree:
        return done > 0
    store = open_store(home / "store", create=False, files=MemoryFiles(tree))
    if [finding for finding in fsck(store).findings if finding.error]:
        return True
    digests = [one.digest for one in PAIR]
    looser = [parse_spec(one.spec.document() | {"tolerance": 1e-3}) for one in PAIR]
    return done > 0 and not [store.find(one.spec) for one in PAIR] == digests == [store.find(one) for one in looser]


def grouped(home: Path, left_out: int = 0, results: tuple[Factorization, ...] = PAIR) -> Forgetful:
    home.mkdir()
    model = Forgetful(home, left_out)
    put_together(open_store(home / "store", files=model), *results)
    model.done = 1
    model.keep()
    return model


@pytest.mark.usefixtures("_no_waiting")
def test_a_power_loss_at_any_moment_of_a_group_leaves_a_sound_store(tmp_path: Path) -> None:
    model = grouped(tmp_path / "home")
    found = list(states(model))
    assert len(found) > 30
    assert not [done for tree, done in found if lost(tmp_path / "home", tree, done)]


@pytest.mark.usefixtures("_no_waiting")
def test_every_sync_of_a_group_is_needed(tmp_path: Path) -> None:
    syncs = len(grouped(tmp_path / "all").asked)
    assert syncs > 16, "two results: eight files, eight folders of names, and what is above these"
    for left_out in range(1, syncs + 1):
        home = tmp_path / str(left_out)
        model = grouped(home, left_out)
        path, later = model.asked[left_out - 1], model.asked[left_out:]
        again = path.is_dir() and path.relative_to(home) in [one.relative_to(home) for one in later]
        assert again or any(lost(home, tree, done) for tree, done in states(model)), path


def test_a_manifest_says_what_was_checked(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_together(store, PAIR[0])
    sealed = json.loads(path_of(store, f"manifests/{PAIR[0].digest[:2]}/{PAIR[0].digest}.json").read_bytes())
    assert sealed["record"]["files"][0]["proof"] == {"release": "test"}
