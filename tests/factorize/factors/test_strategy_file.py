"""Strategies of anybody's: files of every format, whole and damaged, and objects by their fields."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from scipy.sparse import csr_array, csr_matrix
from strangers_files import field, npy, npz, tensor_proto

import factorize
from factorize import Factorization, Spec
from factorize.errors import CorruptObject, InvalidParameter, InvalidSpec, InvalidStrategy
from factorize.factors.strategy_file import read_strategy
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.layouts import blt_of, recognised
from factorize.structures.toeplitz import ToeplitzMatrix

FILES = 30
"""Of each format."""


def toeplitz(column: np.ndarray, n: int) -> np.ndarray:
    padded = np.concatenate([column, np.zeros(n - len(column))])
    return np.array([[padded[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def lower(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.tril(rng.normal(size=(n, n)), -1) + np.diag(rng.uniform(0.5, 2.0, n))


Made = tuple[str, bytes, np.ndarray, dict[str, Any]]
"""The suffix, the bytes, C, and what is said beside the file."""


def whole(rng: np.random.Generator, n: int, write: Callable[[np.ndarray], bytes], suffix: str) -> Made:
    array = lower(rng, n)
    return suffix, write(array), array, {}


def coefficients(rng: np.random.Generator, n: int, write: Callable[[np.ndarray], bytes], suffix: str) -> Made:
    column = np.concatenate([[1.0], rng.normal(size=int(rng.integers(0, n)))])
    return suffix, write(column), toeplitz(column, n), {"n": n, "holds": "coefficients"}


def inverse(rng: np.random.Generator, n: int) -> Made:
    noising = np.concatenate([[1.0], -rng.dirichlet(np.ones(3))[: max(0, min(2, n - 1))]])
    return ".npz", npz(inverse_coefficients=noising), np.linalg.inv(toeplitz(noising, n)), {"n": n}


def blt(rng: np.random.Generator, n: int) -> Made:
    theta, omega = np.sort(rng.uniform(0.1, 0.99, 2)), rng.uniform(0.1, 0.5, 2)
    column = np.concatenate([[1.0], theta ** np.arange(n - 1)[:, None] @ omega])
    names = ("theta", "omega") if rng.random() < 0.5 else ("buf_decay", "output_scale")
    return ".npz", npz(**dict(zip(names, (theta, omega), strict=True))), toeplitz(column, n), {"n": n}


def bands(rng: np.random.Generator, n: int) -> Made:
    rows = np.array([[rng.uniform(0.5, 2.0) if j + d < n else 0.0 for j in range(n)] for d in range(min(3, n))])
    array = sum(np.diag(row[: n - d], -d) for d, row in enumerate(rows))
    return ".npz", npz(bands=rows), np.asarray(array), {}


FORMATS: dict[str, Callable[[np.random.Generator, int], Made]] = {
    "npy": lambda rng, n: whole(rng, n, npy, ".npy"),
    "npz": lambda rng, n: whole(rng, n, lambda array: npz(C=array), ".npz"),
    "safetensors": lambda rng, n: whole(rng, n, lambda array: save({"C": array}), ".safetensors"),
    "tensor content": lambda rng, n: whole(rng, n, tensor_proto, "c_matrix_tensor_pb"),
    "packed doubles": lambda rng, n: whole(rng, n, lambda array: tensor_proto(array, 2, 6), ".pb"),
    "column in npy": lambda rng, n: coefficients(rng, n, npy, ".npy"),
    "column in a tensor": lambda rng, n: coefficients(rng, n, tensor_proto, "_tensor_pb"),
    "inverse": inverse,
    "blt": blt,
    "bands": bands,
}


def as_array(given: Matrix | np.ndarray) -> np.ndarray:
    return given if isinstance(given, np.ndarray) else given.rows(0, given.n)


@pytest.mark.parametrize("name", FORMATS)
def test_files_of_each_format_are_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(len(name))
    for index in range(FILES):
        suffix, data, expected, said = FORMATS[name](rng, int(rng.integers(1, 12)))
        path = tmp_path / f"C{suffix}"
        path.write_bytes(data)
        exact = name in ("inverse", "blt")
        np.testing.assert_allclose(
            as_array(read_strategy(path, **said)), expected, rtol=1e-12 if exact else 0, atol=1e-15
        )
        damaged = bytearray(data)
        if index % 3 == 0:
            del damaged[int(rng.integers(0, len(data))) :]
        elif index % 3 == 1:
            damaged[int(rng.integers(0, len(data)))] ^= 1 << int(rng.integers(0, 8))
        else:
            damaged += b"\x2a"
        path.write_bytes(damaged)
        try:
            read = read_strategy(path, **said)
        except (CorruptObject, InvalidParameter) as refused:
            assert path.name in str(refused)
        else:  # one bit of a number, which nothing protects here; or what an archive has beside its arrays
            assert as_array(read).shape == expected.shape and (index % 3 == 1 or suffix == ".npz")
            if suffix == ".npz":  # its checksums
                np.testing.assert_allclose(as_array(read), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x08\x03" + field(2, b"") + field(4, b"1234"), "TensorFlow's type 3"),
        (b"\x08\x02" + field(2, b"\x18\x01") + field(4, b""), "the shape is unknown"),
        (b"\x08\x02" + field(2, field(2, b"\x08\x03")) + field(4, struct.pack("<d", 1.0)), "do not fill the shape"),
        (
            b"\x08\x02" + field(2, field(2, b"\x08\x01")) + field(9, struct.pack("<d", 1.0)),
            "the numbers are in field 9",
        ),
        (b"\x08\x02\x08\x02" + field(4, struct.pack("<d", 1.0)), "appears twice"),
        (b"\x08" + b"\xff" * 12, "more than 64 bits"),
    ],
)
def test_tensors_that_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "C_tensor_pb"
    path.write_bytes(data)
    with pytest.raises(CorruptObject, match=words):
        read_strategy(path)


def test_a_row_of_numbers_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.npy"
    np.save(path, np.array([1.0, 0.5]))
    with pytest.raises(InvalidParameter, match="2 numbers in a row; say whether they are") as refused:
        read_strategy(path)
    assert refused.value.field == "holds"
    with pytest.raises(InvalidStrategy, match="2 steps, but the spec has n=1"):
        read_strategy(path, n=1, holds="coefficients")
    with pytest.raises(InvalidStrategy, match="give the coefficients of C"):
        read_strategy(path, holds="inverse_coefficients")  # 0.5 is positive
    with pytest.raises(InvalidStrategy, match="which is not a strategy; give C"):
        read_strategy(path, holds="theta")
    path = tmp_path / "blt.npz"
    np.savez(path, theta=[0.5], omega=[0.5])
    with pytest.raises(InvalidParameter, match="a BLT, which fits any number of steps"):
        read_strategy(path)
    for twice in ({"theta": [0.5], "buf_decay": [0.5], "omega": [0.5]}, {"C": np.eye(2), "C.C": [[1, 0], [1, 1]]}):
        np.savez(path, **twice)
        with pytest.raises(InvalidStrategy, match="one array under two names"):
            read_strategy(path)


def test_an_array_by_a_name_of_its_own_may_be_the_inverse(tmp_path: Path) -> None:
    """C^-1 that is read as C has another sensitivity, and nothing in it says so."""
    path = tmp_path / "matrix.npz"
    for name in ("noising_matrix", "A", "matrix"):
        path.write_bytes(npz(**{name: np.eye(3)}))
        with pytest.raises(InvalidStrategy, match=f"has {name}, which is not a strategy.*name it by --holds"):
            read_strategy(path)
        assert as_array(read_strategy(path, holds="C")).tolist() == np.eye(3).tolist()
        (tmp_path / "m.safetensors").write_bytes(save({name: np.eye(3)}))
        with pytest.raises(InvalidStrategy, match=f"has {name}, which is not a strategy"):
            read_strategy(tmp_path / "m.safetensors")
    np.savez(path, np.eye(3))
    assert as_array(read_strategy(path)).tolist() == np.eye(3).tolist()


def test_our_own_files_are_strategies_too(tmp_path: Path) -> None:
    solved = factorize.solve("prefix", n=16, mechanism="square_root")
    solved.with_matrices(["C", "B"]).save(tmp_path / "own.safetensors")
    read = read_strategy(tmp_path / "own.safetensors", n=16)
    assert {name: list(part) for name, part in read.tensors().items()} == {
        name: list(part) for name, part in solved.strategy.tensors().items()
    }
    with pytest.raises(InvalidParameter, match=r"make one with factorize.certify\(path, spec\)"):
        factorize.load(tmp_path / "C.npy")


class Command:
    """What a pickle may hold: a call that is made when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_arrays_are_never_unpickled(tmp_path: Path, suffix: str) -> None:
    write = np.save if suffix == ".npy" else np.savez
    write(tmp_path / f"C{suffix}", np.array([[Command(tmp_path / "made")]], dtype=object), allow_pickle=True)
    with pytest.raises(CorruptObject, match="file of plain numbers"):
        read_strategy(tmp_path / f"C{suffix}")
    assert not (tmp_path / "made").exists()


