"""What the exact checker finds about claims of losses, bounds and added noise, finding by finding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checker_files import parts, sealed
from specs import solved, spec_of

from factorize.checker.check import check_factor_file, check_matrix_sensitivity
from factorize.checker.claims import check_convergence
from factorize.checker.losses import whole_matrices
from factorize.checker.report import CLASS_BOUND, CONVERGED, DECODER, GAP, LOWER_BOUND, MECHANISM, Report, Status
from factorize.checker.report import LOSS as LOSSES
from factorize.errors import CorruptObject

CLAIMS: dict[str, Any] = {
    "sensitivity": {"value": 2.0, "hex": (2.0).hex(), "kind": "exact", "participation": {"kind": "single"}},
    "loss": {"objective": 12.0},
    "lower_bound": {"objective": 10.0, "rule": "dual"},
    "class_lower_bound": None,
    "relative_gap": 0.2,
    "converged": False,
}


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


WITHIN = {"class_lower_bound": {"objective": 11.0, "rule": "class"}}
UNPROVED = {name: {"proved": tuple(other for other in BOUNDS if other != name)} for name in BOUNDS}


@pytest.mark.parametrize(
    ("kind", "tolerance", "more", "status"),
    [
        ("dense", 0.25, {}, "proved"),
        ("semidefinite", 0.25, {}, "proved"),
        ("dense", 12.0 / 10.0 - 1, {}, "proved"),  # at the tolerance
        ("dense", 0.1, {}, "false"),
        ("toeplitz", 0.1, {}, "record"),
        ("banded", 0.1, {}, "record"),
        # One that names the spec's own workload hides nothing: the gap is about what was optimised.
        ("dense", 0.1, {"optimize_for": {"kind": "prefix"}}, "false"),
        ("dense", 0.1, {"optimize_for": {"kind": "momentum"}}, "record"),
        ("square_root", 0.1, {}, "proved"),
        ("square_root", 0.1, {"normalization": "auto"}, "record"),  # which one is better?
        ("square_root", 0.1, UNPROVED[MECHANISM], "record"),  # is it that formula?
        ("dense", 0.25, UNPROVED[LOSSES], "not_looked_at"),
        ("dense", 0.25, UNPROVED[LOWER_BOUND], "not_looked_at"),
        ("banded", 0.1, WITHIN, "proved"),
        ("toeplitz", 0.1, WITHIN, "proved"),
        ("banded", 0.05, WITHIN, "false"),
        ("dense", 0.1, WITHIN, "false"),  # judged over all matrices
    ],
)
def test_convergence_is_judged_by_the_gap(kind: str, tolerance: float, more: dict[str, Any], status: str) -> None:
    report = convergence(kind, tolerance, **more)
    assert (report.claims[0]["status"] if report.claims else "record") == status
    assert report.supported == (status != "false")
    assert (report.status(GAP) is Status.PROVED) == (status != "not_looked_at")
    assert not any("converged" in text for text in convergence(converged=False).checked)


def test_claims_without_evidence() -> None:
    manifest, tensors = parts(solved(6, tolerance=1e-6))
    kept = {name: tensors[name] for name in tensors if not name.startswith("dual")}
    manifest["dual"] = None
    assert any("has no evidence" in text for text in check_factor_file(sealed(manifest, kept)).failed)
    manifest, tensors = parts(solved(6, participation=2, tolerance=1e-6))
    tensors["dual.row_weights"] = tensors.pop("dual.factors")
    manifest["dual"]["tensors"] = ["dual.row_weights"]
    assert any("not evaluated here" in text for text in check_factor_file(sealed(manifest, tensors)).not_checked)
    manifest["certificate"]["lower_bound"]["objective"] *= 2
    assert any("above the objective" in text for text in check_factor_file(sealed(manifest, tensors)).failed)


def test_stored_arrays_are_multiplied_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = {"kind": "min_sep", "min_sep": 3}
    result = solved(6, participation=apart, tolerance=1e-6).with_matrices(["C", "B", "C_inv"])
    monkeypatch.setattr(whole_matrices, "MAX_N", 5)
    assert any("multiplied up to n=5" in text for text in check_factor_file(sealed(*parts(result))).not_checked)


def test_a_wide_workload_has_a_decoder_of_its_shape() -> None:
    spec = spec_of({"kind": "matrix", "rows": [[1.0, 0, 1], [0, 1, 1]]})
    result = solved(spec).with_matrices(["C", "B"])
    user = {spec.document()["workload"]["sha256"]: np.array([[1.0, 0, 1], [0, 1, 1]])}
    data = sealed(*parts(result))
    assert check_factor_file(data, user=user).supported
    unknown = check_factor_file(data, user={})
    assert any(text.endswith("the workload's numbers are not known here") for text in unknown.not_checked)
    assert unknown.supported and set(unknown.unseen) >= {LOSSES, DECODER, LOWER_BOUND, GAP, CONVERGED}
    manifest, tensors = parts(result)
    manifest["spec"]["objective"]["kind"] = "median"
    with pytest.raises(CorruptObject, match="unknown kind 'median'"):
        check_factor_file(sealed(manifest, tensors), user=user)


def test_warnings_one_by_one() -> None:
    """Each sentence about a matrix that deserves it, and none about one that nearly does."""
    once: dict[str, Any] = {"kind": "single"}
    apart: dict[str, Any] = {"kind": "min_sep", "min_sep": 2, "max_participations": 2}

    def warnings(array: list[list[float]], participation: dict[str, Any]) -> list[str]:
        return check_matrix_sensitivity(np.array(array), participation, claim=99.0).warnings

    negative = [[1.0, 0.0, 0.0], [-0.5, 1.0, 0.0], [0.0, -0.25, 1.0]]
    assert [text.split(",")[0] for text in warnings(negative, apart)] == ["C has negative entries"]
    assert not warnings(negative, once)
    rising = [[1.0, 0.0, 0.0], [1.5, 1.0, 0.0], [0.5, 1.5, 1.0]]
    bands, monotone = warnings(rising, apart)
    assert bands.startswith("C has 3 bands, more than min_sep=2") and "not monotone" in monotone
    assert not warnings(rising, once)
    assert "not monotone" in warnings([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]], apart)[-1]
    assert not warnings([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]], apart)
    equal_rows = [[1.0, 0.0], [0.8, 0.6]]
    assert [text[:29] for text in warnings(equal_rows, once)] == ["the rows of C have equal norm"]
    assert not warnings([[1.0, 0.0], [0.8, 0.61]], once) and not warnings([[1.0, 0.0], [0.0, 1.0]], once)
    assert not warnings([[0.6, 0.0], [0.8, 1.0]], once)
