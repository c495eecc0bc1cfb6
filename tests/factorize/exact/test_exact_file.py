"""Files that the exact checker decodes for itself, byte by byte: what it reads, and what it refuses and why."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_files import file_of, parts, random_result, sealed
from safetensors.numpy import save

from factorize.errors import CorruptObject, InvalidStrategy
from factorize.exact import file, read_array
from factorize.exact.file import digest_of, manifest_of, read_factor_file, read_tensors
from factorize.format.manifest import manifest_digest


def raw(header: Any, body: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def entry(shape: list[int], begin: int, end: int, dtype: str = "F64") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_of_every_shape_and_type() -> None:
    given = {
        "matrix": np.arange(6.0).reshape(2, 3),
        "number": np.array(2.5),
        "none": np.zeros((0, 3)),
        "short": np.array([1.5], dtype=np.float32),
        "half": np.array([0.5], dtype=np.float16),
    }
    tensors, metadata = read_tensors(save(given, {"words": "x" * 5000}))
    assert metadata == {"words": "x" * 5000}
    assert {name: (a.dtype, a.tolist()) for name, a in tensors.items()} == {
        name: (a.dtype, a.tolist()) for name, a in given.items()
    }
    assert read_tensors(raw(b"{}")) == ({}, {})


NO_FILES = {
    "nothing": (b"", "states a header of 0"),
    "less than a length": (b"\2\0\0\0\0\0\0", "no safetensors file"),
    "a header of no length": (raw(b"", b"{}", length=0), "states a header of 0"),
    "a header of one byte": (raw(b"1", b""), "states a header of 1"),
    "a header beyond the end": (raw(b"{}", length=3), "states a header of 3"),
    "a header of words": (raw(b"words"), "does not begin with a brace"),
    "a header cut short": (raw(b'{"C"'), "the header is not JSON"),
    "a header that is a list": (raw([]), "does not begin with a brace"),
    "an entry that is a number": (raw({"C": 5}), "not a safetensors file: TypeError"),
    "an entry without a type": (
        raw({"C": {"shape": [], "data_offsets": [0, 0]}}),
        "by its type, shape and offsets alone",
    ),
    "a gap": (raw({"C": entry([1], 8, 16)}, bytes(16)), "does not follow"),
    "an overlap": (raw({"C": entry([1], 0, 8), "D": entry([1], 4, 12)}, bytes(12)), "does not follow"),
    "too few bytes": (raw({"C": entry([2], 0, 8)}, bytes(8)), "does not follow"),
    "sides below 0": (raw({"C": entry([-1, -1], 0, 8)}, bytes(8)), "-1 is no size"),
    "a type of no width": (raw({"C": entry([3], 0, 3, "X8")}, bytes(3)), "does not follow"),
    "whole numbers": (raw({"C": entry([1], 0, 8, "I64")}, bytes(8)), "is I64; this checker reads F64, F32 and F16"),
    "metadata that are no texts": (
        raw({"__metadata__": {"words": "x", "number": 5}}),
        "metadata of the file are not texts",
    ),
    "a side that is no integer": (
        raw({"C": entry([2, 1.0], 0, 16)}, bytes(16)),
        "by its type, shape and offsets alone",
    ),  # type: ignore[list-item]
    "a beginning that is no integer": (
        raw({"C": entry([1], 0.0, 8)}, bytes(8)),  # type: ignore[arg-type]
        "by its type, shape and offsets alone",
    ),
    "an end that is no integer": (
        raw({"C": entry([1], 0, True)}, bytes(8)),
        "by its type, shape and offsets alone",
    ),
    "an entry with more": (
        raw({"C": entry([1], 0, 8) | {"more": 1}}, bytes(8)),
        "by its type, shape and offsets alone",
    ),
    "a header in another encoding": (raw("{}".encode("utf-16-le")), "the header is not JSON"),
    "a name that is given twice": (raw(b'{"C": 1, "C": 1}'), "is given twice"),
    "more bytes than tensors": (raw({"C": entry([1], 0, 8)}, bytes(9)), "1 bytes of the file belong to no tensor"),
    "fewer bytes than tensors": (raw({"C": entry([1], 0, 8)}, bytes(7)), "not a safetensors file: ValueError"),
}


@pytest.mark.parametrize("name", NO_FILES)
def test_files_that_are_none(name: str) -> None:
    data, message = NO_FILES[name]
    with pytest.raises(CorruptObject, match=message):
        read_tensors(data)


def test_headers_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "MOST_HEADER_BYTES", 8)
    assert read_tensors(raw(b"{}      ")) == ({}, {})
    with pytest.raises(CorruptObject, match="states a header of 9"):
        read_tensors(raw(b"{}       ", bytes(90)))


def test_digests_of_plain_data() -> None:
    assert digest_of({"b": [1, 2.5], "a": "é"}) == hashlib.sha256(b'{"a":"\\u00e9","b":[1,2.5]}').hexdigest()
    with pytest.raises(ValueError, match="JSON compliant"):
        digest_of([float("nan")])


def small(structure: str = "dense") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    result = random_result(np.random.default_rng(0), structure, {"kind": "single"}, 4)
    return parts(result.with_matrices(["C", "B", "C_inv"]))


def test_matrices_are_read_by_the_parts_of_their_names() -> None:
    manifest, tensors = small("banded")
    found = read_factor_file(sealed(manifest, tensors))
    assert {name: sorted(part) for name, part in found.matrices.items()} == {"C": ["bands"], "B": [""], "C_inv": [""]}
    assert (found.matrices["C"]["bands"] == tensors["C.bands"]).all() and found.dual == {}
    assert found.manifest == manifest


def test_evidence_is_read_by_name() -> None:
    manifest, tensors = small()
    tensors["dual.weights"] = np.ones(4)
    manifest["dual"] = {"tensors": ["dual.weights"], "sha256": hashlib.sha256(np.ones(4).tobytes()).hexdigest()}
    assert read_factor_file(sealed(manifest, tensors)).dual["weights"].tolist() == [1.0] * 4


@pytest.mark.parametrize("name", ["C", "B", "C_inv"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_matrices_that_are_not_finite(name: str, number: float) -> None:
    manifest, tensors = small()
    tensors[name] = tensors[name].copy()
    tensors[name][3, 1] = number
    with pytest.raises(CorruptObject, match=f"{name} holds NaN or infinity"):
        read_factor_file(sealed(manifest, tensors))


def test_manifests_are_read_strictly() -> None:
    _, tensors = small()
    for text in ('{"schema": NaN}', '{"schema": 1, "schema": 1}'):
        with pytest.raises(CorruptObject, match="the manifest is not JSON"):
            read_factor_file(save(tensors, {"manifest": text}))


def test_metadata_hold_the_manifest_alone() -> None:
    manifest, tensors = small()
    sealed(manifest, tensors)
    text = json.dumps(manifest)
    assert read_factor_file(save(tensors, {"manifest": text})).manifest == manifest
    for metadata in ({"manifest": text, "more": "x"}, {"more": "x"}, {}):
        with pytest.raises(CorruptObject, match="and not the manifest alone"):
            read_factor_file(save(tensors, metadata))
    with pytest.raises(CorruptObject, match="the manifest is not a JSON object"):
        read_factor_file(save(tensors, {"manifest": "[]"}))


def test_numbers_of_a_structure_are_looked_at() -> None:
    manifest, tensors = small()
    tensors |= {"C.theta": np.array([0.5]), "C.omega": np.array([0.25])}
    del tensors["C"]
    manifest["matrices"]["C"] |= {"structure": "blt", "tensors": ["C.theta", "C.omega"]}
    assert set(read_factor_file(sealed(manifest, tensors)).matrices["C"]) == {"theta", "omega"}
    tensors["C.omega"] = np.array([-0.25])
    with pytest.raises(CorruptObject, match="decays and scales of a blt are not negative"):
        read_factor_file(sealed(manifest, tensors))


def test_a_manifest_that_is_not_its_digest() -> None:
    manifest, tensors = small()
    sealed(manifest, tensors)
    manifest["certificate"]["converged"] = not manifest["certificate"]["converged"]
    with pytest.raises(CorruptObject, match="does not hash to its own digest"):
        read_factor_file(file_of(manifest, tensors))
    manifest["digest"] = manifest_digest(manifest)
    manifest |= {"created": "now", "files": []}  # which the digest leaves out
    manifest["solver"]["seconds"] = 1e9
    assert read_factor_file(file_of(manifest, tensors)).manifest == manifest


def test_bytes_that_are_not_their_digest() -> None:
    manifest, tensors = small()
    sealed(manifest, tensors)
    tensors["C"][0, 0] += 1
    with pytest.raises(CorruptObject, match="the bytes of C do not hash"):
        read_factor_file(file_of(manifest, tensors))


def test_one_tensor_of_another_type() -> None:
    manifest, tensors = small()
    tensors |= {"C.theta": np.array([0.5]), "C.omega": np.array([0.5], dtype=np.float32)}
    del tensors["C"]
    manifest["matrices"]["C"] |= {"structure": "blt", "tensors": ["C.theta", "C.omega"]}
    with pytest.raises(CorruptObject, match="C is not stored as 'float64'"):
        read_factor_file(sealed(manifest, tensors))


WRONG_MANIFESTS: list[tuple[dict[str, Any], str]] = [
    ({"schema": 2}, "schema 2 is not 1"),
    ({"schema": 1.0}, "schema 1.0 is not 1"),
    ({"schema": True}, "schema True is not 1"),
    ({"matrices": 5}, "not a factor file: TypeError"),
    ({"solver": None}, "not a factor file: AttributeError"),
    ({"matrices": {}}, "the matrices are"),
]


@pytest.mark.parametrize(("changed", "words"), WRONG_MANIFESTS)
def test_manifests_whose_digests_agree(changed: dict[str, Any], words: str) -> None:
    manifest, tensors = small()
    sealed(manifest, tensors)
    manifest |= changed
    if manifest["solver"] is not None:
        manifest["digest"] = manifest_digest(manifest)
    for read in (read_factor_file, manifest_of):
        with pytest.raises(CorruptObject, match=words):
            read(file_of(manifest, tensors))


def test_a_manifest_on_its_own() -> None:
    """Of the tensors nothing is looked at but their places."""
    manifest, tensors = small()
    data = sealed(manifest, tensors)
    assert manifest_of(data) == manifest
    tensors["C"] = tensors["C"] * 2
    assert manifest_of(file_of(manifest, tensors)) == manifest
    with pytest.raises(CorruptObject, match="not a factor file: KeyError: 'manifest'"):
        manifest_of(save(tensors, {"more": "x"}))
    manifest["spec_digest"] = "0" * 64
    manifest["digest"] = manifest_digest(manifest)
    for read in (read_factor_file, manifest_of):
        with pytest.raises(CorruptObject, match="the spec does not hash to its spec digest"):
            read(file_of(manifest, tensors))


def test_tensors_that_nothing_names() -> None:
    manifest, tensors = small()
    data = sealed(manifest, tensors)
    assert set(read_factor_file(data).matrices) == {"C", "B", "C_inv"}
    tensors["more"] = np.ones(1)
    with pytest.raises(CorruptObject, match=r"the manifest does not name the tensors \['more'\]"):
        read_factor_file(sealed(manifest, tensors))


def test_how_many_bytes_a_matrix_has() -> None:
    manifest, tensors = small()
    sealed(manifest, tensors)
    manifest["matrices"]["B"]["bytes"] += 8
    manifest["digest"] = manifest_digest(manifest)
    with pytest.raises(CorruptObject, match="B does not have the number of bytes"):
        read_factor_file(file_of(manifest, tensors))


def test_only_a_whole_c_lies_where_it_is_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    real = file._doubles

    def recorded(array: np.ndarray, *, copied: bool) -> np.ndarray:
        asked.append(copied)
        return real(array, copied=copied)

    monkeypatch.setattr(file, "_doubles", recorded)
    for structure, wanted in (("dense", [True, False, True]), ("banded", [True, True, True])):
        asked.clear()
        manifest, tensors = small(structure)
        data = sealed(manifest, tensors)
        assert list(read_factor_file(data).matrices) == ["B", "C", "C_inv"]
        assert asked == wanted
    aligned = np.frombuffer(bytes(16), dtype="<f8")
    apart = np.frombuffer(bytes(17), dtype="<f8", offset=1)
    assert aligned.flags.aligned and not apart.flags.aligned
    assert real(aligned, copied=False) is aligned
    for array, copied in ((aligned, True), (apart, False), (apart, True)):
        found = real(array, copied=copied)
        assert not np.shares_memory(found, array) and found.flags.aligned


def test_arrays_from_files_of_tensors(tmp_path: Path) -> None:
    path, one, two = tmp_path / "C.safetensors", np.eye(2), np.ones((2, 2))
    path.write_bytes(save({"C": one, "D": two}))
    assert (read_array(path) == one).all() and (read_array(path, "D") == two).all()
    with pytest.raises(InvalidStrategy, match=r"holds the tensors \['C', 'D'\] and none of them is named 'E'"):
        read_array(path, "E")
    path.write_bytes(save({"D": two}))
    assert (read_array(path) == two).all() and (read_array(path, "D") == two).all()
    path.write_bytes(raw(b"{}"))
    with pytest.raises(InvalidStrategy, match=r"holds the tensors \[\] and none"):
        read_array(path)


class Command:
    """What a pickle may hold: a call that is made when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_arrays_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "C.npy", np.array([[Command(tmp_path / "made")]], dtype=object), allow_pickle=True)
    with pytest.raises(CorruptObject, match="not a .npy file of plain numbers"):
        read_array(tmp_path / "C.npy")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "array",
    [np.zeros((0, 2)), np.zeros(4), np.zeros((1, 1, 1)), np.eye(2, dtype=complex), np.eye(2, dtype=np.longdouble)],
)
def test_arrays_that_are_no_matrices(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "C.npy", array)
    with pytest.raises(InvalidStrategy, match="give one real matrix"):
        read_array(tmp_path / "C.npy")


@pytest.mark.parametrize("value", [2**53 + 1, 2**63 - 1, np.nan, np.inf])
def test_numbers_that_doubles_do_not_hold(value: float, tmp_path: Path) -> None:
    np.save(tmp_path / "C.npy", np.array([[value]]))
    with pytest.raises(InvalidStrategy, match="finite doubles"), np.errstate(invalid="ignore"):
        read_array(tmp_path / "C.npy")
    np.save(tmp_path / "C.npy", np.array([[2**53, -3], [True, 0]]))
    assert read_array(tmp_path / "C.npy").tolist() == [[2.0**53, -3.0], [1.0, 0.0]]
