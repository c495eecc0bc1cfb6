"""The table of starts: a quick search from it ends close to where the whole one does, also between its entries."""

from __future__ import annotations

import pytest

from factorize import parse_spec
from factorize.accounting import calibrate_sampling
from factorize.privacy import PrivacyTarget
from factorize.solvers import solve


@pytest.mark.parametrize(("buffers", "bins", "epochs", "epsilon"), [(1, 8, 4, 2.0), (2, 20, 2, 4.0)])
def test_a_quick_search_from_the_table_is_close(buffers: int, bins: int, epochs: int, epsilon: float) -> None:
    target = PrivacyTarget(epsilon=epsilon, delta=1e-5)
    spec = {
        "workload": {"kind": "prefix", "n": bins * epochs},
        "participation": {"kind": "fixed_epochs", "epochs": epochs},
        "mechanism": {"kind": "blt", "buffers": buffers},
        "sampling": {"kind": "balls_in_bins", "epsilon": epsilon, "delta": 1e-5},
    }
    errors = []
    for tolerance in (2e-2, 1e-6):
        found = solve(parse_spec({**spec, "tolerance": tolerance}), evidence=False)
        noise = calibrate_sampling(found, target, sampling="balls_in_bins").sigma_of_sums
        errors.append(noise * found.certificate.loss.rmse / found.certificate.sensitivity.value)
    assert errors[0] < 1.02 * errors[1]
