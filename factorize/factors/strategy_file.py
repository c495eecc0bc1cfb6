"""A strategy from outside, in a file of numbers or an object of another library, read by the names of its arrays.

Files are `.npy`, `.npz` and safetensors, and the `TensorProto` that TensorFlow's `io.serialize_tensor` writes, the form
of the published matrices of google-research/federated; nothing is ever unpickled. The names are those of the file
format (docs/file-format.md), and the names that other libraries use for the same arrays.
"""

import os
import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from factorize.errors import CorruptObject, InvalidParameter, InvalidStrategy
from factorize.format.container import local_path, read_whole
from factorize.numbers.masked_entries import refuse_masked
from factorize.structures.base import MAX_DENSE, Matrix
from factorize.structures.layouts import build_matrix

FORMS = {
    ("C",): "dense",
    ("coefficients",): "toeplitz",
    ("inverse_coefficients",): "inverse_banded_toeplitz",
    ("omega", "theta"): "blt",
    ("bands",): "banded",
}
"""The names of the arrays that define a strategy, and its structure."""
SYNONYMS = {"buf_decay": "theta", "output_scale": "omega", "query_matrix": "C"}
"""The names of the fields in jax_privacy's and opake's BLTs and in pfl's mechanism, and our names for them."""
_EMPTY_NAMES = {"", "arr_0"}
"""The names of a single array without a name; numpy.savez(path, array) calls it `arr_0`."""
MAX_ARRAY_BYTES = 8 * MAX_DENSE**2
"""The most bytes of an unpacked array, since an archive may state less; no strategy that is read whole is larger."""
_OTHER_PARTS = ("dual", "B", "C_inv")
"""The parts of our own factor files besides C, whose names are the first words of their tensors' names."""
_DTYPES = {1: "<f4", 2: "<f8"}
"""The types of TensorFlow, DT_FLOAT and DT_DOUBLE, by number."""
_VALUE_FIELDS = {5: 1, 6: 2}
"""The fields of packed values, float_val and double_val, and the types of the values."""
_MAX_VARINT_BYTES = 10
"""The most bytes of a variable-length integer in a protocol buffer."""
_PYTHON_ERRORS = (ValueError, EOFError, SyntaxError, TypeError, LookupError, RuntimeError, OverflowError)
"""The errors of Python by which a damaged file shows when it is read."""

Given = Matrix | np.ndarray
"""A strategy as a structure, or as a whole array of shape (n, n)."""


