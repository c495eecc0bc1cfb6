"""Tensors of a matrix: every shape and range that is refused, and the last ones that are not."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from factorize.errors import CorruptObject, InvalidStrategy
from factorize.format.tensors import (
    COLUMN_SCALE,
    SHAPES,
    check_strategy_tensors,
    check_tensors,
    check_triangular,
    fading,
    tensor_name,
    wrapped_structure,
)

N, M = 4, 2
Parts = dict[str, np.ndarray]
TREE = np.array([[1.0] * 4, [0, 0.5, 0, 0.5], [0, 0, 0.25, 0.25]])


def valid(structure: str) -> Parts:
    """Of side 4."""
    tall = np.full((N, M), 0.5)
    inputs, direct = np.full((2, N, M), 0.5), np.ones((2, N))
    inputs[1, :2] = direct[1, :2] = 0
    made: dict[str, Parts] = {
        "dense": {"": np.tril(np.full((N, N), 0.5))},
        "toeplitz": {"coefficients": np.array([1.0, 0.5, -0.5, 0])},
        "banded_toeplitz": {"coefficients": np.array([1.0, 0.5, 0.5])},
        "banded": {"bands": np.array([[1.0] * 4, [0.5, 0.5, 0.5, 0]])},
        "buffered": {"diagonal": np.ones(N), "decay": tall, "input": tall, "output": tall},
        "state_space": {"diagonal": np.ones(N), "transition": np.ones((N, M, M)), "input": tall, "output": tall},
        "tree": {"tree.nodes": TREE, "tree.restart": np.array([4.0])},
        "blt": {"theta": np.array([0.5, 0.9]), "omega": np.array([0.1, 0.2])},
        "inverse_banded_toeplitz": {"inverse_coefficients": np.array([1.0, -0.5, -0.5])},
        "redrawn": {"decay": tall, "output": tall, "input": inputs, "direct": direct, "lag": np.array([2.0])},
        "nu_toeplitz": {"nu": np.array([0.5])},
    }
    return {suffix: part.copy() for suffix, part in made[structure].items()}


def check(structure: str, parts: Parts, n: int | None = N, name: str = "C") -> None:
    check_tensors(name, structure, parts, (n, n))


def at(place: Any, value: float) -> Any:
    def put(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return put


@pytest.mark.parametrize("structure", ["dense", "toeplitz", "banded_toeplitz", "banded", "buffered", "state_space",
                                       "tree", "blt", "inverse_banded_toeplitz", "redrawn"])  # fmt: skip
def test_one_of_each_and_no_tensor_more_or_less(structure: str) -> None:
    check(structure, valid(structure))
    for left_out in valid(structure):
        parts = {suffix: part for suffix, part in valid(structure).items() if suffix != left_out}
        with pytest.raises(CorruptObject, match=f"a {structure} matrix of n=4 has the tensors"):
            check(structure, parts)
        for spoilt in (valid(structure)[left_out][..., None], valid(structure)[left_out][:0]):
            with pytest.raises(CorruptObject, match=f"{structure}.* has shape"):
                check(structure, {**valid(structure), left_out: spoilt})
        not_finite = valid(structure)
        not_finite[left_out].flat[0] = np.nan
        with pytest.raises(InvalidStrategy, match="C contains NaN or infinity; every entry must be finite"):
            check(structure, not_finite)
    with pytest.raises(CorruptObject, match="has the tensors"):
        check(structure, {**valid(structure), "x": np.ones(1)})


BAD: dict[str, tuple[str, str, Any, str]] = {
    "above the diagonal": ("dense", "", at((1, 3), -1e-300), r"entry (1, 3) above the diagonal is -1e-300"),
    "the first of them": ("dense", "", at((0, 1), 2.0), "entry (0, 1) above the diagonal is 2.0; it must be exactly 0"),
    "a diagonal of 0": ("dense", "", at((2, 2), 0.0), "diagonal entry 2 is 0.0; it must be positive"),
    "a diagonal below": ("dense", "", at((3, 3), -2.0), "diagonal entry 3 is -2.0; it must be positive"),
    "toeplitz of 0": ("toeplitz", "coefficients", at(0, 0.0), "diagonal entry 0 is 0.0"),
    "a banded column": ("banded_toeplitz", "coefficients", at(0, -1.0), "diagonal entry 0 is -1.0"),
    "as many as n": ("banded_toeplitz", "coefficients", lambda a: np.ones(4), "a banded_toeplitz column needs fewer than n=4 "
                                                                            "coefficients; with 4 it is toeplitz"),
    "bands": ("banded", "bands", at((0, 3), 0.0), "diagonal entry 3 is 0.0"),
    "beyond the last row": ("banded", "bands", at((1, 3), 1e-9), "bands[d, j] must be exactly 0 where j + d >= n"),
    "too many bands": ("banded", "bands", lambda a: np.ones((5, 4)), "5 bands are more than n=4"),
    "buffers": ("buffered", "diagonal", at(1, 0.0), "diagonal entry 1 is 0.0"),
    "states": ("state_space", "diagonal", at(1, -0.0), "diagonal entry 1 is -0.0"),
    "another m": ("buffered", "output", lambda a: np.ones((4, 3)), "buffered output has shape (4, 3), which does not fit n"),
    "another n": ("buffered", "diagonal", lambda a: np.ones(5), "buffered diagonal has shape (5,), which does not fit n"),
    "no square": ("state_space", "transition", lambda a: np.ones((4, 2, 3)), "(4, 2, 3), which does not fit n and the"),
    "blocks": ("state_space", "transition", lambda a: np.ones((4, 3, 1, 1)), "the blocks of the transition are not those"),
    "blocks that are not square": ("state_space", "transition", lambda a: np.ones((4, 1, 2, 1)), "does not fit n and the"),
    "a decay below 0": ("blt", "theta", at(0, -1e-9), "decays must be in [0, 1), or 1 at most if n is given"),
    "a decay above 1": ("blt", "theta", at(1, 1 + 1e-9), "decays must be in [0, 1)"),
    "a scale below 0": ("blt", "omega", at(0, -1e-9), "decays must be in [0, 1)"),
    "one decay": ("blt", "theta", lambda a: np.array([0.5, 0.5 + 2.0**-44]), "0.5 and 0.5000000000000568 are closer than"),
    "not 1": ("inverse_banded_toeplitz", "inverse_coefficients", at(0, 2.0), "the inverse's first column must be 1"),
    "small": ("inverse_banded_toeplitz", "inverse_coefficients", at(1, -0.9e-100), "numbers that are 0 or <= -1e-100"),
    "positive": ("inverse_banded_toeplitz", "inverse_coefficients", at(1, 0.5), "numbers that are 0 or <= -1e-100"),
    "beyond -1": ("inverse_banded_toeplitz", "inverse_coefficients", at(1, -0.5 - 1e-16), "with a sum of at least -1"),
    "longer than n": ("inverse_banded_toeplitz", "inverse_coefficients", lambda a: np.array([1.0, 0, 0, 0, 0]),
                      "the column of the inverse has 5 entries, more than n=4"),
    "a lag of 0": ("redrawn", "lag", at(0, 0.0), "lag is 0.0, not a whole number from 1 to n=4"),
    "a lag above n": ("redrawn", "lag", at(0, 5.0), "lag is 5.0, not a whole number from 1 to n=4"),
    "a broken lag": ("redrawn", "lag", at(0, 1.5), "lag is 1.5, not a whole number"),
    "draws of before": ("redrawn", "input", at((1, 1, 0), 1e-9), "input[1] and direct[1] must be exactly 0 before step 2"),
    "direct of before": ("redrawn", "direct", at((1, 1), 1e-9), "input[1] and direct[1] must be exactly 0 before step 2"),
    "a direct of 0": ("redrawn", "direct", at((0, 3), 0.0), "diagonal entry 3 is 0.0"),
    "leaves": ("tree", "tree.nodes", at((0, 2), 0.0), "diagonal entry 2 is 0.0"),
    "unused nodes": ("tree", "tree.nodes", at((2, 1), 1.0), "nodes[j + 1, i] must be exactly 0 where bit j of i mod restart"),
    "unused first level": ("tree", "tree.nodes", at((1, 2), 1.0), "nodes[j + 1, i] must be exactly 0 where bit j"),
    "another restart": ("tree", "tree.restart", at(0, 2.0), "trees of 2 steps cannot have 3 rows of nodes"),
    "a restart above n": ("tree", "tree.restart", at(0, 5.0), "tree.restart is 5.0, not a whole number from 1 to n=4"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused(case: str) -> None:
    structure, suffix, spoil, message = BAD[case]
    parts = valid(structure)
    parts[suffix] = spoil(parts[suffix])
    with pytest.raises((CorruptObject, InvalidStrategy)) as refusal:
        check(structure, parts)
    assert message in str(refusal.value)


GOOD: dict[str, tuple[str, Parts]] = {
    "two equal coefficients": ("toeplitz", {"coefficients": np.array([1e-300, -5.0, 0, 1])}),
    "one band": ("banded", {"bands": np.ones((1, 4))}),
    "all bands": ("banded", {"bands": np.array([[1.0] * 4, [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]])}),
    "decays at the ends": ("blt", {"theta": np.array([0.0, 1.0]), "omega": np.zeros(2)}),
    "decays that differ": ("blt", {"theta": np.array([0.5, 0.5 + 2.0**-43]), "omega": np.ones(2)}),
    "the smallest below": ("inverse_banded_toeplitz", {"inverse_coefficients": np.array([1.0, -1e-100, 0, -1 + 1e-9])}),
    "only 1": ("inverse_banded_toeplitz", {"inverse_coefficients": np.ones(1)}),
    "a lag of n": (
        "redrawn",
        {**valid("redrawn"), "lag": np.array([4.0]), "input": np.zeros((2, N, M)), "direct": np.eye(2, 1) * np.ones(N)},
    ),
    "a lag of 1": (
        "redrawn",
        {**valid("redrawn"), "lag": np.ones(1), "direct": np.array([[1.0] * 4, [0, 1, 1, 1]])},
    ),
    "blocks": ("state_space", {**valid("state_space"), "transition": np.ones((N, 2, 1, 1))}),
    "one block": ("state_space", {**valid("state_space"), "transition": np.ones((N, 1, 2, 2))}),
    "a tree of one step": (
        "tree",
        {"tree.nodes": np.ones((1, 4)), "tree.restart": np.ones(1)},
    ),
    "a tree that starts again": (
        "tree",
        {
            "tree.nodes": np.array([[1.0] * 4, [0, 0.5, 0, 0.5]]),
            "tree.restart": np.array([2.0]),
        },
    ),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_just_allowed(case: str) -> None:
    check(*GOOD[case])


def test_draws_before_a_later_lag() -> None:
    parts = valid("redrawn")
    parts["input"], parts["direct"] = np.zeros((3, N, M)), np.zeros((3, N))
    parts["direct"][0], parts["lag"] = 1, np.ones(1)
    parts["direct"][2, 2:] = 1
    check("redrawn", parts)
    parts["direct"][2, 1] = 1
    with pytest.raises(InvalidStrategy, match=r"input\[2\] and direct\[2\] must be exactly 0 before step 2"):
        check("redrawn", parts)
    check("redrawn", {**valid("redrawn"), "input": np.zeros((1, N, M)), "direct": np.ones((1, N))})
    with pytest.raises(CorruptObject):
        check("redrawn", {**valid("redrawn"), "input": np.zeros((0, N, M)), "direct": np.ones((0, N))})


class TestEndless:
    def test_nu(self) -> None:
        check("nu_toeplitz", valid("nu_toeplitz"), None)
        for nu in (0.0, 1.0, -0.5):
            with pytest.raises(
                InvalidStrategy, match=r"must be one number in \(0, 1\), so that columns have a finite norm"
            ):
                check("nu_toeplitz", {"nu": np.array([nu])}, None)
        with pytest.raises(CorruptObject, match="nu_toeplitz nu has shape"):
            check("nu_toeplitz", {"nu": np.ones(2) / 2}, None)

    def test_blt(self) -> None:
        check("blt", valid("blt"), None)
        with pytest.raises(InvalidStrategy, match="decays must be"):
            check("blt", {"theta": np.array([0.5, 1.0]), "omega": np.zeros(2)}, None)
        for over in (0.0, 2.0**-40):
            with pytest.raises(InvalidStrategy, match="noise of this strategy would grow without end"):
                check("blt", {"theta": np.array([0.5]), "omega": np.array([1.5 + over])}, None)
        check("blt", {"theta": np.array([0.5]), "omega": np.array([1.5 - 2.0**-40])}, None)
        check("blt", {"theta": np.array([0.5]), "omega": np.array([1.5])})


class TestScaled:
    def scaled(self, structure: str, scale: np.ndarray | None = None) -> Parts:
        return {**valid(structure), COLUMN_SCALE: np.ones(N) if scale is None else scale}

    @pytest.mark.parametrize("structure", ["dense", "toeplitz", "banded_toeplitz", "banded", "buffered", "state_space",
                                           "blt", "inverse_banded_toeplitz"])  # fmt: skip
    def test_what_may_be_scaled(self, structure: str) -> None:
        check("scaled", self.scaled(structure))
        assert wrapped_structure(self.scaled(structure), N) == structure
        spoilt = self.scaled(structure)
        next(iter(spoilt.values())).flat[0] = np.inf
        with pytest.raises(InvalidStrategy, match="NaN or infinity"):
            check("scaled", spoilt)

    @pytest.mark.parametrize("structure", ["tree", "redrawn"])
    def test_what_may_not(self, structure: str) -> None:
        with pytest.raises(CorruptObject, match="do not belong to a structure that can be scaled: dense, "):
            check("scaled", self.scaled(structure))

    @pytest.mark.parametrize("end", [1e60, 1e-60])
    def test_factors(self, end: float) -> None:
        check("scaled", self.scaled("dense", np.array([1, end, 1, 1])))
        for outside in (end * (1 + 1e-15) if end > 1 else end * (1 - 1e-15), np.nan, -end, 0.0):
            with pytest.raises(InvalidStrategy, match=r"column_scale has numbers outside \[1e-60, 1e\+60\]"):
                check("scaled", self.scaled("dense", np.array([1, outside, 1, 1])))

    def test_one_factor_for_each_column(self) -> None:
        for parts in (valid("dense"), self.scaled("dense", np.ones(3)), self.scaled("dense", np.ones((4, 1)))):
            with pytest.raises(CorruptObject, match=r"a scaled matrix needs column_scale of shape \(4,\)"):
                check("scaled", parts)
        with pytest.raises(CorruptObject, match="needs the tensor 'column_scale', which the file lacks"):
            wrapped_structure(valid("dense"), N)
        with pytest.raises(CorruptObject, match=r"column_scale of a matrix with n=4 cannot have shape \(3,\)"):
            wrapped_structure(self.scaled("dense", np.ones(3)), N)
        with pytest.raises(CorruptObject) as refusal:
            wrapped_structure({**self.scaled("dense"), **{name: np.ones(1) for name in "abcdefg"}}, N)
        assert "the tensors ['', 'a', 'b', 'c', 'd', 'e'] beside column_scale" in str(refusal.value)


class TestDerived:
    def test_shapes(self) -> None:
        check_tensors("B", "dense", {"": np.ones((3, 4))}, (3, 4))
        check_tensors("C_inv", "dense", {"": np.tril(np.ones((4, 4)))}, (4, 4))
        check_tensors("C_inv", "dense", {"": -np.eye(4)}, (4, 4))
        check_tensors("B", "toeplitz", {"coefficients": np.zeros(4)}, (4, 4))
        wrong: list[tuple[str, str, Parts, tuple[int, int]]] = [
            ("B", "dense", {"": np.ones((4, 3))}, (3, 4)),
            ("B", "dense", {"coefficients": np.ones((3, 4))}, (3, 4)),
            ("B", "dense", {}, (3, 4)),
            ("B", "dense", {"": np.ones((3, 4)), "x": np.ones(1)}, (3, 4)),
            ("B", "toeplitz", {"coefficients": np.ones((4, 4))}, (4, 4)),
            ("B", "toeplitz", {"coefficients": np.ones(3)}, (3, 4)),
        ]
        for name, structure, parts, shape in wrong:
            with pytest.raises(CorruptObject) as refusal:
                check_tensors(name, structure, parts, shape)
            assert str(refusal.value) == f"B of shape {shape} cannot be {structure} with these tensors"

    def test_values(self) -> None:
        for name in ("B", "C_inv"):
            with pytest.raises(InvalidStrategy, match=r"entry \(0, 3\) above the diagonal"):
                check_tensors(name, "dense", {"": at((0, 3), 1.0)(np.eye(4))}, (4, 4))
            with pytest.raises(InvalidStrategy, match=f"{name} contains NaN or infinity"):
                check_tensors(name, "dense", {"": at((3, 0), np.inf)(np.eye(4))}, (4, 4))


def test_fading_is_decided_exactly() -> None:
    assert fading(np.array([1.0, -0.5, 0.0, -0.5])) and fading(np.ones(1))
    assert not fading(np.array([1.0, -0.5, -0.5, -1e-300])) and not fading(np.array([1.0, 1e-300]))


def test_what_is_no_strategy() -> None:
    for structure, n, message in (("wavelet", 4, "'wavelet' is not one of banded"), ("nu_toeplitz", 4, "is not one of banded"),
                                  ("dense", 0, "n=0 is below 1"), ("dense", None, "is not one of blt")):  # fmt: skip
        with pytest.raises(CorruptObject, match=message):
            check_strategy_tensors(structure, {}, n)


def test_names_of_tensors() -> None:
    names = [tensor_name("C", suffix) for suffix in ("", "bands", "tree.nodes")]
    assert names == ["C", "C.bands", "tree.nodes"] and tensor_name("B", "coefficients") == "B.coefficients"


@pytest.mark.parametrize(("row", "column"), [(0, 1), (0, 599), (255, 256), (256, 257), (10, 300), (598, 599)])
def test_one_entry_above_the_diagonal_of_many_rows(row: int, column: int) -> None:
    above = np.eye(600)
    check_triangular(above)
    above[row, column] = 1e-300
    for also in (0.0, 2.0):
        above[599, :] = above[row, column + 1 :] = also
        with pytest.raises(InvalidStrategy, match=rf"entry \({row}, {column}\) above the diagonal is 1e-300"):
            check_triangular(above)


def test_no_other_blocks_have_as_many_numbers() -> None:
    named = dict[int, tuple[int, int]]()
    for states, groups in itertools.product(range(1, 20), range(1, 400)):
        shapes = {"diagonal": (1,), "transition": (1, groups, states, states)}
        parts = {name: np.ones(shapes.get(name, (1, groups * states))) for name in SHAPES["state_space"]}
        with suppress(CorruptObject):
            check_strategy_tensors("state_space", parts, 1)
            numbers = sum(part.size for part in parts.values())
            assert named.setdefault(numbers, (groups, states)) == (groups, states)
    assert {named[1 + states * (states + 2)] for states in range(1, 20)} == {(1, states) for states in range(1, 20)}
    eight = {**valid("state_space"), "transition": np.ones((N, 8, 1, 1))}
    eight |= {name: np.ones((N, 8)) for name in ("input", "output")}
    with pytest.raises(CorruptObject, match="8 blocks of 1 states have as many numbers as 3 of 2, so that one digest"):
        check_strategy_tensors("state_space", eight, N)
