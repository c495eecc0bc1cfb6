"""What rests on a stored B or C_inv beyond whole matrices: Toeplitz factors by series, against fractions and by n <= 2048."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from exact_files import parts, sealed
from specs import solved

from factorize import parse_spec, solvers
from factorize.certificate.added_noise import encoder_sensitivity, toeplitz_encoder_sensitivity
from factorize.errors import CorruptObject
from factorize.exact import check_factor_file
from factorize.exact.arithmetic import integers, series
from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.losses import toeplitz_forms
from factorize.exact.report import Report
from factorize.factorization import Factorization
from factorize.numbers.series import toeplitz_rows
from factorize.rounded import cast
from factorize.structures.toeplitz import ToeplitzMatrix

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


def fractions_of(numbers: integers.Numbers) -> list[Fraction]:
    return [numbers.fraction(int(value)) for value in numbers.values]


def quotient(a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
    found: list[Fraction] = []
    for t in range(len(a)):
        found.append((a[t] - sum((found[s] * b[t - s] for s in range(t)), Fraction(0))) / b[0])
    return found


def norm(column: list[Fraction]) -> float:
    return math.sqrt(float(sum((entry**2 for entry in column), Fraction(0))))


def long_report(monkeypatch: pytest.MonkeyPatch, manifest: dict[str, Any], tensors: dict[str, np.ndarray]) -> Report:
    with monkeypatch.context() as patch:
        patch.setattr("factorize.exact.losses.residual.LARGEST", 8)
        return check_factor_file(sealed(manifest, tensors), integers=True)


def made(document: dict[str, Any], dtype: str = "float64") -> Factorization:
    return cast(solvers.solve(parse_spec(document)), dtype).with_matrices(["C", "C_inv", "B"])


def restated(manifest: dict[str, Any], value: float) -> None:
    manifest["matrices"]["B"]["encoder_sensitivity"] = {"value": value, "hex": value.hex(), "kind": "upper_bound"}


@pytest.mark.parametrize("seed", range(8))
def test_the_encoder_is_enclosed_by_fractions(seed: int) -> None:
    """E = C - R / B, every pattern gains at most the norm of R / B per step."""
    rng, n = np.random.default_rng(seed), 7
    c, b = (np.concatenate([[1.0 + rng.random()], 0.3 * rng.standard_normal(n - 1)]) for _ in range(2))
    rest = integers.integers(1e-3 * rng.standard_normal(n))
    upper = sum((Fraction(x) ** 2 for x in c), Fraction(0))
    found = toeplitz_forms.added_noise(b, rest, 2, upper)
    assert isinstance(found, float)
    moved = quotient(fractions_of(rest), [Fraction(x) for x in b])
    assert found >= math.sqrt(upper) + 2 * norm(moved)
    bound = math.sqrt(upper) + 2 * norm(fractions_of(rest)) * float(
        sum(map(abs, quotient([Fraction(1)] + [Fraction(0)] * (n - 1), [Fraction(x) for x in b])))
    )
    assert found == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("document", TOEPLITZ)
def test_long_and_whole_agree_on_what_rests_on_b(
    document: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim for a long matrix holds for a short one, too, and both ways of checking accept it."""
    file = made(document, dtype)
    given = (file.strategy, file.spec.workload, file.spec.participation, file.certificate.sensitivity.value)
    column = file.tensors()["B.coefficients"].astype(np.float64)
    claim = toeplitz_encoder_sensitivity(column, *given)
    whole = encoder_sensitivity(toeplitz_rows(column, 0, N), *given)
    assert claim is not None and whole is not None
    assert claim["value"] <= given[-1] * (1 + (1e-10 if dtype == "float64" else 1e-4))
    manifest, tensors = parts(file)
    restated(manifest, claim["value"])
    for report in (check_factor_file(sealed(manifest, tensors)), long_report(monkeypatch, manifest, tensors)):
        assert report.supported, report.failed
        for text in ("B C = A up to", "the stored C_inv and C multiply to I", "B has full rank"):
            assert any(text in line for line in report.checked), text
        said = report.checked if dtype == "float64" else report.not_checked
        assert any("N^-1 has sensitivity at most" in line for line in said)
        assert any("every loss enclosed" in line for line in report.checked)


def test_false_claims_about_long_matrices_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    file = made(TOEPLITZ[0], "float32")
    for value in (file.certificate.sensitivity.value, math.nextafter(0.0, 1.0)):
        manifest, tensors = parts(file)
        restated(manifest, value)
        assert any("A G + B Z" in text for text in long_report(monkeypatch, manifest, tensors).failed)
    manifest, tensors = parts(file)
    proved = next(text for text in long_report(monkeypatch, manifest, tensors).checked if "full rank, and its" in text)
    attained = float(proved.split("at most ")[1].split(" ")[0])
    restated(manifest, attained)
    assert long_report(monkeypatch, manifest, tensors).supported
    restated(manifest, math.nextafter(attained, 0.0))
    assert any("A G + B Z" in text for text in long_report(monkeypatch, manifest, tensors).failed)


