"""The banded structure and its certificate against the dense matrices they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from brute_force import min_sep_patterns, sign_sensitivity
from specs import spec_of

from factorize.certificate.certificate import certify
from factorize.certificate.sensitivity import sensitivity_of
from factorize.errors import InvalidStrategy
from factorize.solution import Outcome
from factorize.structures.banded import BandedMatrix
from factorize.structures.dense import DenseMatrix


def example(n: int, bands: int, seed: int = 0) -> BandedMatrix:
    rng = np.random.default_rng(seed)
    array = 0.4 * rng.normal(size=(bands, n))
    array[0] = rng.uniform(0.5, 2, n)
    for d in range(bands):
        array[d, n - d :] = 0.0
    return BandedMatrix(array)


def written_out(matrix: BandedMatrix) -> np.ndarray:
    """The contract's definition, entry by entry."""
    out = np.zeros((matrix.n, matrix.n))
    for d, band in enumerate(matrix.bands):
        for j in range(matrix.n - d):
            out[j + d, j] = band[j]
    return out


@pytest.mark.parametrize("bands", [1, 2, 5, 9])
def test_contract_of_the_structure(bands: int) -> None:
    matrix = example(9, bands)
    dense = written_out(matrix)
    np.testing.assert_array_equal(matrix.dense(), dense)
    assert matrix.bandwidth() == DenseMatrix(dense).bandwidth() == bands


def test_bandwidth_counts_bands_that_are_not_zero() -> None:
    bands = np.zeros((4, 6))
    bands[0], bands[1, :5] = 1.0, 0.5
    assert BandedMatrix(bands).bandwidth() == 2


def test_sensitivity_is_the_best_selection_of_columns() -> None:
    matrix = example(9, 3, seed=2)
    asked = spec_of(9, {"kind": "banded", "bands": 3}, {"kind": "min_sep", "min_sep": 3})
    sensitivity = sensitivity_of(matrix, asked.participation)
    assert sensitivity.kind == "exact"
    assert sensitivity.value == pytest.approx(sign_sensitivity(matrix.dense(), min_sep_patterns(9, 3, 3)), rel=1e-13)


WORKLOADS: list[dict[str, Any]] = [
    {"kind": "prefix"},
    {"kind": "momentum", "momentum": 0.9, "nesterov": True},
    {"kind": "weight_decay", "rate": 0.1, "mode": "coupled", "momentum": 0.5},
    {"kind": "schedule", "learning_rates": {"kind": "cosine_to_last", "final": 0.1}},
    {"kind": "mu2", "output": "x"},
    {"kind": "identity"},
]
OBJECTIVES: list[dict[str, Any]] = [{"kind": "mean"}, {"kind": "max"}, {"kind": "lambda_tau", "tau": 3}]


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
@pytest.mark.parametrize("bands", [1, 4, 12])
def test_structured_and_dense_certificates_agree(
    workload: dict[str, Any], objective: dict[str, Any], bands: int
) -> None:
    n = 12
    spec = spec_of(workload | {"n": n}, {"kind": "banded", "bands": bands}, objective=objective)
    matrix = example(n, bands)
    slow = certify(spec, DenseMatrix(matrix.dense()), {}, outcome=Outcome.CONVERGED)
    fast = certify(spec, matrix, {}, outcome=Outcome.CONVERGED)
    for name, value in vars(slow.loss).items():
        assert getattr(fast.loss, name) == pytest.approx(value, rel=1e-11)
    assert fast.sensitivity.value == pytest.approx(slow.sensitivity.value, rel=1e-12)


@pytest.mark.parametrize(
    "bands",
    [
        np.ones(3),
        np.ones((0, 3)),
        np.ones((4, 3)),
        np.array([[1.0, 1.0], [0.5, 0.5]]),
        np.array([[1.0, 0.0], [0.5, 0.0]]),
        np.array([[1.0, np.nan], [0.5, 0.0]]),
    ],
    ids=str,
)
def test_what_is_no_banded_matrix(bands: np.ndarray) -> None:
    with pytest.raises(InvalidStrategy):
        BandedMatrix(bands)
