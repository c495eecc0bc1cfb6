"""Digests of released weights: of a file, of a directory as OpenSSF Model Signing has it, or of tensors by name.

Reference:
    The root digest of a directory is that of the payload of model-signing 1.1: the sha256 of the sha256 digests of all
    files, in the order of their paths.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from factorize.encoding import json_digest, raw_bytes, sha256
from factorize.errors import InvalidParameter
from factorize.format.container import check_is_regular, local_path

FILE, DIRECTORY, TENSORS = KINDS = "file", "directory", "tensors"
_UNSIGNED_NAMES = (".git", ".gitattributes", ".github", ".gitignore")
"""The names in a directory that model-signing leaves out."""
_CHUNK_BYTES = 1 << 20
_TYPES = {
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{"bfloat16": "BF16", "bool": "BOOL"},
}
"""The names of safetensors for types of numpy, torch and JAX."""


def model_digest(model: object) -> dict[str, str]:
    """Return the digest of released weights, and their kind.

    Args:
        model: the path of a file or of a directory; or tensors in memory: a module with `state_dict`, or nested
            mappings and lists of arrays.

    Raises:
        InvalidParameter: the tensors have no names or one name twice, or the model is none of these.
        OSError: a file cannot be read.
    """
    if isinstance(model, str | bytes | os.PathLike):
        path = local_path(model)
        kind = DIRECTORY if path.is_dir() else FILE
        return {"of": kind, "sha256": digest_of_path(path, kind)}
    model = getattr(model, "_module", getattr(model, "_orig_mod", model))  # Opacus and torch.compile wrap models.
    held = model.state_dict() if hasattr(model, "state_dict") else model
    if not isinstance(held, Mapping | list | tuple) or not held:
        raise InvalidParameter(
            f"weights in a {type(model).__name__} have no names; give a module, a mapping from names to arrays, or "
            "the path of the released file",
            field="model",
        )
    described: dict[str, list[object]] = {}
    for name, one in _leaves(held):
        if name in described:
            message = f"two tensors have the name {name[:80]!r}; rename one, or give the path of the released file"
            raise InvalidParameter(message, field="model")
        described[name] = _described(name, one)
    return {"of": TENSORS, "sha256": json_digest(described)}


def digest_of_path(path: Path, kind: str) -> str:
    """Return the digest of a path as weights of one of `KINDS`; `tensors` are those of a safetensors file.

    Raises:
        InvalidParameter: the path holds no such weights.
        OSError: a file cannot be read.
    """
    if kind == DIRECTORY and path.is_dir():
        return _directory_digest(path)
    if kind == DIRECTORY or path.is_dir():
        raise InvalidParameter(f"{path} is not a {kind}, whose digest is stated; give the {kind}", field="model")
    check_is_regular(path)
    if kind == FILE:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return json_digest(dict(_read_tensors(path)))


def _directory_digest(folder: Path) -> str:
    files = []
    for path in (folder, *folder.rglob("*")):
        place = PurePosixPath(path.relative_to(folder))
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise InvalidParameter(f"{path} is a link or a device, not a file of its own; copy it", field="model")
        if path.is_file() and place.parts[0] not in _UNSIGNED_NAMES:
            files.append(place)
    return sha256(b"".join(bytes.fromhex(digest_of_path(folder / place, FILE)) for place in sorted(files)))


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the tensors in nested mappings and lists, with names joined by points."""
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, entry in items:
            yield from _leaves(entry, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _described(name: str, tensor: Any) -> list[object]:
    """Return the type, the shape and the sha256 of the little-endian bytes of a tensor."""
    kind = _TYPES.get(str(getattr(tensor, "dtype", None)).removeprefix("torch."))
    if kind is None or hasattr(tensor, "full_tensor"):
        raise InvalidParameter(
            f"{name[:80]!r} is a {type(tensor).__name__}, not a whole tensor of numbers; save the model, and give the "
            "path of its file",
            field="model",
        )
    shape = [int(side) for side in tensor.shape]
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
    return [kind, shape, sha256(raw_bytes(np.asarray(tensor)))]


def _read_tensors(path: Path) -> Iterator[tuple[str, list[object]]]:
    """Yield the name of each tensor in a safetensors file, with its description as `_described` makes it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as checked:
            count = len(list(checked.keys()))
    except SafetensorError:
        message = f"{path} is not a safetensors file, so its tensors cannot be compared; save the weights as one"
        raise InvalidParameter(message, field="model") from None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        if len(header) != count:
            raise InvalidParameter(f"{path} names a tensor twice; save the weights again", field="model")
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            file.seek(8 + length + first)
            state, left = hashlib.sha256(), last - first
            while left and (part := file.read(min(left, _CHUNK_BYTES))):
                state.update(part)
                left -= len(part)
            yield name, [entry["dtype"], entry["shape"], state.hexdigest()]
