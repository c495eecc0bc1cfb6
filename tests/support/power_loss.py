"""The states that a power loss may leave of a store: recorded operations, every subset of what was not synced, in memory."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from factorize.format.files import Files
from factorize.storage.objects import STAGING

Tree = dict[Path, bytes | None]
"""Path to content; None for a folder."""


class Content:
    """A file's bytes: what is on the medium for sure, and what was written."""

    def __init__(self) -> None:
        self.synced = b""
        self.cached = b""


@dataclass(frozen=True)
class Change:
    """A name that appeared (with its content, None for a folder) or went away."""

    path: Path
    content: Content | None
    appears: bool


@dataclass(frozen=True)
class Moment:
    """The state of one moment: what is durable, what is not, and how many steps of the script had returned."""

    names: dict[Path, Content | None]
    pending: tuple[Change, ...]
    bytes_of: dict[Content, tuple[bytes, bytes]]
    done: int


class PowerModel(Files):
    """The real file system, and beside it what of it would survive a power loss.

    A file's bytes survive from its `sync` on, the coming and going of a name from the next `sync_directory` of its
    folder on; anything else may or may not survive, each on its own and in any order. Content that was written and not
    synced may be there whole, in part, as zeros, or not at all.
    """

    MAX_SYNCS = 1
    """The number of concurrent syncs: one after the other, so that every moment between two of them is kept."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done = 0
        self.names: dict[Path, Content | None] = {root: None}
        self.pending: list[Change] = []
        self.moments: list[Moment] = []
        self._files: dict[int, Content] = {}
        self._paths: dict[Path, Content] = {}

    def keep(self) -> None:
        """Remember this moment."""
        contents = {c: (c.synced, c.cached) for c in {*self._files.values(), *self._paths.values()}}
        self.moments.append(Moment(dict(self.names), tuple(self.pending), contents, self.done))

    def _change(self, path: Path, content: Content | None, *, appears: bool = True) -> None:
        self.pending.append(Change(path, content, appears))
        if content is not None and appears:
            self._paths[path] = content
        self.keep()

    def _new(self, path: Path) -> Content:
        content = self._files[path.stat().st_ino] = Content()
        return content

    def make_directory(self, path: Path, mode: int = 0o777) -> None:
        there = path.exists()
        super().make_directory(path, mode)
        if not there:
            self._change(path, None)

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._change(path, self._new(path))
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        count = super().write(descriptor, data)
        self._files[os.fstat(descriptor).st_ino].cached += bytes(data[:count])
        self.keep()
        return count

    def produce(self, path: Path, write: Callable[[Path], None]) -> None:
        super().produce(path, write)
        content = self._new(path)
        content.cached = path.read_bytes()
        self._change(path, content)

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        content = self._files.get(os.fstat(descriptor).st_ino)
        if content is not None:
            content.synced = content.cached
            self.keep()

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        for change in self.pending:
            if change.path.parent == path:
                apply(self.names, change)
        self.pending = [change for change in self.pending if change.path.parent != path]
        self.keep()

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self._change(target, self._paths[source])

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        content = self._paths.pop(source)
        self.pending.append(Change(target, content, appears=True))
        self._change(source, content, appears=False)
        self._paths[target] = content

    def unlink(self, path: Path) -> None:
        """Remove a name; that a temporary one came and went, or never came, is the same."""
        super().unlink(path)
        content = self._paths.pop(path)
        if path.parent.name == STAGING:
            self.pending = [change for change in self.pending if change.path != path]
            self.names.pop(path, None)
            self.keep()
        else:
            self._change(path, content, appears=False)


def apply(names: dict[Path, Content | None], change: Change) -> None:
    """Let a change come to the medium."""
    if change.appears:
        names[change.path] = change.content
    else:
        names.pop(change.path, None)


def together(one: Moment, other: Moment) -> Moment:
    """Yield two writers that have come this far each, at the same moment."""
    return Moment(
        {**one.names, **other.names},
        (*one.pending, *other.pending),
        {**one.bytes_of, **other.bytes_of},
        min(one.done, other.done),
    )


def without_staging(moment: Moment) -> Moment:
    """Return the same moment without names in `tmp/`, which mean nothing to a store: each would double the states."""
    kept = tuple(change for change in moment.pending if change.path.parent.name != STAGING)
    names = {path: content for path, content in moment.names.items() if path.parent.name != STAGING}
    return replace(moment, pending=kept, names=names)


def survivors(moment: Moment) -> Iterator[Tree]:
    """Yield every state that a power loss at this moment may leave."""
    for chosen in itertools.product([False, True], repeat=len(moment.pending)):
        names = dict(moment.names)
        for change in itertools.compress(moment.pending, chosen):
            apply(names, change)
        reached: dict[Path, Content | None] = {}
        for name in sorted(names, key=str):  # folders come before what is in them
            if not reached or name.parent in reached:
                reached[name] = names[name]
        loose = sorted({c for c in reached.values() if c is not None and _unsynced(moment, c)}, key=id)
        for variants in itertools.product(*(_variants(*moment.bytes_of[content]) for content in loose)):
            data = dict(zip(loose, variants, strict=True))
            yield {n: None if c is None else data.get(c, moment.bytes_of[c][0]) for n, c in reached.items()}


def _unsynced(moment: Moment, content: Content) -> bool:
    synced, cached = moment.bytes_of[content]
    return synced != cached


def _variants(synced: bytes, cached: bytes) -> list[bytes]:
    return list(dict.fromkeys([synced, cached[: len(cached) // 2], bytes(len(cached)), cached]))


class MemoryFiles(Files):
    """A file system that can be read only, with one state in it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._open: dict[int, bytes] = {}
        self._folders: dict[Path, list[str]] = {}
        for path in tree:
            self._folders.setdefault(path.parent, []).append(path.name)

    def open(self, path: Path) -> int:
        content = self._at(path)
        assert content is not None, path
        self._open[len(self._open)] = content
        return len(self._open) - 1

    def lock(self, path: Path, exclusive: bool) -> int:
        return self.open(path)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        return self._open[descriptor][offset : offset + size]

    def close(self, descriptor: int) -> None:
        pass

    def status(self, path: Path | int) -> Any:
        content = self._open[path] if isinstance(path, int) else self._at(path)
        mode = stat.S_IFDIR if content is None else stat.S_IFREG | 0o444
        size = len(content or b"")
        return SimpleNamespace(st_mode=mode, st_ino=id(content), st_size=size, st_mtime=0.0, st_mtime_ns=0)

    def list(self, path: Path) -> list[str]:
        self._at(path)
        return sorted(self._folders.get(path, ()))

    def _at(self, path: Path) -> bytes | None:
        try:
            return self._tree[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
