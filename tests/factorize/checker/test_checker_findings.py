"""What the exact checker finds about claims of losses, bounds and added noise, finding by finding."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from checker_files import parts, sealed
from specs import spec_of

from factorize import parse_spec, solvers
from factorize.checker import check, claims
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds.evidence import LowerBound
from factorize.checker.claims import check_convergence
from factorize.checker.doubles import whole
from factorize.checker.file import FactorFile
from factorize.checker.losses.variances import Ends
from factorize.checker.report import CLASS_BOUND, CONVERGED, DECODER, GAP, LOWER_BOUND, MECHANISM, Report, Status
from factorize.checker.report import LOSS as LOSSES
from factorize.checker.sensitivity import Bracket, squared_sensitivity
from factorize.checker.strategy import Strategy
from factorize.errors import CorruptObject, InvalidStrategy

LOSS = {
    "total_squared": 48.0,
    "mean_squared": 12.0,
    "rmse": 12.0**0.5,
    "max_error": 20.0**0.5,
    "last_iterate": 4.0,
    "objective": 12.0,
}
CLAIMS: dict[str, Any] = {
    "sensitivity": {"value": 2.0, "hex": (2.0).hex(), "kind": "exact", "participation": {"kind": "single"}},
    "loss": LOSS,
    "lower_bound": {"objective": 10.0, "rule": "dual"},
    "class_lower_bound": None,
    "relative_gap": 0.2,
    "converged": False,
}
FOUND = Ends((12.0, 12.0), (5.0, 5.0), (4.0, 4.0), (3.0, 3.0))  # at sensitivity 1


def file_with(dual: bool = True, matrices: dict[str, Any] | None = None, **changed: Any) -> FactorFile:
    manifest = {"certificate": copy.deepcopy(CLAIMS) | changed, "matrices": matrices or {}, "spec": {}}
    return FactorFile(manifest, {}, {"weights": np.ones(4)} if dual else {})


def serving(answer: Any) -> Any:
    """What is proved of C: one answer to every question, or none."""

    class Serving:
        def __getattr__(self, _name: str) -> Any:
            if answer is None:
                raise NotEnclosed("of some reason")
            return LowerBound.of(answer, "by hand") if isinstance(answer, Fraction) else answer

    return Serving()


@pytest.mark.parametrize("name", ["total", "largest", "last", "objective"])
def test_losses_are_proved_by_narrow_enclosures_alone(name: str) -> None:
    """What contains the claim and is wide proves nothing, and refutes what it does not contain."""
    report, high = Report(stated=(LOSSES,)), getattr(FOUND, name)[1]
    claims.check_losses(report, file_with(), serving(FOUND._replace(**{name: (high * (1 - 2e-9), high)})), 4)
    assert report.status(LOSSES) is Status.NOT_LOOKED_AT and report.supported
    claims.check_losses(report, file_with(), serving(FOUND._replace(**{name: (high * (1 + 1e-6), high * 2)})), 4)
    assert report.status(LOSSES) is Status.FALSE
    for wide in ((0.0, math.inf), (0.0, 5e-324)):
        report = Report(stated=(LOSSES,))
        claims.check_losses(report, file_with(loss=LOSS | {"last_iterate": 0.0}), serving(FOUND._replace(last=wide)), 4)
        assert report.status(LOSSES) is Status.NOT_LOOKED_AT
    report = Report(stated=(LOSSES,))
    claims.check_losses(
        report, file_with(loss=LOSS | {"last_iterate": 0.0}), serving(FOUND._replace(last=(0.0, 0.0))), 4
    )
    assert report.status(LOSSES) is Status.PROVED


def test_a_class_bound_that_is_not_above_the_general_one_is_proved_with_it() -> None:
    def of_class(claimed: float, general: float | None, *, proved: bool, answer: Any) -> Report:
        report = Report()
        if proved:
            report.prove("", of=LOWER_BOUND)
        bounds = {"lower_bound": None if general is None else {"objective": general, "rule": ""}}
        file = file_with(class_lower_bound={"objective": claimed, "rule": ""}, **bounds)
        claims.check_class_bound(report, file, serving(answer))
        return report

    for claimed in (9.0, 10.0):
        report = of_class(claimed, 10.0, proved=True, answer=None)
        text = f"the class_lower_bound {claimed!r} is not above the lower bound over all matrices"
        assert report.findings[CLASS_BOUND] == [(Status.PROVED, text)]
    for claimed, general, proved in ((10.5, 10.0, True), (9.0, 10.0, False), (9.0, None, True)):
        report = of_class(claimed, general, proved=proved, answer=Fraction(11))
        assert report.checked[-1].startswith("no strategy matrix of the mechanism's class has an objective below 10.99")
        assert report.status(CLASS_BOUND) is Status.PROVED
        report = of_class(claimed, general, proved=proved, answer=None)
        assert report.findings[CLASS_BOUND][0][0] is Status.NOT_LOOKED_AT
        assert report.not_checked == [f"the class_lower_bound {claimed!r} (): of some reason"]


def bound(value: float, kind: str = "upper_bound", written: float | None = None) -> dict[str, Any]:
    return {"value": value, "hex": (value if written is None else written).hex(), "kind": kind}


BOUNDS = (LOSSES, LOWER_BOUND, CLASS_BOUND, MECHANISM)


def convergence(
    kind: str = "dense",
    tolerance: float = 0.25,
    optimize_for: Any = None,
    proved: tuple[str, ...] = BOUNDS,
    normalization: str = "none",
    **changed: Any,
) -> Report:
    """What is said of the gap and of convergence where the claims that they rest on are proved, or some of them."""
    report = Report(stated=(CONVERGED,), findings={name: [(Status.PROVED, "")] for name in proved})
    mechanism = {"kind": kind, "normalization": normalization}
    spec = {"workload": {"kind": "prefix"}, "mechanism": mechanism, "tolerance": tolerance}
    check_convergence(report, spec | {"optimize_for": optimize_for}, CLAIMS | {"converged": True} | changed)
    return report


def status(report: Report) -> str:
    return report.claims[0]["status"] if report.claims else "record"


def test_convergence_is_judged_by_the_gap() -> None:
    assert convergence().checked[-1].startswith("converged: the gap 0.19") and status(convergence()) == "proved"
    assert status(convergence("semidefinite")) == "proved" and not any(
        "converged" in text for text in convergence(converged=False).checked
    )
    assert convergence(tolerance=0.1).failed[0].startswith("the file claims to have converged, and its gap 0.19")
    assert convergence(tolerance=12.0 / 10.0 - 1).supported  # at the tolerance
    for report in (convergence("toeplitz", 0.1), convergence("banded", 0.1)):
        assert report.supported and status(report) == "record" and len(report.not_checked) == 1


def test_a_redundant_optimize_for_hides_nothing() -> None:
    """It names the spec's own workload, so that the gap is about what was optimised."""
    assert convergence(tolerance=0.1, optimize_for={"kind": "prefix"}).failed
    other = convergence(tolerance=0.1, optimize_for={"kind": "momentum"})
    assert other.supported and status(other) == "record"


