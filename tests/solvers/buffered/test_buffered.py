"""Structured matrices and their certificates against the dense matrices they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import spec_of

from factorize.certificate import decoder
from factorize.certificate.certificate import certify
from factorize.certificate.lower_bounds import resolvents
from factorize.errors import InvalidStrategy
from factorize.solution import Outcome
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.layouts import build_matrix
from factorize.workloads.forms import BidiagonalInverse

LAYOUTS = [("buffered", (3,), 3), ("state_space", (3, 3), 3), ("state_space", (2, 2, 2), 4)]


def example(n: int, layout: tuple[int, ...], m: int, seed: int = 0) -> BufferedMatrix:
    rng = np.random.default_rng(seed)
    scale = rng.uniform(-0.5, 0.9, (n, *layout)) / (1 if len(layout) == 1 else layout[-1])
    return BufferedMatrix(rng.uniform(0.5, 2, n), scale, rng.normal(size=(n, m)), 0.3 * rng.normal(size=(n, m)))


def written_out(matrix: BufferedMatrix) -> np.ndarray:
    """The contract's definition, entry by entry."""
    n = matrix.n
    out = np.diag(matrix.diagonal).copy()
    for j in range(n):
        state = matrix.inputs[j]
        for i in range(j + 1, n):
            step = matrix.transition[i]
            if step.ndim == 1:
                state = step * state
            elif step.ndim == 2:
                state = step @ state
            else:
                state = np.concatenate(
                    [block @ part for block, part in zip(step, state.reshape(len(step), -1), strict=True)]
                )
            out[i, j] = matrix.outputs[i] @ state
    return out


