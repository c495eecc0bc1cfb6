"""A put that is cut short at every point: by errors of the medium, by kill -9, by a power loss."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from power_loss import MemoryFiles, Moment, PowerModel, Tree, survivors, together, without_staging
from specs import spec_of
from store_cases import factorization, failing, recording, toeplitz

from factorize.encoding import sha256
from factorize.errors import NotFound, Revoked, StoreUnavailable
from factorize.factors.factorization import Factorization
from factorize.format.container import Container
from factorize.format.files import Files
from factorize.format.manifest import Manifest
from factorize.spec import parse_spec
from factorize.storage import objects
from factorize.storage.fsck import fsck
from factorize.storage.gc import gc
from factorize.storage.objects import QUARANTINE, STAGING
from factorize.storage.store import MARKER, Store, open_store

LOWER = [[1.0, 0.0], [2.0, 1.0]]


def artifact():
    """One put that publishes everything: a user's matrix, a file, a manifest, two entries."""
    return factorization(of=spec_of({"kind": "matrix", "rows": LOWER}, "identity"))


PUT = artifact()
ANSWER = factorization(3)
SECOND = factorization(3, strategy=toeplitz(3))


def believed(path: Path) -> dict[str, str]:
    """A check that finds nothing wrong; beside it, files are synced."""
    return {"digest": Manifest.read(Container(path))["digest"], "sha256": sha256(path.read_bytes())}


ACTIONS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put(PUT),
    "checked put": lambda store: store.put(PUT, check=believed),
    "revoke": lambda store: store.revoke(ANSWER.digest, "wrong"),
    "delete": lambda store: gc(store, delete=[ANSWER.digest]),
}


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is the order of the calls; the disk's own time adds nothing."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def calls_of(root: Path, action: str) -> list[str]:
    files = recording()
    ACTIONS[action](open_store(root, files=files))
    return files.calls


def check(root: Path) -> None:
    """After any cut: nothing unsound is visible."""
    store = open_store(root)
    report = fsck(store)
    assert report.clean, report.findings
    assert store.digest_of(PUT.spec_digest) in (None, PUT.digest)


def check_and_finish(root: Path) -> None:
    """After any cut nothing unsound is visible, and the same put then succeeds."""
    check(root)
    open_store(root).put(PUT)
    assert open_store(root).load(PUT.spec_digest).digest == PUT.digest


@pytest.mark.parametrize(("number", "action"), [(errno.ENOSPC, "put"), (errno.EIO, "checked put")])
def test_an_error_at_any_call_is_named_and_leaves_nothing_behind(tmp_path, number, action):
    calls = calls_of(tmp_path / "whole", action)
    refused = 0
    for at, operation in enumerate(calls):
        root = tmp_path / str(at)
        try:
            ACTIONS[action](open_store(root, files=failing(number, at)))
        except StoreUnavailable as error:
            refused += 1
            assert os.strerror(number) in str(error) and str(root) in str(error)
        else:
            assert operation in ("unlink", "close"), "only these may fail unnoticed: removing, closing what was read"
        if root.exists() and operation != "unlink":
            assert not list((root / STAGING).glob("*")), "the temporary file is removed"
        (check_and_finish if number == errno.EIO else check)(root)
        shutil.rmtree(root)
    assert refused > len(calls) / 2


def test_an_error_at_any_call_of_a_read_is_named(tmp_path):
    number = errno.EMFILE
    open_store(tmp_path).put(PUT)

    def read(files: Files) -> str:
        store = open_store(tmp_path, files=files)
        assert [manifest["digest"] for manifest in store.items()] == [PUT.digest]
        assert store.find(PUT.spec) == PUT.digest
        return store.load(PUT.spec_digest).digest

    files = recording()
    read(files)
    for at, operation in enumerate(files.calls):
        if operation == "close":
            assert read(failing(number, at)) == PUT.digest
        else:
            with pytest.raises(StoreUnavailable, match=os.strerror(number)):
                read(failing(number, at))


def test_an_error_at_any_call_of_fsck_is_reported_and_moves_nothing(tmp_path):
    """What cannot be read is named, and nothing else is accused."""
    open_store(tmp_path).put(PUT)
    before = sorted(path for path in tmp_path.rglob("*"))
    files, reported = recording(), set()
    store = open_store(tmp_path, files=files)
    fsck(store, repair=True)
    for at in range(len(files.calls)):
        try:
            report = fsck(open_store(tmp_path, files=failing(errno.EIO, at)), repair=True)
        except StoreUnavailable:
            continue  # the listing itself
        assert {finding.kind for finding in report.findings} <= {"unreadable", "orphan"}
        errors = {finding.key for finding in report.findings if finding.error}
        assert len(errors) <= 1 and report.clean == (not errors)
        assert sorted(path for path in tmp_path.rglob("*")) == before
        reported |= errors
    assert reported == {entry.key for entry in store.objects.list()} - {MARKER}


