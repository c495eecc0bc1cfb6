"""Files without a last step that the exact checker refuses, one by one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from checker_files import parts, sealed

from factorize import parse_spec, solvers
from factorize.checker.check import check_factor_file
from factorize.checker.sensitivity import squared_limit
from factorize.errors import CorruptObject

BLT = {"theta": np.array([0.5]), "omega": np.array([0.5])}
ONCE: dict[str, Any] = {"kind": "single"}


def several(separation: int, most: int | None) -> dict[str, Any]:
    return {"kind": "min_sep", "min_sep": separation, "max_participations": most}


def test_limits_by_hand() -> None:
    """1, 1/2, 1/4, ...: squares that sum to 4/3; and twice the leading pattern, one step apart, 1 and 3/2 times it."""
    once, twice = squared_limit("blt", BLT, ONCE), squared_limit("blt", BLT, several(1, 2))
    assert once.lower <= once.upper and float(once.lower) == float(once.upper) == 4 / 3
    assert float(twice.upper) == pytest.approx(1 + (9 / 4) * 4 / 3, rel=1e-15) and twice.pattern == (0, 1)


def test_one_damped_column_without_end() -> None:
    """The squares of binomial(2 t, t) / 8^t, which fall by a factor of 4 and more: 640 of them tell 1280 places."""
    found = squared_limit("nu_toeplitz", {"nu": np.array([0.5])}, ONCE)
    coefficient = total = Fraction(1)
    for t in range(1, 641):
        coefficient *= Fraction(2 * t - 1, 4 * t)
        total += coefficient**2
    assert found.lower < total < total + Fraction(1, 2**1270) < found.upper
    assert found.upper - found.lower < Fraction(1, 2**1000)
    assert (found.pattern, found.signs) == ((0,), (1,))


def test_claims_without_end() -> None:
    spec = {"workload": {"kind": "prefix", "n": "unbounded"}, "mechanism": {"kind": "nu_toeplitz", "nu": 0.1}}
    manifest, tensors = parts(solvers.solve(parse_spec(spec)))
    report = check_factor_file(sealed(manifest, tensors))
    assert report.supported and len(report.not_checked) == 2
    assert "no last row" in report.not_checked[0] and "provenance" in report.not_checked[1]
    manifest["matrices"]["C"]["shape"] = [8, 8]
    with pytest.raises(CorruptObject, match="asks for .None, None."):
        check_factor_file(sealed(manifest, tensors))
