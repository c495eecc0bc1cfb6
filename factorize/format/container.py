"""The container of a factor file, safetensors, read so that every byte is accounted for and no two readers can differ.

A file has eight bytes with the header's length (little-endian), the header as JSON, and the tensors' raw bytes.
Besides damaged files, the reader refuses repeated names, gaps and overlaps, metadata but the manifest, types but
float64 and float32, and numbers that are not plain integers. All safetensors libraries read the other files alike.
"""

import io
import itertools
import json
import math
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from factorize.errors import CorruptObject, InvalidParameter

MANIFEST = "manifest"
MAX_HEADER_BYTES = 100_000_000
"""The largest header that safetensors libraries read."""
MAX_TENSORS = 64
"""The most tensors of a file, several times what any structure has, so that a header of millions is not read."""
MAX_PIPE_BYTES = 1 << 28
"""The most bytes that are read of a pipe or a device, which may have no end."""
_KINDS: dict[str, np.dtype[Any]] = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4")}
_PARTS = {"dtype", "shape", "data_offsets"}
_NAME = re.compile(r"(?!https?://)[^\0\ud800-\udc7f\udd00-\udfff]+")  # The gap is for bytes that are no UTF-8.


def path_text(path: str | bytes | os.PathLike[Any], *, field: str = "path") -> str:
    """Return a path as text; raise InvalidParameter for anything else."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise InvalidParameter(f"{type(path).__name__} is not a path; name a file or a folder", field=field) from None


def local_path(path: str | bytes | os.PathLike[Any], *, field: str = "path") -> Path:
    """Return a path with `~` expanded, or as it is where no such user exists or this process has no home.

    Raises:
        InvalidParameter: no file can have that name.
    """
    text = os.path.expanduser(path_text(path, field=field))
    if not _NAME.fullmatch(text):
        raise InvalidParameter(
            f"{text[:80]!a} is not a path: it is empty, an address, or has a NUL; name a file", field=field
        )
    return Path(text)


def check_is_regular(path: Path) -> None:
    """Refuse a pipe or a device: it cannot be read twice, and one that nobody writes to would block for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InvalidParameter(f"{path} is a pipe or a device, which is read once; save it as a file", field="path")


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file; refuse a pipe or a device that gives more than `MAX_PIPE_BYTES`."""
    with path.open("rb") as stream:
        data = stream.read(-1 if path.is_file() else MAX_PIPE_BYTES + 1)
    if len(data) > MAX_PIPE_BYTES and not path.is_file():
        message = f"{path} is a pipe or a device that gives more than {MAX_PIPE_BYTES} bytes; save it as a file"
        raise InvalidParameter(message, field="path")
    return data


class Extent(NamedTuple):
    """The place of one tensor in a file.

    Attributes:
        kind: its type.
        shape: its sides.
        first: position of its first byte in the file.
    """

    kind: np.dtype[Any]
    shape: tuple[int, ...]
    first: int


class Container:
    """A factor file with a checked header, whose tensors are read on demand.

    Args:
        source: the path, or the bytes.

    Attributes:
        manifest_text: the text of the manifest in the header.
        names: names of the tensors, in the order of their bytes.

    Raises:
        CorruptObject: the file is no such container.
        FileNotFoundError: there is no file.
        InvalidParameter: see `check_is_regular`.
    """

    def __init__(self, source: str | Path | bytes | memoryview) -> None:
        if not isinstance(source, (bytes, memoryview)):
            source = local_path(source)
        self._source = source
        self._what = "this" if isinstance(source, (bytes, memoryview)) else str(source)
        if isinstance(source, Path):
            check_is_regular(source)
            if not source.is_file():
                raise FileNotFoundError(f"{str(source)[:200]!r} is not a file")
        with self._open() as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            try:
                self.manifest_text, self._extents = _header(stream, size)
            except (CorruptObject, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
                raise CorruptObject(f"{self._what} is not a factor file: {str(error)[:300]}") from None
        self.names = tuple(self._extents)

    def read(self, name: str) -> np.ndarray:
        """Return one tensor as it is stored; raise CorruptObject where none has that name."""
        if name not in self._extents:
            raise CorruptObject(f"{self._what} is not a factor file: it lacks the tensor {name[:60]!r}")
        kind, shape, first = self._extents[name]
        with self._open() as stream:
            stream.seek(first)
            raw = bytearray(math.prod(shape) * kind.itemsize)
            if stream.readinto(raw) != len(raw):  # type: ignore[attr-defined]  # Files and BytesIO have it.
                raise CorruptObject(f"{self._what} was cut while it was read")
        return np.frombuffer(raw, dtype=kind).reshape(shape)

    def lying(self, name: str) -> np.ndarray:
        """Return one tensor as a read-only view of immutable bytes, or else as `read` does."""
        extent = self._extents.get(name)
        if extent is None or not isinstance(self._source, bytes) or extent.first % extent.kind.itemsize:
            return self.read(name)
        count = math.prod(extent.shape)
        return np.frombuffer(self._source, extent.kind, count, extent.first).reshape(extent.shape)

    def _open(self) -> BinaryIO:
        source = self._source
        return io.BytesIO(source) if isinstance(source, (bytes, memoryview)) else Path(source).open("rb")


def _header(stream: BinaryIO, size: int) -> tuple[str, dict[str, Extent]]:
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        raise CorruptObject(f"it is not in safetensors format: a header of {length} bytes in a file of {size}")
    text = stream.read(length)
    if text[:1] != b"{":
        raise CorruptObject("it is not in safetensors format: its header does not begin with a brace")
    objects = itertools.count()

    def read(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if next(objects) > MAX_TENSORS:
            raise CorruptObject(f"its header has more than {MAX_TENSORS} entries, and a factor file a few")
        return _once(pairs)

    header = json.loads(
        text.decode("utf-8"), object_pairs_hook=read, parse_int=_natural, parse_float=_refuse, parse_constant=_refuse
    )
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or set(metadata) != {MANIFEST} or not isinstance(metadata[MANIFEST], str):
        raise CorruptObject("its metadata must be one text, 'manifest', which factorize writes")
    return metadata[MANIFEST], _extents(header, 8 + length, size)


def _extents(header: dict[str, Any], start: int, size: int) -> dict[str, Extent]:
    extents: dict[str, Extent] = {}
    end = start
    for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        if set(entry) != _PARTS or entry["dtype"] not in _KINDS or not _naturals(entry["shape"]):
            raise CorruptObject(f"tensor {name[:60]!r} is not a float64 or float32 array with offsets")
        kind, offsets = _KINDS[entry["dtype"]], entry["data_offsets"]
        length = math.prod(entry["shape"]) * kind.itemsize
        if not _naturals(offsets) or [start + place for place in offsets] != [end, end + length] or not length:
            raise CorruptObject(f"tensor {name[:60]!r} does not follow the one before it with the bytes that it states")
        extents[name] = Extent(kind, tuple(entry["shape"]), end)
        end += length
    if end > size:
        raise CorruptObject(f"its last {end - size} bytes are missing; copy or download it again")
    if end != size:
        raise CorruptObject(f"{size - end} of its bytes belong to no tensor")
    return extents


def _naturals(sides: object) -> bool:
    return isinstance(sides, list) and all(type(side) is int for side in sides)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise CorruptObject(f"one of the keys {sorted(key for key, _ in pairs)[:5]} is given twice")
    return members


def _natural(digits: str) -> int:
    if not digits.isdigit() or len(digits) > 15:
        raise CorruptObject(f"{digits[:20]} is not a size")
    return int(digits)


def _refuse(text: str) -> object:
    raise CorruptObject(f"{text[:20]} is not a size")
