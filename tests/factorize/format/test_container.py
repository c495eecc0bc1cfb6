"""The container: every byte is accounted for, and the limits are where they are said to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorize.errors import CorruptObject
from factorize.format import container
from factorize.format.container import Container

METADATA = {"manifest": "m"}


def entry(shape: Any, first: Any, last: Any, dtype: Any = "F64") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


def raw(header: Any, body: bytes = b"", *, metadata: Any = METADATA, pad: str = "") -> bytes:
    text = header if isinstance(header, str) else json.dumps({"__metadata__": metadata, **header})
    encoded = (text + pad).encode()
    return len(encoded).to_bytes(8, "little") + encoded + body


TWO = {"b": entry([2], 0, 16), "a": entry([1, 3], 16, 28, "F32")}
BODY = np.array([1.5, -2.0]).tobytes() + np.array([3, 4, 5], "<f4").tobytes()


@pytest.mark.parametrize("kind", [bytes, memoryview, "path", "text"])
def test_tensors_in_the_order_of_their_bytes(kind: Any, tmp_path: Path) -> None:
    data, path = raw(TWO, BODY), tmp_path / "f.safetensors"
    path.write_bytes(data)
    found = Container({"path": path, "text": str(path)}[kind] if isinstance(kind, str) else kind(data))
    assert (found.manifest_text, found.names) == ("m", ("b", "a"))
    assert found.read("b").tolist() == [1.5, -2.0] and found.read("b").dtype == np.float64
    assert found.read("a").tolist() == [[3, 4, 5]] and found.read("a").dtype == np.float32
    found.read("a")[0, 0] = 9  # a copy
    assert found.read("a")[0, 0] == 3
    what = "this" if not isinstance(kind, str) else str(path)
    with pytest.raises(CorruptObject) as refusal:
        found.read("c" * 99)
    assert str(refusal.value) == f"{what} is not a factor file: it lacks the tensor {'c' * 60!r}"


@pytest.mark.parametrize("shift", [0, 4])
def test_tensors_of_bytes_where_they_lie(shift: int, tmp_path: Path) -> None:
    """Where that is a multiple of their size; those of a file, or of a view, are read."""
    data = raw(TWO, BODY, pad=" " * (-len(raw(TWO)) % 8 + shift))
    found, view = Container(data), Container(memoryview(data))
    for name in "ba":
        here, there = found.lying(name), name == "a" or shift == 0
        assert (here == found.read(name)).all() and (here == view.lying(name)).all()
        assert np.shares_memory(here, np.frombuffer(data, np.uint8)) == there == (not here.flags.writeable)
    path = tmp_path / "f.safetensors"
    path.write_bytes(data)
    assert Container(path).lying("a").tolist() == [[3, 4, 5]]
    for lost in (found, view):
        with pytest.raises(CorruptObject, match="lacks the tensor 'c'"):
            lost.lying("c")


def test_a_file_that_is_cut_while_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    path.write_bytes(raw(TWO, BODY))
    found = Container(path)
    path.write_bytes(raw(TWO, BODY)[:-1])
    assert found.read("b").tolist() == [1.5, -2.0]
    with pytest.raises(CorruptObject) as refusal:
        found.read("a")
    assert str(refusal.value) == f"{path} was cut while it was read"


def test_there_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, str(tmp_path)):
        with pytest.raises(FileNotFoundError, match="is not a file"):
            Container(path)


LONG = "x" * 400
NO_FORMAT = "it is not in safetensors format:"
NONE = {
    "nothing": (b"", f"{NO_FORMAT} a header of 0 bytes in a file of 0"),
    "a header of one byte": (b"\1" + bytes(7) + b"{}", f"{NO_FORMAT} a header of 1 bytes in a file of 10"),
    "a header beyond the file": (b"\3" + bytes(7) + b"{}", f"{NO_FORMAT} a header of 3 bytes in a file of 10"),
    "big-endian": (bytes(7) + b"\2{}", f"{NO_FORMAT} a header of {2 << 56} bytes in a file of 10"),
    "white space first": (raw(" {}"), f"{NO_FORMAT} its header does not begin with a brace"),
    "no JSON": (raw("{x"), "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    "no UTF-8": (b"\3" + bytes(7) + b"{\xff}", "'utf-8' codec can't decode byte 0xff in position 1: invalid start byte"),
    "too deep": (raw('{"a":' + "[" * 100_000), "while decoding a JSON array from a "
                                               "unicode string"),
    "no metadata": (raw("{}"), "its metadata must be one text, 'manifest', which factorize writes"),
    "metadata of no object": (raw({}, metadata=["manifest"]), "its metadata must be one text, 'manifest', which factorize writes"),
    "metadata beside": (raw({}, metadata={"manifest": "m", "x": "y"}), "its metadata must be one text, 'manifest', which factorize writes"),
    "metadata of another name": (raw({}, metadata={"x": "m"}), "its metadata must be one text, 'manifest', which factorize writes"),
    "a manifest of no text": (raw({}, metadata={"manifest": 1}), "its metadata must be one text, 'manifest', which factorize writes"),
    "a name twice": (
        raw('{"f":1,"e":1,"d":1,"c":1,"b":1,"a":1,"a":1}'),
        "one of the keys ['a', 'a', 'b', 'c', 'd'] is given twice",
    ),
    "many tensors": (
        raw({str(k): entry([1], 8 * k, 8 * k + 8) for k in range(65)}, bytes(65 * 8)),
        "its header has more than 64 entries, and a factor file a few",
    ),
    "a float": (raw({"a": entry([1.0], 0, 8)}, bytes(8)), "1.0 is not a size"),
    "a long float": (raw('{"a":1.' + "1" * 40 + "}"), "1." + "1" * 18 + " is not a size"),
    "infinity": (raw('{"a":Infinity}'), "Infinity is not a size"),
    "below 0": (raw({"a": entry([-1], 0, 8)}, bytes(8)), "-1 is not a size"),
    "sixteen digits": (raw({"a": entry([10**15], 0, 8)}, bytes(8)), "1000000000000000 is not a size"),
    "many digits": (raw({"a": entry([10**30], 0, 8)}, bytes(8)), "1" + "0" * 19 + " is not a size"),
    "another part": (
        raw({LONG: {**entry([1], 0, 8), "x": 1}}, bytes(8)),
        f"tensor {LONG[:60]!r} is not a float64 or float32 array with offsets",
    ),
    "a part less": (raw({"a": {"dtype": "F64", "data_offsets": [0, 8]}}, bytes(8)), "'a' is not a float64 or float32"),
    "no offsets": (raw({"a": {"dtype": "F64", "shape": [1]}}, bytes(8)), "'data_offsets'"),
    "no object": (raw({"a": 1}, bytes(8)), "'int' object is not subscriptable"),
    "offsets of no list": (raw({"a": {**entry([1], 0, 8), "data_offsets": 8}}, bytes(8)), "'int' object is not iterable"),
    "another type": (raw({"a": entry([1], 0, 8, "I64")}, bytes(8)), "'a' is not a float64 or float32 array"),
    "a shape of no list": (raw({"a": entry("1", 0, 8)}, bytes(8)), "'a' is not a float64 or float32 array"),
    "a side of no number": (raw({"a": entry([1, True], 0, 8)}, bytes(8)), "'a' is not a float64 or float32 array"),
    "an offset of no number": (raw({"a": entry([1], False, 8)}, bytes(8)), "'a' does not follow the one before it"),
    "an offset too many": (
        raw({"a": {**entry([1], 0, 8), "data_offsets": [0, 8, 8]}}, bytes(8)),
        "'a' does not follow the one before it with the bytes that it states",
    ),
    "a gap": (raw({"a": entry([1], 8, 16)}, bytes(16)), "'a' does not follow"),
    "an overlap": (
        raw({"a": entry([1], 0, 8), LONG: entry([1], 4, 12)}, bytes(12)),
        f"tensor {LONG[:60]!r} does not follow the one before it with the bytes that it states",
    ),
    "too many bytes": (raw({"a": entry([1], 0, 9)}, bytes(9)), "'a' does not follow"),
    "too few bytes": (raw({"a": entry([2], 0, 8)}, bytes(8)), "'a' does not follow"),
    "single stated as double": (raw({"a": entry([2], 0, 8, "F64")}, bytes(8)), "'a' does not follow"),
    "no numbers": (raw({"a": entry([0], 0, 0)}), "'a' does not follow"),
    "bytes of none": (raw({"a": entry([1], 0, 8)}, bytes(11)), "3 of its bytes belong to no tensor"),
    "bytes that are missing": (raw({"a": entry([1], 0, 8)}, bytes(7)), "its last 1 bytes are missing; copy or download it again"),
}  # fmt: skip


@pytest.mark.parametrize("name", NONE)
def test_files_that_are_none(name: str) -> None:
    data, message = NONE[name]
    with pytest.raises(CorruptObject) as refusal:
        Container(data)
    said = str(refusal.value)
    assert said.startswith("this is not a factor file: ") and message in said
    if not message.startswith(("'a' ", "while")):  # which each interpreter begins in its own words
        assert said == f"this is not a factor file: {message}"


def test_a_message_is_cut() -> None:
    name = "k" * 500
    with pytest.raises(CorruptObject) as refusal:
        Container(raw(f'{{"{name}":1,"{name}":1}}'))
    assert len(str(refusal.value)) == len("this is not a factor file: ") + 300


def test_several_times_the_tensors_of_any_structure_are_read() -> None:
    many = Container(raw({str(k): entry([1], 8 * k, 8 * k + 8) for k in range(62)}, bytes(62 * 8)))
    assert len(many.names) == 62


def test_limits_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = raw({})
    length = int.from_bytes(whole[:8], "little")
    monkeypatch.setattr(container, "MAX_HEADER_BYTES", length)
    assert Container(whole).names == ()
    with pytest.raises(CorruptObject, match=f"a header of {length + 1} bytes in"):
        Container(raw({}, pad=" "))
    assert container._natural("9" * 15) == 10**15 - 1
    assert container._naturals([]) and container._naturals([0, 5]) and not container._naturals((1,))
    assert raw("{}")[8:] == b"{}"
    with pytest.raises(CorruptObject, match="metadata"):  # two bytes are a header
        Container(raw("{}"))
