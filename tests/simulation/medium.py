"""The simulated medium: a disk that loses what was not synced, a bucket that fails and answers late, and their faults."""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from power_loss import Change, Content, _variants, apply

from factorize.format.files import Files
from factorize.storage.medium.bucket import Bucket

from .world import EPOCH, Killed, Process, World

ROOT = Path("/simulated/store")
GROWING = frozenset({"make_directory", "create", "write", "produce", "link", "put", "copy"})
MUTATING = frozenset({"make_directory", "create", "write", "produce", "seal", "sync", "sync_directory", "link", "rename", "unlink", "refresh"})  # fmt: skip
BUCKET_MUTATING = frozenset({"put", "copy", "delete"})


@dataclass
class Armed:
    """A fault that strikes at the k-th matching request from now on."""

    item: Any
    requests: frozenset[str]
    process: str | None
    left: int
    effect: str


@dataclass
class Faults:
    """What is wrong with medium and database at the moment."""

    world: World
    armed: list[Armed] = field(default_factory=list)
    until: dict[str, float] = field(default_factory=dict)
    fired: set[Any] = field(default_factory=set)
    """The faults of the plan that have struck."""
    windows: dict[str, Any] = field(default_factory=dict)

    def arm(self, item: Any, requests: frozenset[str], process: str | None, left: int, effect: str) -> None:
        self.armed.append(Armed(item, requests, process, left, effect))

    def open(self, item: Any, name: str, seconds: float) -> None:
        self.until[name], self.windows[name] = self.world.now + seconds, item

    def lasts(self, name: str) -> bool:
        """Whether a condition holds now; that somebody asks counts as a strike of its fault."""
        holds = self.world.now < self.until.get(name, 0.0)
        if holds:
            self.fired.add(self.windows[name])
        return holds

    def strikes(self, request: str, process: Process) -> str | None:
        for armed in self.armed:
            if request in armed.requests and armed.process in (None, process.name.partition(".")[0]):
                armed.left -= 1
                if armed.left < 0:
                    self.armed.remove(armed)
                    self.fired.add(armed.item)
                    self.world.say(f"{process.name}: {armed.effect} at {request}")
                    return armed.effect
        return None

    def clear(self) -> None:
        self.armed.clear()
        self.until.clear()


@contextmanager
def request(
    faults: Faults,
    process: Process,
    name: str,
    error: Callable[[str], BaseException],
    *,
    conditions: Sequence[str] = (),
    quick: bool = False,
) -> Iterator[str | None]:
    """Carry a request out after a moment in which others go on, unless a fault strikes before it or after it.

    Args:
        faults: what is wrong.
        process: who asks.
        name: of the request.
        error: makes an error of an effect or a condition.
        conditions: under each of which it fails.
        quick: whether nobody else goes on before it.
    """
    world = faults.world
    if not quick:
        world.step()
    effect = faults.strikes(name, process)
    if quick and effect is not None:
        effect = effect.removesuffix(
            "-after"
        )  # it would leave a transaction open, for which SQLite waits on a real clock
    if effect == "kill":
        world.kill(process)
        raise Killed
    if effect is not None and not effect.endswith("-after") and effect != "torn":
        raise error(effect)
    for condition in filter(faults.lasts, conditions):
        raise error(condition)
    yield effect
    if effect == "kill-after":
        world.kill(process)
        raise Killed
    if effect is not None and effect.endswith("-after"):
        raise error(effect)


def _conditions(name: str, mutating: frozenset[str]) -> list[str]:
    """Return the conditions of a medium under which a request fails."""
    return ["read-only"] * (name in mutating) + ["full"] * (name in GROWING) + ["gone"]


def _file_error(effect: str) -> OSError:
    numbers = {"full": errno.ENOSPC, "many": errno.EMFILE, "locks": errno.ENOLCK, "read-only": errno.EROFS}
    number = numbers.get(effect, errno.EIO)
    return OSError(number, os.strerror(number))


def _bucket_error(effect: str) -> GenericError:
    words = {"full": "507 InsufficientStorage", "forbidden": "403 Forbidden", "read-only": "403 Forbidden"}
    return GenericError(words.get(effect, "503 SlowDown"))


class Odd(Content):
    """What is no file: a symbolic link, or a pipe."""

    def __init__(self, mode: int) -> None:
        super().__init__()
        self.mode = mode


