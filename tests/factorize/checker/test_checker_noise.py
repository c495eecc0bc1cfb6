"""What rests on a stored B or C_inv beyond whole matrices: Toeplitz factors by series, against fractions and by n <= 2048."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from checker_files import parts, sealed
from specs import solved

from factorize import parse_spec, solvers
from factorize.checker.check import check_factor_file
from factorize.checker.losses import series
from factorize.checker.spec.objectives import weighing_of
from factorize.errors import CorruptObject
from factorize.factors.factor_file import cast
from factorize.factors.factorization import Factorization, _encoder_claim
from factorize.numbers.triangular import toeplitz_rows

N = 24
TOEPLITZ: list[dict[str, Any]] = [
    {"workload": {"kind": "prefix", "n": N}, "mechanism": {"kind": "square_root"}},
    {
        "workload": {"kind": "momentum", "n": N, "momentum": 0.9},
        "mechanism": {"kind": "banded_square_root", "bands": 5},
        "participation": {"kind": "min_sep", "min_sep": 6},
    },
    {
        "workload": {"kind": "decay", "n": N, "rate": 0.8},
        "mechanism": {"kind": "blt", "buffers": 2},
        "objective": {"kind": "lambda_tau", "tau": 5},
        "tolerance": 1e-3,
    },
]


def made(document: dict[str, Any], dtype: str = "float64") -> Factorization:
    return cast(solvers.solve(parse_spec(document)), dtype).with_matrices(["C", "C_inv", "B"])


def restated(manifest: dict[str, Any], value: float) -> None:
    manifest["matrices"]["B"]["encoder_sensitivity"] = {"value": value, "hex": value.hex(), "kind": "upper_bound"}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("document", TOEPLITZ)
def test_long_and_whole_agree_on_what_rests_on_b(document: dict[str, Any], dtype: str) -> None:
    """The claim for a long matrix holds for a short one, too, and both ways of checking accept it."""
    file = made(document, dtype)
    column, sensitivity = file.tensors()["B.coefficients"].astype(np.float64), file.certificate.sensitivity.value
    claim = _encoder_claim(file, "toeplitz", {"coefficients": column})
    whole = _encoder_claim(file, "dense", {"": toeplitz_rows(column, 0, N)})
    assert claim is not None and whole is not None
    for value in (claim["value"], whole["value"]):
        assert sensitivity < value <= sensitivity * (1 + (1e-10 if dtype == "float64" else 1e-4))
    manifest, tensors = parts(file)
    restated(manifest, claim["value"])
    report = check_factor_file(sealed(manifest, tensors))
    assert report.supported, report.failed
    for text in ("B C = A up to", "the stored C_inv and C multiply to I", "B has full rank", "every loss enclosed"):
        assert any(text in line for line in report.checked), text
    said = report.checked if dtype == "float64" else report.not_checked
    assert any("N^-1 has sensitivity at most" in line for line in said)


def test_false_claims_about_long_matrices_fail() -> None:
    file = made(TOEPLITZ[0], "float32")
    for value in (file.certificate.sensitivity.value, math.nextafter(0.0, 1.0)):
        manifest, tensors = parts(file)
        restated(manifest, value)
        assert any("A G + B Z" in text for text in check_factor_file(sealed(manifest, tensors)).failed)
    manifest, tensors = parts(file)
    proved = next(text for text in check_factor_file(sealed(manifest, tensors)).checked if "full rank, and its" in text)
    attained = float(proved.split("at most ")[1].split(" ")[0])
    restated(manifest, attained)
    assert check_factor_file(sealed(manifest, tensors)).supported
    restated(manifest, math.nextafter(attained, 0.0))
    assert any("A G + B Z" in text for text in check_factor_file(sealed(manifest, tensors)).failed)


def test_spoilt_decoders_and_inverses_of_long_matrices_fail() -> None:
    file = made(TOEPLITZ[1])
    for name, text in (("B.coefficients", "B C differs from A"), ("C_inv.coefficients", "C_inv is not C^-1")):
        manifest, tensors = parts(file)
        tensors[name][3] += 1e-6
        assert any(text in line for line in check_factor_file(sealed(manifest, tensors)).failed)
        manifest, tensors = parts(file)
        tensors[name] = tensors[name][:1]
        with pytest.raises(CorruptObject, match="cannot be|no bytes|shape"):
            check_factor_file(sealed(manifest, tensors))


def test_without_a_stored_b_the_encoder_is_c() -> None:
    manifest, tensors = parts(solvers.solve(parse_spec(TOEPLITZ[0])))
    report = check_factor_file(sealed(manifest, tensors))
    assert any("its encoder is C" in text for text in report.checked)
    assert any("the arithmetic with which a job makes" in text for text in report.not_checked)


@pytest.mark.parametrize("tau", [1, 4, 5, N, 2 * N])
def test_restarts_of_toeplitz_factors(tau: int, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {**TOEPLITZ[0], "objective": {"kind": "lambda_tau", "tau": tau}}
    if tau > N:
        found = series.around(np.ones(N), 0.0, weighing_of(document["objective"], N)).objective
        assert found[0] <= N * (N + 1) / 2 / tau <= found[1]
        return
    result = solvers.solve(parse_spec(document))
    for factor in (1.0, 1 - 1e-8, 1 + 1e-8):
        manifest, tensors = parts(result)
        manifest["certificate"]["loss"]["objective"] *= factor
        failed = check_factor_file(sealed(manifest, tensors)).failed
        assert any("loss.objective" in text for text in failed) == (factor != 1.0)
    monkeypatch.setattr("factorize.checker.losses.series.MAX_RESTART_WORK", 8)
    assert check_factor_file(sealed(*parts(result))).supported, "by whole matrices"


def test_decoders_that_have_no_claim() -> None:
    ones = solved(4, "identity")
    assert _encoder_claim(ones, "toeplitz", {"coefficients": np.array([0.0, 1, 1, 1])}) is None
    for stored in (np.zeros((4, 4)), np.ones((2049, 1))):
        assert _encoder_claim(ones, "dense", {"": stored}) is None


def test_the_claim_is_not_of_the_recursion_that_made_b() -> None:
    """B by the recursion of C seems exact to that recursion; the exact residual is a thousand times larger."""
    document = {"workload": {"kind": "prefix", "n": 20_000}, "mechanism": {"kind": "blt", "buffers": 2}}
    manifest, tensors = parts(solvers.solve(parse_spec({**document, "tolerance": 1e-2})).with_matrices(["C", "B"]))
    report = check_factor_file(sealed(manifest, tensors))
    assert report.supported, report.failed
    assert any("its encoder has sensitivity at most" in text for text in report.checked)
