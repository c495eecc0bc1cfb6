"""Scratch folders: what their process leaves goes with it, or with the first folder of a later one."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from factorize.storage.medium import scratch_folders
from factorize.storage.medium.scratch_folders import ScratchFolder

HOLD = """
import sys
from factorize.storage.medium.scratch_folders import ScratchFolder

with ScratchFolder(sys.argv[1]) as folder:
    (folder.path / "large").write_bytes(b"x")
    print(folder.path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have temporary files made in a folder of the test, which nothing has swept yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch_folders._sweep.cache_clear()
    return tmp_path


@contextmanager
def holding(temporary: Path, kind: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run a process that holds a folder until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, kind],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        assert process.stdin is not None
        process.stdin.close()


def killed(temporary: Path) -> Path:
    """Return the folder of a process that was killed."""
    with holding(temporary, "solve") as (process, folder):
        process.send_signal(signal.SIGKILL)
        process.wait(600)
    assert (folder / "large").exists()
    return folder


def test_a_folder_is_private_and_goes_with_its_owner(temporary: Path) -> None:
    with ScratchFolder("solve") as folder:
        path = folder.path
        (path / "some").mkdir()
        assert path.parent == temporary
        assert path.name.startswith("factorize.solve.")
        assert path.stat().st_mode & 0o777 == 0o700
    folder.close()
    assert not list(temporary.iterdir())


def test_the_first_folder_of_a_process_removes_what_a_killed_one_left(temporary: Path) -> None:
    left = killed(temporary)
    with holding(temporary, "engine") as (_, other):
        assert not left.exists()
        with ScratchFolder("solve") as own:
            assert (other / "large").exists(), "its owner lives"
            with holding(temporary, "engine") as (_, third):
                assert own.path.exists()
                assert third.exists()
    assert not list(temporary.iterdir())


def test_only_folders_of_this_kind_are_removed(temporary: Path) -> None:
    target = temporary / "target"
    target.mkdir()
    (temporary / "factorize.file").write_text("a file")
    (temporary / "factorize.link").symlink_to(target)
    (temporary / "factorize-other").mkdir()
    before = sorted(temporary.iterdir())
    ScratchFolder("solve").close()
    assert sorted(temporary.iterdir()) == before


def test_folders_of_others_stay(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = killed(temporary)
    monkeypatch.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)
    ScratchFolder("solve").close()
    assert left.exists()


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, taken = fcntl.flock, []

    def swept(descriptor: int, how: int) -> None:
        if not taken:
            taken.extend(temporary.iterdir())
            shutil.rmtree(taken[0])
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", swept)
    with ScratchFolder("solve") as folder:
        assert folder.path.exists()
        assert taken != [folder.path]
    assert not list(temporary.iterdir())


def test_a_folder_that_another_holds_for_a_moment_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, tries = fcntl.flock, []

    def busy(descriptor: int, how: int) -> None:
        tries.append(descriptor)
        if len(tries) == 1:
            raise BlockingIOError(errno.EWOULDBLOCK, "held")
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", busy)
    with ScratchFolder("solve") as folder:
        assert list(temporary.iterdir()) == [folder.path]
    assert len(tries) == 2


def test_where_folders_cannot_be_locked_they_serve_and_nothing_is_removed(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = killed(temporary)

    def refuse(*_: Any) -> None:
        raise OSError(errno.EBADF, "this file system locks no folders")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with ScratchFolder("solve") as folder:
        assert folder.path.exists()
    assert not folder.path.exists()
    assert left.exists()
