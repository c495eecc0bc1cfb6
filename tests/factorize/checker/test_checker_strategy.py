"""What the exact checker reads off the tensors of a strategy, for each structure, beside the matrix written out."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

from factorize.checker.arithmetic.balls import Balls, ends
from factorize.checker.strategy import Strategy
from factorize.checker.structures.toeplitz import falls
from factorize.errors import CorruptObject, InvalidStrategy

N = 4
SCALE = [2.0, 3.0, 0.5, 1.0]
Tensors = dict[str, np.ndarray]


class Case(NamedTuple):
    """A structure, its tensors, the matrix that they stand for, and what is to be read off it."""

    structure: str
    tensors: Tensors
    whole: list[list[float]]
    bandwidth: int
    signed: bool = False
    monotone: bool = False
    toeplitz: bool = False


def toeplitz(*column: float) -> list[list[float]]:
    return [[column[i - j] if 0 <= i - j < len(column) else 0.0 for j in range(N)] for i in range(N)]


def arrays(**parts: Any) -> Tensors:
    return {name: np.array(part, dtype=float) for name, part in parts.items()}


def dense(whole: list[list[float]]) -> Tensors:
    return {"": np.array(whole)}


SIGNED = [[1.0, 0, 0, 0], [-0.5, 2, 0, 0], [0.1, 0.75, 1, 0], [0, 0, 0, 3]]
CASES = {
    "dense": Case("dense", dense(SIGNED), SIGNED, 3, signed=True),
    "dense and Toeplitz": Case("dense", dense(toeplitz(1, 0.5, 0.5)), toeplitz(1, 0.5, 0.5), 3, False, True, True),
    "diagonals but for one entry": Case(
        "dense",
        dense([[1.0, 0, 0, 0], [2, 1, 0, 0], [3, 2, 1, 0], [4, 3, 2.5, 1]]),
        [[1.0, 0, 0, 0], [2, 1, 0, 0], [3, 2, 1, 0], [4, 3, 2.5, 1]],
        4,
    ),
    "toeplitz": Case(
        "toeplitz", arrays(coefficients=[1, -0.5, 0, 0.25]), toeplitz(1, -0.5, 0, 0.25), 4, True, False, True
    ),
    "toeplitz that rises": Case("toeplitz", arrays(coefficients=[1, 0, 1, 0]), toeplitz(1, 0, 1), 3, toeplitz=True),
    "banded_toeplitz": Case("banded_toeplitz", arrays(coefficients=[2, 2]), toeplitz(2, 2), 2, False, True, True),
    "one diagonal": Case("banded_toeplitz", arrays(coefficients=[3]), toeplitz(3), 1, False, True, True),
    "banded": Case(
        "banded",
        arrays(bands=[[1, 2, 1, 3], [-0.5, 0.75, 0, 0], [0, 0, 0, 0]]),
        [[1.0, 0, 0, 0], [-0.5, 2, 0, 0], [0, 0.75, 1, 0], [0, 0, 0, 3]],
        2,
        signed=True,
    ),
    "as many bands as rows": Case(
        "banded",
        arrays(bands=[[1, 2, 1, 1], [0, 0, 0, 0], [3, 0, 0, 0], [1, 0, 0, 0]]),
        [[1.0, 0, 0, 0], [0, 2, 0, 0], [3, 0, 1, 0], [1, 0, 0, 1]],
        4,
    ),
    "redrawn": Case(  # x_i = y_i - y_{i-1} / 2
        "redrawn",
        arrays(
            decay=[[0]] * N, output=[[0]] * N, input=[[[0]] * N] * 2, direct=[[1] * N, [0] + [-0.5] * (N - 1)], lag=[1]
        ),
        toeplitz(1, 0.5, 0.25, 0.125),
        N,
        signed=True,  # for all that is known without the inverse
    ),
    "buffered": Case(  # what steps 0, 1, 2 put in is halved from row to row
        "buffered",
        arrays(diagonal=[1, 2, 1, 1], decay=[[0.5]] * N, input=[[3], [4], [8], [1]], output=[[1], [2], [2], [1]]),
        [[1.0, 0, 0, 0], [3, 2, 0, 0], [1.5, 4, 1, 0], [0.375, 1, 4, 1]],
        N,
    ),
    "state_space": Case(
        "state_space",
        arrays(diagonal=[1] * N, transition=[[[0, -1], [1, 0]]] * N, input=[[1, 0]] * N, output=[[1, 0]] * N),
        toeplitz(1, 0, -1, 0),  # a quarter turn from step to step
        N,
        signed=True,
    ),
    "blt": Case("blt", arrays(theta=[0.5, 0.25], omega=[0.5, 0.5]), toeplitz(1, 1, 0.375, 0.15625), 4, False, True, True),
    "blt that rises": Case("blt", arrays(theta=[0.5], omega=[2]), toeplitz(1, 2, 1, 0.5), 4, toeplitz=True),
    "blt of two bands": Case("blt", arrays(theta=[0], omega=[0.5]), toeplitz(1, 0.5), 2, False, True, True),
    "blt of nothing": Case("blt", arrays(theta=[0.5], omega=[0]), toeplitz(1), 1, False, True, True),
    "inverse_banded_toeplitz": Case(
        "inverse_banded_toeplitz",
        arrays(inverse_coefficients=[1, -0.5, -0.25]),
        toeplitz(1, 0.5, 0.5, 0.375),
        4,
        toeplitz=True,
    ),
    "inverse of nothing": Case(
        "inverse_banded_toeplitz", arrays(inverse_coefficients=[1, 0]), toeplitz(1), 1, False, True, True
    ),
    "tree": Case(
        "tree",
        {"tree.nodes": np.array([[1.0, 1, 1, 1], [0, 0.5, 0, 0.5], [0, 0, 0.25, 0.25]]), "tree.restart": np.array([4.0])},
        [[1.0, 0, 0, 0], [0.5, 1, 0, 0], [0.25, 0.25, 1, 0], [0.25, 0.25, 0.5, 1]],
        4,
    ),
}  # fmt: skip


def fractions(array: Any) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in row] for row in np.array(array)]


def enclosed(found: Balls, true: list[Fraction], computed: bool) -> None:
    """Coefficients within their balls, which are points unless they are computed."""
    for (low, high), exact in zip(map(ends, found), true, strict=True):
        assert low <= exact <= high <= (low + Fraction(1, 2**200) if computed else low)


def near(found: Strategy, columns: list[tuple[Fraction, ...]]) -> None:
    """Columns and their norms are as near as they say."""
    chosen, norms = np.array([3, 0, 2]), found.column_norms
    values, far = found.near_columns(chosen)
    for place, j in enumerate(chosen):
        apart = sum((Fraction(float(x)) - y) ** 2 for x, y in zip(values[:, place], columns[j], strict=True))
        assert apart <= Fraction(float(far[place])) ** 2 and far[place] < 1e-13
        square = sum(y * y for y in columns[j])
        assert abs(Fraction(float(norms.values[j])) - square) <= Fraction(norms.off) * square and norms.off < 1e-13


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_structures(name: str, scaled: bool) -> None:
    case = CASES[name]
    if scaled and case.structure in ("tree", "redrawn"):
        with pytest.raises(CorruptObject):
            Strategy("scaled", case.tensors | {"column_scale": np.array(SCALE)}, N)
        return
    tensors = case.tensors | ({"column_scale": np.array(SCALE)} if scaled else {})
    found = Strategy("scaled" if scaled else case.structure, tensors, N)
    assert found.structure == case.structure and (found.bandwidth, found.reading.signed) == (
        case.bandwidth,
        case.signed,
    )
    assert (found.toeplitz is not None) == (case.toeplitz and not scaled)
    computed = case.structure in ("buffered", "state_space", "blt", "inverse_banded_toeplitz", "redrawn")
    assert found.reading.computed == computed
    assert computed or (case.toeplitz and falls(np.array(case.whole)[:, 0])) == case.monotone
    factors = [Fraction(s) if scaled else Fraction(1) for s in SCALE]
    whole = [[x * f for x, f in zip(row, factors, strict=True)] for row in fractions(case.whole)]
    columns = list(zip(*whole, strict=True))
    near(found, columns)
    if found.toeplitz is not None:
        enclosed(found.toeplitz, [row[0] for row in whole], computed)


@pytest.mark.parametrize(
    ("structure", "tensors", "error", "message"),
    [
        ("banded", arrays(bands=[[1] * 4, [0, 0, 0, 1e-300]]), InvalidStrategy, "must be exactly 0 where"),
        ("dense", dense(SIGNED) | arrays(more=[1]), CorruptObject, "has the tensors"),
        ("scaled", dense(SIGNED), CorruptObject, "needs column_scale of shape \\(4,\\)"),
        ("circulant", dense(SIGNED), CorruptObject, "structure 'circulant' is none of"),
    ],
)
def test_tensors_that_make_no_strategy(structure: str, tensors: Tensors, error: type[Exception], message: str) -> None:
    """As the reader of files refuses them, in tests/factorize/format/test_tensors.py."""
    with pytest.raises(error, match=message):
        Strategy(structure, tensors, N)
