"""The reader of factor files: the one way from bytes to tensors that loading, the light client and the store take.

It needs numpy alone, and checks every byte that is used.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from factorize.encoding import tensor_digest
from factorize.errors import CorruptObject, InvalidStrategy
from factorize.format.container import Container
from factorize.format.manifest import Manifest
from factorize.format.tensors import check_tensors


def matrix_of(manifest: Mapping[str, Any], name: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return one matrix's tensors by suffix ('' for a dense one), as doubles, in the order that the manifest lists.

    Args:
        manifest: checked.
        name: C, C_inv or B.
        tensors: as stored, by their names in the file.

    Raises:
        CorruptObject: another type, length or digest than stated, or tensors that do not make such a matrix.
    """
    entry = manifest["matrices"][name]
    arrays = {tensor: tensors[tensor] for tensor in entry["tensors"]}
    if any(array.dtype != np.dtype(entry["dtype"]) for array in arrays.values()):
        raise CorruptObject(f"{name} is not stored as {entry['dtype']!r}")
    if sum(array.nbytes for array in arrays.values()) != entry["bytes"]:
        raise CorruptObject(f"{name} does not have the {entry['bytes']} bytes that the manifest states")
    if tensor_digest(arrays.values()) != entry["sha256"]:
        raise CorruptObject(f"the bytes of {name} do not hash to {entry['sha256']}; download the file again")
    parts = {
        tensor.removeprefix(name).removeprefix("."): array.astype(np.float64, copy=False)
        for tensor, array in arrays.items()
    }
    try:
        check_tensors(name, entry["structure"], parts, tuple(entry["shape"]))
    except InvalidStrategy as error:
        raise CorruptObject(f"{name} is no {entry['structure']} matrix: {error}") from None
    return parts


def evidence_of(manifest: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the evidence by name without `dual.`; raise CorruptObject unless finite doubles hash as stated."""
    entry = manifest["dual"]
    if entry is None:
        return {}
    arrays = {name.removeprefix("dual."): tensors[name] for name in entry["tensors"]}
    if any(array.dtype != np.float64 or not np.isfinite(array).all() for array in arrays.values()):
        raise CorruptObject("the dual evidence is not finite numbers in float64")
    if tensor_digest(arrays.values()) != entry["sha256"]:
        raise CorruptObject(f"the bytes of the dual evidence do not hash to {entry['sha256']}")
    return arrays


def check_file(path: str | Path, digest: str | None = None) -> Manifest:
    """Return the manifest of a file that is what the format allows and nothing else, and has a digest if one is given.

    Raises:
        CorruptObject: otherwise.
        FileNotFoundError: there is no file.
    """
    container = Container(path)
    manifest = Manifest.read(container)
    if digest is not None and manifest["digest"] != digest:
        raise CorruptObject(f"{path} holds {manifest['digest']}, not {digest}; do not use it")
    for name in manifest["matrices"]:
        matrix_parts(container, manifest, name)
    names = [] if manifest["dual"] is None else manifest["dual"]["tensors"]
    evidence_of(manifest, {name: container.read(name) for name in names})
    return manifest


def matrix_parts(container: Container, manifest: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
    """Read one matrix's tensors; see `matrix_of`."""
    entry = manifest["matrices"][name]
    return matrix_of(manifest, name, {tensor: container.read(tensor) for tensor in entry["tensors"]})
