"""Strategies optimised for balls in bins: derivatives, the search, what is refused, and the bound over all matrices."""

import json
import math

import numpy as np
import pytest
from specs import spec_of

from factorize import parse_spec, solvers
from factorize.accounting import bin_gram, bins_sigma, calibrate_bins
from factorize.accounting.bins_lower_bound import bins_lower_bound
from factorize.accounting.gram_matrix import BinGram
from factorize.accounting.star_estimate import StarEstimate
from factorize.errors import InvalidSpec, UnsupportedProblem
from factorize.exact import check_factor_file
from factorize.solvers.amplified.column_factors import ColumnFit, ColumnLoss
from factorize.solvers.amplified.column_kernels import column_products, gram_of, row_products
from factorize.solvers.amplified.families import (
    AllTaps,
    BufferedTaps,
    InverseTaps,
    by_reflection,
    polynomials,
    reflections,
)
from factorize.solvers.amplified.spread_kernels import of_column
from factorize.solvers.evidence import evidence
from factorize.solvers.problem import Problem, Reporter
from factorize.solvers.toeplitz.gradients import ToeplitzError
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import ToeplitzMatrix

N, EPOCHS, BINS = 32, 4, 8
PRIVACY = {"epsilon": 4.0, "delta": 1e-4}


def asked(mechanism, *, sampling=True, n=N, epochs=EPOCHS, **more):
    bins = {"sampling": {"kind": "balls_in_bins", **PRIVACY}} if sampling else {}
    return spec_of(n, mechanism, epochs, **bins, **more)


