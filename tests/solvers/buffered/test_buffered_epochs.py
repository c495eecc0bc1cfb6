"""Few states under fixed epochs: distances to the dense optimum, for many workloads and sizes, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from specs import document_of, spec_of

from factorize import solvers
from factorize.errors import SolveFailed
from factorize.solvers.buffered.redrawn import MOST_SIDE
from factorize.spec import Spec, parse_spec


def document(n: int, epochs: int, **more: Any) -> dict[str, Any]:
    return {**document_of(n, participation=epochs, tolerance=1e-3), **more}


def buffered(n: int, epochs: int, buffers: int, **more: Any) -> Spec:
    return spec_of(document(n, epochs, **more), {"kind": "buffered_linear", "buffers": buffers})


def gap(spec: Spec) -> float:
    certificate = solvers.solve(spec).certificate
    assert certificate.sensitivity.participation["kind"] == "fixed_epochs"
    assert 1 - 1e-8 < certificate.sensitivity.value <= 1
    assert certificate.relative_gap is not None
    return certificate.relative_gap


def test_the_distance_falls_with_the_states() -> None:
    gaps = [gap(buffered(64, 4, buffers)) for buffers in (1, 2, 4)]
    assert all(0 < after < 0.8 * before for before, after in zip(gaps, gaps[1:], strict=False)), gaps
    assert gaps[1] < 2e-3


MORE: dict[str, dict[str, Any]] = {
    "schedule": {
        "workload": {"kind": "schedule", "n": 128, "learning_rates": {"kind": "step", "every": 40, "factor": 0.5}}
    },
    "weight decay": {"workload": {"kind": "weight_decay", "n": 128, "rate": 0.02, "mode": "decoupled"}},
    "lambda_tau": {"objective": {"kind": "lambda_tau", "tau": 16}},
    "weighted": {"objective": {"kind": "weighted", "weights": [1.0 + i % 3 for i in range(128)]}},
    "odd epochs": {"workload": {"kind": "prefix", "n": 135}, "participation": {"kind": "fixed_epochs", "epochs": 5}},
}


@pytest.mark.parametrize("name", MORE)
def test_other_workloads_and_objectives(name: str) -> None:
    assert 0 <= gap(buffered(128, 4, 6, **MORE[name])) < 5e-3


def test_the_gap_is_the_distance_to_the_dense_optimum() -> None:
    optimum = solvers.solve(parse_spec({**document(128, 4), "tolerance": 1e-7})).certificate.loss.objective
    found = solvers.solve(buffered(128, 4, 4)).certificate
    assert found.loss.objective / optimum - 1 == pytest.approx(found.relative_gap, abs=1e-6)


def test_numbers_out_of_range_are_an_error() -> None:
    rates = [1e-65] + [1.0] * 63
    workload = {"kind": "schedule", "n": 64, "learning_rates": rates}
    with pytest.raises(SolveFailed, match="use fewer buffers"):
        solvers.solve(buffered(64, 4, 2, workload=workload))


def test_epochs_that_leave_fewer_buffers_are_answered() -> None:
    """The certificate is of a strategy with as many buffers as the search has room for, at most those asked for."""
    epochs = 24
    answer = solvers.solve(buffered(8 * epochs, epochs, 7))
    assert answer.strategy.tensors()["decay"].shape == (8 * epochs, MOST_SIDE // epochs - 1)
    assert answer.certificate.relative_gap is not None and answer.certificate.relative_gap < 0.02
