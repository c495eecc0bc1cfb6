"""A put that is cut short at every point: by errors of the medium, by kill -9, by a power loss."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from store_cases import factorization, failing, recording, spec

from factorize.errors import StoreUnavailable
from factorize.files import Files
from factorize.fsck import fsck
from factorize.objects import STAGING
from factorize.store import open_store

LOWER = [[1.0, 0.0], [2.0, 1.0]]


def artifact():
    """One put that publishes everything: a user's matrix, a file, a manifest, two entries."""
    return factorization(of=spec(workload={"kind": "matrix", "rows": LOWER}))


PUT = artifact()


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is the order of the calls; the disk's own time adds nothing."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def calls_of_a_put(root: Path) -> list[str]:
    files = recording()
    open_store(root, files=files).put(PUT)
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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_an_error_at_any_call_is_named_and_leaves_nothing_behind(tmp_path, number):
    calls = calls_of_a_put(tmp_path / "whole")
    refused = 0
    for at, operation in enumerate(calls):
        root = tmp_path / str(at)
        try:
            open_store(root, files=failing(number, at)).put(PUT)
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


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_an_error_at_any_call_of_a_read_is_named(tmp_path, number):
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


def test_an_error_at_any_call_of_fsck_moves_nothing_that_is_sound(tmp_path):
    open_store(tmp_path).put(PUT)
    before = sorted(path for path in tmp_path.rglob("*"))
    files = recording()
    fsck(open_store(tmp_path, files=files), repair=True)
    for at in range(len(files.calls)):
        try:
            report = fsck(open_store(tmp_path, files=failing(errno.EIO, at)), repair=True)
        except StoreUnavailable:
            pass  # the listing itself
        else:
            assert {finding.kind for finding in report.findings} <= {"unreadable", "orphan-manifest", "orphan-blob"}
        assert sorted(path for path in tmp_path.rglob("*")) == before


WRITER = """
import os, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from store_cases import killing
from test_store_crash import PUT
from factorize.store import open_store
import safetensors.numpy
os.fsync = lambda descriptor: None
at = 0
while True:
    child = os.fork()
    if child == 0:
        open_store(Path(sys.argv[1]) / str(at), files=killing(at)).put(PUT)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(at, status, flush=True)
    if status == 0:
        break
    at += 1
"""


def test_a_writer_killed_at_any_call_leaves_a_sound_store(tmp_path):
    """One process forks a writer per call and each is killed with SIGKILL just before that call."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path), str(here), str(here.parent)],
        capture_output=True, text=True, timeout=200, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    statuses = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert statuses == [9] * (len(statuses) - 1) + [0]
    assert len(statuses) > 80
    for at in range(len(statuses)):
        root = tmp_path / str(at)
        if not root.exists():
            assert at <= 1
            continue
        left = list((root / STAGING).glob("*"))
        assert len(left) <= 2, "the factor file and one record"
        check_and_finish(root)
        report = fsck(open_store(root), repair=True, grace_seconds=-1)
        assert report.clean and not list((root / STAGING).glob("*"))
        assert [finding.action for finding in report.findings if finding.kind == "temporary"] == ["removed"] * len(left)


class PowerModel(Files):
    """The real file system, and beside it what of it would survive a power loss.

    A file's bytes survive from its `sync` on, a name from the next `sync_directory` of its folder on; anything else may
    or may not survive, each on its own. Files are known by their inode number.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: dict[Path, int | None] = {}  # durable: inode, or None for a folder
        self.pending: list[tuple[Path, int | None]] = []  # names that appeared since
        self.synced: dict[int, bytes] = {}
        self.cached: dict[int, bytes] = {}
        self.states: list[tuple[dict, list, dict, dict]] = []

    def _keep(self) -> None:
        self.states.append((dict(self.names), list(self.pending), dict(self.synced), dict(self.cached)))

    def _appear(self, path: Path, inode: int | None) -> None:
        self.pending.append((path, inode))
        self._keep()

    def make_directory(self, path: Path) -> None:
        there = path.exists()
        super().make_directory(path)
        if not there:
            self._appear(path, None)

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self.cached[os.fstat(descriptor).st_ino] = b""
        self._appear(path, os.fstat(descriptor).st_ino)
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        count = super().write(descriptor, data)
        self.cached[os.fstat(descriptor).st_ino] += bytes(data[:count])
        self._keep()
        return count

    def produce(self, path: Path, write) -> None:
        super().produce(path, write)
        self.cached[path.stat().st_ino] = path.read_bytes()
        self._appear(path, path.stat().st_ino)

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        inode = os.fstat(descriptor).st_ino
        if inode in self.cached:
            self.synced[inode] = self.cached[inode]
            self._keep()

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.names |= {name: inode for name, inode in self.pending if name.parent == path}
        self.pending = [change for change in self.pending if change[0].parent != path]
        self._keep()

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self._appear(target, target.stat().st_ino)

    def unlink(self, path: Path) -> None:
        """Only temporary files are removed: whether the name came and went or never came is the same."""
        super().unlink(path)
        self.pending = [change for change in self.pending if change[0] != path]
        self.names.pop(path, None)
        self._keep()

    def survivors(self) -> Iterator[dict[Path, bytes | None]]:
        """Every state that a power loss at any moment may leave: path to content, None for folders."""
        for durable, pending, synced, cached in self.states:
            for chosen in itertools.product([False, True], repeat=len(pending)):
                names = durable | dict(itertools.compress(pending, chosen))
                for whole in (False, True):
                    yield {
                        name: None if inode is None else cached[inode] if whole else synced.get(inode, b"")
                        for name, inode in names.items()
                        if all(folder in names for folder in name.parents if folder.is_relative_to(self.root))
                    }


