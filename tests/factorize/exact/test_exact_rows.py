"""Stored arrays B and C_inv beside a long C of few states: residuals row by row, against fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from exact_files import parts, sealed
from specs import spec_of

from factorize import parse_spec, solvers
from factorize.errors import CertificateError, CorruptObject
from factorize.exact import check_factor_file
from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.losses import check_long, residual, row_products
from factorize.exact.report import Report
from factorize.exact.sensitivity import Bracket, square_root_up
from factorize.exact.spec import workload_numbers
from factorize.exact.strategy import Strategy
from factorize.rounded import cast

N = 14
STRATEGIES: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "bands": ("banded", {"bands": np.array([[1.5] * N, [0.25] * (N - 1) + [0.0], [-0.5] * (N - 2) + [0.0] * 2])}),
    "few diagonals": ("banded_toeplitz", {"coefficients": np.array([1.0, 0.5, 0.0, -0.25])}),
    "decays": ("blt", {"theta": np.array([0.9, 0.0, -0.5]), "omega": np.array([0.25, 0.5, 0.125])}),
    "buffers": (
        "buffered",
        {
            "diagonal": 1 + np.arange(N) / N,
            "decay": np.linspace(0, 0.9, 2 * N).reshape(N, 2),
            "input": np.full((N, 2), 0.3),
            "output": np.linspace(-1, 1, 2 * N).reshape(N, 2),
        },
    ),
    "blocks": (
        "state_space",
        {
            "diagonal": np.ones(N),
            "transition": np.tile([[0.6, -0.3], [0.3, 0.6]], (N, 2, 1, 1)),
            "input": np.linspace(0, 1, 4 * N).reshape(N, 4),
            "output": np.linspace(1, 0, 4 * N).reshape(N, 4),
        },
    ),
}
WORKLOADS: list[dict[str, Any]] = [
    {"kind": "identity", "n": N},
    {"kind": "momentum", "n": N, "momentum": 0.9, "nesterov": True, "learning_rates": {"kind": "cosine"}},
    {"kind": "weight_decay", "n": N, "rate": 0.125, "mode": "coupled", "momentum": 0.5},
    {"kind": "mu2", "n": N, "output": "x"},
]


@pytest.mark.parametrize("factors", [False, True])
@pytest.mark.parametrize("name", STRATEGIES)
def test_residuals_of_rows_are_just_above_those_of_whole_matrices(name: str, factors: bool) -> None:
    structure, tensors = STRATEGIES[name]
    if factors:
        structure, tensors = "scaled", tensors | {"column_scale": 0.5 + np.arange(N) / 7}
    strategy = Strategy(structure, dict(tensors), N)
    numbers = strategy.numbers()
    c = [[numbers.fraction(int(v)) for v in row] for row in numbers.values]
    for place, workload in enumerate([*WORKLOADS, None]):
        document = None
        a = [[Fraction(int(i == j)) for j in range(N)] for i in range(N)]
        if workload is not None:
            document = spec_of(workload).document()["workload"]
            exact = workload_numbers(document, {})
            assert exact is not None
            a = [[exact.fraction(int(v)) for v in row] for row in exact.values]
        stored = np.tril(np.random.default_rng(place).standard_normal((N, N)))
        b = [[Fraction(float(x)) for x in row] for row in stored]
        rest = [[sum((b[i][k] * c[k][j] for k in range(N)), -a[i][j]) for j in range(N)] for i in range(N)]
        largest = max(abs(x) for row in rest for x in row)
        total = math.sqrt(sum(x**2 for row in rest for x in row))
        found = row_products.residual(stored, strategy, document)
        assert found is not None
        assert largest * (1 - Fraction(1, 2**60)) <= Fraction(found[0]) <= largest * (1 + Fraction(1, 2**35))
        assert total * (1 - 1e-15) <= found[1] <= total * (1 + 1e-10)
        assert found[2] == pytest.approx(float(max(sum(abs(row[j]) for row in a) for j in range(N))))


def test_what_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, window = {"kind": "prefix", "n": N}, {"kind": "window", "n": N, "width": 3}
    bands = Strategy(*STRATEGIES["bands"], N)
    lower = np.tril(np.ones((N, N)))
    assert row_products.residual(lower, bands, window) is None
    few = Strategy("inverse_banded_toeplitz", {"inverse_coefficients": np.array([1.0, -0.5])}, N)
    assert row_products.residual(lower, few, prefix) is None
    dense = Strategy("dense", {"": lower + np.diag(np.arange(N) * 1.0)}, N)
    assert row_products.residual(lower, dense, prefix) is None
    with pytest.raises(CertificateError, match="lower-triangular"):
        row_products.residual(np.ones((N, N)), bands, prefix)
    assert row_products.residual(lower * 1e160, bands, prefix) is None
    monkeypatch.setattr(row_products, "LARGEST_WORK", 100)
    assert row_products.residual(lower, bands, prefix) is None


SPECS: list[dict[str, Any]] = [
    {"workload": {"kind": "prefix", "n": 24}, "mechanism": {"kind": "banded", "bands": 3}, "tolerance": 1e-3},
    {
        "workload": {
            "kind": "momentum",
            "n": 24,
            "momentum": 0.9,
            "learning_rates": {"kind": "linear_cooldown", "steps": 4, "final": 0.5},
        },
        "mechanism": {"kind": "buffered_linear", "buffers": 2},
        "tolerance": 0.1,
    },
]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("document", SPECS)
def test_files_with_arrays_beside_a_long_c(
    document: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cast(solvers.solve(parse_spec(document)), dtype).with_matrices(["C", "C_inv", "B"])
    monkeypatch.setattr("factorize.exact.losses.residual.LARGEST", 8)
    report = check_factor_file(sealed(*parts(file)), integers=True)
    assert report.supported, report.failed
    for text in ("B C = A up to", "the stored C_inv and C multiply to I", "every loss enclosed"):
        assert any(text in line for line in report.checked), text
    assert any("N^-1 has sensitivity at most" in line for line in report.checked + report.not_checked)
    assert any("not Toeplitz is bounded up to n=8" in line for line in report.not_checked)
    for name, text in (("B", "B C differs from A"), ("C_inv", "C_inv is not C^-1")):
        manifest, tensors = parts(file)
        tensors[name][5, 3] += 0.1
        assert any(text in line for line in check_factor_file(sealed(manifest, tensors), integers=True).failed)
        manifest, tensors = parts(file)
        tensors[name][2, 3] = 1e-300 if dtype == "float64" else 1e-30
        assert any(
            "not lower-triangular" in line
            for line in check_factor_file(sealed(manifest, tensors), integers=True).failed
        )
        manifest, tensors = parts(file)
        tensors[name] = tensors[name][:-1]
        with pytest.raises(CorruptObject, match="24 x 24"):
            check_factor_file(sealed(manifest, tensors), integers=True)


def test_arrays_that_are_not_followed_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    file = solvers.solve(parse_spec(SPECS[0])).with_matrices(["C", "C_inv", "B"])
    monkeypatch.setattr("factorize.exact.losses.residual.LARGEST", 8)
    monkeypatch.setattr(row_products, "LARGEST_WORK", 100)
    report = check_factor_file(sealed(*parts(file)), integers=True)
    assert report.supported, report.failed
    assert any("stored C_inv, A (G + N Z): it is not evaluated at this size" in text for text in report.not_checked)
    assert any("residual, and with it adding noise" in text for text in report.not_checked)
    monkeypatch.setattr(row_products, "LARGEST_WORK", 1 << 30)
    monkeypatch.setattr("factorize.exact.losses.variances.LARGEST_WORK", 100)
    report = check_factor_file(sealed(*parts(file)), integers=True)
    assert any(text.startswith("losses: up to n=8") for text in report.not_checked)


@pytest.mark.parametrize(
    ("structure", "tensors", "width"),
    [
        ("banded", {"bands": np.array([[1.0, 1, 1, 1], [0.5, 0.5, 0.5, 0]])}, 2 + 2),
        ("blt", {"theta": np.array([0.5, 0.25, 0.75]), "omega": np.full(3, 0.125)}, 1 + 3 * 2**2 + 2),
        (
            "buffered",
            {"diagonal": np.ones(4), "decay": np.zeros((4, 3)), "input": np.ones((4, 3)), "output": np.ones((4, 3))},
            1 + 3 + 2,
        ),
    ],
)
def test_work_that_would_take_too_long(
    structure: str, tensors: dict[str, np.ndarray], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n^2 times the diagonals, three groups of states squared, and twice the one statement of a prefix sum."""
    strategy, workload = Strategy(structure, dict(tensors), 4), {"kind": "prefix", "n": 4}
    monkeypatch.setattr(row_products, "LARGEST_WORK", 16 * width)
    assert row_products.residual(np.eye(4), strategy, workload) is not None
    monkeypatch.setattr(row_products, "LARGEST_WORK", 16 * width - 1)
    assert row_products.residual(np.eye(4), strategy, workload) is None