def read_strategy(source: object, *, n: int | None = None, holds: str | None = None) -> Given:
    """Return the strategy that an array, a file or an object of another library holds.

    Args:
        source: an array, or an object that becomes one: lists, data frames, tensors of torch, sparse matrices; a path;
            or an object with such arrays as fields, for example of jax_privacy, opake or pfl.
        n: number of steps, for a source that does not state it.
        holds: meaning of a single array without a name: C, coefficients, inverse_coefficients or bands; C where it has
            two dimensions.

    Raises:
        CorruptObject: the file is damaged, or has none of these formats.
        InvalidStrategy: there are no real numbers that doubles hold exactly, or the arrays do not define C.
        InvalidParameter: the meaning of an array, or the number of steps of a BLT, is missing.
        OSError: the file cannot be read.
    """
    if isinstance(source, (str, bytes, os.PathLike)):
        name, arrays = os.fsdecode(source), _read(local_path(source))
    elif (
        isinstance(source, list) or type(source) is tuple or hasattr(source, "__array__") or hasattr(source, "toarray")
    ):
        name, arrays = "the strategy", {"": _array(source)}
    else:
        name, arrays = type(source).__name__, _fields(source)
    if len(arrays) == 1 and (holds is not None or set(arrays) <= _EMPTY_NAMES):
        (array,) = arrays.values()
        if holds is None and array.ndim == 1:
            raise InvalidParameter(
                f"{name} has {len(array)} numbers in a row; say whether they are coefficients (the first column of C) "
                "or inverse_coefficients (that of C^-1), by --holds, holds= or the name in an .npz",
                field="holds",
            )
        arrays = {"C" if holds is None else holds: array}
    form = tuple(sorted(arrays))
    if form not in FORMS:
        known = "; ".join(" and ".join(one) for one in FORMS)
        known += ", or name it by --holds, holds=" * (len(form) == 1)
        raise InvalidStrategy(
            f"{name} has {', '.join(form)[:200] or 'no array'}, which is not a strategy; give {known}"
        )
    parts = {one: _doubles(array, name) for one, array in arrays.items()}
    if form == ("C",):
        if parts["C"].ndim != 2 or 0 in parts["C"].shape:
            raise InvalidStrategy(f"{name} has an array of shape {parts['C'].shape}; give one real matrix")
        return parts["C"]
    if n is None:
        if form == ("omega", "theta"):
            message = f"{name} has a BLT, which fits any number of steps; give its spec"
            raise InvalidParameter(message, field="n")
        n = int(parts[form[0]].shape[-1]) if parts[form[0]].ndim else 0
    if form != ("omega", "theta") and parts[form[0]].shape[-1:] > (n,):
        raise InvalidStrategy(
            f"{name} has {parts[form[0]].shape[-1]} steps, but the spec has n={n}; give both the same n"
        )
    structure = FORMS[form]
    if structure == "toeplitz" and parts["coefficients"].shape != (n,):
        structure = "banded_toeplitz"
    try:
        return build_matrix(structure, parts, n)
    except InvalidStrategy as error:
        message = f"the {' and '.join(form)} in {name} are not a strategy: {error}"
        if structure == "inverse_banded_toeplitz":
            message += "; give the coefficients of C"
        raise InvalidStrategy(message) from None


def _fields(source: object) -> dict[str, np.ndarray]:
    """Return the arrays of an object by our names: its fields, or the matrix that it can write itself as."""
    if hasattr(source, "params") and hasattr(source, "materialize"):  # jax_privacy's ColumnNormalizedBanded
        return {"C": np.asarray(source.materialize())}
    if getattr(source, "normalized", False):
        raise InvalidStrategy(f"{type(source).__name__} normalises its columns and does not store the factors; give C")
    held = {field: getattr(source, field, None) for field in (*(one for form in FORMS for one in form), *SYNONYMS)}
    # A method, or a number of bands, is part of a recipe; opake's strategies are recipes.
    arrays = {field: _array(one) for field, one in held.items() if hasattr(one, "__len__")}
    return _by_our_names(arrays, type(source).__name__)


def _by_our_names(arrays: dict[str, np.ndarray], of: str) -> dict[str, np.ndarray]:
    plain = [(name.removeprefix("C."), array) for name, array in arrays.items()]
    renamed = {SYNONYMS.get(name, name): array for name, array in plain}
    if len(renamed) < len(arrays):
        raise InvalidStrategy(f"{of} has one array under two names; leave one out")
    return renamed


def _array(source: Any) -> np.ndarray:
    """Return the array that an array-like, a tensor of torch or a sparse matrix holds."""
    if hasattr(source, "toarray"):
        source = source.toarray()
    if hasattr(source, "is_floating_point") and hasattr(source, "detach"):  # numpy has no bfloat16
        source = source.detach().cpu()
        source = source.double() if source.is_floating_point() else source
    try:
        refuse_masked("it", source)
        return np.asarray(source)
    except (ValueError, TypeError, RuntimeError) as why:
        raise InvalidStrategy(f"the strategy, a {type(source).__name__}, is not an array: {why}; give C") from None