def test_what_is_no_array_of_numpy_ends_in_a_sentence(tmp_path: Path) -> None:
    header = b"\x93NUMPY\x01\x00\x64\x00" + b"(" * 99 + b"\n"
    for content in (npz(C=np.eye(2)), b"", b"PK\x03\x04nothing", header, b"\x93NUMPY\x09\x00"):
        (tmp_path / "C.npy").write_bytes(content)
        with pytest.raises(CorruptObject, match="not a .npy file"):
            read_strategy(tmp_path / "C.npy")


def test_a_type_that_numpy_has_not_is_named_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "C.safetensors"
    header = b'{"C":{"dtype":"BF16","shape":[1,1],"data_offsets":[0,2]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\x80\x3f")
    with pytest.raises(CorruptObject, match="numpy has no type 'BF16'; save it in float64 or float32"):
        read_strategy(path)


@pytest.mark.parametrize(
    "array", [np.zeros((0, 2)), np.zeros((1, 1, 1)), np.eye(2, dtype=complex), np.eye(2, dtype=np.longdouble)]
)
def test_arrays_that_are_no_matrices(array: np.ndarray) -> None:
    with pytest.raises(InvalidStrategy, match="give (one real matrix|real numbers)"):
        read_strategy(array)


@pytest.mark.parametrize("value", [2**53 + 1, 2**63 - 1, np.nan, np.inf])
def test_numbers_that_doubles_do_not_hold(value: float) -> None:
    with pytest.raises(InvalidStrategy, match="finite doubles"), np.errstate(invalid="ignore"):
        read_strategy(np.array([[value]]))
    assert as_array(read_strategy([[2**53, -3], [True, 0]])).tolist() == [[2.0**53, -3.0], [1.0, 0.0]]