def test_spoilt_decoders_and_inverses_of_long_matrices_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    file = made(TOEPLITZ[1])
    for name, text in (("B.coefficients", "B C differs from A"), ("C_inv.coefficients", "C_inv is not C^-1")):
        manifest, tensors = parts(file)
        tensors[name][3] += 1e-6
        assert any(text in line for line in long_report(monkeypatch, manifest, tensors).failed)
        manifest, tensors = parts(file)
        tensors[name] = tensors[name][:1]
        with pytest.raises(CorruptObject, match="first column|no bytes|shape"):
            long_report(monkeypatch, manifest, tensors)


def test_a_long_decoder_that_is_singular_or_far_from_invertible_has_no_claim() -> None:
    rest = integers.integers(np.full(64, 1e-9))
    assert "singular" in str(toeplitz_forms.added_noise(np.eye(1, 64, 1)[0], rest, 1, Fraction(1)))
    growing = np.concatenate([[1.0, 3.0], np.zeros(62)])
    with pytest.raises(NotEnclosed):
        toeplitz_forms.added_noise(growing, rest, 1, Fraction(1))
    with pytest.raises(NotEnclosed, match="range of doubles"):
        toeplitz_forms.added_noise(np.concatenate([[1e-300, 1.0], np.zeros(62)]), rest, 1, Fraction(1))


def test_a_decoder_whose_inverse_is_not_enclosed_leaves_its_claim_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotEnclosed("too much")

    monkeypatch.setattr("factorize.exact.losses.toeplitz_forms.added_noise", refuse)
    report = long_report(monkeypatch, *parts(made(TOEPLITZ[0])))
    assert any("too much" in text for text in report.failed)


def test_without_a_stored_b_the_encoder_is_c(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, tensors = parts(solvers.solve(parse_spec(TOEPLITZ[0])))
    for report in (check_factor_file(sealed(manifest, tensors)), long_report(monkeypatch, manifest, tensors)):
        assert any("its encoder is C" in text for text in report.checked)
        assert any("the arithmetic with which a job makes" in text for text in report.not_checked)


@pytest.mark.parametrize("tau", [1, 4, 5, N, 2 * N])
def test_restarts_of_toeplitz_factors(tau: int, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {**TOEPLITZ[0], "objective": {"kind": "lambda_tau", "tau": tau}}
    if tau > N:
        found = series._restarted(np.ones(N), 0.0, tau)
        assert found[0] <= N * (N + 1) / 2 / tau <= found[1]
        return
    result = solvers.solve(parse_spec(document))
    for factor in (1.0, 1 - 1e-8, 1 + 1e-8):
        manifest, tensors = parts(result)
        manifest["certificate"]["loss"]["objective"] *= factor
        failed = long_report(monkeypatch, manifest, tensors).failed
        assert any("loss.objective" in text for text in failed) == (factor != 1.0)
    monkeypatch.setattr("factorize.exact.arithmetic.series.LARGEST_RESTARTS", 8)
    assert any("followed up to" in text for text in long_report(monkeypatch, *parts(result)).not_checked)


def test_the_claim_of_a_matrix_that_is_not_toeplitz() -> None:
    file = solved({"kind": "schedule", "n": 4, "learning_rates": [1.0, 2.0, 1.0, 1.0]})
    given = (file.spec.workload, file.spec.participation, 1.0)
    assert toeplitz_encoder_sensitivity(np.ones(4), file.strategy, *given) is None
    identity = ToeplitzMatrix(np.array([1.0]), 4)
    ones = solved(4, "identity")
    given = (ones.spec.workload, ones.spec.participation, 1.0)
    assert toeplitz_encoder_sensitivity(np.array([0.0, 1, 1, 1]), identity, *given) is None


def test_the_claim_is_not_of_the_recursion_that_made_b() -> None:
    """B by the recursion of C seems exact to that recursion; the exact residual is a thousand times larger."""
    document = {"workload": {"kind": "prefix", "n": 20_000}, "mechanism": {"kind": "blt", "buffers": 2}}
    manifest, tensors = parts(solvers.solve(parse_spec({**document, "tolerance": 1e-2})).with_matrices(["C", "B"]))
    report = check_factor_file(sealed(manifest, tensors))
    assert report.supported, report.failed
    assert any("its encoder has sensitivity at most" in text for text in report.checked)
