"""The dense optimum for single participation: published values, other solvers, and targets that are hard in double precision."""

import numpy as np
import pytest
from specs import solved

from factorize.errors import SolveFailed
from factorize.solvers.single import few_states


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 16, 32, 64])
def test_published_prefix_optima(vectors, n):
    expected = vectors[f"D.opt_prefix.n{n}"]
    found = solved(n, "dense", tolerance=1e-14)
    loss = found.certificate.loss
    assert loss.total_squared == pytest.approx(expected["total"], rel=1e-9)
    assert loss.mean_squared == pytest.approx(expected["mean"], rel=1e-9)
    assert loss.rmse == pytest.approx(expected["rmse"], rel=1e-9)
    assert n * found.certificate.lower_bound.objective == pytest.approx(expected["lower"], rel=1e-9)
    strategy = found.strategy.dense()
    if "C" in expected:
        assert np.allclose(strategy, expected["C"], rtol=0, atol=1e-6)
    if "X" in expected:
        assert np.allclose(strategy.T @ strategy, expected["X"], rtol=0, atol=1e-6)
    if "v" in expected:
        assert np.allclose(found.dual["weights"] * sum(expected["v"]), expected["v"], rtol=1e-6)


def test_closed_form_at_two_and_digits_at_three(vectors):
    two, three = solved(2, "dense", tolerance=1e-14), solved(3, "dense", tolerance=1e-14)
    assert two.certificate.loss.total_squared == pytest.approx((3 + 5**0.5) / 2, rel=1e-13)
    digits = vectors["D.n3_digits"]
    assert three.certificate.loss.total_squared == pytest.approx(float(digits["total"]), rel=1e-13)
    strategy = three.strategy.dense()
    gram = strategy.T @ strategy
    for name, entry in (("x01", gram[0, 1]), ("x02", gram[0, 2]), ("x12", gram[1, 2])):
        assert entry == pytest.approx(float(digits[name]), abs=1e-7)


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16, 32, 64, 128, 256])
def test_reference_prefix_optima(reference_values, n):
    expected = reference_values[f"P1-prefix-n{n}"]
    certificate = solved(n, "dense").certificate
    assert certificate.loss.total_squared == pytest.approx(expected["optimal_loss"], rel=1e-9)
    assert n * certificate.lower_bound.objective == pytest.approx(expected["dual_bound"], rel=1e-9)
    assert certificate.converged


@pytest.mark.parametrize("n", [4, 8])
def test_published_srg_optima(vectors, n):
    expected, workload = vectors[f"B.srg_true.opt.n{n}"], vectors["B.srg_true.n6"]
    found = solved({"kind": "srg", "n": n, "momentum": workload["mu"], "decay": workload["c"]}, "dense")
    assert found.certificate.loss.total_squared == pytest.approx(expected["opt_total"], rel=1e-9)
    assert n * found.certificate.lower_bound.objective == pytest.approx(expected["lower"], rel=1e-9)


@pytest.mark.parametrize(("n", "tau"), [(12, 1), (12, 3), (12, 5), (12, 12), (12, 13), (16, 4), (7, 3)])
def test_published_lambda_tau_optima(vectors, n, tau):
    expected = vectors[f"E.opt.T{n}.tau{tau}"]
    found = solved(n, "dense", objective={"kind": "lambda_tau", "tau": tau}, tolerance=1e-15)
    loss = found.certificate.loss
    assert loss.objective == pytest.approx(expected["objective"], rel=1e-9)
    assert loss.objective == pytest.approx(expected["check"], rel=1e-9)
    assert loss.total_squared == pytest.approx(expected["frob_B_sq"], rel=1e-6)
    assert found.certificate.lower_bound.objective == pytest.approx(expected["lower"], rel=1e-9)


def user(array):
    return {"kind": "matrix", "rows": np.asarray(array).tolist()}


@pytest.mark.parametrize(
    "array",
    [
        [[1e-150, 0.0], [1.0, 1e-150]],
        [[1.0, 0.0], [1e140, 1.0]],
        [[0.0, 0.0], [1.0, 0.0]],
        np.tril(np.ones((6, 6))) * 1e-140,
        np.tril(np.vander(np.linspace(0.1, 1, 12), increasing=True)),
    ],
)
def test_awkward_numbers_end_with_a_certificate(array):
    certificate = solved(user(array), "dense").certificate
    assert certificate.relative_gap <= 1e-6


def test_a_column_that_rounding_hides_from_the_decomposition_keeps_its_weight():
    """The weight of a rate of 1e-8 between rates of 1 is 5e-18 of all: a first step sees no part of X there."""
    rates = [1.0, 0.5, 1e-4, 1e-6, 1e-8, 1.0, 1.0]
    schedule = {"kind": "schedule", "n": 7, "learning_rates": rates}
    assert solved(schedule, objective={"kind": "lambda_tau", "tau": 3}).certificate.relative_gap < 1e-9


def test_a_singular_workload_whose_first_strategies_miss_the_tolerance_ends_within_it():
    rates = [6e-4, 0.0, 2e-2, 0.0, 0.0, 2.3e-6]
    momentum = {"kind": "momentum", "n": 6, "momentum": 0.9, "nesterov": True, "learning_rates": rates}
    assert solved(momentum, "dense", tolerance=1e-8).certificate.relative_gap < 1e-8


def test_a_tolerance_below_rounding_gets_an_honest_gap():
    found = solved(48, "dense", tolerance=1e-17)
    assert found.manifest["solver"]["outcome"] == "rounding_limit"
    assert not found.certificate.converged
    assert 0 < found.certificate.relative_gap < 1e-11
    assert "1e-17" in found.certificate.warnings[0]


def test_lapack_giving_up_is_a_typed_error(monkeypatch):
    def refuse(*_args, **_more):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(np.linalg, "svd", refuse)
    with pytest.raises(SolveFailed, match="singular values"):
        solved(4, "dense")


def test_decompositions_take_over_where_the_factor_is_lost(monkeypatch):
    def lost(*_args):
        raise FloatingPointError("the pivot of step 3 is lost to rounding")

    monkeypatch.setattr("factorize.solvers.single.few_states.streaming_factor", lost)
    momentum = {"kind": "momentum", "n": 160, "momentum": 0.9}
    assert solved(momentum, "dense").certificate.converged
    monkeypatch.setattr(few_states, "MAX_N_REPLACED", 1)
    with pytest.raises(SolveFailed, match="milder"):
        solved(momentum, "dense")


def test_the_optimum_of_2048_prefix_sums():
    certificate = solved(2048, "dense").certificate
    assert certificate.loss.total_squared == pytest.approx(20610.2158960, rel=2e-9)
    assert certificate.converged
