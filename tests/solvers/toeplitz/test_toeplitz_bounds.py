"""The bound over all Toeplitz matrices whose columns cannot overlap: attained, and never above any member of the class."""

from __future__ import annotations

from typing import Any

import pytest
from test_toeplitz_optimum import APART, EPOCHS, WORKLOADS, asked_of, searched

from factorize.spec import Spec

INVARIANT = sorted(set(WORKLOADS) - {"cosine", "x"})


def gap(asked: Spec) -> float:
    """Relative distance between the optimum found and the bound over its class."""
    certificate = searched(asked)[1]
    assert certificate.class_lower_bound is not None
    return certificate.loss.objective / certificate.class_lower_bound.objective - 1


@pytest.mark.parametrize("bands", [60, 11, 2, 1])
@pytest.mark.parametrize("workload", INVARIANT)
def test_optima_are_global(workload: str, bands: int) -> None:
    assert -1e-12 < gap(asked_of(workload, 60, kind="banded_toeplitz", bands=bands)) < 2e-9


@pytest.mark.parametrize("n", [1, 2, 3, 4, 200])
@pytest.mark.parametrize("objective", [{"kind": "mean"}, {"kind": "max"}], ids=lambda o: o["kind"])
def test_every_length_is_certified(n: int, objective: dict[str, Any]) -> None:
    assert -1e-12 < gap(asked_of("prefix", n, objective=objective)) < 2e-9


@pytest.mark.parametrize("participation", [EPOCHS, APART, {"kind": "min_sep", "min_sep": 6, "max_participations": 2}])
@pytest.mark.parametrize("workload", ["prefix", "window", "momentum"])
def test_columns_that_cannot_overlap_are_certified(workload: str, participation: Any) -> None:
    asked = asked_of(workload, 20, participation, kind="banded_toeplitz", bands=5)
    assert -1e-12 < gap(asked) < 2e-9


def test_long_columns_are_certified_by_ratios() -> None:
    assert 0 < gap(asked_of("prefix", 16_384)) < 1e-6


@pytest.mark.parametrize(("n", "bands"), [(8, 8), (300, 6), (4000, 4000), (4000, 2100)])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_a_workload_that_fades_is_certified(rate: float, n: int, bands: int) -> None:
    """The entries of the singular vector fall by many places, so that a rounding relative to the largest hides some."""
    assert 0 <= gap(asked_of({"kind": "decay", "rate": rate}, n, kind="banded_toeplitz", bands=bands)) < 2e-9


@pytest.mark.parametrize(
    "asked",
    [
        asked_of("prefix", 20, objective={"kind": "lambda_tau", "tau": 3}),
        asked_of("cosine", 20),
        asked_of("prefix", 20).model_copy(update={"optimize_for": asked_of("momentum", 20).workload}),
        asked_of("prefix", 20, EPOCHS),
        asked_of("prefix", 20, APART, kind="banded_toeplitz", bands=6),
    ],
    ids=["lambda_tau", "schedule", "optimize_for", "overlap", "overlapping bands"],
)
def test_nothing_is_claimed_elsewhere(asked: Spec) -> None:
    _, certificate = searched(asked)
    assert certificate.class_lower_bound is None