def _doubles(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InvalidStrategy(f"{name} has an array of {array.dtype} with shape {array.shape}; give real numbers")
    doubles = array.astype(np.float64)
    if not np.isfinite(doubles).all() or (doubles.astype(array.dtype) != array).any():
        raise InvalidStrategy(f"{name} contains NaN, infinity or integers above 2^53; give finite doubles")
    return doubles


def _read(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name; '' for an array without a name."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    data = read_whole(path)
    kind, read = "safetensors", load
    if path.suffix in (".npy", ".npz"):
        kind, read = path.suffix, _read_archive if path.suffix == ".npz" else _read_array
    elif data[:1] == b"\x08" and int.from_bytes(data[:8], "little") > len(data):
        kind, read = "TensorProto", _read_tensor
    try:
        arrays = read(data)
    except (SafetensorError, zipfile.BadZipFile, zlib.error, TokenError, *_PYTHON_ERRORS) as why:
        ways = "" if path.suffix.endswith(kind) else "; use .npy, .npz, .safetensors or a TensorProto"
        if isinstance(why, KeyError):  # safetensors names a type, such as BF16, that numpy has not
            why, ways = ValueError(f"numpy has no type {why}"), "; save it in float64 or float32"
        raise CorruptObject(f"{path} is not a {kind} file of plain numbers: {why}{ways}") from None
    own = {name: one for name, one in arrays.items() if name.partition(".")[0] not in _OTHER_PARTS}
    return _by_our_names(own, str(path))


def _read_array(data: bytes) -> dict[str, np.ndarray]:
    """Read a `.npy` file without np.load, which also opens archives and pickles."""
    stream = BytesIO(data)
    array = np.lib.format.read_array(stream, allow_pickle=False)
    if stream.read(1):
        raise ValueError("bytes follow the array")
    return {"": array}


def _read_archive(data: bytes) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(BytesIO(data)) as archive:
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in arrays or entry.file_size > MAX_ARRAY_BYTES:
                raise ValueError(f"{name[:40]} appears twice, or has more than {MAX_ARRAY_BYTES} bytes")
            arrays[name] = _read_array(archive.read(entry))[""]
    return arrays


def _read_tensor(data: bytes) -> dict[str, np.ndarray]:
    """Read a serialized TensorProto of float32 or float64.

    Reference: tensorflow/core/framework/tensor.proto and tensor_shape.proto; the wire format of protocol buffers.
    """
    message: dict[int, Any] = {}
    for number, value in _message(memoryview(data)):
        if number in message:
            raise ValueError(f"field {number} appears twice")
        message[number] = value
    kind = message.pop(1, None)
    if kind not in _DTYPES:
        raise ValueError(f"the tensor has TensorFlow's type {kind}; write it as float64 (2) or float32 (1)")
    sides = []
    for number, value in _message(message.pop(2, memoryview(b""))):
        if number != 2:
            raise ValueError("the shape is unknown")
        sides.append(dict(_message(value)).get(1, 0))
    message.pop(3, None)  # removes the version
    ((number, content),) = message.items() or {0: b""}.items()
    if number != 4 and _VALUE_FIELDS.get(number) != kind:
        raise ValueError(f"the numbers are in field {number}; write the file with tf.io.serialize_tensor")
    numbers = np.frombuffer(content, _DTYPES[kind])
    if numbers.size != np.prod(sides, dtype=object) or len(sides) > 2:
        raise ValueError(f"{numbers.size} numbers do not fill the shape {sides}")
    return {"": numbers.reshape(sides)}


def _message(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field: an int, or the bytes of a field with a length."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        value: Any
        value, position = _varint(data, position)
        if key & 7 == 2:
            value, position = data[position : position + value], position + value
        elif key & 7 != 0:
            raise ValueError(f"field {key >> 3} has the wire type {key & 7}, which no TensorProto has")
        if position > len(data):
            raise ValueError("the file is cut off")
        yield key >> 3, value


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for count in range(_MAX_VARINT_BYTES):
        byte = data[position + count]
        value |= (byte & 127) << (7 * count)
        if byte < 128:
            return value, position + count + 1
    raise ValueError("a number has more than 64 bits")