C = [[1.0, 0.0], [0.5, 1.0]]


@pytest.mark.parametrize("made", [list, lambda c: tuple(map(tuple, c)), np.float32, csr_array, csr_matrix])
@pytest.mark.parametrize("certify", [Factorization.from_strategy, lambda spec, c: factorize.certify(c, spec)])
def test_what_numpy_makes_an_array_of_is_a_strategy(
    made: Callable[[Any], Any], certify: Callable[[Spec, Any], Factorization]
) -> None:
    """The squared error of C = [[1, 0], [1/2, 1]] for running sums: B = A C^-1 = [[1, 0], [1/2, 1]], and |C|^2 = 5/4."""
    spec = factorize.parse_spec({"workload": {"kind": "prefix", "n": 2}})
    found = certify(spec, made(C))
    assert found.certificate.loss.rmse**2 == pytest.approx(9 / 8 * 5 / 4)
    masked = np.ma.masked_equal(C, 0.5)
    for wrong in (
        None,
        object(),
        {"a": C},
        [[1.0], [1.0, 2.0]],
        np.array(C) * 1j,
        [["1", "0"], ["0", "1"]],
        iter(C),
        masked,
    ):
        with pytest.raises(InvalidStrategy):
            certify(spec, wrong)
        with pytest.raises((InvalidParameter, InvalidSpec)):
            factorize.load(wrong)


