"""Trees of any length in the exact checker: from the nodes alone, against the whole matrix in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from checker_files import in_fractions
from hypothesis import given
from hypothesis import strategies as st

from factorize.checker.structures.tree import TreeReading
from factorize.structures.tree import TreeMatrix


def random_tree(seed: int) -> TreeMatrix:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 21))
    restart = int(rng.integers(1, n + 1))
    levels = (restart - 1).bit_length()
    nodes = rng.standard_normal((levels + 1, n)) * 2.0 ** rng.integers(-8, 9, (levels + 1, n))
    nodes[0] = 0.5 + rng.random(n)
    nodes[1:][(np.arange(n) % restart >> np.arange(levels)[:, None]) & 1 == 0] = 0.0
    nodes[rng.random(nodes.shape) < 0.1 * (np.arange(levels + 1) > 0)[:, None]] = 0.0
    return TreeMatrix(nodes, restart)


def read_tree(nodes: np.ndarray, restart: np.ndarray, n: int) -> TreeReading:
    return TreeReading({"tree.nodes": nodes, "tree.restart": restart}, n)


@given(st.integers(0, 300))
def test_columns_and_norms_are_those_of_the_whole_matrix(seed: int) -> None:
    matrix = random_tree(seed)
    tree = read_tree(matrix.nodes, np.array([float(matrix.restart)]), matrix.n)
    dense = matrix.dense()
    assert np.array_equal(tree.entries_of(np.arange(matrix.n)), dense)
    norms, squares = tree.column_norms(), (in_fractions(dense) ** 2).sum(axis=0)
    assert (abs(in_fractions(norms.values) - squares) <= Fraction(norms.off) * squares).all()
    rows, columns = np.nonzero(dense)
    assert tree.bandwidth >= (rows - columns).max() + 1


def test_eight_leaves_by_hand() -> None:
    """Level 3 of leaf 6 reads steps 0 to 3, level 2 steps 4 and 5."""
    nodes, whole = np.zeros((4, 8)), np.eye(8)
    nodes[0] = 1
    for i in range(8):
        end = i
        for j in (j for j in range(3) if i >> j & 1):
            nodes[j + 1, i] = 2 + i + 10 * j
            whole[i, end - (1 << j) : end] = nodes[j + 1, i]
            end -= 1 << j
    assert whole[6].tolist() == [28, 28, 28, 28, 18, 18, 1, 0]
    assert np.array_equal(read_tree(nodes, np.array([8.0]), 8).entries_of(np.arange(8)), whole)
    assert np.array_equal(TreeMatrix(nodes, 8).rows(0, 8), whole)


@pytest.mark.parametrize(("power", "of_nodes"), [(-200, -200), (400, 200), (200, 400)])
def test_norms_of_small_and_of_large_nodes(power: int, of_nodes: int) -> None:
    """Two leaves, (p, 0 / 3 q, 2 p) with powers of two: norms p^2 + 9 q^2 and 4 p^2."""
    nodes = np.array([np.ldexp([1.0, 2.0], power), np.ldexp([0.0, 3.0], of_nodes)])
    norms, p, q = read_tree(nodes, np.array([2.0]), 2).column_norms(), Fraction(2) ** power, Fraction(2) ** of_nodes
    for value, true in zip(norms.values.tolist(), (p**2 + 9 * q**2, 4 * p**2), strict=True):
        assert abs(Fraction(value) - true) <= Fraction(norms.off) * true