def test_a_formula_has_nothing_to_converge_to() -> None:
    assert status(convergence("square_root", 0.1)) == "proved"
    assert status(convergence("square_root", 0.1, normalization="auto")) == "record"  # which one is better?
    assert status(convergence("square_root", 0.1, proved=(LOSSES, LOWER_BOUND))) == "record"  # is it that formula?


@pytest.mark.parametrize("missing", [LOSSES, LOWER_BOUND])
def test_convergence_rests_on_the_losses_and_the_bound(missing: str) -> None:
    report = convergence(proved=tuple(name for name in BOUNDS if name != missing))
    assert status(report) == "not_looked_at" and missing in report.claims[0]["why"]
    assert report.status(GAP) is Status.NOT_LOOKED_AT and convergence().status(GAP) is Status.PROVED


def test_convergence_within_a_class() -> None:
    within = {"objective": 11.0, "rule": "class"}
    assert convergence("banded", 0.1, class_lower_bound=within).checked[-1].startswith("converged: the gap 0.0909")
    assert status(convergence("toeplitz", 0.1, class_lower_bound=within)) == "proved"
    assert convergence("banded", 0.05, class_lower_bound=within).failed
    assert convergence("dense", 0.1, class_lower_bound=within).failed  # judged over all matrices


def sensitivity(**changed: Any) -> tuple[Report, Bracket]:
    report = Report()
    claim = {"value": 1.0, "hex": (1.0).hex(), "kind": "exact", "participation": {"kind": "single"}} | changed
    bracket = squared_sensitivity(Strategy("dense", {"": np.eye(2)}, 2), {"kind": "single"})
    claims.check_sensitivity(report, claim, {"kind": "single"}, bracket)
    return report, bracket


def test_claims_of_a_sensitivity() -> None:
    report, found = sensitivity()
    assert report.supported and found.upper == 1
    assert report.checked[0] == "the sensitivity is stated for the participation of the spec: kind=single"
    assert sensitivity(kind="upper_bound")[0].supported


