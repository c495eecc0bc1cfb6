"""Factor files as the exact checker opens them, by the reader of all others; and matrices of anybody's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checker_files import parts, random_result, sealed
from safetensors.numpy import save

from factorize.checker.check import check_factor_file
from factorize.errors import CorruptObject, InvalidStrategy
from factorize.format.reading import read_array


def small(structure: str = "dense") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    result = random_result(np.random.default_rng(0), structure, {"kind": "single"}, 4)
    return parts(result.with_matrices(["C", "B", "C_inv"]))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"privacy": {"epsilon": 0.01}}, "unknown"),
        ({"workload": {"kind": "identity", "n": 4, "privacy": 1}}, "the manifest's spec is none"),
        ({"workload": {"kind": "identity", "n": 4.0}}, "the spec states the size"),
        ({"tolerance": 2.0}, "the manifest's spec is none"),
        ({"optimize_for": None}, "not in its canonical form"),
        ({"optimize_for": {"kind": "prefix", "n": 4, "extra": None}}, "the manifest's spec is none"),
    ],
)
def test_specs_that_are_none(part: dict[str, Any], words: str) -> None:
    manifest, tensors = small()
    manifest["spec"] |= part
    with pytest.raises(CorruptObject, match=words):
        check_factor_file(sealed(manifest, tensors))


def test_a_loss_is_a_number_where_there_is_a_last_step() -> None:
    manifest, tensors = small()
    manifest["certificate"]["loss"]["rmse"] = None
    with pytest.raises(CorruptObject, match="the manifest is not one: TypeError"):
        check_factor_file(sealed(manifest, tensors))


def test_arrays_from_files_of_tensors(tmp_path: Path) -> None:
    path, one, two = tmp_path / "C.safetensors", np.eye(2), np.ones((2, 2))
    path.write_bytes(save({"C": one, "D": two}))
    assert (read_array(path) == one).all() and (read_array(path, "D") == two).all()
    with pytest.raises(InvalidStrategy, match=r"holds the tensors \['C', 'D'\] and none of them is named 'E'"):
        read_array(path, "E")
    path.write_bytes(save({"D": two}))
    assert (read_array(path) == two).all() and (read_array(path, "D") == two).all()
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(InvalidStrategy, match=r"holds the tensors \[\] and none"):
        read_array(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(CorruptObject, match="is not a safetensors file"):
        read_array(path)


def test_what_is_no_array_of_numpy_ends_in_a_sentence(tmp_path: Path) -> None:
    np.savez(tmp_path / "C.npz", C=np.eye(2))
    archive, path = (tmp_path / "C.npz").read_bytes(), tmp_path / "C.npy"
    header = b"\x93NUMPY\x01\x00\x64\x00" + b"(" * 99 + b"\n"
    for content in (archive, b"", b"PK\x03\x04nothing", header, b"\x93NUMPY\x09\x00"):
        path.write_bytes(content)
        with pytest.raises(CorruptObject, match="not a .npy file"):
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