def test_the_norm_of_a_residual_is_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of a sum of squares that compiled code bounds; the largest of the sums that it fills in."""

    def rows(*given: Any) -> tuple[float, float]:
        given[-1][:] = [3.0, 5.0]
        return 0.5, 2.0

    monkeypatch.setattr("factorize.exact.losses.row_kernels.residual", rows)
    full = Strategy("banded", {"bands": np.array([[1.0, 1.0], [0.5, 0.0]])}, 2)  # as many diagonals as steps
    found = row_products.residual(np.eye(2), full, {"kind": "prefix", "n": 2})
    assert found == (0.5, math.sqrt(2.0) * (1 + 2.0**-50), 5.0)


def file_of(name: str) -> Any:
    manifest = {"matrices": {name: {"structure": "dense", "dtype": "float64"}}}
    spec = {"workload": {"kind": "prefix", "n": 2}, "participation": {"kind": "single"}}
    return SimpleNamespace(manifest=manifest | {"spec": spec}, matrices={name: {"": np.eye(2)}})


def test_a_residual_is_judged_by_the_largest_column_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the type times that sum, and at least the limit itself."""
    limit, strategy = float(residual.LIMITS["float64"]), Strategy("dense", {"": np.eye(2)}, 2)
    for longest, factor in ((4.0, 4.0), (0.25, 1.0)):
        for largest, holds in ((factor * limit, True), (math.nextafter(factor * limit, 1), False)):
            monkeypatch.setattr(row_products, "residual", lambda *given, e=largest, a=longest: (e, e, a))
            report = Report()
            assert check_long._check_rows(report, file_of("B"), strategy, 1)
            assert bool(report.checked) == holds and bool(report.failed) != holds


