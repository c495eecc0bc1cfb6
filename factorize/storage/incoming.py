"""A factor file on its way in: written, read back and looked at before it gets its name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from factorize.encoding import sha256
from factorize.errors import CorruptObject, StoreUnavailable
from factorize.factor_file import load
from factorize.factorization import Factorization
from factorize.spec import Spec
from factorize.storage.blobs import CHUNK_BYTES, read_chunks
from factorize.storage.matrices import bound_matrices
from factorize.storage.objects import Objects, Reader, Staged

Check = Callable[[Path], Mapping[str, Any]]
"""Looks at a written file from outside (api/proof.py) and returns `digest` and `sha256` of what it has read, with what
it has checked; raises where a claim does not hold."""


@contextmanager
def incoming(
    objects: Objects, factorization: Factorization, check: Check | None, *, beside: Sequence[Staged] = ()
) -> Iterator[tuple[Staged, dict[str, Any]]]:
    """Write the safetensors file of a factorization, and give it with its entry of the manifest once it is believed.

    Args:
        objects: the medium.
        factorization: what to write.
        check: has the last word; without one the file is read back and compared only.
        beside: further files, which are put on the medium with this one while the check waits for a process.

    Raises:
        CertificateError: the check refused the file (from `check`).
        CorruptObject: what was read back is not what was written.
        StoreUnavailable: the medium refused.
    """
    plain = copy(factorization)
    plain.manifest = lasting(factorization.manifest)
    with objects.stage() as staged:
        staged.produce(plain.save)
        if check is None:
            proof, digest, (file, _) = {}, _read_back(staged.path, plain.spec), _described(staged)
        else:
            with ThreadPoolExecutor(1, "described") as meanwhile:
                coming = meanwhile.submit(_synced, staged, beside)
                proof = dict(check(staged.path))
                digest, (file, seen) = proof.pop("digest"), coming.result()
            with staged.open() as reader:
                same = reader.entry.version == seen
            if not same:  # it was touched after it was read
                file, _ = _synced(staged)
        if digest != factorization.digest or proof.pop("sha256", file["sha256"]) != file["sha256"]:
            message = f"{staged.path} reads back as another factorization; check memory and disk, and try again"
            raise CorruptObject(message)
        yield staged, file | ({"proof": proof} if proof else {})


def lasting(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest as it stands in the file: without what only the store knows."""
    return {name: value for name, value in manifest.items() if name not in ("files", "created")}


def _read_back(path: Path, spec: Spec) -> str:
    """Return the digest of a written file, compared with its bytes."""
    try:
        return load(path, matrices=bound_matrices(spec)).digest
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read back: {error}; check the disk and try again") from error


def _synced(staged: Staged, beside: Sequence[Staged] = ()) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Put the file and others on the medium, and read it back."""
    for one in (staged, *beside):
        one.sync()
    return _described(staged)


def _described(staged: Staged) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the entry of the file, and the version of it that was read."""
    with staged.open() as reader:
        return describe(reader), reader.entry.version


def describe(reader: Reader) -> dict[str, Any]:
    """Return the manifest's entry of an open file: digests of the whole and of each chunk."""
    whole, chunks = hashlib.sha256(), []
    with ThreadPoolExecutor(1, "whole") as beside:  # hashing lets go of the interpreter's lock
        for chunk in read_chunks(reader):
            adding = beside.submit(whole.update, chunk)
            chunks.append(sha256(chunk))
            adding.result()
    return {"sha256": whole.hexdigest(), "bytes": reader.entry.size, "chunk_bytes": CHUNK_BYTES, "chunks": chunks}
