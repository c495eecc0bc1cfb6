"""A factor file from its bytes: header, tensors, manifest and every digest, decoded with json and hashlib alone.

Layout of safetensors: eight bytes with the header's length (little-endian), the header as JSON, the tensors' raw bytes
one after the other. All of it is accounted for: no gap, no overlap, no tensor that the manifest does not name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np

from factorize.encoding import read_json
from factorize.errors import CorruptObject, FactorizeError, InvalidStrategy
from factorize.exact.description import check_description, check_parts, part_of

MOST_HEADER_BYTES = 100_000_000
_MANIFEST_BYTES = 1 << 30
_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_VOLATILE = ("digest", "files", "created")
_VOLATILE_SOLVER = ("seconds", "environment")


class FactorFile(NamedTuple):
    """What a file holds, all digests compared.

    Attributes:
        manifest: the manifest.
        matrices: per matrix of the manifest its tensors by suffix, as doubles, which narrower types are too.
        dual: the evidence for the lower bound, by name without `dual.`.
    """

    manifest: dict[str, Any]
    matrices: dict[str, dict[str, np.ndarray]]
    dual: dict[str, np.ndarray]


def read_tensors(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Decode a safetensors file of doubles (or of floats of 16 or 32 bits, which are doubles too).

    Returns:
        The tensors as stored, and the metadata.

    Raises:
        CorruptObject: the layout does not account for every byte.
    """
    try:
        return _tensors(data)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError) as error:
        raise CorruptObject(f"not a safetensors file: {type(error).__name__}: {str(error)[:200]}") from None