WRITER = """
import os, shutil, sys
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from store_cases import killing
from test_store_crash import ACTIONS
from factorize.storage.store import open_store
import safetensors.numpy
os.fsync = lambda descriptor: None
home = Path(sys.argv[1])
at = 0
while True:
    if (home / "before").exists():
        shutil.copytree(home / "before", home / str(at))
    child = os.fork()
    if child == 0:
        ACTIONS[sys.argv[2]](open_store(home / str(at), files=killing(at)))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(at, status, flush=True)
    if status == 0:
        break
    at += 1
"""


def killed_at_every_call(action: str, folder: Path) -> int:
    """One process forks a writer per call and each is killed with SIGKILL just before that call; how many there were."""
    here = Path(__file__).parent
    ROOT = here.parents[2]
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(folder), action, str(here), str(ROOT / "tests" / "support"), str(ROOT)],
        capture_output=True, text=True, timeout=600, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    statuses = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert statuses == [9] * (len(statuses) - 1) + [0]
    return len(statuses)


def check_and_finish_removal(store: Store, action: str) -> None:
    """After any cut of a removal the other answer stands, and the same removal then succeeds."""
    assert {finding.kind for finding in fsck(store).findings if finding.error} <= {"missing"}
    assert store.load(PUT.digest).digest == PUT.digest
    with suppress(NotFound):
        ACTIONS[action](store)
    assert fsck(store).clean and store.digest_of(ANSWER.spec_digest) is None
    assert [manifest["digest"] for manifest in store.items()] == [PUT.digest]


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A folder whose `before` is a store of two answers."""
    for put in (PUT, ANSWER):
        open_store(tmp_path / "before").put(put)
    return tmp_path


@pytest.mark.parametrize("action", ["revoke", "delete"])
def test_an_error_at_any_call_of_a_removal_is_named_and_leaves_a_sound_store(before, action):
    calls = calls_of(shutil.copytree(before / "before", before / "whole"), action)
    for at, operation in enumerate(calls):
        root = shutil.copytree(before / "before", before / str(at))
        try:
            ACTIONS[action](open_store(root, files=failing(errno.EIO, at)))
        except StoreUnavailable as error:
            assert os.strerror(errno.EIO) in str(error)
        except NotFound:
            assert action == "delete", "an answer that cannot be read is none to be deleted"
        else:
            assert operation in ("unlink", "close", "read", "open", "status"), operation
        check_and_finish_removal(open_store(root), action)


@pytest.mark.parametrize("action", ["revoke", "delete"])
def test_a_removal_killed_at_any_call_leaves_a_sound_store(before, action):
    revoked = []
    for at in range(killed_at_every_call(action, before)):
        store = open_store(before / str(at))
        revoked.append(store.revocations.find(ANSWER.digest) is not None)
        check_and_finish_removal(store, action)
    assert revoked == sorted(revoked), "what stands goes on standing"
    assert sum(revoked) > 5 or action == "delete", "and stands before the others are searched"


def test_a_writer_killed_at_any_call_leaves_a_sound_store(tmp_path, monkeypatch):
    monkeypatch.setattr(objects, "TEMPORARY_SECONDS", -1.0)
    calls = killed_at_every_call("checked put", tmp_path)
    assert calls > 80
    for at in range(calls):
        root = tmp_path / str(at)
        if not root.exists():
            assert at <= 1
            continue
        left = list((root / STAGING).glob("*"))
        assert len(left) <= 4, "the factor file and three records"
        check_and_finish(root)
        report = fsck(open_store(root), repair=True)
        assert report.clean and not list((root / STAGING).glob("*"))
        assert [finding.action for finding in report.findings if finding.kind == "temporary"] == ["removed"] * len(left)


def recorded(
    home: Path, steps: list[Callable[[Store], object]], kind: Callable[[Path], PowerModel] = PowerModel
) -> PowerModel:
    """Carry out steps on a store, each of which counts as done once it has returned."""
    home.mkdir()
    model = kind(home)
    store = open_store(home / "store", files=model)
    for step in steps:
        step(store)
        model.done += 1
        model.keep()
    return model


STEPS: list[Callable[[Store], object]] = [
    lambda store: store.put(PUT),
    lambda store: store.put(ANSWER, check=believed),
    lambda store: store.put(SECOND),
    lambda store: store.revoke(ANSWER.digest, "wrong"),
    lambda store: gc(store, delete=[SECOND.digest]),
    lambda store: store.put(SECOND),
]
ANSWERED = {range(1, 7): PUT, range(2, 3): ANSWER, range(6, 7): SECOND}
"""After how many of the steps what answers its spec; while one is being revoked or deleted it may or may not."""


def unsound(home: Path, tree: Tree, done: int) -> str | None:
    """What is wrong with a state that a power loss has left, after so many of the steps had returned; None if nothing."""
    if home / "store" / MARKER not in tree:
        return "what was acknowledged is gone" if done else None
    try:
        store = open_store(home / "store", create=False, files=MemoryFiles(tree))
    except StoreUnavailable as error:
        return f"the store does not open: {error}"
    errors = [finding for finding in fsck(store).findings if finding.error]
    # A revocation that had not returned may stand under one of its names; a repair, or revoking again, mends that.
    if [finding for finding in errors if finding.kind != "missing" or done != 3]:
        return str(errors)
    for step, put in enumerate((PUT, ANSWER, SECOND)):
        present = any(manifest["digest"] == put.digest for manifest in store.items())
        expected = done > step and not (put is ANSWER and done >= 3) and not (put is SECOND and 4 <= done <= 5)
        if present and store.load(put.digest).digest != put.digest:
            return f"another answer than {step}"
        if expected and not present:
            return f"acknowledged answer {step} is gone"
    for put in [put for after, put in ANSWERED.items() if done in after]:
        looser = parse_spec(put.spec.document() | {"tolerance": 1e-3})
        if (store.find(put.spec), store.find(looser)) != (put.digest, put.digest):
            return "an acknowledged answer is not found by its spec any more"
    if done == 6 and len(list(store.objects.list(QUARANTINE))) != 2:
        return "an entry that was moved out of the way is gone"
    if done >= 4:
        with suppress(Revoked):
            store.manifest(ANSWER.digest)
            return "a revocation is lost"
        if store.digest_of(ANSWER.spec_digest) == ANSWER.digest:
            return "a revoked result is an answer"
    return None


def distinct(moments: Iterable[Moment]) -> Iterator[tuple[Tree, int]]:
    """Every state once, with the number of steps that had returned."""
    seen = set()
    for moment in moments:
        for tree in survivors(without_staging(moment)):
            key = (moment.done, frozenset((path, hash(content)) for path, content in tree.items()))
            if key not in seen:
                seen.add(key)
                yield tree, moment.done


def test_a_power_loss_at_any_moment_leaves_a_sound_store(tmp_path):
    """Every subset of what was not synced, at every moment of putting, revoking, deleting and putting again."""
    home = tmp_path / "home"
    model = recorded(home, STEPS)
    on_disk = {path: path.read_bytes() if path.is_file() else None for path in [home, *home.rglob("*")]}
    assert next(survivors(replace(model.moments[-1], pending=()))) == on_disk, "the model is the disk"
    count = 0
    for tree, done in distinct(model.moments):
        count += 1
        found = unsound(home, tree, done)
        assert found is None, (done, found)
    assert count > 50


def test_a_power_loss_while_two_write_leaves_a_sound_store(tmp_path):
    """Two writers, each at some moment of its put: one of 31 moments (`python -m benchmarks.soak` goes through all of them)."""
    home, moments = two_writers(tmp_path)
    count = 0
    for tree, _ in distinct(itertools.islice(moments, 0, None, 31)):
        count += 1
        found = unsound(home, tree, 0)
        assert found is None, found
    assert count > 30


def two_writers(
    folder: Path, puts: tuple[Factorization, Factorization] = (PUT, ANSWER)
) -> tuple[Path, Iterator[Moment]]:
    """Put two answers from the same beginning, and combine every moment of one with every moment of the other."""
    home = folder / "home"
    runs = []
    for put in puts:
        model = recorded(home, [lambda store, put=put: store.put(put)])
        start = next(i for i, moment in enumerate(model.moments) if home / "store" / MARKER in moment.names)
        runs.append([replace(moment, done=0) for moment in model.moments[start:]])
        shutil.rmtree(home)
    return home, (together(one, other) for one, other in itertools.product(*runs))


class Forgetful(PowerModel):
    """Leaves out one sync of a file or a folder, the `left_out`-th."""

    def __init__(self, root: Path, left_out: int) -> None:
        super().__init__(root)
        self.left_out = left_out
        self.asked: list[Path | None] = []
        """The folders in order, None for a file."""

    def _does(self, folder: Path | None) -> bool:
        self.asked.append(folder)
        return len(self.asked) != self.left_out

    def sync(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_ino not in self._files or self._does(None):
            super().sync(descriptor)

    def sync_directory(self, path: Path) -> None:
        if self._does(path):
            super().sync_directory(path)


def test_every_single_sync_of_a_put_is_needed(tmp_path):
    """Without it some power loss leaves an unsound store, unless the same folder is synced once more before the end."""
    steps = [ACTIONS["checked put"]]
    syncs = len(recorded(tmp_path / "all", steps, lambda root: Forgetful(root, 0)).asked)
    assert syncs > 20
    for left_out in range(1, syncs + 1):
        home = tmp_path / str(left_out)
        model = recorded(home, steps, lambda root, left_out=left_out: Forgetful(root, left_out))
        folder, later = model.asked[left_out - 1], model.asked[left_out:]
        noticed = any(unsound(home, tree, done) for tree, done in distinct(model.moments))
        assert noticed or (folder is not None and folder in later), (folder, left_out)
