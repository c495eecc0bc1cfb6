"""Reading one factor file where only numpy and safetensors are installed, and checking every byte that is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from factorize.encoding import read_json, tensor_digest
from factorize.errors import CorruptObject, FactorizeError
from factorize.manifest import check_manifest

_MANIFEST_BYTES = 1 << 30


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest inside a file, which hashes to its own digest.

    Raises:
        CorruptObject: the file is no factor file.
        FileNotFoundError: there is none.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is no file")
    try:
        with safe_open(path, framework="numpy") as file:
            manifest = read_json((file.metadata() or {}).get("manifest", ""), limit=_MANIFEST_BYTES)
        if not isinstance(manifest, dict):
            raise CorruptObject(f"the manifest of {path} is no object")
        check_manifest(manifest)
    except CorruptObject:
        raise
    except (SafetensorError, FactorizeError) as error:
        raise CorruptObject(f"{path} is not a factor file: {str(error)[:200]}") from None
    return manifest


def read_tensors(path: str | Path, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of one matrix (or of the dual evidence) by name, checked against the manifest's entry.

    Args:
        path: the file.
        entry: `matrices.X` or `dual` of the manifest.

    Raises:
        CorruptObject: one is missing, or the bytes do not hash to the digest.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {str(name): file.get_tensor(name) for name in entry["tensors"]}
        if tensor_digest(tensors.values()) != entry["sha256"]:
            raise CorruptObject(f"the bytes of {entry['tensors'][0]} in {path} do not hash to their digest")
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:
        raise CorruptObject(f"{path} is not a factor file: {str(error)[:200]}") from None
    return tensors


def check_file(path: str | Path, digest: str | None = None) -> dict[str, Any]:
    """Check that the manifest and all matrices of a file hash to their digests, and that it is the one asked for.

    Args:
        path: the file.
        digest: the manifest's, where it is known which file this has to be.

    Returns:
        The manifest.

    Raises:
        CorruptObject: otherwise.
    """
    manifest = read_manifest(path)
    if digest is not None and manifest["digest"] != digest:
        raise CorruptObject(f"{path} holds {manifest['digest']}, not {digest}; do not use it")
    try:
        entries = [*manifest["matrices"].values(), manifest["dual"]]
    except (KeyError, AttributeError) as error:
        raise CorruptObject(f"the manifest of {path} names no matrices: {error}") from None
    for entry in entries:
        if entry:
            read_tensors(path, entry)
    return manifest


def matrix_parts(path: str | Path, manifest: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
    """Return one matrix's tensors by suffix ('' for a dense one), as a structure's reader wants them, as doubles.

    Raises:
        CorruptObject: see `read_tensors`.
    """
    tensors = read_tensors(path, manifest["matrices"][name])
    wide = {tensor: array.astype(np.float64, copy=False) for tensor, array in tensors.items()}
    return {tensor.removeprefix(name).removeprefix("."): array for tensor, array in wide.items()}
