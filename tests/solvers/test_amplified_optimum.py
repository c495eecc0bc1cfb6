"""Strategies optimised for balls in bins: derivatives, the search, what is refused, and the bound over all matrices."""

import math

import numpy as np
import pytest
from specs import spec_of

from factorize import parse_spec, solvers
from factorize.accounting import BinsLaw, bin_gram, calibrate_bins, calibrate_sampling
from factorize.accounting.bins_lower_bound import bins_lower_bound
from factorize.accounting.star_estimate import StarEstimate
from factorize.checker.check import check_factor_file
from factorize.errors import InvalidSpec, SolveFailed, UnsupportedProblem
from factorize.privacy import PrivacyTarget
from factorize.solvers.amplified.b_min_sep_optimum import SpreadLoss
from factorize.solvers.amplified.families import InverseTaps, reflections
from factorize.solvers.banded.banded_optimum import recursion
from factorize.solvers.banded.gram_descent import Landscape
from factorize.solvers.evidence_search import evidence
from factorize.solvers.problem import Problem, Reporter
from factorize.structures.banded import BandedMatrix
from factorize.structures.dense import DenseMatrix

N, EPOCHS, BINS = 32, 4, 8
PRIVACY = {"epsilon": 4.0, "delta": 1e-4}


def asked(mechanism, *, sampling=True, n=N, epochs=EPOCHS, **more):
    bins = {"sampling": {"kind": "balls_in_bins", **PRIVACY}} if sampling else {}
    return spec_of(n, mechanism, epochs, **bins, **more)


@pytest.fixture(scope="module")
def optima():
    kinds = {"toeplitz": {}, "blt": {"buffers": 2}, "banded_inverse_toeplitz": {"bands": 4}}
    return {kind: solvers.solve(asked({"kind": kind, **more})) for kind, more in kinds.items()}


def amplified_error(found):
    """RMSE with the noise of the bounds that need no sampling."""
    decoder = np.linalg.solve(found.strategy.dense().T, np.tril(np.ones((N, N))).T).T
    sigma = BinsLaw(bin_gram(found.strategy, BINS)).sigma(**PRIVACY)
    return sigma * np.linalg.norm(decoder) / math.sqrt(N)


def test_optima_under_the_sampling_are_better_than_those_without(optima):
    plain = min(
        amplified_error(solvers.solve(asked(mechanism, sampling=False)))
        for mechanism in ({"kind": "toeplitz"}, {"kind": "blt", "buffers": 2}, {"kind": "identity"})
    )
    for kind, found in optima.items():
        assert amplified_error(found) < plain, kind
    assert amplified_error(optima["toeplitz"]) < 1.01 * min(map(amplified_error, optima.values()))


@pytest.fixture(scope="module")
def fitted():
    kinds = {"toeplitz": {}, "blt": {"buffers": 2}, "banded_inverse_toeplitz": {"bands": 4}}
    return {
        kind: solvers.solve(asked({"kind": kind, "normalization": "fitted", **more})) for kind, more in kinds.items()
    }


def test_fitted_columns_are_better_and_files_say_what_they_are(optima, fitted, tmp_path):
    for kind, found in fitted.items():
        assert found.matrix.structure == "scaled"
        assert amplified_error(found) < 0.99 * amplified_error(optima[kind]), kind
        for made in (optima[kind], found):
            made.save(tmp_path / "file.safetensors")
            report = check_factor_file((tmp_path / "file.safetensors").read_bytes())
            assert report.supported and "spec.mechanism" not in report.unseen, (kind, report.failed)
        assert any("factors of their own" in said for said in report.checked), kind


def test_the_bound_over_all_matrices_is_below_every_error(optima, fitted):
    spec = asked({"kind": "dense"}, sampling=False)
    bound = bins_lower_bound(spec, evidence(spec, Reporter(lambda step: None)), **PRIVACY)
    assert bound is not None
    for kind, found in [*optima.items(), *fitted.items()]:
        noise = calibrate_bins(found, **PRIVACY)
        rmse = noise.sigma_of_sums * found.certificate.loss.rmse / found.certificate.sensitivity.value
        assert bound.rmse < rmse <= amplified_error(found) * (1 + 1e-9), kind
    noisy = solvers.solve(asked({"kind": "identity"}, sampling=False))
    assert bound.rmse < amplified_error(noisy)


