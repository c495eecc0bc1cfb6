"""The optimum over all matrices where it is hard to find: within the tolerance, with the loss of an explicit inversion.

Decompositions find it up to 127 steps and for workloads without a recursion; from 128 on recursions have solvers of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import solved
from test_mechanism_contract import check

from factorize.factors.factorization import Factorization

COSINE = {"kind": "cosine_to_last"}  # the last rate is zero
COOLDOWN = {"kind": "linear_cooldown", "steps": 40, "final": 0.05}
RISING = np.exp(
    [3.0, -4.0, 0.0, 0.0, 0.0, 2.375, 0.0, 3.5, *[0.0] * 5, -1.0, *[0.0] * 5, -1.0, 2.5, *[0.0] * 14]
).tolist()
"""Rates for which the gap over epochs grows for more than 25 steps before it falls."""
WARM_UP = [*np.linspace(0.05, 1, 20).tolist(), *[1.0] * 140]
RESTS = [0.0] * 3 + [1.0] * 30 + [0.0] * 20 + [0.2, 0.0, 0.5] + [0.7] * 7 + [0.0]
HOLES = [1.0] * 20 + [0.0] * 4 + [0.5] * 20 + [0.0] * 8 + [0.1] * 12
WEIGHTS = [0.0] * 20 + [0.0, 1.0, 2.0] * 5 + [0.0] * 29
SCATTERED = [0.51, 0.0, 0.0, 0.0, 0.0, 0.0, 0.69, 0.62, 0.0, 0.5, 0.0, 0.0, 0.44, 0.37, 0.95, 0.4, 0.33, 0.0]


def recursions(n: int) -> dict[str, dict[str, Any]]:
    def rates(pattern: list[float]) -> list[float]:
        return np.resize(pattern, n).tolist()

    momentum = {"kind": "momentum", "momentum": 0.9}
    nesterov = momentum | {"nesterov": True}
    coupled = {"kind": "weight_decay", "mode": "coupled", "rate": 0.1}
    decoupled = {"kind": "weight_decay", "mode": "decoupled", "rate": 0.01}
    named = {
        "prefix": {"kind": "prefix"},
        "decay": {"kind": "decay", "rate": 0.9},
        "window": {"kind": "window", "width": 8},
        "cosine": {"kind": "schedule", "learning_rates": COSINE},
        "cosine to a millionth": {"kind": "schedule", "learning_rates": COSINE | {"final": 1e-6}},
        "steps": {"kind": "schedule", "learning_rates": {"kind": "step", "every": 20, "factor": 0.01}},
        "holes": {"kind": "schedule", "learning_rates": rates(HOLES)},
        "rising": {"kind": "schedule", "learning_rates": rates(RISING)},
        "momentum": momentum,
        "momentum 0.95, cooldown": momentum | {"momentum": 0.95, "learning_rates": COOLDOWN | {"final": 0}},
        "momentum 0.99, cosine": momentum | {"momentum": 0.99, "learning_rates": COSINE},
        "nesterov": nesterov,
        "nesterov, warm-up": nesterov | {"learning_rates": rates(WARM_UP)},
        "nesterov 0.95, cooldown": nesterov | {"momentum": 0.95, "learning_rates": COOLDOWN},
        "decoupled, cooldown": decoupled | {"learning_rates": COOLDOWN},
        "decoupled, rests": decoupled | {"rate": 0.1, "learning_rates": rates(RESTS)},
        "decoupled momentum": decoupled | {"rate": 0.1, "momentum": 0.9},
        "decoupled momentum, cooldown": decoupled | {"momentum": 0.9, "learning_rates": COOLDOWN},
        "coupled 0.3": coupled | {"rate": 0.3},
        "coupled momentum": coupled | {"momentum": 0.9},
        "coupled momentum, slow": coupled | {"rate": 0.001, "momentum": 0.9},
        "coupled momentum, cooldown": coupled | {"rate": 0.02, "momentum": 0.7, "learning_rates": COOLDOWN},
        "srg": {"kind": "srg", "momentum": 0.9, "decay": 0.5},
        "srg without decay": {"kind": "srg", "momentum": 0.9, "decay": 0.0},
        "two momenta": {"kind": "srg", "momentum": 0.95, "decay": 0.95},
        "mu2 w": {"kind": "mu2", "output": "w"},
        "mu2 x": {"kind": "mu2", "output": "x"},
    }
    return {name: fields | {"n": n} for name, fields in named.items()}


def optimum(workload: Any, epochs: int = 1, objective: Any = None) -> Factorization:
    found = solved(workload, "dense", epochs, objective)
    check(found, found.spec)
    certificate = found.certificate  # the last bits of a processor's BLAS may leave one spec at 1.2e-9
    assert certificate.converged or certificate.relative_gap < 2e-9, (found.spec.document(), certificate.warnings)
    return found


@pytest.mark.parametrize("name", recursions(96))
def test_recursions_over_epochs_and_under_weights(name: str) -> None:
    workload, n = recursions(96)[name], 96
    for epochs in (1, 8):
        optimum(workload, epochs)
    optimum(recursions(64)[name], 16)
    optimum(workload, 1, {"kind": "lambda_tau", "tau": 7})
    optimum(workload, 1, {"kind": "weighted", "weights": np.resize(WEIGHTS, n).tolist()})


def test_columns_that_no_constraint_holds_stay_below_one() -> None:
    """Raising them to norm 1 costs 2 %."""
    rates = [10.0, 10.0, 1e-3, 1e-3, 1e-3, 100.0, *[1.0] * 154]
    optimum({"kind": "momentum", "n": 160, "momentum": 0.5, "learning_rates": rates})


@pytest.mark.parametrize("momentum", [0.01, 0.07, 0.28, 0.9])
def test_rates_of_zero_anywhere(momentum: float) -> None:
    """X is singular there, and rounding must not put into C what its Gram matrix does not have."""
    workload = {"kind": "momentum", "n": 18, "momentum": momentum, "learning_rates": SCATTERED}
    optimum(workload)
    optimum(workload, 1, {"kind": "lambda_tau", "tau": 5})


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("shape", [(1, 24), (10, 24), (24, 24), (48, 24)])
def test_matrices_of_any_rank(shape: tuple[int, int], epochs: int) -> None:
    for seed in (0, 4):
        array = np.random.default_rng(seed).standard_normal(shape)
        rows = np.tril(array) if shape[0] == shape[1] else array
        optimum({"kind": "matrix", "rows": rows.tolist()}, epochs)


@pytest.mark.parametrize("name", ["cosine", "nesterov", "two momenta", "coupled momentum"])
def test_long_recursions_have_a_bound_by_log_determinants(name: str) -> None:
    bound = optimum(recursions(1024)[name]).certificate.lower_bound
    assert bound is not None and bound.rule.endswith("by log-determinants")