def test_a_tilde_before_a_name_that_nobody_has_is_part_of_a_path(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    found = factorize.certify(C, "prefix")
    found.save("~ nobody")
    np.save("~none.npy", np.array(C))
    assert factorize.load("~ nobody").digest == found.digest == factorize.certify("~none.npy", "prefix").digest
    with pytest.raises(FileNotFoundError):
        factorize.load("~missing")


def test_objects_by_their_fields() -> None:
    blt = read_strategy(SimpleNamespace(buf_decay=[0.9, 0.5], output_scale=[0.1, 0.2], dtype="float64"), n=8)
    assert blt.tensors()["theta"].tolist() == [0.9, 0.5]
    assert read_strategy(SimpleNamespace(theta=(0.9, 0.5), omega=(0.1, 0.2)), n=8).tensors()["theta"].tolist() == [
        0.9,
        0.5,
    ]
    for name in ("C", "query_matrix"):
        assert read_strategy(SimpleNamespace(**{name: np.eye(3)})).tolist() == np.eye(3).tolist()
    with pytest.raises(InvalidStrategy, match="SimpleNamespace has one array under two names"):
        read_strategy(SimpleNamespace(C=np.eye(3), query_matrix=np.eye(3)))
    with pytest.raises(InvalidStrategy, match="SimpleNamespace has no array, which is not a strategy"):
        read_strategy(SimpleNamespace(sigma=1.0))
    with pytest.raises(InvalidStrategy, match="has no array"):  # a recipe of opake, whose numbers its methods make
        read_strategy(SimpleNamespace(bands=4, coefficients=lambda *, n_steps: np.ones(n_steps)), n=8)
    with pytest.raises(InvalidStrategy, match="normalises its columns"):
        read_strategy(SimpleNamespace(inverse_coefficients=(1.0, -0.5), normalized=True), n=8)


def test_a_blt_that_comes_as_a_matrix_needs_its_buffers() -> None:
    theta, omega, n = np.array([0.99, 0.7]), np.array([0.05, 0.3]), 64
    array = toeplitz(np.concatenate([[1.0], theta ** np.arange(n - 1)[:, None] @ omega]), n)
    with pytest.warns(UserWarning, match="C is stored and certified as a BLT of 2 buffers"):
        own = factorize.certify(array, participation={"kind": "min_sep", "min_sep": 16})
    np.testing.assert_allclose(own.strategy.tensors()["theta"], theta, rtol=1e-9)
    assert own.strategy.structure == "blt"
    own.verify()
    narrow = np.tril(np.triu(lower(np.random.default_rng(5), n), -3))
    kept = recognised(DenseMatrix(narrow))
    assert kept.structure == "banded" and (kept.rows(0, n) == narrow).all()


def test_what_is_no_blt_stays_as_it_is() -> None:
    root = np.cumprod(np.concatenate([[1.0], (2 * np.arange(1, 256) - 1) / (2 * np.arange(1, 256))]))
    rng = np.random.default_rng(3)
    falling = np.concatenate([[1.0], np.sort(rng.uniform(0.1, 0.5, 63))[::-1]])
    for column in (root, falling, np.eye(1, 64)[0], falling[:8]):
        matrix = ToeplitzMatrix(column, len(column))
        assert recognised(matrix) is matrix
    for decay in (0.5, 0.999, 1.0):
        found = blt_of(np.concatenate([[1.0], 0.25 * decay ** np.arange(255)]))
        np.testing.assert_allclose([found.theta[0], found.omega[0]], [decay, 0.25], rtol=1e-12)
