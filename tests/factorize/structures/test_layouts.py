"""Tensors of a file and the matrices that they describe, by hand; those that are computed stand in test_answers.py."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from factorize.encoding import raw_bytes
from factorize.structures.endless import EndlessBlt, EndlessNuToeplitz
from factorize.structures.layouts import build_matrix, describe

N = 4
HALF = 0.5 ** np.arange(N)
DENSE = np.array([[1.0, 0, 0, 0], [0.5, 2, 0, 0], [-1, 0.25, 3, 0], [0.125, 4, -2, 5]])
BLT = {"theta": np.array([0.5, 0.25]), "omega": np.array([0.25, 0.125])}


def toeplitz(column: list[float] | np.ndarray) -> np.ndarray:
    return np.array([[column[i - j] if j <= i else 0.0 for j in range(N)] for i in range(N)])


TREE = np.array([[1.0, 0, 0, 0], [0.5, 2, 0, 0], [0.125, 0.125, 3, 0], [0.0625, 0.0625, 0.25, 4]])
NODES = np.array([[1.0, 2.0, 3.0, 4.0], [0.0, 0.5, 0.0, 0.25], [0.0, 0.0, 0.125, 0.0625]])
CASES = {
    "dense": ({"": DENSE}, DENSE),
    "toeplitz": ({"coefficients": HALF}, toeplitz(HALF)),
    "banded_toeplitz": ({"coefficients": HALF[:2]}, toeplitz([1.0, 0.5, 0.0, 0.0])),
    "banded": (
        {"bands": np.array([[1.0, 2, 3, 4], [5, 6, 7, 0]])},
        np.diag([1.0, 2, 3, 4]) + np.diag([5.0, 6, 7], -1),
    ),
    "tree": ({"tree.nodes": NODES, "tree.restart": np.array([4.0])}, TREE),
}


@pytest.mark.parametrize("case", CASES)
def test_tensors_describe_the_matrix_of_the_contract(case):
    parts, expected = CASES[case]
    matrix = build_matrix(case, parts, N)
    np.testing.assert_allclose(matrix.rows(0, N), expected, rtol=1e-15, atol=0)
    assert matrix.structure == case and matrix.side == N
    kept = matrix.tensors()
    assert {name: part.tolist() for name, part in kept.items()} == {name: part.tolist() for name, part in parts.items()}
    np.testing.assert_array_equal(build_matrix(matrix.structure, kept, N).rows(0, N), matrix.rows(0, N))


@pytest.mark.parametrize(
    ("structure", "parts", "kind"),
    [("blt", BLT, EndlessBlt), ("nu_toeplitz", {"nu": np.array([0.25])}, EndlessNuToeplitz)],
)
def test_rows_without_end_have_no_side(structure, parts, kind):
    matrix = build_matrix(structure, parts, None)
    assert type(matrix) is kind and matrix.side is None
    assert {name: part.tolist() for name, part in matrix.tensors().items()} == {k: v.tolist() for k, v in parts.items()}


def test_the_entry_of_a_manifest_binds_bytes_in_their_order():
    tensors = {"theta": BLT["theta"], "omega": BLT["omega"]}
    entry = describe("C", "blt", tensors, (None, N))
    digest = hashlib.sha256(bytes(raw_bytes(BLT["theta"])) + bytes(raw_bytes(BLT["omega"]))).hexdigest()
    assert entry == {
        "structure": "blt", "shape": [None, N], "dtype": "float64", "tensors": ["C.theta", "C.omega"],
        "sha256": digest, "bytes": 32,
    }  # fmt: skip
    other = describe("C", "blt", dict(reversed(tensors.items())), (None, N))
    assert other["tensors"] == ["C.omega", "C.theta"] and other["sha256"] != digest
    assert describe("C", "dense", {"": DENSE.astype(np.float32)}, (N, N))["dtype"] == "float32"