def test_each_part_of_the_bound_holds_for_random_strategies():
    spec = asked({"kind": "dense"}, sampling=False, n=8, epochs=2)
    dual = evidence(spec, Reporter(lambda step: None))
    bound = bins_lower_bound(spec, dual, epsilon=1.0, delta=1e-3)
    random = np.random.default_rng(5)
    for _ in range(8):
        strategy = np.tril(random.standard_normal((8, 8)))
        np.fill_diagonal(strategy, 1 + random.random(8))
        # a point estimate of what sigma is at least: the bounds of the accountant are above it
        sigma = StarEstimate(bin_gram(DenseMatrix(strategy), 4)).sigma(1.0, 1e-3)
        error = np.linalg.norm(np.linalg.solve(strategy.T, np.tril(np.ones((8, 8))).T)) ** 2 / 8
        assert bound.objective <= sigma**2 * error * 1.02


def momentum(n, beta):
    """The prefix sum of velocities v_t = beta v_{t-1} + g_t, from the definition."""
    return np.array([[sum(beta**i for i in range(t - s + 1)) if s <= t else 0.0 for s in range(n)] for t in range(n)])


@pytest.mark.parametrize(
    ("workload", "matrix"),
    [
        ({"kind": "momentum", "n": N, "momentum": 0.9}, momentum(N, 0.9)),
        (
            {"kind": "schedule", "n": N, "learning_rates": [1.0 - t / 64 for t in range(N)]},
            np.tril(np.ones((N, N))) * (1.0 - np.arange(N) / 64),
        ),
    ],
    ids=["momentum", "schedule"],
)
def test_other_workloads_are_optimised_for_their_own_error(workload, matrix):
    found = solvers.solve(asked({"kind": "toeplitz", "normalization": "fitted"}, workload=workload))
    strategy, gram = found.strategy.dense(), bin_gram(found.strategy, BINS)
    error = np.linalg.norm(np.linalg.solve(strategy.T, matrix.T)) / math.sqrt(N)
    certified = found.certificate.loss.rmse / found.certificate.sensitivity.value
    assert certified == pytest.approx(error, rel=1e-9)
    sums = np.stack([np.abs(strategy)[:, j::BINS].sum(axis=1) for j in range(BINS)], axis=1)
    np.testing.assert_allclose(gram.gram, sums.T @ sums, rtol=1e-8)
    plain = solvers.solve(asked({"kind": "toeplitz"}, sampling=False, workload=workload))
    sigma = BinsLaw(bin_gram(plain.strategy, BINS)).sigma(**PRIVACY)
    unamplified_c = sigma * plain.certificate.loss.rmse / plain.certificate.sensitivity.value
    assert calibrate_bins(found, **PRIVACY).sigma_of_sums * error < unamplified_c


def test_taps_of_momentum_that_a_file_may_not_hold_are_put_back_at_once():
    family = InverseTaps(N, None, BINS, EPOCHS, taps=3)  # the matrix does not ask for the error
    found = family.matrix(np.arctanh(reflections(np.array([1.0, -1.8, 0.81]))))
    np.testing.assert_allclose(found.dense()[:4, 0], 1.0, rtol=1e-12)


def test_bands_under_b_min_sep_are_better_than_those_without(tmp_path):
    sampling = {"kind": "b_min_sep", **PRIVACY}
    plain, found = (
        solvers.solve(spec_of(N, {"kind": "banded", "bands": 4}, EPOCHS, **more))
        for more in ({}, {"sampling": sampling})
    )
    errors = []
    for made in (plain, found):
        decoder = np.linalg.solve(made.strategy.dense().T, np.tril(np.ones((N, N))).T)
        sizes = {"dataset_size": BINS, "batch_size": 1, "method": "deterministic"}
        noise = calibrate_sampling(made, PrivacyTarget(**PRIVACY), sampling="b_min_sep", **sizes)
        assert noise.bins == 4
        errors.append(noise.sigma_of_sums * np.linalg.norm(decoder))
    assert errors[1] < 0.98 * errors[0] and found.strategy.dense().min() >= 0
    found.save(tmp_path / "file.safetensors")
    report = check_factor_file((tmp_path / "file.safetensors").read_bytes())
    assert report.supported and "spec.mechanism" not in report.unseen, report.failed


