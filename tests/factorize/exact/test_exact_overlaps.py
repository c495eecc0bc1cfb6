"""The class bound of Toeplitz columns that can overlap: correlated contributions, proved from their evidence."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from exact_files import parts, sealed
from scipy.linalg import eigh
from specs import solved

from factorize.encoding import tensor_digest
from factorize.errors import CertificateError, CorruptObject
from factorize.exact import check_factor_file
from factorize.exact.arithmetic import integers
from factorize.exact.bounds import classes, overlaps
from factorize.exact.report import Report
from factorize.exact.sensitivity import Allowed, squared_sensitivity
from factorize.exact.spec import toeplitz_column
from factorize.exact.strategy import Strategy

N = 12
FORMS = [Allowed(3, 4, False), Allowed(4, 3, True), Allowed(2, 3, False), Allowed(5, 3, False), Allowed(1, 12, False)]


def signs_of(rng: np.random.Generator, most: int) -> np.ndarray:
    return rng.standard_normal((most, 3))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bands", [2, 7, N])
def test_the_metric_is_the_norm_of_correlated_columns(form: Allowed, bands: int) -> None:
    """c^T M c = tr(R K) in fractions, R semidefinite with a diagonal of at most 1, and hardly less."""
    rng = np.random.default_rng(bands)
    signs, column = signs_of(rng, form.most), np.concatenate([[1.0], rng.standard_normal(N - 1)])
    given, metric = overlaps.evidence({"class_column": column, "class_signs": signs}, form, N, bands)
    assert given is column and metric.radius == 0
    rows = signs / np.linalg.norm(signs, axis=1, keepdims=True)
    correlations = overlaps._correlations(rows)
    r = [[correlations.fraction(int(v)) for v in row] for row in correlations.values]
    assert all(1 - Fraction(1, 2**35) <= r[p][p] <= 1 for p in range(form.most))
    assert np.allclose(np.array(r, dtype=float), rows @ rows.T, rtol=0, atol=1e-11)
    c = [Fraction(float(x)) for x in rng.standard_normal(bands)] + [Fraction(0)] * (N - bands)
    columns = [
        [c[t - p * form.separation] if t >= p * form.separation else Fraction(0) for t in range(N)]
        for p in range(form.most)
    ]
    wanted = sum(
        (r[p][q] * columns[p][t] * columns[q][t] for p in range(form.most) for q in range(form.most) for t in range(N)),
        Fraction(0),
    )
    m = [[metric.fraction(int(v)) for v in row] for row in metric.values]
    assert wanted == sum((m[i][j] * c[i] * c[j] for i in range(bands) for j in range(bands)), Fraction(0))


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_eigenvalue_is_proved_from_above(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, 9, 9))
    gram, metric = a @ a.T, b @ b.T + np.eye(9)
    found = float(overlaps.largest_eigenvalue(integers.integers(gram), integers.integers(metric)))
    top = float(eigh(gram, metric, eigvals_only=True)[-1])
    assert top * (1 - 1e-13) <= found <= top * (1 + 1e-9)
    root = np.linalg.cholesky(found * (1 + 1e-12) * metric - gram)
    assert np.isfinite(root).all()


PARTICIPATIONS: list[dict[str, Any]] = [
    {"kind": "min_sep", "min_sep": 4, "max_participations": 3},
    {"kind": "fixed_epochs", "epochs": 3},
]
OBJECTIVES: list[dict[str, Any]] = [{"kind": "mean"}, {"kind": "max"}]


MOMENTUM = {"kind": "momentum", "n": N, "momentum": 0.5}


def resealed(manifest: dict[str, Any], tensors: dict[str, np.ndarray]) -> Report:
    manifest["dual"]["sha256"] = tensor_digest([tensors[name] for name in manifest["dual"]["tensors"]])
    return check_factor_file(sealed(manifest, tensors))


@pytest.mark.parametrize(
    "mechanism", [{"kind": "toeplitz"}, {"kind": "banded_toeplitz", "bands": 6}], ids=lambda m: m["kind"]
)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: o["kind"])
@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda p: p["kind"])
def test_claims_of_solvers_are_proved(participation: dict, objective: dict, mechanism: dict) -> None:
    result = solved(MOMENTUM, mechanism, participation, objective, tolerance=1e-3)
    claim = result.certificate.class_lower_bound
    assert claim is not None and "class_signs" in result.dual
    report = check_factor_file(sealed(*parts(result)))
    assert report.supported, report.failed
    assert any("of the mechanism's class" in text for text in report.checked)
    manifest, tensors = parts(result)
    manifest["certificate"]["class_lower_bound"]["objective"] = claim.objective * (1 + 1e-7)
    assert any("class_lower_bound" in text for text in check_factor_file(sealed(manifest, tensors)).failed)
    manifest, tensors = parts(result)
    tensors["dual.class_signs"][0] *= -1
    assert any("class_lower_bound" in text for text in resealed(manifest, tensors).failed)
    manifest, tensors = parts(result)
    tensors["dual.class_column"][2] += 0.3
    assert any("class_lower_bound" in text for text in resealed(manifest, tensors).failed)


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda p: p["kind"])
def test_no_member_of_the_class_is_below(participation: dict[str, Any]) -> None:
    result, rng = solved(MOMENTUM, "toeplitz", participation, "mean", tolerance=1e-3), np.random.default_rng(1)
    spec = result.spec.document()
    strategy = Strategy(result.strategy.structure, result.strategy.tensors(), N)
    bound = float(classes.class_bound(spec, strategy, None, toeplitz_column(spec["workload"]), result.dual))
    workload, best = result.spec.workload.dense(), result.strategy.coefficients()
    assert best is not None
    for scale in (0.0, 1e-3, 1e-2, 0.1, 1.0):
        for _ in range(20):
            column = best + scale * best[0] * rng.standard_normal(N) * (np.arange(N) > 0)
            dense = np.array([np.concatenate([column[i::-1], np.zeros(N - 1 - i)]) for i in range(N)])
            largest = squared_sensitivity(Strategy("toeplitz", {"coefficients": column}, N), participation).upper
            loss = float(largest) * (np.linalg.solve(dense.T, workload.T) ** 2).sum() / N
            assert loss >= bound * (1 - 1e-12)


def test_evidence_that_is_none() -> None:
    result = solved(MOMENTUM, "toeplitz", PARTICIPATIONS[0], OBJECTIVES[0], tolerance=1e-3)
    for name, wrong in (
        ("class_column", np.ones(N - 1)),
        ("class_column", np.full(N, np.nan)),
        ("class_column", -np.ones(N)),
        ("class_column", np.zeros(N)),
        ("class_signs", np.ones((2, 3))),
        ("class_signs", np.ones(3)),
        ("class_signs", np.zeros((3, 3))),
        ("class_signs", np.full((3, 3), np.inf)),
        ("class_signs", np.ones((3, 0))),
    ):
        manifest, tensors = parts(result)
        tensors[f"dual.{name}"] = wrong
        try:
            failed = resealed(manifest, tensors).failed
        except CorruptObject as error:  # not of the format's shapes, or not finite
            failed = [str(error)]
        assert any("class_column" in text or "tensor" in text or "evidence" in text for text in failed), (name, failed)
    with pytest.raises(CertificateError, match="cannot be scaled"):
        overlaps._correlations(np.array([[0.1] * 4, [0.6] * 4]))
    one = overlaps._correlations(np.array([[1 / (1 - overlaps._LEAST_LEFT)]]))
    assert one.values.tolist() == [[1 << 100]] and one.exponent == -100  # 1 itself is at most 1
    manifest, tensors = parts(result)
    manifest["dual"]["tensors"].remove("dual.class_signs")
    del tensors["dual.class_signs"]
    assert any("need evidence" in text for text in resealed(manifest, tensors).not_checked)
