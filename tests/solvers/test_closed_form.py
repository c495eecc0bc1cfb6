"""Closed forms: coefficients, sums and tuning against the published vectors, and against brute force."""

import math

import numpy as np
import pytest
from specs import solved, spec_of

from factorize import solvers
from factorize.solvers.formulas.closed_form import noising_coefficients, strategy_coefficients


def nu_toeplitz(nu, **more):
    return {"kind": "nu_toeplitz", "nu": nu, **more}


@pytest.mark.parametrize("nu", [0, 0.1])
def test_published_coefficients_and_sums(vectors, nu):
    expected = vectors[f"G.nu{nu}"]
    n = len(expected["c"])
    found = solved(n, nu_toeplitz(nu))
    assert found.strategy.coefficients() == pytest.approx(expected["c"], rel=1e-12)
    assert noising_coefficients(n, nu) == pytest.approx(expected["beta"], rel=1e-12)
    assert found.certificate.sensitivity.value**2 == pytest.approx(expected["sens2"], rel=1e-12)
    total = found.certificate.loss.total_squared
    assert total == pytest.approx(expected["sens2"] * expected["error_total"], rel=1e-12)
    assert found.rows("B", n - 1, n)[0, ::-1] == pytest.approx(expected["decoder_col"], rel=1e-12)


@pytest.mark.parametrize("nu", ["0", "1e-06", "0.001"])
def test_published_values_at_a_million_steps(vectors, nu):
    expected = vectors[f"G.large.nu{nu}"]
    t = expected["t"]
    # The published value is denormal where the service flushes to zero.
    assert strategy_coefficients(t + 1, float(nu))[t] == pytest.approx(expected["c_t"], rel=1e-9, abs=1e-300)
    assert noising_coefficients(t + 1, float(nu))[t] == pytest.approx(expected["beta_t"], rel=1e-9, abs=1e-300)
    squares = float((strategy_coefficients(t, float(nu)) ** 2).sum())
    decoder = np.cumsum(noising_coefficients(t, float(nu)))
    assert squares == pytest.approx(expected["sens2_n1e6"], rel=1e-9)
    assert squares * np.cumsum(decoder**2).mean() == pytest.approx(expected["mean_n1e6"], rel=1e-9)


def test_a_hundred_thousand_steps_are_certified():
    """At the sums of coefficients that are published for a million."""
    n = 100_000
    certificate = solvers.solve(spec_of(n, nu_toeplitz(0)), evidence=False).certificate
    squares, decoder = strategy_coefficients(n, 0) ** 2, np.cumsum(noising_coefficients(n, 0))
    assert certificate.sensitivity.value**2 == pytest.approx(squares.sum(), rel=1e-9)
    assert certificate.loss.mean_squared == pytest.approx(squares.sum() * np.cumsum(decoder**2).mean(), rel=1e-9)


@pytest.mark.parametrize("n", [8, 600, 6000])
def test_published_tuned_values(vectors, n):
    expected = vectors[f"G.tune_prefix.n{n}"]
    tuned = solved(n, nu_toeplitz("tune"))
    assert tuned.certificate.loss.mean_squared == pytest.approx(expected["loss"], rel=1e-9)
    nu = 1 - 2 * tuned.strategy.coefficients()[1]
    assert nu == pytest.approx(expected["nu_star"], rel=1e-3)
    assert solved(n, nu_toeplitz(0)).certificate.loss.mean_squared == pytest.approx(expected["loss_nu0"], rel=1e-9)


def test_the_square_root_of_sixty_four_steps(reference_values):
    expected = reference_values["P4-prefix-n64"]
    assert solved(64, "square_root").certificate.loss.total_squared == pytest.approx(
        expected["sqrt_factorisation_loss"], rel=1e-9
    )
    tuned = solved(64, nu_toeplitz("tune"))
    assert tuned.certificate.loss.total_squared == pytest.approx(expected["best_nu_loss"], rel=1e-9)