@pytest.mark.parametrize(("structure", "layout", "m"), LAYOUTS)
def test_contract_of_the_structure(structure: str, layout: tuple[int, ...], m: int) -> None:
    matrix = example(9, layout, m)
    dense = written_out(matrix)
    assert matrix.structure == structure
    np.testing.assert_allclose(matrix.dense(), dense, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(matrix.rows(3, 6), dense[3:6], rtol=1e-12, atol=1e-14)
    block = np.random.default_rng(1).normal(size=(4, 9))
    np.testing.assert_allclose(matrix.right_solve(block) @ dense, block, atol=1e-12)
    np.testing.assert_allclose(matrix.left_multiply(block), block @ dense, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(matrix.inverse_rows(2, 5), np.linalg.inv(dense)[2:5], atol=1e-12)
    np.testing.assert_allclose(matrix.column_norms_squared(), (dense**2).sum(axis=0), rtol=1e-12)
    again = build_matrix(structure, matrix.tensors(), 9)
    np.testing.assert_array_equal(again.dense(), matrix.dense())


@pytest.mark.parametrize(("structure", "layout", "m"), LAYOUTS)
def test_many_rows_with_zeros_on_the_right_are_multiplied(structure: str, layout: tuple[int, ...], m: int) -> None:
    """19 rows are two vectors of rows and a part of one."""
    matrix = example(19, layout, m)
    assert matrix.multiplied_by_recurrence == (structure == "buffered")
    block = np.tril(np.random.default_rng(2).normal(size=(19, 19)))
    block[7] = 0.0
    product = matrix.left_multiply(block)
    np.testing.assert_allclose(product, block @ matrix.dense(), rtol=1e-11, atol=1e-13)
    assert not np.triu(product, 1).any()
    np.testing.assert_array_equal(matrix.left_multiply(block[3:4]), product[3:4])


WORKLOADS: list[dict[str, Any]] = [
    {"kind": "prefix"},
    {"kind": "momentum", "momentum": 0.9, "nesterov": True},
    {"kind": "weight_decay", "rate": 0.1, "mode": "coupled", "momentum": 0.5},
    {"kind": "schedule", "learning_rates": {"kind": "cosine", "final": 0.1}},
    {"kind": "mu2", "output": "x"},
]
OBJECTIVES: list[dict[str, Any]] = [{"kind": "mean"}, {"kind": "max"}, {"kind": "lambda_tau", "tau": 3}]


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_structured_and_dense_certificates_agree(
    monkeypatch: pytest.MonkeyPatch, workload: dict[str, Any], objective: dict[str, Any]
) -> None:
    n = 12
    spec = spec_of(workload | {"n": n}, {"kind": "buffered_linear", "buffers": 4}, objective=objective)
    matrix = example(n, (2, 2, 2), 4)
    slow = certify(spec, DenseMatrix(matrix.dense()), {}, outcome=Outcome.CONVERGED)
    monkeypatch.setattr(decoder, "_WHOLE_CHECK", 4)
    fast = certify(spec, matrix, {}, outcome=Outcome.CONVERGED)
    for name, value in vars(slow.loss).items():
        assert getattr(fast.loss, name) == pytest.approx(value, rel=1e-11)
    assert fast.sensitivity.value == pytest.approx(slow.sensitivity.value, rel=1e-12)
    assert any("largest over" in warning for warning in fast.warnings)


@pytest.mark.parametrize(
    "change",
    [
        {"diagonal": np.array([1.0, 0.0, 1.0])},
        {"diagonal": np.array([1.0, np.nan, 1.0])},
        {"transition": np.ones((2, 2))},
        {"transition": np.ones((3, 2, 3))},
        {"transition": np.ones((3, 2, 1, 2))},
        {"transition": np.ones((3, 3))},
        {"inputs": np.ones((3, 3))},
        {"inputs": np.ones((3, 0)), "outputs": np.ones((3, 0))},
        {"outputs": np.full((3, 2), np.inf)},
        {"diagonal": np.ones(0)},
    ],
    ids=str,
)
def test_what_is_no_buffered_matrix(change: dict[str, np.ndarray]) -> None:
    good = {
        "diagonal": np.ones(3),
        "transition": np.ones((3, 2)),
        "inputs": np.ones((3, 2)),
        "outputs": np.ones((3, 2)),
    }
    BufferedMatrix(**good)
    with pytest.raises(InvalidStrategy):
        BufferedMatrix(**(good | change))


@given(st.integers(1, 40), st.integers(0, 1000))
def test_resolvent_bound_is_below_and_tight(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = np.exp(rng.normal(size=n) * rng.uniform(0, 4))
    q = np.where(np.arange(n) == 0, 0.0, np.exp(rng.normal(size=n) * 2) * rng.integers(0, 2, n))
    weights = np.exp(rng.normal(size=n) * rng.uniform(0, 6))
    weights[rng.integers(0, n)] = rng.integers(0, 2) * 1.0
    if not weights.any():
        weights[:] = 1.0
    whole = np.linalg.inv(np.diag(p) - np.diag(q[1:], -1)) * np.sqrt(weights)
    true = np.linalg.svd(whole, compute_uv=False).sum()
    bound = resolvents.nuclear_norm_below(BidiagonalInverse(p, q), weights)
    assert true * (1 - 1e-11) <= bound <= true * (1 + 1e-12)


def test_the_resolvent_bound_in_exact_arithmetic() -> None:
    """One trace against rational elimination, its error within the bound that it states."""
    from fractions import Fraction

    from factorize.structures.kernels.buffered import resolvent_trace

    p, q, v, shift = np.array([1.5, 0.7, 2.0]), np.array([0.0, 1.1, 0.3]), np.array([0.2, 1.7, 0.9]), 0.37
    g = [
        [Fraction(p[i]) if i == j else -Fraction(q[i]) if i == j + 1 else Fraction(0) for j in range(3)]
        for i in range(3)
    ]
    k = [
        [
            sum(g[i][a] * g[j][a] for a in range(3)) + (Fraction(shift) * Fraction(v[i]) if i == j else 0)
            for j in range(3)
        ]
        for i in range(3)
    ]

    def minor(rows: list[int], columns: list[int]) -> Fraction:
        return k[rows[0]][columns[0]] * k[rows[1]][columns[1]] - k[rows[0]][columns[1]] * k[rows[1]][columns[0]]

    determinant = sum((-1) ** c * k[0][c] * minor([1, 2], [x for x in range(3) if x != c]) for c in range(3))
    others = [[x for x in range(3) if x != i] for i in range(3)]
    true = sum(Fraction(v[i]) * minor(others[i], others[i]) for i in range(3)) / determinant
    value, error = resolvent_trace(p, q, v, shift)
    assert abs(Fraction(value) - true) <= true * Fraction(error) * Fraction(1, 2**53)
    assert error < 60


def test_large_problems_are_certified_without_an_array() -> None:
    n = 20_000
    spec = spec_of(n, {"kind": "buffered_linear", "buffers": 1}, tolerance=0.5)
    one = np.ones((n, 1))
    matrix = BufferedMatrix(np.ones(n), 0.99 * one, 0.1 * one, one)
    certificate = certify(spec, matrix, {"weights": np.ones(n)}, outcome=Outcome.CONVERGED)
    column = np.concatenate([[1.0], 0.1 * 0.99 ** np.arange(1, n)])
    # C is Toeplitz here: the same losses from the Toeplitz route.
    from factorize.structures.toeplitz import ToeplitzMatrix

    toeplitz = certify(spec, ToeplitzMatrix(column, n), {}, outcome=Outcome.CONVERGED)
    assert certificate.loss.objective == pytest.approx(toeplitz.loss.objective, rel=1e-9)
    assert certificate.sensitivity.value == pytest.approx(toeplitz.sensitivity.value, rel=1e-11)
    assert certificate.lower_bound is not None
    assert certificate.lower_bound.rule.endswith("bidiagonal inverse")
    assert certificate.relative_gap is not None
    assert certificate.relative_gap > 0