@pytest.mark.parametrize(("bands", "tau"), [(3, 1), (3, 4)])
def test_bands_that_nothing_asks_for_and_as_many_as_an_epoch_has_steps_are_searched(bands, tau):
    """Of the error of differences the optimum is the identity, and bands of a whole epoch leave nothing to draw."""
    sampling, objective = {"kind": "b_min_sep", **PRIVACY}, {"kind": "lambda_tau", "tau": tau}
    found = solvers.solve(spec_of(6, {"kind": "banded", "bands": bands}, 2, sampling=sampling, objective=objective))
    assert found.strategy.bandwidth() == bands


def test_the_loss_of_bands_has_the_derivative_that_differences_have():
    spec = spec_of(12, {"kind": "banded", "bands": 3}, 3, sampling={"kind": "b_min_sep", **PRIVACY})
    landscape = Landscape(recursion(Problem(spec)), 12, 3, np.zeros(12, dtype=np.intp))
    random = np.random.default_rng(2)
    inside = np.arange(12) + np.arange(3)[:, None] < 12
    loss = SpreadLoss(landscape, random.random((2, 3, 12)) * inside)
    entries = (random.random((3, 12)) + [[1.0], [0.0], [0.0]]) * inside
    strategy = BandedMatrix(entries).dense()
    inverse = np.linalg.solve(strategy.T, np.tril(np.ones((12, 12))).T)
    gram = strategy.T @ strategy
    spreads = [sum(form[d, : 12 - d] @ np.diagonal(gram, d) for d in range(3)) for form in loss.forms]
    error = (inverse**2).sum() * np.mean(np.power(spreads, 12.0)) ** (1 / 12)
    value, slope = loss(entries.ravel())
    assert value == pytest.approx(math.log(error), abs=1e-9)
    step = random.standard_normal((3, 12)) * inside * 1e-5
    change = loss((entries + step).ravel())[0] - loss((entries - step).ravel())[0]
    assert change == pytest.approx(2 * slope @ step.ravel(), rel=1e-4)


@pytest.mark.parametrize(
    ("mechanism", "epochs", "sentence"),
    [
        ({"kind": "toeplitz"}, EPOCHS, "cannot be optimised for sampling 'b_min_sep'.*use banded"),
        ({"kind": "banded", "bands": 1}, EPOCHS, "cannot be optimised for sampling 'b_min_sep'.*use banded"),
        ({"kind": "banded", "bands": 9}, EPOCHS, "bands=9 exceeds n / epochs=8.*use bands <= 8"),
    ],
)
def test_what_b_min_sep_has_no_optimum_for_is_refused(mechanism, epochs, sentence):
    with pytest.raises(UnsupportedProblem, match=sentence):
        solvers.solve(spec_of(N, mechanism, epochs, sampling={"kind": "b_min_sep", **PRIVACY}))
    long = spec_of(4096, {"kind": "banded", "bands": 4}, 4, sampling={"kind": "b_min_sep", **PRIVACY})
    with pytest.raises(UnsupportedProblem, match="n=4096 is above 2048"):
        solvers.solve(long)


def test_so_large_an_epsilon_that_no_sample_meets_it_is_refused():
    """A larger delta did not help: with less noise yet, no sample meets it either."""
    sampling = {"kind": "balls_in_bins", "epsilon": 50.0, "delta": 1e-2}
    with pytest.raises(SolveFailed, match="at epsilon=50; use a smaller epsilon"):
        solvers.solve(spec_of(12, {"kind": "toeplitz"}, 3, sampling=sampling))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"participation": {"kind": "min_sep", "min_sep": 4}}, "sampling needs epochs"),
        ({"participation": {"kind": "fixed_epochs", "epochs": N}}, "epochs of 2 to 4096 steps"),
        ({"workload": {"kind": "prefix", "n": 8192}, "participation": {"kind": "single"}}, "epochs of 2 to 4096 steps"),
        ({"sampling": {"kind": "balls_in_bins", "epsilon": 0, "delta": 1e-5}}, "greater than 0"),
        ({"sampling": {"kind": "balls_in_bins", "epsilon": 1}}, "required"),
        ({"sampling": {"kind": "shuffle", "epsilon": 1, "delta": 1e-5}}, "balls_in_bins"),
    ],
)
def test_samplings_that_mean_nothing_are_refused(change, sentence):
    document = {**asked({"kind": "toeplitz"}).document(), **change}
    with pytest.raises(InvalidSpec, match=sentence):
        parse_spec({key: value for key, value in document.items() if value is not None})
