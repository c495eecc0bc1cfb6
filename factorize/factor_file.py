"""From the bytes of a factor file, or its tensors, to a factorization, every digest checked on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from factorize.certificate import Certificate
from factorize.encoding import read_json, tensor_digest
from factorize.errors import CertificateError, CorruptObject, FactorizeError
from factorize.factorization import MATRIX_NAMES, Expanded, Factorization, materialise
from factorize.manifest import check_manifest
from factorize.spec import Spec, parse_spec
from factorize.structures.layouts import DTYPES, build_matrix
from factorize.workloads import UserMatrix

_MANIFEST_BYTES = 1 << 30
_EXTRA_ERROR = {"float64": 1e-9, "float32": 1e-6}  # allowed between stored and recomputed C_inv and B, relative


def load(path: str | Path, *, matrices: Mapping[str, np.ndarray] | None = None) -> Factorization:
    """Open a factor file and check that its bytes are the ones its manifest names.

    The certificate is not recomputed; call `verify` for that.

    Args:
        path: a `.safetensors` file.
        matrices: numbers of user-supplied workloads by sha256, for specs with workload kind `matrix`.

    Raises:
        CorruptObject: not a factor file, a tensor is missing, or bytes and manifest disagree.
    """
    manifest, tensors = _read_file(path)
    return from_tensors(manifest, tensors, matrices=matrices)


def from_tensors(
    manifest: dict[str, Any], tensors: Mapping[str, np.ndarray], *, matrices: Mapping[str, np.ndarray] | None = None
) -> Factorization:
    """Rebuild a factorization from its manifest and tensors, checking every digest.

    Raises:
        CorruptObject: see `load`.
    """
    try:
        check_manifest(manifest)
        spec = _bound(parse_spec(manifest["spec"]), matrices or {})
        if spec.digest != manifest["spec_digest"]:
            raise CorruptObject("the manifest's spec does not hash to its spec digest")
        found = {name: _checked(name, entry, tensors) for name, entry in manifest["matrices"].items()}
        dual = _checked_dual(manifest.get("dual"), tensors)
        n = None if spec.workload.endless else spec.workload.n
        strategy = build_matrix(manifest["matrices"]["C"]["structure"], found["C"], n)
        stated = Certificate.from_document(manifest["certificate"]).sensitivity
        if stated.participation != manifest["spec"]["participation"]:
            raise CorruptObject("the sensitivity is stated for another participation than the spec's; do not use it")
    except CorruptObject:
        raise
    except CertificateError as error:
        raise CorruptObject(f"the manifest states no sensitivity that can be: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptObject(f"not a manifest: {type(error).__name__}: {str(error)[:200]}") from None
    loaded: Factorization = Factorization(spec, strategy, dual, manifest)
    if len(found) > 1:
        loaded = Expanded(spec, strategy, dual, manifest)
        loaded.extra = {n: tensors[n] for key in found if key != "C" for n in manifest["matrices"][key]["tensors"]}
        _check_extra(loaded)
    return loaded


def _check_extra(expanded: Expanded) -> None:
    """Compare stored C_inv and B with what C and the workload say, each row beside its own largest entry.

    Beside the largest entry of all, one tiny diagonal entry of C would allow for anything in the other rows.
    """
    for name in (name for name in MATRIX_NAMES if name in expanded.manifest["matrices"] and name != "C"):
        structure, parts = materialise(expanded, name)
        entry = expanded.manifest["matrices"][name]
        stored = [expanded.extra[tensor] for tensor in entry["tensors"]]
        for fresh, array in zip(parts.values(), stored, strict=True):
            same = entry["structure"] == structure and fresh.shape == array.shape
            if not same or _differs(fresh, array, _EXTRA_ERROR[expanded.dtype]):
                raise CorruptObject(f"the stored {name} is not the one that C and the workload define")


def _differs(fresh: np.ndarray, stored: np.ndarray, most: float) -> bool:
    """Whether rows differ by more than a part of their own largest entry; row i of a Toeplitz column has i + 1."""
    sizes = np.abs(fresh)
    scale = np.maximum.accumulate(sizes) if fresh.ndim == 1 else sizes.max(axis=1, keepdims=True)
    return not bool((np.abs(fresh - stored) <= most * scale).all())


def _bound(spec: Spec, matrices: Mapping[str, np.ndarray]) -> Spec:
    workload = spec.workload
    if isinstance(workload, UserMatrix) and workload.sha256 is not None and workload.sha256 in matrices:
        return spec.model_copy(update={"workload": workload.bind(matrices[workload.sha256])})
    return spec


def _read_file(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get("manifest")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # no mapping
    except SafetensorError as error:
        raise CorruptObject(f"{path} is not a safetensors file: {error}") from None
    if text is None:
        raise CorruptObject(f"{path} has no 'manifest' in its metadata, so it is not a factor file")
    try:
        manifest = read_json(text, limit=_MANIFEST_BYTES)
    except FactorizeError as error:
        raise CorruptObject(f"the manifest of {path} is not JSON: {error}") from None
    if not isinstance(manifest, dict):
        raise CorruptObject(f"the manifest of {path} is not an object")
    return manifest, tensors


def _checked(name: str, entry: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return one matrix's tensors by suffix after comparing dtype and digest."""
    arrays = {tensor.removeprefix(name).removeprefix("."): tensors[tensor] for tensor in entry["tensors"]}
    stated = entry["dtype"]
    if stated not in DTYPES or any(array.dtype != np.dtype(stated) for array in arrays.values()):
        raise CorruptObject(f"{name} is not stored as {str(stated)[:20]!r}, or that is none of {', '.join(DTYPES)}")
    if tensor_digest(arrays.values()) != entry["sha256"]:
        raise CorruptObject(f"the bytes of {name} do not hash to {entry['sha256']}; download the file again")
    return {suffix: array.astype(np.float64, copy=False) for suffix, array in arrays.items()}


def _checked_dual(entry: Mapping[str, Any] | None, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    if entry is None:
        return {}
    arrays = {name.removeprefix("dual."): tensors[name] for name in entry["tensors"]}
    if tensor_digest(arrays.values()) != entry["sha256"]:
        raise CorruptObject(f"the bytes of the dual evidence do not hash to {entry['sha256']}")
    return arrays