def test_the_identity_is_plain_sgd():
    found = solved(16, "identity")
    assert found.strategy.structure == "banded_toeplitz"
    assert found.strategy.dense().tolist() == np.eye(16).tolist()
    assert found.certificate.loss.mean_squared == pytest.approx(17 / 2, rel=1e-12)


TWO_EPOCHS = {"kind": "fixed_epochs", "epochs": 2}
RATES = {"kind": "schedule", "learning_rates": {"kind": "cosine_to_last"}}
MOMENTUM = {"kind": "momentum", "momentum": 0.9}


def power(gamma):
    return {"kind": "banded_inverse_fractional_root", "bands": 3, "gamma": gamma}


@pytest.mark.parametrize(
    ("family", "n", "workload", "participation", "objective"),
    [
        (nu_toeplitz, 48, MOMENTUM, "single", "mean"),
        (nu_toeplitz, 48, "prefix", {"kind": "fixed_epochs", "epochs": 4}, "mean"),
        (nu_toeplitz, 48, "prefix", {"kind": "min_sep", "min_sep": 10}, "max"),
        (nu_toeplitz, 48, "prefix", "single", {"kind": "lambda_tau", "tau": 8}),
        (nu_toeplitz, 48, RATES, "single", "mean"),
        (power, 24, "prefix", TWO_EPOCHS, "mean"),
        (power, 24, MOMENTUM, {"kind": "min_sep", "min_sep": 5}, "max"),
        (power, 24, "prefix", "single", {"kind": "lambda_tau", "tau": 4}),
    ],
)
def test_no_other_parameter_is_better_than_the_tuned_one(family, n, workload, participation, objective):
    def loss(value):
        return solved(workload, family(value), participation, objective, n=n).certificate.loss.objective

    others = [0, *np.geomspace(1e-9, 0.9, 9)] if family is nu_toeplitz else np.linspace(0, 1, 11).tolist()
    assert loss("tune") <= min(map(loss, others)) * (1 + 1e-9)


def test_tiny_damping_is_not_rounded_away():
    """1 - nu loses nu's digits; over many steps that is visible."""
    nu, t = 1.1e-9, 100_000
    ratio = strategy_coefficients(t + 1, nu)[t] / strategy_coefficients(t + 1, 0.0)[t]
    assert ratio == pytest.approx(math.exp(-t * nu), rel=1e-13)


def banded_root(bands, *, inverse=False, **more):
    return {"kind": "banded_inverse_square_root" if inverse else "banded_square_root", "bands": bands, **more}


def test_published_banded_square_root(vectors):
    expected = vectors["H.bsr.p4.n8"]
    found = solved(8, banded_root(4), TWO_EPOCHS)
    assert found.strategy.structure == "banded_toeplitz"
    assert found.strategy.column == pytest.approx(expected["coef"], rel=1e-14)
    assert found.certificate.sensitivity.value == pytest.approx(expected["sens_b4_k2"], rel=1e-12)
    assert found.certificate.sensitivity.kind == "exact"
    error = found.certificate.loss.mean_squared / found.certificate.sensitivity.value**2
    assert error == pytest.approx(expected["mean_error"], rel=1e-12)


def test_published_banded_inverse_square_root(vectors):
    expected = vectors["H.bisr.p4.n8"]
    found = solved(8, banded_root(4, inverse=True), TWO_EPOCHS)
    assert found.strategy.dense()[:, 0] == pytest.approx(expected["C_coef"], rel=1e-14)
    assert found.rows("C_inv", 7, 8)[0, :3:-1] == pytest.approx(expected["noising"], rel=1e-14)
    assert not found.rows("C_inv", 7, 8)[0, :4].any()
    assert found.certificate.sensitivity.value == pytest.approx(expected["sens_b4_k2"], rel=1e-12)
    assert found.certificate.sensitivity.rule == "monotone Toeplitz: leading pattern"


