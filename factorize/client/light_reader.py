"""The light reader of factor files, with numpy and safetensors alone: it checks every byte that is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from factorize.errors import CorruptObject
from factorize.format.container import Container
from factorize.format.reading import evidence_of, matrix_of, read_manifest


def check_file(path: str | Path, digest: str | None = None) -> dict[str, Any]:
    """Check that a file is what the format allows and nothing else, and that it is the one asked for.

    Args:
        path: the file.
        digest: the manifest's, where it is known which file this has to be.

    Returns:
        The manifest.

    Raises:
        CorruptObject: otherwise.
        FileNotFoundError: there is none.
    """
    container = Container(path)
    manifest = read_manifest(container)
    if digest is not None and manifest["digest"] != digest:
        raise CorruptObject(f"{path} holds {manifest['digest']}, not {digest}; do not use it")
    for name in manifest["matrices"]:
        _matrix(container, manifest, name)
    evidence_of(manifest, {name: container.read(name) for name in (manifest["dual"] or {"tensors": []})["tensors"]})
    return manifest


def matrix_parts(path: str | Path, manifest: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
    """Return one matrix's tensors by suffix ('' for a dense one), as a structure's reader wants them, as doubles.

    Raises:
        CorruptObject: the file no longer holds what the manifest says.
    """
    return _matrix(Container(path), manifest, name)


def _matrix(container: Container, manifest: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
    entry = manifest["matrices"][name]
    return matrix_of(manifest, name, {tensor: container.read(tensor) for tensor in entry["tensors"]})