SAID_OF_A_FILE: list[str | tuple[str, ...]] = [
    "every byte of the file belongs to a tensor or the manifest",
    "C is finite and lower-triangular bit by bit, with a positive diagonal: full rank; stored as float64",
    "C is of the mechanism banded: it has at most 3 diagonals",
    "the sensitivity is stated for the participation of the spec",
    "sensitivity 1.414",
    # All columns have norm 1 up to a rounding, so either pattern may attain the most.
    (
        "the sensitivity is exact within 1e-9: the pattern {1, 5} attains",
        "the sensitivity is exact within 1e-9: the pattern {2, 5} attains",
    ),
    "publishing B (C G + Z) rests on C alone",
    "no strategy matrix has an objective below",
    "no strategy matrix of the mechanism's class has an objective below",
    "B C = A up to",
    "adding noise, A G + B Z: B has full rank, and its encoder has sensitivity at most 1.414",
    "every loss enclosed to relative",
    "the stored C_inv and C multiply to I up to",
    "drawing noise with the stored C_inv, A (G + N Z), is covered by the claim: its encoder N^-1 has sensitivity at most",
    "the relative gap",
    "converged: the gap",
]


def test_all_that_is_said_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"workload": {"kind": "prefix", "n": 6}, "participation": {"kind": "min_sep", "min_sep": 3}}
    result = solvers.solve(parse_spec(spec | {"tolerance": 1e-6})).with_matrices(["C", "B", "C_inv"])
    data = sealed(*parts(result))
    report = check.check_factor_file(data)
    assert len(report.checked) == len(SAID_OF_A_FILE) and not report.failed
    for text, beginning in zip(report.checked, SAID_OF_A_FILE, strict=True):
        assert text.startswith(beginning)
    assert report.not_checked == ["who solved it, with what and for how long: provenance is recorded, not proved"]
    assert "for the stored B" in report.checked[9] and {one["status"] for one in report.claims} == {"proved"}
    monkeypatch.setattr(whole, "LARGEST", 5)
    assert any("multiplied up to n=5" in text for text in check.check_factor_file(data).not_checked)


def test_a_wide_workload_has_a_decoder_of_its_shape() -> None:
    spec = spec_of({"kind": "matrix", "rows": [[1.0, 0, 1], [0, 1, 1]]})
    result = solvers.solve(spec).with_matrices(["C", "B"])
    user = {spec.document()["workload"]["sha256"]: np.array([[1.0, 0, 1], [0, 1, 1]])}
    data = sealed(*parts(result))
    assert check.check_factor_file(data, user=user).supported
    unknown = check.check_factor_file(data, user={})
    assert any(text.endswith("the workload's numbers are not known here") for text in unknown.not_checked)
    assert unknown.supported and set(unknown.unseen) >= {LOSSES, DECODER, LOWER_BOUND, GAP, CONVERGED}
    manifest, tensors = parts(result)
    manifest["spec"]["objective"]["kind"] = "median"
    with pytest.raises(CorruptObject, match="unknown kind 'median'"):
        check.check_factor_file(sealed(manifest, tensors), user=user)


def test_what_is_said_of_a_strangers_matrix() -> None:
    report = check.check_strategy(np.eye(2), {"kind": "single"})
    assert len(report.checked) == 2 and report.checked[0].startswith("C is finite and lower-triangular")
    assert len(report.not_checked) == 1 and report.not_checked[0].startswith("the workload: ")
    with pytest.raises(InvalidStrategy, match="transposed"):
        check.check_strategy(np.array([[1.0, 1], [0, 1]]), {"kind": "single"})
    for other in (np.array([[1.0, 0, 1], [1, 1, 0], [0, 0, 1]]), np.array([[1.0, 1], [1, 1]])):
        with pytest.raises(InvalidStrategy, match="above the diagonal"):
            check.check_strategy(other, {"kind": "single"})
    assert check.check_strategy(np.eye(1), {"kind": "single"}).supported


def test_warnings_one_by_one() -> None:
    """Each sentence about a matrix that deserves it, and none about one that nearly does."""
    once: dict[str, Any] = {"kind": "single"}
    apart: dict[str, Any] = {"kind": "min_sep", "min_sep": 2, "max_participations": 2}

    def warnings(array: list[list[float]], participation: dict[str, Any]) -> list[str]:
        return check.check_strategy(np.array(array), participation, claim=99.0).warnings

    negative = [[1.0, 0.0, 0.0], [-0.5, 1.0, 0.0], [0.0, -0.25, 1.0]]
    assert [text.split(":")[0] for text in warnings(negative, apart)] == ["C has negative entries"]
    assert not warnings(negative, once)
    rising = [[1.0, 0.0, 0.0], [1.5, 1.0, 0.0], [0.5, 1.5, 1.0]]
    bands, monotone = warnings(rising, apart)
    assert bands.startswith("C has 3 bands, more than min_sep=2") and "not monotone" in monotone
    assert not warnings(rising, once)
    assert not warnings([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]], apart)
    equal_rows = [[1.0, 0.0], [0.8, 0.6]]
    assert [text[:29] for text in warnings(equal_rows, once)] == ["the rows of C have equal norm"]
    assert not warnings([[1.0, 0.0], [0.8, 0.61]], once) and not warnings([[1.0, 0.0], [0.0, 1.0]], once)
    assert not warnings([[0.6, 0.0], [0.8, 1.0]], once)