def families(n=24, bins=6):
    error = ToeplitzError(np.ones(n), np.arange(n, 0, -1.0) / n)
    yield AllTaps(n, error, bins, n // bins)
    yield InverseTaps(n, error, bins, n // bins, taps=4)
    yield BufferedTaps(n, error, bins, n // bins, buffers=2)


@pytest.mark.parametrize(("n", "bins"), [(12, 4), (13, 5), (6, 6), (7, 2)])
def test_the_gram_matrix_of_a_column_is_that_of_the_sums_of_columns(n, bins):
    column = np.random.default_rng(n).standard_normal(n)
    whole = np.abs(ToeplitzMatrix(column / abs(column[0]) * np.sign(column[0]), n).dense() * column[0])
    sums = np.stack([whole[:, j::bins].sum(axis=1) for j in range(bins)], axis=1)
    np.testing.assert_allclose(of_column(column, n, bins), sums.T @ sums, rtol=1e-12)


@pytest.mark.parametrize("family", list(families()), ids=lambda family: type(family).__name__)
def test_derivatives_are_those_of_differences(family):
    forms = np.random.default_rng(1).random((3, 6, 6))
    form = family.sensitivity(forms + forms.transpose(0, 2, 1))
    for start in family.starts():
        slope = family.loss_at(start, form)[1]
        ends = [family.loss_at(start + side * e, form)[0] for e in 1e-6 * np.eye(len(start)) for side in (1, -1)]
        differences = (np.array(ends[::2]) - np.array(ends[1::2])) / 2e-6
        np.testing.assert_allclose(slope, differences, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("n", "bins"), [(12, 4), (13, 5)])
def test_products_of_scaled_columns_are_those_of_the_matrix(n, bins):
    random = np.random.default_rng(n)
    column, factors, products = 0.5 + random.random(n), 0.5 + random.random(n), np.empty((n, n))
    whole = ToeplitzMatrix(column, n).dense()
    column_products(column, products)
    np.testing.assert_allclose(products, whole.T @ whole, rtol=1e-12)
    sums = np.stack([(whole * factors)[:, j::bins].sum(axis=1) for j in range(bins)], axis=1)
    np.testing.assert_allclose(gram_of(products, factors, bins), sums.T @ sums, rtol=1e-12)
    row_products(column, products)
    np.testing.assert_allclose(products, whole @ whole.T, rtol=1e-12)


def test_the_loss_of_factors_is_that_of_the_scaled_matrix_and_its_derivative_that_of_differences():
    last_row = {"kind": "weighted", "weights": [0.0] * 11 + [1.0]}
    spec = asked({"kind": "toeplitz", "normalization": "fitted"}, n=12, epochs=3, objective=last_row)
    random = np.random.default_rng(3)
    column = np.sort(random.random(12))[::-1] + 0.5
    fit = ColumnFit(Problem(spec), spec.sampling, column)
    forms = random.random((3, 4, 4))
    loss = ColumnLoss(fit.error, fit.products, forms + forms.transpose(0, 2, 1))
    logarithms = random.standard_normal(12)
    value, slope = loss(logarithms)
    scaled = np.tril(np.array([[column[i - j] for j in range(12)] for i in range(12)])) * np.exp(logarithms)
    last = np.linalg.solve(scaled.T, np.ones(12))
    sums = np.stack([scaled[:, j::4].sum(axis=1) for j in range(4)], axis=1)
    spreads = np.array([(form * (sums.T @ sums)).sum() for form in loss.forms])
    power = (spreads**12).mean() ** (1 / 12)
    assert value == pytest.approx(math.log(last @ last * power) / 2, rel=1e-12)
    ends = [loss(logarithms + side * e)[0] for e in 1e-6 * np.eye(12) for side in (1, -1)]
    np.testing.assert_allclose(slope, (np.array(ends[::2]) - np.array(ends[1::2])) / 2e-6, rtol=1e-5, atol=1e-8)


def test_reflections_and_taps_are_inverse_to_each_other():
    wanted = np.array([-0.9, -0.3, 0.2, -0.05])
    taps = polynomials(wanted)
    np.testing.assert_allclose(reflections(taps[-1]), wanted, rtol=1e-12)
    assert (np.abs(np.roots(taps[-1])) < 1).all()
    slope = np.random.default_rng(2).random(5)
    differences = [
        (polynomials(wanted + 1e-6 * e)[-1] - polynomials(wanted - 1e-6 * e)[-1]) @ slope / 2e-6 for e in np.eye(4)
    ]
    np.testing.assert_allclose(by_reflection(taps, wanted, slope), differences, rtol=1e-7)


def delta_of(k, epsilon):
    """delta of (P, Q) for two bins by the trapezoidal rule over independent normals, from the definition."""
    z = np.linspace(-9.5, 9.5, 3001)
    law = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    (a, _), (b, c) = np.linalg.cholesky(k)
    mixture = np.exp(a * z - k[0, 0] / 2)[:, None] + np.exp(b * z[:, None] + c * z - k[1, 1] / 2)
    return float(law @ np.maximum(mixture / 2 - math.exp(epsilon), 0.0) @ law)


def test_pair_weights_are_the_derivative_of_delta():
    gram, epsilon, step = np.array([[2.0, 0.7], [0.7, 1.5]]), 1.0, 2e-3
    slopes = {}
    for entry, weight in (((0, 0), 1), ((1, 1), 1), ((0, 1), 2)):
        change = np.zeros((2, 2))
        change[entry] = change[entry[::-1]] = step
        slopes[entry] = (delta_of(gram + change, epsilon) - delta_of(gram - change, epsilon)) / (2 * step * weight)
    estimate = StarEstimate(BinGram(gram, 2, 0.0, False), seed=1, samples=1 << 15)
    found = estimate.pair_weights(1.0, epsilon, width=0.1)
    for entry, slope in slopes.items():
        assert found[entry] / found[0, 0] == pytest.approx(slope / slopes[0, 0], rel=0.06)


@pytest.fixture(scope="module")
def optima():
    kinds = {"toeplitz": {}, "blt": {"buffers": 2}, "banded_inverse_toeplitz": {"bands": 4}}
    return {kind: solvers.solve(asked({"kind": kind, **more})) for kind, more in kinds.items()}


def amplified_error(found):
    """RMSE with the noise of the bounds that need no sampling."""
    decoder = np.linalg.solve(found.strategy.dense().T, np.tril(np.ones((N, N))).T).T
    sigma = bins_sigma(bin_gram(found.strategy, BINS), **PRIVACY)
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
        found.save(tmp_path / "fitted.safetensors")
        report = check_factor_file((tmp_path / "fitted.safetensors").read_bytes())
        assert report.supported, (kind, report.failed)
        assert any("factors of their own" in said for said in report.checked), kind


def test_the_bound_over_all_matrices_is_below_every_error(optima, fitted):
    spec = asked({"kind": "dense"}, sampling=False)
    bound = bins_lower_bound(spec, evidence(spec, Reporter(lambda step: None)), **PRIVACY)
    assert bound is not None
    for kind, found in [*optima.items(), *fitted.items()]:
        noise = calibrate_bins(found, **PRIVACY)
        rmse = noise.sigma * found.certificate.loss.rmse / found.certificate.sensitivity.value
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


@pytest.mark.parametrize("normalization", ["none", "fitted"])
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
def test_other_workloads_are_optimised_for_their_own_error(workload, matrix, normalization):
    found = solvers.solve(asked({"kind": "toeplitz", "normalization": normalization}, workload=workload))
    strategy, gram = found.strategy.dense(), bin_gram(found.strategy, BINS)
    error = np.linalg.norm(np.linalg.solve(strategy.T, matrix.T)) / math.sqrt(N)
    certified = found.certificate.loss.rmse / found.certificate.sensitivity.value
    assert certified == pytest.approx(error, rel=1e-9)
    sums = np.stack([np.abs(strategy)[:, j::BINS].sum(axis=1) for j in range(BINS)], axis=1)
    np.testing.assert_allclose(gram.gram, sums.T @ sums, rtol=1e-9)
    plain = solvers.solve(asked({"kind": "toeplitz"}, sampling=False, workload=workload))
    sigma = bins_sigma(bin_gram(plain.strategy, BINS), **PRIVACY)
    unamplified_c = sigma * plain.certificate.loss.rmse / plain.certificate.sensitivity.value
    assert calibrate_bins(found, **PRIVACY).sigma * error < unamplified_c


def test_the_files_are_what_their_spec_names(optima, tmp_path):
    for kind, found in optima.items():
        path = tmp_path / f"{kind}.safetensors"
        found.save(path)
        report = check_factor_file(path.read_bytes())
        assert report.supported, (kind, report.failed)
        assert "spec.mechanism" not in report.unseen


def test_old_digests_stay_and_a_sampling_has_its_own():
    plain, sampled = asked({"kind": "toeplitz"}, sampling=False), asked({"kind": "toeplitz"})
    assert "sampling" not in plain.canonical().document()
    assert plain.digest != sampled.digest
    assert sampled.document()["sampling"] == {"kind": "balls_in_bins", "epsilon": 4.0, "delta": 1e-4}
    assert parse_spec(json.dumps(sampled.document())).digest == sampled.digest
    few = asked({"kind": "banded_inverse_toeplitz", "bands": 4})
    assert few.document()["mechanism"] == {"kind": "banded_inverse_toeplitz", "bands": 4}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"participation": {"kind": "min_sep", "min_sep": 4}}, "no epochs that bins could be"),
        ({"participation": {"kind": "fixed_epochs", "epochs": N}}, "not from 2 to 4096"),
        ({"workload": {"kind": "prefix", "n": 8192}, "participation": {"kind": "single"}}, "not from 2 to 4096"),
        ({"sampling": {"kind": "balls_in_bins", "epsilon": 0, "delta": 1e-5}}, "greater than 0"),
        ({"sampling": {"kind": "balls_in_bins", "epsilon": 1}}, "required"),
        ({"mechanism": {"kind": "toeplitz", "normalization": "fitted"}, "sampling": None}, "is for a sampling"),
        ({"sampling": {"kind": "shuffle", "epsilon": 1, "delta": 1e-5}}, "balls_in_bins"),
    ],
)
def test_samplings_that_mean_nothing_are_refused(change, sentence):
    document = {**asked({"kind": "toeplitz"}).document(), **change}
    with pytest.raises(InvalidSpec, match=sentence):
        parse_spec({key: value for key, value in document.items() if value is not None})


