"""Losses by each of their roads: every one that answers encloses closely what fractions give."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import redrawn_cases
from cases import objectives_of, recursions_of
from checker_files import exact_rows, in_fractions, inverted, true_losses
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import spec_of
from structure_cases import exact, signed_buffers, strategies

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.losses import variances
from factorize.checker.losses.variances import MAX_WIDTH
from factorize.checker.spec.programs import pair, reciprocal_pairs
from factorize.checker.strategy import Strategy
from factorize.checker.structures import covariances
from factorize.checker.utility import Utility
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import BltMatrix, ToeplitzMatrix
from factorize.workloads.prefix import Prefix

N = 10
WORKLOADS, OBJECTIVES = recursions_of(N), objectives_of(N) | {"one block": {"kind": "lambda_tau", "tau": 40}}


def random_strategy(seed: int, n: int, spread: int, steep: float) -> np.ndarray:
    """A lower-triangular matrix whose columns are 2^spread apart, and whose entries below the diagonal are steep."""
    random = np.random.default_rng(seed)
    array = np.tril(random.standard_normal((n, n)), -1) * steep + np.diag(random.uniform(0.5, 2.0, n))
    return np.asarray(np.ldexp(array, random.integers(-spread, spread + 1, n)))


SIGNED, COLUMN = DenseMatrix(random_strategy(5, N, 0, 0.3)), ToeplitzMatrix(random_strategy(3, N, 0, 0.3)[:, 0], N)
STRATEGIES: dict[str, Matrix] = strategies(N) | {
    "signed": SIGNED,
    "signed toeplitz": COLUMN,
    "signed and scaled": ColumnScaled(COLUMN, 0.5 + np.arange(N) / 7),
    "signed buffers": signed_buffers(N, 0),
    "a decay of zero": BltMatrix(np.array([0.9, 0.0, 0.5]), np.array([0.25, 0.5, 0.125]), N),
    "wild draws": redrawn_cases.wild(N, 2, 2, 3, 1),
}


@cache
def decoder(name: str, workload: str) -> np.ndarray:
    """A C^-1 in fractions."""
    rows = exact_rows(spec_of(WORKLOADS[workload]).canonical().document()["workload"])
    assert rows is not None
    return np.asarray(rows @ noising(name))


@cache
def noising(name: str) -> np.ndarray:
    return inverted(exact(STRATEGIES[name]))


def assert_hold(ends: Any, true: dict[str, Fraction], width: float = MAX_WIDTH) -> None:
    for name, loss in true.items():
        low, high = getattr(ends, name)
        assert Fraction(low) * (1 - Fraction(1, 10**25)) <= loss <= Fraction(high) * (1 + Fraction(1, 10**25)), name
        assert high - low <= width * high, name


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_road_encloses_those_of_fractions(name: str, objective: str) -> None:
    """By series, by recursions, by whole matrices in doubles and by those of balls.

    Every second workload, so that each strategy meets all workloads, and each objective too.
    """
    matrix, reached = STRATEGIES[name], set()
    turn = list(STRATEGIES).index(name) + list(OBJECTIVES).index(objective)
    for workload, fields in list(WORKLOADS.items())[turn % 2 :: 2]:
        spec = spec_of(fields, "dense", objective=OBJECTIVES[objective]).canonical().document()
        one = Utility(spec, Strategy(matrix.structure, matrix.tensors(), N), {}, {})
        true = true_losses(decoder(name, workload), spec["objective"])
        assert_hold(one.losses, true)
        for road, losses in {
            "series": one._losses_by_series,
            "recursion": lambda one=one: one._losses_by_recursion(covariances.MAX_WORK),
            "whole": one._losses_by_whole,
            "balls": one._losses_by_balls,
        }.items():
            try:
                ends = losses()
            except NotEnclosed:
                continue
            assert_hold(ends, true)
            reached.add(road)
    assert "whole" in reached and ("series" in reached) == matrix.time_invariant
    stored = matrix.inner if isinstance(matrix, ColumnScaled) else matrix
    assert ("recursion" in reached) == (not isinstance(stored, DenseMatrix))


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.sampled_from([0, 3, 40, 200, 480]),
    st.sampled_from([0.0, 0.1, 1.0, 3.0]),
    st.sampled_from([{"kind": "mean"}, {"kind": "max"}, {"kind": "lambda_tau", "tau": 5}]),
)
def test_columns_far_apart(seed: int, n: int, spread: int, steep: float, objective: dict[str, Any]) -> None:
    array, spec = random_strategy(seed, n, spread, steep), spec_of(n, "dense", objective=objective).document()
    rows = exact_rows(spec["workload"])
    assert rows is not None
    try:
        ends = Utility(spec, Strategy("dense", {"": array}, n), {}, {}).losses
    except NotEnclosed:
        assert spread > 0 or steep > 1
        return
    assert_hold(ends, true_losses(rows @ inverted(in_fractions(array)), objective), width=math.inf)


def test_inverses_that_grow_too_much() -> None:
    bands = np.array([np.ones(60), [2.0**40] * 59 + [0.0]])
    with pytest.raises(NotEnclosed, match="grows too much"):
        variances.losses(
            Strategy("banded", {"bands": bands}, 60), {"kind": "prefix", "n": 60}, {"kind": "mean"}, 1 << 24
        )


def test_an_enclosure_without_an_end_has_no_width() -> None:
    assert variances.width_of_losses([(1.0, 1.5), (0.0, math.inf)]) == math.inf
    assert variances.width_of_losses([(1.0, 1.25), (0.0, 0.0), (1.0, 2.0)]) == 0.5


def test_reciprocals_are_the_pairs_of_their_fractions() -> None:
    random = np.random.default_rng(0)
    values = np.concatenate([random.uniform(0.5, 2.0, 500), np.exp(random.uniform(-300, 300, 500)), [1.0, 3.0, 0.1]])
    assert reciprocal_pairs(values).tolist() == [list(pair(1 / Fraction(value))) for value in values.tolist()]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_recursion_comes_before_series_for_many_steps(scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    n = (1 << 16) + 1
    matrix: Matrix = ToeplitzMatrix(np.array([1.0, 0.5, 0.375]), n)
    if scaled:
        matrix = ColumnScaled(matrix, 1.0 / np.sqrt(matrix.column_norms_squared()))
    spec = spec_of({"kind": "prefix", "n": n}, objective={"kind": "lambda_tau", "tau": n}).canonical().document()
    strategy = Strategy(matrix.structure, matrix.tensors(), n)
    monkeypatch.setattr(Utility, "_losses_by_series", None)
    found = Utility(spec, strategy, {}, {}).losses
    states = Prefix(kind="prefix", n=n).state_space()
    errors = matrix.decoder_errors(states)
    assert errors is not None
    assert found.total == pytest.approx([errors.sum()] * 2, rel=1e-9)
    assert found.objective == pytest.approx([errors[:-1].sum() / n + errors[-1]] * 2, rel=1e-9)
