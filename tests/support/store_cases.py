"""Factorizations to store, and file operations that record, fail or kill at the k-th call."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from specs import claimed, document_of, spec_of

from factorize.encoding import sha256
from factorize.factors.factorization import Factorization
from factorize.factors.solution import Outcome
from factorize.format.files import Files
from factorize.spec import Spec
from factorize.storage.medium.directory import Directory
from factorize.storage.store import Store
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import ToeplitzMatrix

OPERATIONS = [name for name, value in vars(Files).items() if callable(value) and not name.startswith("_")]


def factorization(
    n: int = 4,
    *,
    strategy: Matrix | None = None,
    converged: bool = True,
    seconds: float = 0.5,
    of: Spec | None = None,
    dual: dict[str, np.ndarray] | None = None,
    **changes: Any,
) -> Factorization:
    """Return a certified factorization; the identity by default, `converged` as the solver says."""
    asked = spec_of({**document_of(n, "identity"), **changes}) if of is None else of
    solver = {"mechanism": asked.mechanism.kind, "version": "0", "seconds": seconds, "environment": {}}
    outcome = Outcome.CLOSED_FORM if converged else Outcome.ITERATION_LIMIT
    return claimed(asked, strategy or DenseMatrix(np.eye(asked.workload.n)), outcome, dual=dual, solver=solver)


def toeplitz(n: int, *, decay: float = 0.5) -> ToeplitzMatrix:
    return ToeplitzMatrix(decay ** np.arange(n), n)


class WatchedFiles(Files):
    """Calls `watch(operation, count)` before every operation; counts from 0."""

    MAX_SYNCS = 1

    def __init__(self, watch: Callable[[str, int], None]) -> None:
        self.calls: list[str] = []
        self._watch = watch

    def _before(self, name: str) -> None:
        self.calls.append(name)
        self._watch(name, len(self.calls) - 1)


def _watched(name: str) -> Callable[..., Any]:
    def call(self: WatchedFiles, *arguments: Any) -> Any:
        try:
            self._before(name)
        except OSError:
            if name == "close":
                Files.close(self, *arguments)  # the kernel lets go of a descriptor whatever close says
            raise
        return getattr(Files, name)(self, *arguments)

    return call


for _name in OPERATIONS:
    setattr(WatchedFiles, _name, _watched(_name))


def recording() -> WatchedFiles:
    return WatchedFiles(lambda name, count: None)


def failing(number: int, at: int) -> WatchedFiles:
    """Fail with an error number at one call, and at no other."""

    def watch(name: str, count: int) -> None:
        if count == at:
            raise OSError(number, os.strerror(number))

    return WatchedFiles(watch)


def killing(at: int) -> WatchedFiles:
    """Kill this process, as `kill -9` does, before one call."""

    def watch(name: str, count: int) -> None:
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return WatchedFiles(watch)


class ShortWrites(Files):
    """Writes and reads seven bytes at a time."""

    def write(self, descriptor: int, data: memoryview) -> int:
        return super().write(descriptor, data[:7])

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        return super().read(descriptor, min(size, 7), offset)


def path_of(store: Any, key: str) -> Path:
    """Return the file behind a key of a store in a directory."""
    assert isinstance(store.objects, Directory)
    return store.objects.root / key


def overwrite(path: Path, data: bytes) -> None:
    """Write over a published file in place, as a failing disk or a person may."""
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))  # seen even on a clock of coarse ticks


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    overwrite(path, bytes(data))


def put_checked(store: Store, result: Factorization) -> dict[str, Any]:
    """Write a file as a batch's workers do, and publish it."""
    with store.objects.stage() as staged:
        staged.produce(result.save)
        proof = {"digest": result.digest, "sha256": sha256(staged.path.read_bytes()), "release": "test"}
        return store.put_checked(staged, proof)
