"""The certificate recomputes; it does not repeat. Liars are caught here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import spec_of

from factorize import solvers
from factorize.checker.utility import lower_bound
from factorize.errors import CertificateError, TooLarge
from factorize.factors.certificate import certify
from factorize.factors.solution import Outcome
from factorize.spec import parse_spec
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import ToeplitzMatrix


def sqrt_column(n: int) -> np.ndarray:
    return np.cumprod([1.0] + [(t - 0.5) / t for t in range(1, n)])


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_published_optima(vectors: dict[str, Any], n: int) -> None:
    case = vectors[f"D.opt_prefix.n{n}"]
    dual = {"weights": np.array(case["v"])}
    certificate = certify(spec_of(n, "dense"), DenseMatrix(np.array(case["C"])), dual, outcome=Outcome.CONVERGED)
    assert certificate.loss.total_squared == pytest.approx(case["total"], rel=1e-9)
    assert certificate.loss.rmse == pytest.approx(case["rmse"], rel=1e-9)
    assert certificate.loss.objective == pytest.approx(case["mean"], rel=1e-9)
    assert certificate.lower_bound is not None
    assert certificate.lower_bound.objective == pytest.approx(case["lower"] / n, rel=1e-9)
    assert certificate.relative_gap is not None
    assert -1e-15 < certificate.relative_gap < 1e-9
    assert certificate.converged


def test_published_losses_of_the_square_root(vectors: dict[str, Any]) -> None:
    case = vectors["A.losses.sqrt.n4"]
    square_root = spec_of(4, "square_root")
    for matrix in (ToeplitzMatrix(sqrt_column(4), 4), DenseMatrix(ToeplitzMatrix(sqrt_column(4), 4).dense())):
        certificate = certify(square_root, matrix, {}, outcome=Outcome.CLOSED_FORM)
        assert certificate.sensitivity.value == pytest.approx(case["sens"], rel=1e-12)
        for name in ("total_squared", "mean_squared", "rmse", "max_error", "last_iterate"):
            assert getattr(certificate.loss, name) == pytest.approx(case[name], rel=1e-12)
        assert certificate.lower_bound is None
        assert certificate.relative_gap is None
        assert certificate.converged
    weighed = spec_of(4, "square_root", objective={"kind": "lambda_tau", "tau": 2})
    certificate = certify(weighed, ToeplitzMatrix(sqrt_column(4), 4), {}, outcome=Outcome.CLOSED_FORM)
    assert certificate.loss.objective == pytest.approx(case["lambda_tau2"], rel=1e-12)


def test_any_weights_certify(vectors: dict[str, Any]) -> None:
    case = vectors["D.dual_bound_any_v.n4"]
    bound = lower_bound(spec_of(4, "dense").document(), {"weights": np.array(case["v"])}, {})
    assert 4 * bound.objective == pytest.approx(case["bound"], rel=1e-9)


@given(st.integers(1, 7), st.integers(0, 50))
def test_no_bound_exceeds_any_strategy(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    strategy = DenseMatrix(np.tril(rng.uniform(-1, 1, (n, n)), -1) + np.diag(rng.uniform(0.5, 2, n)))
    for parts, dual in (
        ({}, {"weights": rng.uniform(0, 1, n)}),
        ({"objective": {"kind": "lambda_tau", "tau": 2}}, {"weights": rng.uniform(0, 1, n)}),
        ({"objective": "max"}, {"weights": rng.uniform(0, 1, n), "row_weights": rng.uniform(0, 1, n)}),
        ({"participation": {"kind": "fixed_epochs", "epochs": n}}, {"factors": rng.normal(size=(1, n, n))}),
    ):
        if n == 1 and "factors" in dual:
            continue
        certificate = certify(spec_of(n, **{"mechanism": "dense"} | parts), strategy, dual, outcome=Outcome.CONVERGED)
        assert certificate.relative_gap is not None
        assert certificate.relative_gap > -1e-12


def test_fixed_epochs_evidence_reaches_the_optimum(vectors: dict[str, Any]) -> None:
    case = vectors["F.prefix.k2.b2"]
    strategy = DenseMatrix(np.array(case["C"]))
    noising = np.linalg.inv(np.array(case["X"]))
    hessian = noising @ np.tril(np.ones((4, 4))).T @ np.tril(np.ones((4, 4))) @ noising
    factors = np.array([np.linalg.cholesky(hessian[np.ix_(pattern, pattern)]) for pattern in ((0, 2), (1, 3))])
    two_epochs = spec_of(4, "dense", 2, tolerance=1e-6)
    certificate = certify(two_epochs, strategy, {"factors": factors}, outcome=Outcome.CONVERGED)
    assert certificate.sensitivity.kind == "exact"
    assert certificate.loss.total_squared == pytest.approx(case["masked_total"], rel=1e-6)
    assert certificate.lower_bound is not None
    assert 4 * certificate.lower_bound.objective == pytest.approx(case["masked_total"], rel=1e-6)
    assert certificate.converged


def test_evidence_of_another_participation_is_not_borrowed() -> None:
    for participation in ({"kind": "min_sep", "min_sep": 2}, {"kind": "fixed_epochs", "epochs": 2}):
        certificate = certify(
            spec_of(4, "dense", participation),
            DenseMatrix(np.eye(4)),
            {"weights": np.ones(4)},
            outcome=Outcome.CONVERGED,
        )
        assert certificate.lower_bound is None
        assert not certificate.converged
        assert any("no gap is known" in warning for warning in certificate.warnings)


def test_a_strategy_of_another_size() -> None:
    with pytest.raises(CertificateError, match="3 steps"):
        certify(spec_of(4, "dense"), DenseMatrix(np.eye(3)), {}, outcome=Outcome.CONVERGED)


def test_a_strategy_that_cannot_be_inverted_in_double_precision() -> None:
    array = np.tril(np.full((60, 60), -1e3)) + np.diag(np.full(60, 1e3 + 1e-3))
    with pytest.raises(CertificateError, match="ill-conditioned|not finite"):
        certify(spec_of(60, "dense"), DenseMatrix(array), {}, outcome=Outcome.CONVERGED)


def test_a_solver_that_says_converged_is_not_believed() -> None:
    certificate = certify(
        spec_of(4, "dense"), DenseMatrix(np.eye(4)), {"weights": np.ones(4)}, outcome=Outcome.CONVERGED
    )
    assert not certificate.converged
    assert certificate.relative_gap is not None
    assert certificate.relative_gap > 0.1
    assert any("was not met" in warning for warning in certificate.warnings)


def test_what_would_not_fit_is_refused() -> None:
    n = 16_385
    asked = spec_of(
        {"kind": "momentum", "momentum": 0.9, "learning_rates": {"kind": "cosine_to_last"}}, "square_root", n=n
    )
    with pytest.raises(TooLarge, match=r"cannot be proved: .* n=16384"):
        certify(asked, ToeplitzMatrix(sqrt_column(n), n), {}, outcome=Outcome.CLOSED_FORM)


def test_an_incomplete_last_block_is_reported() -> None:
    asked = spec_of(7, "dense", objective={"kind": "lambda_tau", "tau": 3})
    certificate = certify(asked, DenseMatrix(np.eye(7)), {"weights": np.ones(7)}, outcome=Outcome.CONVERGED)
    assert any("does not divide" in warning for warning in certificate.warnings)


def test_a_loss_beyond_double_precision_is_named_with_the_way_out() -> None:
    spec = {"workload": {"kind": "schedule", "n": 3, "learning_rates": [1e200, 1.0, 1.0]}}
    with pytest.raises(CertificateError, match=r"exceed the largest double, 1.8e308; scale the workload's numbers"):
        solvers.solve(parse_spec({**spec, "mechanism": {"kind": "identity"}}))
