"""First and second moments together: the pair's sensitivity by hand, by trying contributions, and by the exact checker."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from checker_files import parts, sealed
from specs import solved

from factorize.accounting.joint_moments import (
    DIFFERENCES_RULE,
    DOUBLED_RULE,
    FREE_RULE,
    SUM_RULE,
    calibrate_moments,
    moment_sensitivity,
)
from factorize.checker.receipt import bracket_of
from factorize.checker.report import Report, check_claim
from factorize.checker.strategy import read_factor_file
from factorize.errors import CertificateError, InvalidParameter
from factorize.privacy import PrivacyTarget, calibrate

N = 12
SINGLE = {"kind": "single"}
EPOCHS = {"kind": "fixed_epochs", "epochs": 3}
TARGET = PrivacyTarget(epsilon=2.0, delta=1e-6)


@pytest.fixture(scope="module")
def roots() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, participation in (("single", SINGLE), ("epochs", EPOCHS), ("apart", {"kind": "min_sep", "min_sep": 4})):
        for nu in (0.0, 0.5):
            made[f"{name} {nu}"] = solved(N, {"kind": "nu_toeplitz", "nu": nu}, participation)
    made["dense"] = solved(N, "dense", EPOCHS)
    return made


def moved(first: Any, second: Any, weight: float, g: np.ndarray, other: np.ndarray) -> float:
    """Squared distance of the pair for contributions of shape (n, d) in place of others."""
    one, two = first.rows("C", 0, N), second.rows("C", 0, N)
    return float(((one @ (g - other)) ** 2).sum() + weight**2 * ((two @ (g**2 - other**2)) ** 2).sum())


def ball(rng: np.random.Generator, pattern: list[int], d: int) -> np.ndarray:
    found = np.zeros((N, d))
    for step in pattern:
        draw = rng.normal(size=d) * (rng.random(d) < rng.random())
        found[step] = draw / max(np.linalg.norm(draw), 1e-12) * rng.choice([1.0, rng.random()])
    return found


@pytest.mark.parametrize("weight", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(("kind", "pattern"), [("single", [0]), ("epochs", [0, 4, 8]), ("apart", [0, 4, 8])])
def test_no_contribution_moves_it_farther(
    roots: dict[str, Any], kind: str, pattern: list[int], adjacency: str, weight: float
) -> None:
    first, second = roots[f"{kind} 0.0"], roots[f"{kind} 0.5"]
    stated = moment_sensitivity(first, second, weight=weight, adjacency=adjacency)
    factor = 2 if adjacency == "replace_one" else 1
    rng, most = np.random.default_rng(5), 0.0
    for _ in range(600):
        g = ball(rng, pattern, 3)
        other = rng.choice([-1.0, 0.0, 0.3]) * g if rng.random() < 0.5 else ball(rng, pattern, 3)
        most = max(most, moved(first, second, weight, g, other * (factor - 1)))
    unit = np.zeros((N, 3))
    unit[pattern, 0] = 1.0
    most = max(most, moved(first, second, weight, unit, -unit * (factor - 1)))
    assert math.sqrt(most) <= factor * stated.value * (1 + 1e-12)
    if stated.kind == "exact":
        assert math.sqrt(most) == pytest.approx(factor * stated.value, rel=1e-9)


def test_values_by_hand(roots: dict[str, Any]) -> None:
    first, second = roots["single 0.0"], roots["single 0.5"]
    s1, s2 = first.sensitivity.value, second.sensitivity.value
    free = s1 / (math.sqrt(2) * s2) * (1 - 1e-12)
    for weight, adjacency, value, kind, rule in (
        (1.0, "zero_out", math.hypot(s1, s2), "exact", SUM_RULE),
        (free, "replace_one", s1, "exact", FREE_RULE),
        (10.0, "replace_one", (s1**2 + 200 * s2**2) / math.sqrt(800) / s2, "upper_bound", DIFFERENCES_RULE),
    ):
        found = moment_sensitivity(first, second, weight=weight, adjacency=adjacency)
        assert (found.kind, found.rule) == (kind, rule)
        assert found.value == pytest.approx(value, rel=1e-14)
    several = moment_sensitivity(roots["epochs 0.0"], roots["epochs 0.5"], weight=1.0, adjacency="replace_one")
    assert (several.kind, several.rule) == ("upper_bound", DOUBLED_RULE)
    mixed = moment_sensitivity(roots["dense"], roots["epochs 0.5"], weight=1.0)
    assert mixed.kind == "upper_bound"


def test_the_noise_of_both(roots: dict[str, Any]) -> None:
    """Their mu add up in squares to the target's: (s1 clip / sigma1)^2 + (s2 clip^2 / sigma2)^2 = mu^2."""
    first, second = roots["epochs 0.0"], roots["epochs 0.5"]
    made = calibrate_moments(first, second, TARGET, clip_norm=0.5, divisor=10, weight=0.8)
    total = (first.sensitivity.value * 0.5 / made.first.sigma_of_sums) ** 2
    total += (second.sensitivity.value * 0.25 / made.second.sigma_of_sums) ** 2
    assert math.sqrt(total) == pytest.approx(made.first.mu, rel=1e-9)
    assert made.first.mu == calibrate(first.sensitivity, TARGET).mu
    document = made.document()
    assert document["second_sigma_of_sums"] == made.second.sigma_of_sums
    assert document["second_sigma_of_means"] == pytest.approx(made.second.sigma_of_sums / 10, rel=1e-15)


