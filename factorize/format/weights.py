"""Digests of released weights: of a file, of a directory as OpenSSF Model Signing has it, or of tensors by name.

Reference:
    The root digest of a directory is that of the payload of model-signing 1.1: the sha256 of the sha256 digests of all
    files, in the order of their paths.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from factorize.encoding import json_digest, sha256
from factorize.errors import InvalidParameter
from factorize.format.container import check_is_regular

FILE, DIRECTORY, TENSORS = KINDS = "file", "directory", "tensors"
_UNSIGNED_NAMES = (".git", ".gitattributes", ".github", ".gitignore")
"""The names in a directory that model-signing leaves out."""
_CHUNK_BYTES = 1 << 20


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


def _read_tensors(path: Path) -> Iterator[tuple[str, list[object]]]:
    """Yield the name of each tensor in a safetensors file, with its type, its shape and the sha256 of its bytes."""
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
