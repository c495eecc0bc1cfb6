"""Lower bounds of long recursions by log-determinants: against fractions, singular values and whole matrices."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from checker_files import exact_rows
from specs import spec_of

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds import determinants
from factorize.checker.bounds.evidence import sum_above

COSINE = {"kind": "cosine_to_last"}


def workloads(n: int) -> dict[str, dict[str, Any]]:
    rates = [1.0, 0.0, 0.5, 3.0] * n
    return {
        "identity": {"kind": "identity", "n": n},
        "prefix": {"kind": "prefix", "n": n, "learning_rates": None},
        "decay": {"kind": "decay", "n": n, "rate": 0.75},
        "momentum": {"kind": "momentum", "n": n, "momentum": 0.9},
        "nesterov": {"kind": "momentum", "n": n, "momentum": 0.9, "nesterov": True, "learning_rates": COSINE},
        "rates": {"kind": "schedule", "n": n, "learning_rates": rates[:n]},
        "coupled": {"kind": "weight_decay", "n": n, "rate": 0.125, "mode": "coupled", "momentum": 0.5},
        "decoupled": {"kind": "weight_decay", "n": n, "rate": 0.1, "mode": "decoupled", "learning_rates": rates[:n]},
        "srg": {"kind": "srg", "n": n, "momentum": 0.9, "decay": 0.5},
        "mu2 q": {"kind": "mu2", "n": n, "output": "q"},
        "mu2 w": {"kind": "mu2", "n": n, "output": "w"},
        "mu2 x": {"kind": "mu2", "n": n, "output": "x"},
    }


NAMES = list(workloads(4))
OBJECTIVES = ("mean", "lambda_tau", "weighted", "max")


def document(name: str, objective: str, n: int) -> dict[str, Any]:
    workload = {key: value for key, value in workloads(n)[name].items() if value is not None}
    options: dict[str, dict[str, Any]] = {
        "lambda_tau": {"tau": 3},
        "weighted": {"weights": [1.0, *(float(i % 3) for i in range(1, n))]},
    }
    chosen = {"kind": objective, **options.get(objective, {})}
    return spec_of(workload, "dense", objective=chosen).document()


def target(spec: dict[str, Any], evidence: dict[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """W A diag(sqrt v) in doubles and what its squared norm is divided by."""
    exact = exact_rows(spec["workload"])
    assert exact is not None
    rows, n = exact.astype(np.float64), spec["workload"]["n"]
    kind, v = spec["objective"]["kind"], evidence["weights"]
    divisor = v.sum()
    if kind == "mean":
        divisor *= n
    elif kind == "weighted":
        rows = np.sqrt(np.array(spec["objective"]["weights"]))[:, None] * rows
    elif kind == "max":
        rows, divisor = np.sqrt(evidence["row_weights"])[:, None] * rows, divisor * evidence["row_weights"].sum()
    else:
        tau = spec["objective"]["tau"]
        before = [rows[(t - 1) // tau * tau - 1] * (t > tau) for t in range(1, n + 1)]
        rows = (rows - before) * np.where(np.arange(1, n + 1) % tau == 0, 1.0, tau**-0.5)[:, None]
    return rows * np.sqrt(v), float(divisor)


def evidence_of(rng: np.random.Generator, n: int, spread: float) -> dict[str, np.ndarray]:
    return {"weights": 10.0 ** rng.uniform(-spread, spread, n), "row_weights": rng.random(n)}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", NAMES)
def test_bounds_are_just_below_the_nuclear_norm(name: str, objective: str) -> None:
    for n, spread, seed in ((1, 1, 0), (5, 2, 1), (60, 1, 2), (60, 4, 3)):
        spec = document(name, objective, n)
        evidence = evidence_of(np.random.default_rng(seed), n, spread)
        if name in ("rates", "decoupled") and n > 1:
            evidence["weights"][0] = 0.0
        matrix, divisor = target(spec, evidence)
        true = np.linalg.svd(matrix, compute_uv=False).sum() ** 2 / divisor
        found = determinants.lower_bound(spec, evidence)
        assert found is not None
        assert true * (1 - 1e-9) <= float(found) <= true * (1 - 1e-14) or true == found == 0


def test_the_cost_of_evidence_is_taken_from_above() -> None:
    """A sum that a double rounds down: 1 and a third of its last place."""
    weights = np.array([1.0, 2.0**-53 * 0.75])
    assert float(np.sum(weights)) < sum(map(Fraction, weights)) <= sum_above(weights) < 1 + Fraction(1, 2**51)


def test_lengths_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinants, "LARGEST", 4)
    assert determinants.lower_bound(document("momentum", "mean", 4), {"weights": np.ones(4)}) is not None
    monkeypatch.setattr(determinants, "LARGEST", 3)
    with pytest.raises(NotEnclosed, match="up to n=3"):
        determinants.lower_bound(document("momentum", "mean", 4), {"weights": np.ones(4)})
