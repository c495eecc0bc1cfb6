"""The file operations themselves, and how a directory turns their failures into the store's errors."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path

import pytest
from safetensors import SafetensorError
from store_cases import ShortWrites, factorization, failing, recording

from factorize.errors import CorruptObject, StoreError, StoreUnavailable
from factorize.format import files as files_module
from factorize.format.files import Files
from factorize.storage.fsck import fsck
from factorize.storage.medium.directory import Directory, make_root
from factorize.storage.store import open_store

FILES = Files()


def put(directory: Directory, key: str, data: bytes) -> bool:
    with directory.stage() as staged:
        staged.write(data)
        directory.sync_all([staged])
        return directory.put(key, staged)


def read(directory: Directory, key: str) -> bytes:
    with directory.open(key) as reader:
        return reader.read(reader.entry.size, 0)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_symbolic_links_are_not_opened_and_a_fifo_does_not_block(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError) as raised:
        FILES.open(tmp_path / "link")
    assert raised.value.errno == errno.ELOOP
    os.mkfifo(tmp_path / "fifo")
    FILES.close(FILES.open(tmp_path / "fifo"))


def test_sync_uses_the_full_barrier_where_there_is_one(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"x")
    descriptor = FILES.open(tmp_path / "file")
    seen = []
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append(("fsync", fd)))
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: seen.append((command, fd)))
    monkeypatch.setattr(files_module, "FULL_SYNC", None)
    FILES.sync(descriptor)
    monkeypatch.setattr(files_module, "FULL_SYNC", 51)
    FILES.sync(descriptor)
    FILES.close(descriptor)
    assert seen == [("fsync", descriptor), (51, descriptor)]


def test_an_object_is_written_whole_by_short_writes(tmp_path):
    directory = Directory(tmp_path, ShortWrites())
    assert put(directory, "a", bytes(range(100)))
    assert read(directory, "a") == bytes(range(100))
    with directory.open("a") as reader:
        assert reader.read(20, 90) == bytes(range(90, 100)), "fewer at the end"
        assert reader.read(0, 0) == b""


def test_nothing_stays_open(directory, tmp_path):
    """Whatever is done, and whether it succeeds: a service would run out of descriptors."""
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/dev/fd"))
    put(directory, "a/b", b"data")
    put(directory, "a/b", b"data")
    assert read(directory, "a/b") == b"data"
    with directory.lock("a/b", exclusive=True):
        pass
    directory.refresh("a/b")
    directory.replace("a/b", None, "a/c")
    directory.delete("a/c")
    for key in ("a/b", "fifo"):
        with pytest.raises(StoreError):
            read(directory, key)
    assert len(os.listdir("/dev/fd")) == before


def test_what_is_known_of_folders_and_results_has_an_end(tmp_path, monkeypatch):
    """A service that lives long would fill its memory with them: each family of specs has a folder."""
    monkeypatch.setattr("factorize.storage.medium.directory.MAX_KNOWN_FOLDERS", 10)
    store = open_store(tmp_path / "store", cache_bytes=8 * 7000)
    puts = [factorization(n) for n in range(2, 8)]
    for one in puts:
        store.put(one)
        assert store.result(one.digest).digest == one.digest
        assert len(store.objects._durable) <= 16
    assert len(store.index._manifests._values) in (2, 3)
    assert fsck(store).clean and all(store.load(one.digest).digest == one.digest for one in puts)


def test_refreshing_does_not_reach_through_a_link(directory, tmp_path):
    put(directory, "a", b"data")
    os.utime(tmp_path / "a", (1, 1))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    directory.refresh("link")
    assert (tmp_path / "a").stat().st_mtime == 1
    directory.refresh("a")
    assert (tmp_path / "a").stat().st_mtime > 1


def test_what_disappears_while_it_is_listed_is_left_out(tmp_path):
    class Stale(Files):
        def list(self, path: Path) -> list[str]:
            return ["gone", *super().list(path)]

    directory = Directory(tmp_path, Stale())
    put(directory, "a", b"")
    assert [entry.key for entry in directory.list()] == ["a"]


def test_what_is_no_file_is_corrupt(directory, tmp_path):
    put(directory, "a", b"data")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CorruptObject, match="symbolic link"):
        read(directory, "link")
    for key in ("fifo", "folder"):
        with pytest.raises(CorruptObject, match="not a regular file"):
            read(directory, key)


def test_a_folder_removed_behind_our_back_is_made_again(directory, tmp_path):
    """An operator empties quarantine/ or tmp/, or removes a folder, while a service has the store open."""
    put(directory, "a/b/c", b"1")
    directory.replace("a/b/c", None, "quarantine/a/b/c")
    for folder in ("a", "quarantine", "tmp"):
        shutil.rmtree(tmp_path / folder)
    assert put(directory, "a/b/c", b"2")
    directory.replace("a/b/c", None, "quarantine/a/b/c")
    assert read(directory, "quarantine/a/b/c") == b"2"
    assert [entry.key for entry in directory.list()] == ["quarantine/a/b/c"]


def test_a_root_removed_behind_our_back_is_not_made_again(tmp_path):
    directory = Directory(tmp_path / "root")
    (tmp_path / "root").mkdir()
    with directory.stage() as staged:
        staged.write(b"1")
        shutil.rmtree(tmp_path / "root")
        with pytest.raises(StoreUnavailable, match="does not exist"):
            directory.put("a/b", staged)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "free space"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EROFS, "permissions"),
        (errno.EACCES, "permissions"),
        (errno.EPERM, "hard links"),
        (errno.EIO, "check the disk"),
    ],
)
def test_each_error_names_path_cause_and_remedy(tmp_path, number, remedy):
    directory = Directory(tmp_path, failing(number, at=0))
    with pytest.raises(StoreUnavailable) as raised:
        put(directory, "a", b"")
    for part in (str(tmp_path), os.strerror(number), remedy):
        assert part in str(raised.value)


def test_a_new_root_is_for_its_owner_only_and_an_old_one_is_left_alone(tmp_path):
    root = tmp_path / "x" / "y"
    make_root(FILES, root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE(root.parent.stat().st_mode) == stat.S_IMODE(tmp_path.stat().st_mode | 0o055)
    root.chmod(0o750)
    make_root(FILES, root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o750
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        make_root(FILES, tmp_path / "file" / "z")


def test_at_no_moment_can_others_look_into_a_new_root(tmp_path):
    """Also a process that is killed right after creating it leaves it closed."""
    files = recording()
    make_root(files, tmp_path / "x")
    assert files.calls == ["make_directory", "sync_directory", "sync"], "there is no second step that closes it"
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "told", ["I/O error: full (os error 28)", 'IoError(Os { code: 28, kind: StorageFull, message: "" })']
)
def test_each_safetensors_tells_why_it_cannot_write(tmp_path: Path, told: str) -> None:
    def write(_path: Path) -> None:
        raise SafetensorError(f"Error while serializing: {told}")

    with pytest.raises(OSError) as raised:
        Files().produce(tmp_path / "file", write)
    assert raised.value.errno == errno.ENOSPC
