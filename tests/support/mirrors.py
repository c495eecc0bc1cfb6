"""Mirrors on a static server of the standard library, and what an attacker who writes to one may do."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest

from factorize.encoding import canonical_json

Tamper = Callable[[Path, Path, Random], None]
"""A function that spoils a mirror in the first folder; the second has an older one of the same owner."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Give the address of the index of a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/index.json"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def at_the_time_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *, days: float = -1) -> None:
    """Let clients read an index so many days after it has expired."""
    moment = datetime.fromisoformat(json.loads((folder / "index.json").read_bytes())["expires"]) + timedelta(days=days)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return moment.astimezone(tz)

    monkeypatch.setattr("factorize.client.mirror.datetime", Clock)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change an index as its owner could."""
    document = json.loads((folder / "index.json").read_bytes())
    change(document)
    (folder / "index.json").write_bytes(canonical_json(document))


def spoil(path: Path, random: Random) -> None:
    """Flip a bit, or cut the end off."""
    data = bytearray(path.read_bytes())
    if random.random() < 0.3:
        del data[random.randrange(len(data)) :]
    else:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def _each(folder: Path, pattern: str, random: Random) -> None:
    for path in sorted(folder.glob(pattern)):
        spoil(path, random)


def _swap(folder: Path, pattern: str) -> None:
    paths = sorted(folder.glob(pattern))
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)


def _answer_otherwise(document: dict[str, Any]) -> None:
    digests = sorted(set(document["specs"].values()))
    following = dict(zip(digests, digests[1:] + digests[:1], strict=True))
    document["specs"] = {spec: following[digest] for spec, digest in document["specs"].items()}


def _roll_back(folder: Path, older: Path, random: Random) -> None:
    shutil.rmtree(folder)
    shutil.copytree(older, folder)


OBJECTS: dict[str, Tamper] = {
    "files spoilt": lambda folder, older, random: _each(folder, "v1/blobs/*", random),
    "files exchanged": lambda folder, older, random: _swap(folder, "v1/blobs/*"),
    "manifests spoilt": lambda folder, older, random: _each(folder, "v1/factorizations/*", random),
    "manifests exchanged": lambda folder, older, random: _swap(folder, "v1/factorizations/*"),
    "specs exchanged": lambda folder, older, random: rewrite(folder, _answer_otherwise),
}
"""The changes that digests alone show."""
INDEX: dict[str, Tamper] = {
    "index spoilt": lambda folder, older, random: spoil(folder / "index.json", random),
    "revocation hidden": lambda folder, older, random: rewrite(folder, lambda index: index.update(revoked={})),
    "expiry put off": lambda folder, older, random: rewrite(
        folder, lambda index: index.update(expires="2999-01-01T00:00:00+00:00")
    ),
    "sequence raised": lambda folder, older, random: rewrite(
        folder, lambda index: index.update(sequence=index["sequence"] + random.randrange(1, 9))
    ),
    "signature removed": lambda folder, older, random: shutil.rmtree(folder / "signatures"),
    "signature of an older index": lambda folder, older, random: next(folder.glob("signatures/*")).write_bytes(
        next(older.glob("signatures/*")).read_bytes()
    ),
}
"""The changes that a signature shows."""
TIME: dict[str, Tamper] = {"rolled back": _roll_back}
"""The changes that the client's memory shows."""