@pytest.mark.parametrize(
    ("mechanism", "more", "sentence"),
    [
        ({"kind": "dense"}, {}, "not optimised under sampling"),
        ({"kind": "auto"}, {}, "not optimised under sampling"),
        ({"kind": "buffered_linear", "buffers": 2}, {}, "use blt with normalization 'fitted'"),
        ({"kind": "blt", "buffers": 2, "normalization": "columns"}, {}, "use 'fitted'"),
        ({"kind": "blt", "buffers": 16}, {}, "exceeds 15"),
        ({"kind": "banded_inverse_toeplitz", "bands": 1}, {}, "not from 2"),
        ({"kind": "toeplitz"}, {"objective": {"kind": "max"}}, "objective 'max'"),
        ({"kind": "banded_inverse_toeplitz", "bands": 4}, {"sampling": None}, "optimised for a sampling"),
    ],
)
def test_what_is_not_optimised_is_refused(mechanism, more, sentence):
    document = {**asked(mechanism).document(), **more}
    with pytest.raises(UnsupportedProblem, match=sentence):
        solvers.choose(parse_spec({key: value for key, value in document.items() if value is not None}))


def test_a_search_can_be_cancelled():
    class Stop(Exception):
        pass

    def stop(step):
        raise Stop

    with pytest.raises(Stop):
        solvers.solve(asked({"kind": "toeplitz"}), progress=stop)