def materialise(state: dict[Path, bytes | None], model_root: Path, root: Path) -> None:
    for name in sorted(state):
        target = root / name.relative_to(model_root)
        content = state[name]
        if content is None:
            target.mkdir()
        else:
            target.write_bytes(content)
            target.chmod(0o444)


def test_a_power_loss_at_any_moment_leaves_a_sound_store(tmp_path, monkeypatch):
    """Every subset of what was not synced, at every moment of creating a store and putting into it."""
    home = tmp_path / "model"
    home.mkdir()
    model = PowerModel(home)
    # Inode numbers must stay different for the model: keep every temporary file alive under another name.
    kept = tmp_path / "kept"
    kept.mkdir()
    unlink = Files.unlink
    monkeypatch.setattr(Files, "unlink", lambda self, path: (os.link(path, kept / path.name), unlink(self, path)))
    model.names[home] = None
    store = open_store(home / "store", files=model)
    store.put(PUT)
    store.put(factorization(2, tolerance=1e-6))
    monkeypatch.undo()
    seen = set()
    for state in model.survivors():
        seen.add(tuple(sorted(state.items(), key=str)))
    assert len(seen) > 60
    for number, frozen in enumerate(seen):
        root = tmp_path / f"state-{number}"
        materialise(dict(frozen), home, root)
        there = root / "store"
        if there.exists():
            report = fsck(open_store(there))
            assert report.clean, report.findings
            answer = open_store(there).digest_of(PUT.spec_digest)
            assert answer is None or open_store(there).load(answer).digest == PUT.digest
        shutil.rmtree(root)
    state = {name: None if inode is None else model.synced[inode] for name, inode in model.names.items()}
    materialise(state, home, tmp_path / "acknowledged")
    assert open_store(tmp_path / "acknowledged" / "store").load(PUT.spec_digest).digest == PUT.digest, (
        "put had returned"
    )


def test_the_model_of_power_losses_finds_a_put_without_syncs(tmp_path):
    """The model would see a mistake: leave the file's sync out, and some state shows an empty object."""

    class Forgetful(PowerModel):
        def sync(self, descriptor: int) -> None:
            pass

    home = tmp_path / "model"
    home.mkdir()
    model = Forgetful(home)
    model.names[home] = None
    open_store(home / "store", files=model)
    bad = 0
    for number, state in enumerate(model.survivors()):
        materialise(state, home, tmp_path / str(number))
        marker = tmp_path / str(number) / "store" / "store.json"
        bad += marker.exists() and not marker.read_bytes()
    assert bad


def test_a_full_disk_refuses_a_put_and_serves_on(tmp_path):
    """Space runs out in the middle of the file, and comes back."""

    class Quota(Files):
        left = 1 << 40

        def _take(self, size: int) -> None:
            self.left -= size
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def write(self, descriptor: int, data: memoryview) -> int:
            self._take(len(data))
            return super().write(descriptor, data)

        def produce(self, path: Path, write) -> None:
            super().produce(path, write)
            self._take(path.stat().st_size)

    files = Quota()
    store = open_store(tmp_path, files=files)
    first = factorization(3)
    store.put(first)
    for left in range(0, 4000, 100):
        files.left = left
        try:
            store.put(factorization(4 + left // 100))
        except StoreUnavailable as error:
            assert "free space" in str(error)
        assert store.load(first.spec_digest).digest == first.digest
        assert not list((tmp_path / STAGING).glob("*"))
    assert fsck(store).clean
    files.left = 1 << 40
    store.put(factorization(60))
    np.testing.assert_array_equal(store.load(factorization(60).spec_digest).rows("C", 0, 60), np.eye(60))
