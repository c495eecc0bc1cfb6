"""Files without a last step that the exact checker refuses, one by one."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from checker_files import parts, sealed

from factorize import parse_spec, solvers
from factorize.checker.check import check_endless, check_factor_file
from factorize.checker.report import CONVERGED, LOSS, MECHANISM, SENSITIVITY, STRATEGY, Report
from factorize.checker.sensitivity import squared_limit
from factorize.errors import CertificateError, CorruptObject, InvalidParticipation

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


@pytest.mark.parametrize(
    "participation", [several(2, None), several(2, 0), several(0, 2), {"kind": "fixed_epochs", "epochs": 2}]
)
def test_participations_without_a_limit(participation: dict[str, Any]) -> None:
    with pytest.raises(InvalidParticipation, match="no finite sensitivity without end"):
        squared_limit("blt", BLT, participation)


def test_claims_without_end() -> None:
    spec = {"workload": {"kind": "prefix", "n": "unbounded"}, "mechanism": {"kind": "nu_toeplitz", "nu": 0.1}}
    manifest, tensors = parts(solvers.solve(parse_spec(spec)))
    report = check_factor_file(sealed(manifest, tensors))
    assert report.supported and len(report.not_checked) == 2
    assert "no last row" in report.not_checked[0] and "provenance" in report.not_checked[1]
    claim = manifest["certificate"]["sensitivity"]
    for name, value, message in (
        ("participation", several(2, 2), "the sensitivity is stated for .*, the spec for"),
        ("kind", "about", "the sensitivity is of kind 'about'"),
        ("value", 2 * claim["value"], "two different numbers"),
    ):
        kept, claim[name] = claim[name], value
        with pytest.raises(CorruptObject, match=message):
            check_factor_file(sealed(manifest, tensors))
        claim[name] = kept
    manifest["matrices"]["C"]["shape"] = [8, 8]
    with pytest.raises(CorruptObject, match="asks for .None, None."):
        check_factor_file(sealed(manifest, tensors))


def endless(kind: str = "nu_toeplitz", **mechanism: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A manifest without end and the tensors of C, of (1 - x)^-(1/2) damped, or of a BLT."""
    stated = {"value": 2.0, "hex": (2.0).hex(), "kind": "upper_bound", "participation": ONCE}
    certificate = {
        "sensitivity": stated,
        "loss": {"rmse": None, "objective": None},
        "lower_bound": None,
        "class_lower_bound": None,
        "relative_gap": None,
        "converged": True,
    }
    spec = {"workload": {"kind": "prefix"}, "participation": ONCE, "mechanism": {"kind": kind, **mechanism}}
    spec["tolerance"] = 1e-9
    return {"spec": spec, "certificate": certificate}, {"nu": np.array([0.5])} if kind == "nu_toeplitz" else dict(BLT)


def told(manifest: dict[str, Any], tensors: dict[str, np.ndarray], shape: Any = (None, None)) -> Report:
    report = Report(stated=(SENSITIVITY, LOSS, MECHANISM, STRATEGY, CONVERGED))
    structure = "nu_toeplitz" if "nu" in tensors else "blt"
    check_endless(report, {"shape": list(shape), "structure": structure}, tensors, manifest)
    return report


def test_every_claim_without_end_has_its_word() -> None:
    report = told(*endless(nu=0.5))
    assert report.supported and {one["status"] for one in report.claims} == {"proved"}
    assert [text.split(":")[0] for text in report.not_checked[-2:]] == [
        "the residual",
        "who solved it, with what and for how long",
    ]
    assert any(text.startswith("no bound is claimed") for text in report.checked)
    manifest, tensors = endless(nu=0.5)
    for shape, workload in (((8, 8), "prefix"), ((None, None), "decay"), ((8, 8), "decay")):
        manifest["spec"]["workload"]["kind"] = workload
        with pytest.raises(CertificateError, match="rows without end"):
            told(manifest, tensors, shape)


def test_claims_without_end_that_cannot_be() -> None:
    def false(change: Callable[[dict[str, Any]], object], *mechanism: str, **given: Any) -> set[str]:
        manifest, tensors = endless(*mechanism, **(given or {"nu": 0.5}))
        change(manifest["certificate"])
        report = told(manifest, tensors)
        assert report.failed
        return {name for name in report.stated if report.status(name) == "false"}

    assert false(lambda c: c["loss"].update(rmse=1.0)) == {LOSS}
    assert false(lambda c: c["loss"].update(rmse=1.0, objective=1.0)) == {LOSS}
    assert false(lambda c: c["sensitivity"].update(value=1.0, hex=(1.0).hex())) == {SENSITIVITY}
    for name in ("lower_bound", "class_lower_bound", "relative_gap"):
        with pytest.raises(CertificateError, match="a bound is claimed"):
            false(lambda c, name=name: c.update({name: 1.0}))
    manifest, tensors = endless(nu=0.25)  # of which C, with 1/2, is none
    report = told(manifest, tensors)
    assert report.status(MECHANISM) == "false" and report.status(CONVERGED) == "not_looked_at"


def test_what_is_optimised_without_end_has_not_converged() -> None:
    report = told(*endless("blt", buffers=1))
    assert report.status(MECHANISM) == "proved" and report.status(CONVERGED) == "not_looked_at"