class Disk:
    """Names and contents, and which of them a power loss keeps."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world, self.faults = world, faults
        self.names: dict[Path, Content | None] = {Path("/"): None, ROOT.parent: None}
        self.durable = dict(self.names)
        self.pending: list[Change] = []
        self.modified: dict[Content, float] = {}
        self.locks: list[tuple[int, Content, bool]] = []
        self.folder_lock = Content()  # a store locks one folder only
        self.open: dict[int, tuple[Content, Process]] = {}
        self.numbers: dict[Any, int] = {}
        self.watch: Callable[[Path], None] = lambda path: None
        self.folders: dict[Path, set[str]] = {}

    def change(self, path: Path, content: Content | None, *, appears: bool = True) -> None:
        change = Change(path, content, appears)
        apply(self.names, change)
        self.pending.append(change)
        names = self.folders.setdefault(path.parent, set())
        names.add(path.name) if appears else names.discard(path.name)

    def synced(self, data: bytes, after: float = 0.0) -> Content:
        """Return a file's content that is on the medium, and was written some time from now."""
        content = Content()
        content.synced = content.cached = data
        self.modified[content] = EPOCH + self.world.now + after
        return content

    def sync_names(self, folder: Path) -> None:
        for change in [change for change in self.pending if change.path.parent == folder]:
            apply(self.durable, change)
        self.pending = [change for change in self.pending if change.path.parent != folder]

    def survivor(self, luck: random.Random | None) -> dict[Path, bytes | None]:
        """What a power loss leaves: of what was not synced each part or not, by luck; without luck, nothing of it."""
        names = dict(self.durable)
        for change in self.pending:
            if luck is not None and luck.random() < 0.5:
                apply(names, change)
        kept: dict[Path, bytes | None] = {}
        for path in sorted(names, key=str):
            content = names[path]
            if path.parent in kept or path == Path("/"):
                unsure = content is not None and content.synced != content.cached and luck is not None
                kept[path] = (
                    luck.choice(_variants(content.synced, content.cached)) if unsure and content is not None and luck
                    else None if content is None else content.synced
                )  # fmt: skip
        return kept

    def lose_power(self, luck: random.Random) -> None:
        kept, self.pending, self.locks, self.open = self.survivor(luck), [], [], {}
        self.names, self.folders = {}, {}
        for path, data in kept.items():
            self.change(path, None if data is None else self.synced(data))
        self.folders.get(Path("/"), set()).discard("")
        self.durable, self.pending = dict(self.names), []

    def release(self, process: Process) -> None:
        """Close what a process that has ended had open."""
        gone = [number for number, (_, owner) in self.open.items() if owner is process]
        for number in gone:
            self.close(number)

    def close(self, number: int) -> None:
        self.open.pop(number, None)
        self.locks = [held for held in self.locks if held[0] != number]

    def content(self, path: Path) -> Content | None:
        try:
            return self.names[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None

    def stored(self) -> dict[str, bytes]:
        """Return the objects that are seen, by key."""
        files = {path: content for path, content in self.names.items() if content is not None and ROOT in path.parents}
        return {str(path.relative_to(ROOT)): content.cached for path, content in files.items()}

    def written_since(self, moment: float) -> set[str]:
        """Return the keys of objects that are younger than a moment."""
        return {
            str(path.relative_to(ROOT))
            for path, content in self.names.items()
            if content is not None and ROOT in path.parents and self.modified.get(content, EPOCH) >= moment
        }

    def bytes_at(self, key: str) -> bytes | None:
        content = self.names.get(ROOT / key)
        return None if content is None else content.cached

    def make_folders(self, path: Path) -> None:
        for folder in reversed(path.parents):
            if folder not in self.names:
                self.change(folder, None)

    def leave(self, key: str, data: bytes, age: float) -> None:
        """Let an object be there since some time."""
        self.make_folders(ROOT / key)
        self.change(ROOT / key, self.synced(data, -age))

    def damage(self, key: str, data: bytes) -> None:
        """Let an object have other bytes, as a failing disk does."""
        self.names[ROOT / key] = self.durable[ROOT / key] = self.synced(data, 1.0)


class DiskFiles(Files):
    """The file operations of one process on the simulated disk."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk, self.process = disk, process

    def _request(self, name: str) -> AbstractContextManager[str | None]:
        conditions = _conditions(name, MUTATING)
        return request(self.disk.faults, self.process, name, _file_error, conditions=conditions)

    def make_directory(self, path: Path, mode: int = 0o777) -> None:
        with self._request("make_directory"):
            self.disk.content(path.parent)
            if path not in self.disk.names:
                self.disk.change(path, None)

    def create(self, path: Path) -> int:
        with self._request("create"):
            self.disk.content(path.parent)
            content = Content()
            self.disk.modified[content] = EPOCH + self.disk.world.now
            self.disk.change(path, content)
            return self._descriptor(content)

    def _descriptor(self, content: Content) -> int:
        number = self.disk.world.count = self.disk.world.count + 1
        self.disk.open[number] = content, self.process
        return number

    def write(self, descriptor: int, data: memoryview) -> int:
        with self._request("write") as effect:
            count = (
                max(1, len(data) // 2)
                if effect == "torn" or len(data) > 1 and self.process.world.task.luck.random() < 0.1
                else len(data)
            )
            self.disk.open[descriptor][0].cached += bytes(data[:count])
            if effect == "torn":
                self.process.world.kill(self.process)
                raise Killed
            return count

    def produce(self, path: Path, write: Any) -> None:
        with self._request("produce"):
            content = Content()
            if isinstance(write, bytes):
                content.cached = write
            else:
                with TemporaryDirectory() as folder:
                    write(Path(folder) / path.name)
                    content.cached = (Path(folder) / path.name).read_bytes()
            self.disk.modified[content] = EPOCH + self.disk.world.now
            self.disk.content(path.parent)
            self.disk.change(path, content)

    def seal(self, descriptor: int) -> None:
        with self._request("seal"):
            pass

    def sync(self, descriptor: int) -> None:
        with self._request("sync"):
            content = self.disk.open[descriptor][0]
            content.synced = content.cached

    def sync_directory(self, path: Path) -> None:
        with self._request("sync_directory"):
            self.disk.content(path)
            self.disk.sync_names(path)

    def link(self, source: Path, target: Path) -> None:
        with self._request("link"):
            content = self.disk.content(source)
            self.disk.content(target.parent)
            if target in self.disk.names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            self.disk.change(target, content)
            self.disk.watch(target)

    def rename(self, source: Path, target: Path) -> None:
        with self._request("rename"):
            content = self.disk.content(source)
            self.disk.content(target.parent)
            self.disk.change(target, content)
            self.disk.change(source, content, appears=False)
            self.disk.watch(target)
            self.disk.watch(source)

    def unlink(self, path: Path) -> None:
        with self._request("unlink"):
            self.disk.change(path, self.disk.content(path), appears=False)
            self.disk.watch(path)

    def lock(self, path: Path, exclusive: bool) -> int:
        with self._request("lock"):
            content = self.disk.content(path) or self.disk.folder_lock
        while any(held is content and (exclusive or other) for _, held, other in self.disk.locks):
            self.process.world.park(0.05)
        number = self._descriptor(content)
        self.disk.locks.append((number, content, exclusive))
        return number

    def refresh(self, path: Path) -> None:
        with self._request("refresh"):
            content = self.disk.content(path)
            if content is not None:
                self.disk.modified[content] = EPOCH + self.disk.world.now

    def open(self, path: Path) -> int:
        with self._request("open"):
            content = self.disk.content(path)
            if isinstance(content, Odd) and content.mode == stat.S_IFLNK:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            return self._descriptor(Odd(stat.S_IFDIR) if content is None else content)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        with self._request("read"):
            data = self.disk.open[descriptor][0].cached[offset : offset + size]
            return data[: max(1, len(data) // 2)] if self.process.world.task.luck.random() < 0.05 else data

    def close(self, descriptor: int) -> None:
        self.disk.close(descriptor)

    def status(self, path: Path | int) -> Any:
        with self._request("status"):
            content = self.disk.open[path][0] if isinstance(path, int) else self.disk.content(path)
        data = b"" if content is None else content.cached
        number = self.disk.numbers.setdefault(content, len(self.disk.numbers))
        mode = stat.S_IFDIR if content is None else getattr(content, "mode", stat.S_IFREG | 0o444)
        moment = EPOCH if content is None else self.disk.modified.get(content, EPOCH)
        return SimpleNamespace(
            st_mode=mode, st_ino=number, st_size=len(data), st_mtime=moment, st_mtime_ns=int(moment * 1e9)
        )

    def list(self, path: Path) -> list[str]:
        with self._request("list"):
            if self.disk.content(path) is not None:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            return sorted(self.disk.folders.get(path, ()))


@dataclass
class Stored:
    """An object of the bucket."""

    data: bytes
    modified: float
    tag: str


class Cloud:
    """The simulated bucket's contents."""

    def __init__(self, world: World, faults: Faults, broken: str | None = None) -> None:
        self.world, self.faults = world, faults
        self.objects: dict[str, Stored] = {}
        self.broken, self.number = broken, 0
        """The promise that it breaks, if any: it `overwrites`, lists `late`, or returns all for a range (`whole`)."""
        self.watch: Callable[[Path], None] = lambda path: None

    def store(self, key: str, data: bytes) -> None:
        self.number += 1
        self.objects[key] = Stored(data, EPOCH + self.world.now, f'"{self.number}"')
        self.watch(ROOT / key)

    damage = store

    def leave(self, key: str, data: bytes, age: float) -> None:
        self.store(key, data)
        self.objects[key].modified -= age

    def written_since(self, moment: float) -> set[str]:
        """Return the keys of objects that are younger than a moment."""
        return {key for key, one in self.objects.items() if one.modified >= moment}

    def bytes_at(self, key: str) -> bytes | None:
        return self.objects[key].data if key in self.objects else None

    def stored(self) -> dict[str, bytes]:
        """Return the objects that are seen, by key."""
        return {key: one.data for key, one in self.objects.items()}


class CloudCalls:
    """What stands in for obstore in one process."""

    def __init__(self, cloud: Cloud, process: Process) -> None:
        self.cloud, self.process = cloud, process

    def _request(self, name: str) -> AbstractContextManager[str | None]:
        conditions = _conditions(name, BUCKET_MUTATING)
        return request(self.cloud.faults, self.process, name, _bucket_error, conditions=conditions)

    def _at(self, key: str) -> Stored:
        try:
            return self.cloud.objects[key]
        except KeyError:
            raise FileNotFoundError(key) from None

    @staticmethod
    def _meta(key: str, stored: Stored) -> dict[str, Any]:
        return {
            "path": key,
            "size": len(stored.data),
            "last_modified": datetime.fromtimestamp(stored.modified, UTC),
            "e_tag": stored.tag,
        }

    def put(self, _: Any, key: str, data: Any, *, mode: Any = "overwrite", **__: Any) -> None:
        data = data.read_bytes() if isinstance(data, Path) else bytes(data)
        with self._request("put") as effect:
            if isinstance(mode, dict) and (key not in self.cloud.objects or self._at(key).tag != mode["e_tag"]):
                raise PreconditionError(key)
            if mode == "create" and key in self.cloud.objects and self.cloud.broken != "overwrites":
                raise AlreadyExistsError(key)
            self.cloud.store(key, data)
            if effect == "again-after" and mode == "create":
                raise AlreadyExistsError(key)  # the answer was lost, and the client has sent the request again

    def head(self, _: Any, key: str) -> dict[str, Any]:
        with self._request("head"):
            return self._meta(key, self._at(key))

    def get(self, _: Any, key: str, options: dict[str, Any] | None = None) -> Any:
        with self._request("get"):
            stored = self._at(key)
            start, stop = (options or {}).get("range", (0, None)) if self.cloud.broken != "whole" else (0, None)
            if options and options.get("if_match", stored.tag) != stored.tag:
                raise GenericError("412 Precondition Failed")
            return SimpleNamespace(meta=self._meta(key, stored), bytes=lambda: stored.data[start:stop])

    def list(self, _: Any, prefix: str | None = None, chunk_size: int = 1000) -> Iterator[list[dict[str, Any]]]:
        with self._request("list"):
            late = EPOCH + self.cloud.world.now - 5.0 if self.cloud.broken == "late" else float("inf")
            found = sorted(self.cloud.objects.items())
            keys = [
                self._meta(key, stored)
                for key, stored in found
                if key.startswith(f"{prefix or ''}") and stored.modified <= late
            ]
        for first in range(0, len(keys), 3):  # pages are small, so that others come in between
            yield [meta for meta in keys[first : first + 3] if meta["path"] in self.cloud.objects or first == 0]
            self.cloud.world.step(0.3)

    def copy(self, _: Any, key: str, target: str) -> None:
        with self._request("copy"):
            self.cloud.store(target, self._at(key).data)

    def delete(self, _: Any, key: str) -> None:
        with self._request("delete"):
            self._at(key)
            del self.cloud.objects[key]
            self.cloud.watch(ROOT / key)

    def sign(self, _: Any, method: str, key: str, _seconds: Any) -> str:
        return f"https://bucket/{key}"


def bucket_of(cloud: Cloud, process: Process) -> Bucket:
    bucket = Bucket(None)
    bucket._calls = CloudCalls(cloud, process)
    return bucket
