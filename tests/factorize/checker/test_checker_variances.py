"""Losses of long trees, decays, inverses of few diagonals and columns with factors: covariances against whole matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from specs import spec_of

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.losses import covariances, variances
from factorize.checker.strategy import Strategy
from factorize.checker.utility import Utility

N = 24
WEIGHTS = {"kind": "weighted", "weights": [float(i % 3) for i in range(N)]}
STRATEGIES: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "decays": ("blt", {"theta": np.array([0.9, 0.0, 0.5]), "omega": np.array([0.25, 0.5, 0.125])}),
    "few diagonals of the inverse": (
        "inverse_banded_toeplitz",
        {"inverse_coefficients": np.array([1.0, -0.5, 0.0, -0.125])},
    ),
    "identity": ("inverse_banded_toeplitz", {"inverse_coefficients": np.array([1.0])}),
    "few diagonals": ("banded_toeplitz", {"coefficients": np.array([1.0, 0.5, 0.0, -0.25])}),
    "bands": ("banded", {"bands": np.array([[1.5] * N, [0.25] * (N - 1) + [0.0]])}),
    "buffers": (
        "buffered",
        {
            "diagonal": 1 + np.arange(N) / N,
            "decay": np.full((N, 2), 0.75),
            "input": np.full((N, 2), 0.5),
            "output": np.linspace(0, 1, 2 * N).reshape(N, 2),
        },
    ),
}


def tree_of(restart: int) -> tuple[str, dict[str, np.ndarray]]:
    levels = (restart - 1).bit_length()
    nodes = np.random.default_rng(restart).standard_normal((levels + 1, N))
    nodes[0] = 1 + np.arange(N) / N
    nodes[1:][(np.arange(N) % restart >> np.arange(levels)[:, None]) & 1 == 0] = 0.0
    return "tree", {"tree.nodes": nodes, "tree.restart": np.array([float(restart)])}


def compared(
    structure: str, tensors: dict[str, np.ndarray], workload: dict[str, Any], objective: dict[str, Any]
) -> None:
    """Both enclosures hold the true losses, so they overlap; and both are narrow."""
    spec = spec_of(workload, "identity", objective=objective).document()
    strategy = Strategy(structure, dict(tensors), N)
    whole = Utility(spec, strategy, {}, {})._losses_by_whole()
    long = variances.losses(strategy, spec["workload"], spec["objective"], covariances.LARGEST_WORK)
    assert long is not None
    for name in ("total", "largest", "last", "objective"):
        (low, high), (a, b) = getattr(whole, name), getattr(long, name)
        assert max(low, a) <= min(high, b), name
        assert high - low <= 1e-9 * high and b - a <= 1e-9 * b, name


@pytest.mark.parametrize(
    "objective", [{"kind": "mean"}, {"kind": "lambda_tau", "tau": 5}, WEIGHTS], ids=lambda o: o["kind"]
)
@pytest.mark.parametrize(
    ("name", "factors"),
    [*((name, factors) for name in STRATEGIES for factors in (False, True)), ("tree", False), ("trees", False)],
)
def test_recursions_and_whole_matrices_enclose_the_same(name: str, factors: bool, objective: dict[str, Any]) -> None:
    structure, tensors = STRATEGIES.get(name) or tree_of(24 if name == "tree" else 7)
    if factors:
        structure, tensors = "scaled", tensors | {"column_scale": 0.5 + np.arange(N) / 7}
    rates = {"kind": "schedule", "n": N, "learning_rates": {"kind": "cosine_to_last"}}
    for workload in (rates, {"kind": "identity", "n": N}, {"kind": "mu2", "n": N, "output": "x"}):
        compared(structure, tensors, workload, objective)


def test_inverses_that_grow_too_much() -> None:
    bands = np.array([np.ones(60), [2.0**40] * 59 + [0.0]])
    with pytest.raises(NotEnclosed, match="grows too much"):
        variances.losses(
            Strategy("banded", {"bands": bands}, 60), {"kind": "prefix", "n": 60}, {"kind": "mean"}, 1 << 24
        )


def test_an_enclosure_without_an_end_has_no_width() -> None:
    assert variances.width_of_losses([(1.0, 1.5), (0.0, math.inf)]) == math.inf
    assert variances.width_of_losses([(1.0, 1.25), (0.0, 0.0), (1.0, 2.0)]) == 0.5
