"""Files without a last step that the exact checker refuses, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exact_files import parts, sealed

import solvers
from factorize import parse_spec
from factorize.errors import InvalidParticipation, InvalidStrategy, TooLarge
from factorize.exact import check_factor_file
from factorize.exact.endless import LARGEST_HEAD, limit

BLT = {"theta": np.array([0.5]), "omega": np.array([0.5])}
ONCE: dict[str, Any] = {"kind": "single"}


def several(separation: int, most: int | None) -> dict[str, Any]:
    return {"kind": "min_sep", "min_sep": separation, "max_participations": most}


def test_limits_by_hand() -> None:
    """1, 1/2, 1/4, ...: squares that sum to 4/3; and twice the leading pattern, one step apart, 1 and 3/2 times it."""
    once, twice = limit("blt", BLT, ONCE), limit("blt", BLT, several(1, 2))
    assert once.lower <= once.upper and float(once.lower) == float(once.upper) == 4 / 3
    assert float(twice.upper) == pytest.approx(1 + (9 / 4) * 4 / 3, rel=1e-15) and twice.pattern == (0, 1)


@pytest.mark.parametrize(
    "participation", [several(2, None), several(2, 0), several(0, 2), {"kind": "fixed_epochs", "epochs": 2}]
)
def test_participations_without_a_limit(participation: dict[str, Any]) -> None:
    with pytest.raises(InvalidParticipation, match="no finite sensitivity without end"):
        limit("blt", BLT, participation)


def test_strategies_without_a_limit() -> None:
    for theta, omega in (([1.0], [0.5]), ([-0.5], [0.5]), ([0.5], [-0.5]), ([np.nan], [0.5])):
        with pytest.raises(InvalidStrategy):
            limit("blt", {"theta": np.array(theta), "omega": np.array(omega)}, ONCE)
    with pytest.raises(TooLarge, match="rise"):
        limit("blt", {"theta": np.array([0.5]), "omega": np.array([2.0])}, several(2, 2))
    with pytest.raises(TooLarge, match="reach beyond"):
        limit("blt", BLT, several(LARGEST_HEAD, 2))
    for nu in (0.0, 1.0, -0.5):
        with pytest.raises(InvalidStrategy, match="nu is not one number"):
            limit("nu_toeplitz", {"nu": np.array([nu])}, ONCE)


def test_claims_without_end() -> None:
    spec = {"workload": {"kind": "prefix", "n": "unbounded"}, "mechanism": {"kind": "nu_toeplitz", "nu": 0.1}}
    manifest, tensors = parts(solvers.solve(parse_spec(spec)))
    assert check_factor_file(sealed(manifest, tensors)).supported
    manifest["matrices"]["C"]["shape"] = [8, 8]
    assert "asks for rows without end" in check_factor_file(sealed(manifest, tensors)).failed[0]
    manifest["matrices"]["C"]["shape"] = [None, None]
    manifest["certificate"]["sensitivity"]["value"] *= 2
    failed = check_factor_file(sealed(manifest, tensors)).failed
    assert failed == ["the sensitivity's value and its hex form are two different numbers"]
