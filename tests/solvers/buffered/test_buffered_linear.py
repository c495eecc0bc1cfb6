"""The streaming optimum with few buffers: against dense optima, finite differences and its own dense form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import solved, spec_of

from factorize import solvers
from factorize.errors import SolveFailed
from factorize.solvers import automatic
from factorize.spec import Spec, notes_of_choice, parse_spec
from factorize.workloads.prefix import easier_ones

STEP = {"kind": "step", "every": 50, "factor": 0.3}
SPECS: dict[str, dict[str, Any]] = {
    "prefix": {"workload": {"kind": "prefix", "n": 192}},
    "lambda_tau": {"workload": {"kind": "prefix", "n": 192}, "objective": {"kind": "lambda_tau", "tau": 48}},
    "uneven blocks": {"workload": {"kind": "prefix", "n": 192}, "objective": {"kind": "lambda_tau", "tau": 70}},
    "schedule": {"workload": {"kind": "schedule", "n": 192, "learning_rates": STEP}},
    "weighted decay": {
        "workload": {"kind": "weight_decay", "n": 192, "rate": 0.01, "mode": "decoupled"},
        "objective": {"kind": "weighted", "weights": [1.0 + i % 3 for i in range(192)]},
    },
}


def buffered(document: dict[str, Any], buffers: int, **more: Any) -> Spec:
    return spec_of(document, {"kind": "buffered_linear", "buffers": buffers}, **more)


def gap(document: dict[str, Any], buffers: int) -> float:
    certificate = solvers.solve(buffered(document, buffers, tolerance=1e-3)).certificate
    assert certificate.sensitivity.kind == "exact"
    assert 1 - 1e-11 < certificate.sensitivity.value <= 1
    assert certificate.relative_gap is not None
    return certificate.relative_gap


@pytest.mark.parametrize("name", ["prefix", "uneven blocks", "weighted decay"])
def test_the_distance_to_the_optimum_falls_with_the_buffers(name: str) -> None:
    gaps = [gap(SPECS[name], buffers) for buffers in (1, 2, 4, 6)]
    assert all(0 <= after < 0.5 * before for before, after in zip(gaps, gaps[1:], strict=False)), gaps
    assert gaps[2] < 5e-4
    assert gaps[3] < 6e-5


@pytest.mark.parametrize("name", ["schedule", "lambda_tau"])
def test_the_gap_is_the_distance_to_the_dense_optimum(name: str) -> None:
    dense = solvers.solve(parse_spec(SPECS[name])).certificate.loss.objective
    found = solvers.solve(buffered(SPECS[name], 3, tolerance=1e-3)).certificate
    assert found.loss.objective / dense - 1 == pytest.approx(found.relative_gap, abs=1e-8)


@pytest.mark.parametrize("buffers", [6, 7])
def test_states_that_grow_too_much_to_be_certified_are_not_taken(buffers: int) -> None:
    cosine = {"workload": {"kind": "schedule", "n": 2048, "learning_rates": {"kind": "cosine_to_last"}}}
    # Where the search ends depends on the last bits: between 1e-5 and 1e-4 in most cases.
    assert solvers.solve(buffered(cosine, buffers)).certificate.relative_gap < 2e-4


def test_too_few_states_to_invert_are_an_error() -> None:
    mu2 = {"workload": {"kind": "mu2", "n": 192, "output": "x"}}
    with pytest.raises(SolveFailed, match="use more buffers"):
        solvers.solve(buffered(mu2, 1))
    assert gap(mu2, 4) < 1e-5 < gap(mu2, 2) < 1e-2


def test_auto_streams_a_long_workload() -> None:
    found = solved(20_000, tolerance=1e-4)
    assert found.spec.mechanism.kind == "buffered_linear"
    assert found.spec.mechanism.buffers == automatic.BUFFERS_AUTOMATIC
    assert found.certificate.converged
    assert 0 <= found.certificate.relative_gap < 5e-5
    assert found.certificate.sensitivity.kind == "exact"
    assert found.certificate.sensitivity.value <= 1
    assert found.strategy.structure == "buffered"


RATES = {"learning_rates": {"kind": "cosine_to_last"}}
EASED: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"kind": "momentum", "momentum": 0.9, **RATES}, "single", ["momentum", "schedule", "prefix"]),
    ({"kind": "momentum", "momentum": 0.9, **RATES}, "fixed_epochs", ["momentum", "schedule", "prefix"]),
    ({"kind": "schedule", **RATES}, "single", ["schedule", "prefix"]),
    (
        {"kind": "weight_decay", "rate": 0.01, "mode": "coupled", "momentum": 0.9, **RATES},
        "fixed_epochs",
        ["weight_decay", "weight_decay", "prefix"],
    ),
    ({"kind": "window", "width": 30}, "fixed_epochs", ["prefix"]),
    ({"kind": "adam", "beta": 0.9, "output": "iterate"}, "fixed_epochs", ["prefix"]),
    ({"kind": "srg", "momentum": 0.9, "decay": 0.5}, "fixed_epochs", ["prefix"]),
]


@pytest.mark.parametrize(("workload", "participation", "chain"), EASED)
def test_what_it_cannot_take_is_answered_by_the_nearest(
    workload: dict[str, Any], participation: str, chain: list[str]
) -> None:
    epochs = {"epochs": 4} if participation == "fixed_epochs" else {}
    asked = parse_spec(
        {
            "workload": {**workload, "n": 32},
            "participation": {"kind": participation, **epochs},
            "mechanism": {"kind": "buffered_linear", "buffers": 2},
        }
    )
    assert [easier.kind for easier in easier_ones(asked.workload)] == chain
    found = solvers.solve(asked, evidence=False)
    assert found.spec.optimize_for in tuple(easier_ones(asked.workload))
    decoder = asked.workload.dense() @ np.linalg.inv(found.matrix.dense())  # the numbers are for what was asked for
    assert found.certificate.loss.objective == pytest.approx((decoder**2).sum() / 32, rel=1e-6)
    (note,) = notes_of_choice(asked, found.spec, "")
    assert "cannot be optimised for" in note and "the nearest that it can" in note


@pytest.mark.parametrize("workload", [{"kind": "identity", "n": 64}, {"kind": "decay", "n": 64, "rate": 0.001}])
@pytest.mark.parametrize("buffers", [1, 24])
def test_a_workload_of_one_scale_needs_no_buffers(workload: dict[str, Any], buffers: int) -> None:
    assert gap({"workload": workload}, buffers) < 1e-6