def test_the_square_root_of_momentum(vectors):
    expected = vectors["H.bsr.momentum.n6"]
    momentum = {"kind": "momentum", "n": 6, "momentum": 0.9}
    found = solved(momentum, banded_root(6))
    assert found.strategy.column == pytest.approx(expected["coef"], rel=1e-13)
    assert found.rows("C_inv", 5, 6)[0, ::-1] == pytest.approx(expected["inverse"], rel=1e-11)
    inverse = solved(momentum, banded_root(3, inverse=True))
    assert inverse.rows("C_inv", 5, 6)[0, :2:-1] == pytest.approx(expected["inverse"][:3], rel=1e-11)


def test_signed_bands_are_never_called_exact_without_a_rule():
    """The root of a window has negative coefficients; of many patterns beyond the separation only a bound is known."""
    window = {"kind": "window", "n": 96, "width": 3}
    narrow = solved(window, banded_root(4), {"kind": "min_sep", "min_sep": 4})
    wide = solved(window, banded_root(13), {"kind": "min_sep", "min_sep": 4})
    assert (wide.strategy.column < 0).any()
    assert narrow.certificate.sensitivity.kind == "exact"
    assert wide.certificate.sensitivity.kind == "upper_bound"
    assert "upper bound" in wide.certificate.warnings[0]


@pytest.mark.parametrize(
    ("participation", "squared"),
    [
        ({"kind": "single"}, 12),
        ({"kind": "fixed_epochs", "epochs": 3}, sum(min(t // 4 + 1, 3) ** 2 for t in range(12))),
        ({"kind": "min_sep", "min_sep": 5}, sum((t // 5 + 1) ** 2 for t in range(12))),
    ],
)
def test_anti_pgd_is_the_prefix_sum(participation, squared):
    """C = S, so B = I: the loss is the squared sensitivity, which counts the participations so far."""
    found = solved(12, "anti_pgd", participation)
    assert found.strategy.dense().tolist() == np.tri(12).tolist()
    assert found.rows("C_inv", 5, 6).tolist() == [[0, 0, 0, 0, -1, 1, 0, 0, 0, 0, 0, 0]]
    assert found.certificate.sensitivity.value**2 == pytest.approx(squared, rel=1e-15)
    assert found.certificate.sensitivity.kind == "exact"
    assert found.certificate.loss.mean_squared == pytest.approx(squared, rel=1e-13)


@pytest.mark.parametrize("n", [2000, 20_000])
def test_anti_pgd_on_a_schedule(n):
    """Above n = 2048 the losses are carried along the steps; row i of B is A's, less half of the entry to its right."""
    schedule = {"kind": "schedule", "n": n, "learning_rates": {"kind": "cosine_to_last", "final": 0.1}}
    found = solved(schedule, {"kind": "anti_pgd", "damping": 0.5})
    rates = found.spec.workload.row_block(n - 1, n)[0]
    inner = np.cumsum(np.append(0.0, (rates[:-1] - 0.5 * rates[1:]) ** 2))
    total = found.certificate.sensitivity.value**2 * (inner + rates**2).sum()
    assert found.certificate.loss.total_squared == pytest.approx(total, rel=1e-9)
    assert found.certificate.relative_gap > 0


def test_damped_anti_pgd(vectors):
    """gamma^2 = 1 / (nu (2 - nu)) in the limit (C24); damping 1 is independent noise."""
    damping = 0.05
    found = solved(2000, {"kind": "anti_pgd", "damping": damping})
    assert found.certificate.sensitivity.value**2 == pytest.approx(1 / (damping * (2 - damping)), rel=1e-10)
    assert found.rows("C_inv", 3, 4)[0, :5] == pytest.approx([0, 0, -0.95, 1, 0], abs=1e-15)
    plain = solved(16, {"kind": "anti_pgd", "damping": 1.0})
    assert plain.strategy.dense().tolist() == np.eye(16).tolist()
    assert plain.certificate.loss.mean_squared == pytest.approx(17 / 2, rel=1e-15)