def _tensors(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(MOST_HEADER_BYTES, len(data) - 8):
        raise CorruptObject(f"the file has {len(data)} bytes and states a header of {length}: no safetensors file")
    if data[8:9] != b"{":
        raise CorruptObject("the header does not begin with a brace: no safetensors file")
    header = _json(data[8 : 8 + length], "the header")
    metadata = header.pop("__metadata__", {})
    if not all(isinstance(text, str) for text in metadata.values()):
        raise CorruptObject("the metadata of the file are not texts")
    body = memoryview(data)[8 + length :]
    tensors: dict[str, np.ndarray] = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        shape = list(entry["shape"])
        if set(entry) != {"dtype", "shape", "data_offsets"} or any(type(k) is not int for k in [begin, stop, *shape]):
            raise CorruptObject(f"tensor {name[:60]!r} is not described by its type, shape and offsets alone")
        count = int(np.prod(shape, dtype=object))
        width = _WIDTHS.get(entry["dtype"], 0)
        if begin != end or stop - begin != count * width or any(side < 0 for side in shape):
            raise CorruptObject(f"tensor {name[:60]!r} does not follow the one before it with the bytes that it states")
        tensors[name] = _array(body[begin:stop], entry["dtype"], shape, name)
        end = stop
    if end != len(body):
        raise CorruptObject(f"{len(body) - end} bytes of the file belong to no tensor")
    return tensors, metadata


def _array(raw: memoryview, dtype: str, shape: list[int], name: str) -> np.ndarray:
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    if dtype not in kinds:
        raise CorruptObject(f"tensor {name[:60]!r} is {dtype}; this checker reads F64, F32 and F16")
    return np.frombuffer(raw, dtype=kinds[dtype]).reshape(shape)


def _json(text: bytes | str, what: str) -> dict[str, Any]:
    try:
        header = what == "the header"  # whose manifest is one long string
        found = _header_json(text) if header else read_json(text, limit=_MANIFEST_BYTES)
    except (FactorizeError, ValueError, RecursionError) as error:
        raise CorruptObject(f"{what} is not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise CorruptObject(f"{what} is not a JSON object")
    return found


def _header_json(text: bytes | str) -> Any:
    return json.loads(
        text.decode("utf-8") if isinstance(text, bytes) else text, object_pairs_hook=_once, parse_int=_natural
    )


def _natural(digits: str) -> int:
    if not digits.isdigit():
        raise ValueError(f"{digits[:20]} is no size")
    return int(digits)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different: of a name given twice, two readers may take two tensors."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError(f"one of the keys {sorted(key for key, _ in pairs)[:5]} is given twice")
    return dict(pairs)


def digest_of(document: Any) -> str:
    """Return the sha256 of plain data as JSON with sorted keys, without white space, in ASCII."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def read_factor_file(data: bytes) -> FactorFile:
    """Decode a factor file and compare every digest that its manifest states.

    Raises:
        CorruptObject: a byte is not accounted for, or bytes and manifest disagree.
    """
    try:
        tensors, metadata = read_tensors(data)
        if set(metadata) != {"manifest"}:
            raise CorruptObject(f"the metadata are {sorted(metadata)[:4]}, and not the manifest alone")
        manifest = _json(metadata["manifest"], "the manifest")
        _check_manifest(manifest)
        named: set[str] = set()
        matrices = {}
        for name, entry in manifest["matrices"].items():
            matrices[name] = _entry(name, entry, tensors)
            named |= set(entry["tensors"])
        described = manifest["matrices"]["C"]
        check_parts(described["structure"], matrices["C"], described["shape"][1])
        dual = {}
        if manifest["dual"] is not None:
            dual = _entry("dual", {**manifest["dual"], "dtype": "float64"}, tensors)
            named |= set(manifest["dual"]["tensors"])
        for name, parts in {**matrices, "the evidence": dual}.items():
            if not all(np.isfinite(part).all() for part in parts.values()):
                raise CorruptObject(f"{name} holds NaN or infinity")
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError) as error:
        raise CorruptObject(f"not a factor file: {type(error).__name__}: {str(error)[:200]}") from None
    if set(tensors) != named:
        raise CorruptObject(f"the manifest does not name the tensors {sorted(set(tensors) ^ named)[:3]}")
    return FactorFile(manifest, matrices, dual)


def manifest_of(data: bytes) -> dict[str, Any]:
    """Return the manifest of a factor file, whose own digests agree; its tensors are not looked at.

    Raises:
        CorruptObject: the layout does not account for every byte, or there is no manifest.
    """
    try:
        manifest = _json(read_tensors(data)[1]["manifest"], "the manifest")
        _check_manifest(manifest)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError) as error:
        raise CorruptObject(f"not a factor file: {type(error).__name__}: {str(error)[:200]}") from None
    return manifest


def _check_manifest(manifest: dict[str, Any]) -> None:
    lasting = {key: value for key, value in manifest.items() if key not in _VOLATILE}
    lasting["solver"] = {key: value for key, value in manifest["solver"].items() if key not in _VOLATILE_SOLVER}
    if type(manifest["schema"]) is not int or manifest["schema"] != 1:
        raise CorruptObject(f"schema {manifest['schema']!r} is not 1, the one that this checker knows")
    if digest_of(lasting) != manifest["digest"]:
        raise CorruptObject("the manifest does not hash to its own digest")
    if digest_of(manifest["spec"]) != manifest["spec_digest"]:
        raise CorruptObject("the spec does not hash to its spec digest")
    check_description(manifest)


def _entry(name: str, entry: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return one matrix's tensors by suffix, after dtype, length and digest."""
    found = {part_of(name, tensor): tensors[tensor] for tensor in entry["tensors"]}
    kind = {"float64": "<f8", "float32": "<f4"}.get(entry["dtype"])
    if kind is None or any(array.dtype != np.dtype(kind) for array in found.values()):
        raise CorruptObject(f"{name} is not stored as {str(entry['dtype'])[:20]!r}, the type that was certified")
    state = hashlib.sha256()
    for array in found.values():
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    if state.hexdigest() != entry["sha256"]:
        raise CorruptObject(f"the bytes of {name} do not hash to {entry['sha256']}")
    if entry.get("bytes", sum(a.nbytes for a in found.values())) != sum(a.nbytes for a in found.values()):
        raise CorruptObject(f"{name} does not have the number of bytes that the manifest states")
    return {suffix: _doubles(array, copied=name != "C" or suffix != "") for suffix, array in found.items()}


def _doubles(array: np.ndarray, *, copied: bool) -> np.ndarray:
    """Return numbers as doubles: a whole matrix where it lies in the file, so that memory holds it once."""
    return array.astype(np.float64, copy=copied or not array.flags.aligned)


def read_array(path: Path, name: str = "C") -> np.ndarray:
    """Return a matrix of numbers from a `.npy` file (never unpickled) or a `.safetensors` file, as doubles.

    Args:
        path: the file.
        name: the tensor to take where a safetensors file holds more than one.

    Raises:
        CorruptObject: damaged, or neither format.
        InvalidStrategy: not one matrix of numbers that doubles hold exactly.
        OSError: the file cannot be read.
    """
    if path.suffix == ".npy":
        try:  # not np.load, which opens zip archives too
            with path.open("rb") as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
        except (ValueError, EOFError, SyntaxError, TokenError, TypeError, KeyError, RecursionError) as error:
            raise CorruptObject(f"{path} is not a .npy file of plain numbers: {error}") from None
    else:
        tensors, _ = read_tensors(path.read_bytes())
        if name not in tensors and len(tensors) != 1:
            raise InvalidStrategy(f"{path} holds the tensors {sorted(tensors)[:5]} and none of them is named {name!r}")
        array = tensors[name] if name in tensors else next(iter(tensors.values()))
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InvalidStrategy(f"{path} holds an array of {array.dtype} with shape {array.shape}; give one real matrix")
    doubles = array.astype(np.float64)
    if not np.isfinite(doubles).all() or (doubles.astype(array.dtype) != array).any():
        raise InvalidStrategy(f"{path} holds NaN, infinity or integers above 2^53; give finite doubles")
    return doubles