def test_a_long_stored_inverse_is_judged_by_the_most_that_c_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns with squared norms 3 and 4, each within 3: |C|^2 is at most 13; the Frobenius norm of the rest is 2^-60."""
    seen: list[Any] = []
    monkeypatch.setattr(row_products, "residual", lambda *given: (0.0, 2.0**-60, 1.0))
    monkeypatch.setattr(check_long.noising, "by_rows", lambda *given: seen.append(given[:2]))
    norms = Numbers(np.array([3, 4], dtype=object), 0, 3)
    strategy: Any = SimpleNamespace(n=2, column_norms=norms, toeplitz=None, array=None)
    bracket = Bracket(Fraction(1), Fraction(1), "mine", (0,), (1,))
    check_long._noising(file_of("C_inv"), strategy, bracket)
    assert seen == [(Fraction(1, 2**60), Fraction(square_root_up(Fraction(13))))]


def test_what_is_told_of_residuals_that_are_not_computed() -> None:
    told = [
        check_long._unchecked_residual(losses=losses, stored=stored, rows=rows, whole=8)
        for losses, stored, rows in np.ndindex(2, 2, 2)
    ]
    assert all(text.startswith("losses: up to n=8") for text in told[1::2])
    assert told[0] == told[2] and told[0].startswith("residual and losses: up to n=8")
    assert told[4].startswith("residual: no B is stored") and "is multiplied up to n=8" in told[6]
