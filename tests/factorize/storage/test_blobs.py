"""Verified reading: what leaves was hashed, whatever happens to the file meanwhile."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_cases import flip, overwrite

from factorize.errors import CorruptObject, InvalidParameter, NotFound
from factorize.storage import blobs as blobs_module
from factorize.storage.blobs import Blobs, blob_key
from factorize.storage.medium.directory import Directory
from factorize.storage.objects import Reader

SMALL = 64


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_module, "CHUNK_BYTES", SMALL)


class CountingDirectory(Directory):
    """Counts how often something is opened; waits before that if asked to."""

    opened = 0
    gate: threading.Event | None = None

    @contextmanager
    def open(self, key: str) -> Iterator[Reader]:
        self.opened += 1
        if self.gate is not None:
            self.gate.wait(600)
        with super().open(key) as reader:
            yield reader


def stored(root: Path, data: bytes) -> tuple[CountingDirectory, str, Path]:
    directory = CountingDirectory(root)
    name = hashlib.sha256(data).hexdigest()
    with directory.stage() as staged:
        staged.write(data)
        directory.sync_all([staged])
        directory.put(blob_key(name), staged)
    return directory, name, root / blob_key(name)


def content(blobs: Blobs, name: str, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join(blobs.open(name).read(start, stop))


@pytest.mark.parametrize("size", [0, 1, SMALL - 1, SMALL, SMALL + 1, 5 * SMALL, 5 * SMALL + 3])
@pytest.mark.parametrize("cache", [0, 2 * SMALL, 1 << 20])
def test_every_range_is_the_files(tmp_path, small_chunks, size, cache):
    data = random.Random(size).randbytes(size)
    directory, name, _ = stored(tmp_path, data)
    blobs = Blobs(directory, cache_bytes=cache)
    blob = blobs.open(name)
    assert (blob.size, blob.sha256) == (size, name)
    for start in range(0, size + 1, 7):
        for stop in range(start, size + 1, 11):
            assert b"".join(blob.read(start, stop)) == data[start:stop]
    for start, stop in ((-1, 0), (0, size + 1), (1, 0)):
        with pytest.raises(InvalidParameter, match="outside the blob"):
            blob.read(start, stop)
    assert content(blobs, name) == data


def test_every_single_bit_flip_is_found_before_a_byte_is_served(tmp_path, small_chunks):
    data = random.Random(2).randbytes(SMALL + 20)
    directory, name, path = stored(tmp_path, data)
    warm, cold = Blobs(directory), Blobs(directory, cache_bytes=0)
    content(warm, name), content(cold, name)
    for bit in range(8 * len(data)):
        flip(path, bit)
        for blobs in (warm, cold, Blobs(directory)):
            with pytest.raises(CorruptObject, match=f"{name}.*fsck"):
                blobs.open(name)
            assert blobs.damaged(name, directory.status(blob_key(name)).version)
        overwrite(path, data)
        assert content(cold, name) == content(warm, name) == data
        assert not cold.damaged(name, directory.status(blob_key(name)).version)


@pytest.mark.parametrize("change", [lambda d: bytes([*d[:-1], d[-1] ^ 1]), lambda d: d[:-1], lambda d: d[:SMALL]])
def test_a_file_that_changes_while_it_is_served_stops_before_the_changed_chunk(tmp_path, small_chunks, change):
    data = random.Random(6).randbytes(3 * SMALL)
    directory, name, path = stored(tmp_path, data)
    blobs = Blobs(directory, cache_bytes=0)
    views = blobs.open(name).read()
    assert bytes(next(views)) == data[:SMALL]
    overwrite(path, change(data))
    served = b""
    with pytest.raises(CorruptObject, match="hash to"):
        for view in views:
            served += bytes(view)
    assert data[SMALL:].startswith(served)
    assert blobs.damaged(name, directory.status(blob_key(name)).version)
    with pytest.raises(CorruptObject):
        blobs.open(name)


def test_what_goes_away_is_not_found(tmp_path):
    directory, name, path = stored(tmp_path, b"data")
    blobs = Blobs(directory)
    blobs.open(name)
    assert blobs.sound(name) is True
    path.unlink()
    assert blobs.sound(name) is False
    for ask in (blobs.open, blobs.verify):
        with pytest.raises(NotFound):
            ask(name)


def test_a_file_that_is_touched_is_hashed_again_and_read_on(tmp_path, small_chunks):
    """A matrix that is uploaded again counts as new, while somebody reads it."""
    data = random.Random(8).randbytes(2 * SMALL + 5)
    directory, name, path = stored(tmp_path, data)
    views = Blobs(directory, cache_bytes=0).open(name).read()
    served = bytes(next(views))
    os.utime(path, ns=(1, 1))
    assert served + b"".join(views) == data