def test_each_noise_is_for_its_own_strategy(roots: dict[str, Any]) -> None:
    first, second = roots["epochs 0.0"], roots["epochs 0.5"]
    made = calibrate_moments(first, second, TARGET)
    made.first.check_belongs(first.sensitivity, lambda: None)
    made.second.check_belongs(second.sensitivity, lambda: None)
    for calibration, other in ((made.first, second), (made.second, first)):
        with pytest.raises(InvalidParameter, match="calibrate this one"):
            calibration.check_belongs(other.sensitivity, lambda: None)


def check_moments(files: tuple[bytes, bytes], statement: dict[str, Any]) -> Report:
    report = Report()
    bracket = bracket_of([read_factor_file(data) for data in files], statement)
    check_claim(report, bracket, statement["sensitivity"], kind=statement["sensitivity_kind"])
    return report


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(
    ("one", "two"),
    [("single 0.0", "single 0.5"), ("epochs 0.0", "epochs 0.5"), ("apart 0.5", "apart 0.5"), ("dense", "epochs 0.0")],
)
@pytest.mark.parametrize("weight", [None, 0.2, 5.0])
def test_the_exact_checker_proves_the_pair(
    roots: dict[str, Any], one: str, two: str, adjacency: str, weight: float | None
) -> None:
    first, second = roots[one], roots[two]
    made = calibrate_moments(first, second, TARGET, weight=weight, adjacency=adjacency)
    files = sealed(*parts(first)), sealed(*parts(second))
    found = check_moments(files, made.document())
    assert found.supported, found.failed
    assert found.sensitivity["lower"] <= made.sensitivity.value
    small = {**made.document(), "sensitivity": made.sensitivity.value * (1 - 1e-9)}
    assert not check_moments(files, small).supported
    large = {**made.document(), "sensitivity": made.sensitivity.value * 1.01, "sensitivity_kind": "exact"}
    assert not check_moments(files, large).supported


def test_what_is_refused(roots: dict[str, Any]) -> None:
    first, other = roots["epochs 0.0"], roots["single 0.0"]
    with pytest.raises(InvalidParameter, match="same steps and participation"):
        moment_sensitivity(first, other, weight=1.0)
    for weight in (0.0, -1.0, math.nan):
        with pytest.raises(InvalidParameter):
            moment_sensitivity(first, first, weight=weight)
    files = sealed(*parts(first)), sealed(*parts(first))
    statement = calibrate_moments(first, first, TARGET).document()
    with pytest.raises(CertificateError, match="the statement names"):
        check_moments(files, {**statement, "digests": ["0", "1"]})
    with pytest.raises(CertificateError, match="adjacency 'add_remove'"):
        check_moments(files, {**statement, "adjacency": "add_remove"})


def test_means_of_squares_are_not_taken_for_sums(roots: dict[str, Any]) -> None:
    """At a clip norm of 10 the square of a contribution has norm 100, and so has the mean of equal ones."""
    made = calibrate_moments(roots["epochs 0.0"], roots["epochs 0.5"], TARGET, clip_norm=10.0, divisor=600)
    made.second.check_mean(100.0)
    with pytest.raises(InvalidParameter, match="it is a sum"):
        made.second.check_mean(200.0)
