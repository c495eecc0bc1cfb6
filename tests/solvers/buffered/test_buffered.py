"""Structured matrices and their certificates against the dense matrices they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize.certificate.certificate import certify
from factorize.errors import InvalidStrategy
from factorize.solution import Outcome
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.layouts import build_matrix

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


WORKLOADS: list[dict[str, Any]] = [
    {"kind": "prefix"},
    {"kind": "momentum", "momentum": 0.9, "nesterov": True},
    {"kind": "weight_decay", "rate": 0.1, "mode": "coupled", "momentum": 0.5},
    {"kind": "schedule", "learning_rates": {"kind": "cosine_to_last", "final": 0.1}},
    {"kind": "mu2", "output": "x"},
]
OBJECTIVES: list[dict[str, Any]] = [{"kind": "mean"}, {"kind": "max"}, {"kind": "lambda_tau", "tau": 3}]


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_structured_and_dense_certificates_agree(workload: dict[str, Any], objective: dict[str, Any]) -> None:
    n = 12
    spec = spec_of(workload | {"n": n}, {"kind": "buffered_linear", "buffers": 4}, objective=objective)
    matrix = example(n, (2, 2, 2), 4)
    slow = certify(spec, DenseMatrix(matrix.dense()), {}, outcome=Outcome.CONVERGED)
    fast = certify(spec, matrix, {}, outcome=Outcome.CONVERGED)
    for name, value in vars(slow.loss).items():
        assert getattr(fast.loss, name) == pytest.approx(value, rel=1e-11)
    assert fast.sensitivity.value == pytest.approx(slow.sensitivity.value, rel=1e-12)


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
    assert certificate.lower_bound.rule.endswith("by resolvents")
    assert certificate.relative_gap is not None
    assert certificate.relative_gap > 0
