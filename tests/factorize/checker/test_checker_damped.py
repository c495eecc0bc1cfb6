"""Workloads that oscillate and are damped: balls around their entries stay small over any number of steps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from checker_files import exact_rows, parts, sealed
from specs import solved, spec_of

from factorize.checker.arithmetic.balls import ends
from factorize.checker.check import check_factor_file
from factorize.checker.spec.workloads import toeplitz_column

COUPLED: dict[str, Any] = {"kind": "weight_decay", "rate": 0.5, "mode": "coupled", "momentum": 0.9}


def canonical(workload: dict[str, Any], n: int) -> dict[str, Any]:
    found: dict[str, Any] = spec_of({"n": n} | workload, "identity").canonical().document()["workload"]
    return found


def test_a_damped_oscillation_is_enclosed_over_many_steps() -> None:
    """Radii grow by up to 1.7 at each step, where the entries themselves do not grow."""
    document = canonical(COUPLED, 160)
    column, exact = toeplitz_column(document), exact_rows(document)
    assert column is not None and exact is not None
    for ball, true in zip(column, exact[:, 0], strict=True):
        low, high = ends(ball)
        assert low <= true <= high <= low + Fraction(1, 2**90)


@pytest.mark.parametrize("mechanism", ["identity", "toeplitz", "dense"])
def test_right_claims_for_a_damped_oscillation_are_proved(mechanism: str) -> None:
    result = solved({"n": 300} | COUPLED, mechanism, {"kind": "fixed_epochs", "epochs": 4})
    assert check_factor_file(sealed(*parts(result))).supported


def test_another_road_bounds_where_entries_are_lost() -> None:
    """With a schedule the entries' radii outgrow them; a short workload is then bounded as a recursion."""
    cooldown = {"n": 60, "learning_rates": {"kind": "linear_cooldown", "steps": 30, "final": 0.9}}
    bound = solved(COUPLED | cooldown | {"momentum": 0.99}, "identity").certificate.lower_bound
    assert bound is not None and bound.rule == "nuclear norm dual, by log-determinants"


def test_a_matrix_far_from_the_best_of_its_bands_has_a_bound_within_them() -> None:
    weights = {"kind": "weighted", "weights": [float(10 ** (2 * (-1) ** (i // 3))) for i in range(48)]}
    filters = {"kind": "srg", "n": 48, "momentum": 0.1, "decay": 0.7}
    found = solved(filters, {"kind": "banded", "bands": 4}, 2, weights, tolerance=1e-4).certificate
    assert found.class_lower_bound is not None
    assert found.loss.objective == pytest.approx(found.class_lower_bound.objective, rel=0.01)
