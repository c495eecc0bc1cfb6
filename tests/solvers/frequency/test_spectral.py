"""The frequency domain: closed forms, the cone program against CVXPY, proven bounds, and strategies made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solve_discrete_lyapunov
from specs import spec_of

from factorize import solvers
from factorize.errors import ConditionNotMet, SolveFailed
from factorize.factors.factor_file import load
from factorize.factors.factorization import Factorization
from factorize.factors.solution import Outcome
from factorize.numbers.triangular import series_product
from factorize.predict.asymptotic import (
    circle_integral,
    circle_mean,
    distance_squared,
    limiting_sensitivity_squared,
    quadratic_power,
    warped_grid,
)
from factorize.predict.filters import stationary_losses
from factorize.solvers.formulas.closed_form import strategy_coefficients
from factorize.solvers.frequency.cone import ConeProgram, Plant
from factorize.solvers.frequency.strongly_convex import design, nu_bound, white_bound
from factorize.spec import Spec

Array = np.ndarray

PLANTS = [
    Plant(0.5, 0.1, 1.0),
    Plant(1.0, 0.03, 1.0),
    Plant(1.9, 0.2, 1.0),
    Plant(0.3, 0.7, 1.0),
    Plant(0.02, 0.5, 40.0),
]


def uniform(count: int) -> tuple[Array, Array]:
    """The grid of the published values: w_k = 2 pi k / K, folded to [0, pi]."""
    weights = np.full(count // 2 + 1, 2.0 / count)
    weights[[0, -1]] = 1 / count
    return 2 * np.pi * np.arange(count // 2 + 1) / count, weights


def quiet(_step: int, _gain: float) -> None:
    """Ignore the progress."""


# --- closed forms -------------------------------------------------------------------------------------------------


def test_elliptic_integral(vectors: dict[str, Any]) -> None:
    published = vectors["G.I_integral"]
    for a, b, value in zip(published["a"], published["b"], published["value"], strict=True):
        assert circle_integral(a, b) == pytest.approx(value, rel=1e-11)


@pytest.mark.parametrize("nu", ["0.001", "0.01", "0.1", "0.5"])
def test_limiting_sensitivity(vectors: dict[str, Any], nu: str) -> None:
    assert limiting_sensitivity_squared(float(nu)) == pytest.approx(vectors[f"G.gamma2_inf.nu{nu}"]["value"], rel=1e-13)
    partial = float((strategy_coefficients(200_000, float(nu)) ** 2).sum())
    assert limiting_sensitivity_squared(float(nu)) == pytest.approx(partial, rel=1e-11)


@settings(max_examples=25)
@given(st.lists(st.floats(0.05, 1.5), min_size=1, max_size=4), st.lists(st.floats(-0.9, 0.9), min_size=0, max_size=3))
def test_no_filter_beats_the_optimum_in_the_time_domain(eigenvalues: list[float], taps: list[float]) -> None:
    """The stationary variance of x_{t+1} = (1 - eta l) x_t - eta (B z)_t by a Lyapunov equation, for a finite B."""
    eta, beta = 0.8, np.array([1.0, *taps])
    order = len(beta) - 1
    loss = 0.0
    for eigenvalue in eigenvalues:
        state = np.zeros((order + 1, order + 1))  # x and the last `order` noises
        state[0, 0], state[0, 1:] = 1 - eta * eigenvalue, -eta * beta[1:]
        if order:
            state[2:, 1:-1] = np.eye(order - 1)
        drive = np.zeros(order + 1)
        drive[0] = -eta
        drive[1:2] = 1.0
        loss += 0.5 * eigenvalue * solve_discrete_lyapunov(state, np.outer(drive, drive))[0, 0]
    power = quadratic_power(eigenvalues, eta)
    direct = circle_mean(
        lambda w: np.abs(np.exp(-1j * np.outer(w, np.arange(order + 1))) @ beta) ** 2 * power(w), width=0.04
    )
    assert loss == pytest.approx(eta**2 / 2 * direct, rel=1e-9)
    zeros = np.roots(beta)
    if order == 0 or np.abs(zeros).max() < 0.95:
        inverse = np.zeros(4000)
        inverse[0] = 1.0
        for t in range(1, 4000):
            inverse[t] = -beta[1 : t + 1] @ inverse[t - 1 :: -1][:order]
        optimum = stationary_losses(eigenvalues, eta)["optimum"]
        assert optimum <= loss * float(inverse @ inverse) * (1 + 1e-9)


def test_what_has_no_limit_is_refused() -> None:
    with pytest.raises(ConditionNotMet, match="nu=0"):
        limiting_sensitivity_squared(0.0)
    with pytest.raises(ConditionNotMet, match="not below 2"):
        quadratic_power([1.0, 4.0], 0.5)
    with pytest.raises(SolveFailed, match="did not converge"):
        circle_mean(lambda w: 1 / w**2, width=1.0)


# --- the cone program ---------------------------------------------------------------------------------------------


def test_published_cone_program(vectors: dict[str, Any]) -> None:
    published = vectors["G.socp"]
    plant = Plant(published["eta"], published["mu"], float(published["L"]))
    w, weights = uniform(published["K"])
    program = ConeProgram(plant, w, weights, lags=published["tau_max"])
    found = program.solve(np.ones(len(w)))
    assert found.value == pytest.approx(published["value_iid"], rel=1e-6)
    assert found.lower <= found.value <= found.lower * (1 + 2e-8)
    values = [found.value]
    while len(values) < len(published["alternating"]):  # best filter, best multiplier, ...
        root = np.sqrt(found.multiplier.gain(plant, w))
        values.append(float(weights @ root) ** 2)
        found = program.solve(float(weights @ root) / root, start=found.interior)
        values.append(found.value)
    assert values[:4] == pytest.approx(published["alternating"], rel=published["tolerance"])
    noise = np.sqrt(distance_squared(published["eta"] * published["mu"], w))
    on_the_grid = float(weights @ (1 / noise))
    assert program.solve(noise * on_the_grid).value == pytest.approx(published["value_nu"], rel=published["tolerance"])


def reference_value(plant: Plant, frequencies: Array, weights: Array, power: Array, *, lags: int) -> float:
    """Return the cone program's value by CVXPY: what cone.py is checked against.

    Args:
        plant: eta, mu, L.
        frequencies: shape (k,).
        weights: of the mean over the circle, shape (k,).
        power: S at the frequencies, shape (k,).
        lags: largest lag of the multiplier.
    """
    import cvxpy as cp

    eta, mu, smooth = plant.learning_rate, plant.strong_convexity, plant.smoothness
    centre, plus, minus = cp.Variable(), cp.Variable(lags, nonneg=True), cp.Variable(lags, nonneg=True)
    psi = cp.Variable(len(frequencies))
    angles = np.outer(frequencies, np.arange(1, lags + 1))
    real, imaginary = centre - np.cos(angles) @ (plus + minus), np.sin(angles) @ (plus - minus)
    a = (1 - np.exp(1j * frequencies)) / eta
    # M <= diag(-1, psi) for the 2 x 2 matrix M of each frequency, as a rotated second-order cone
    p = 2 * cp.multiply(np.abs(a) ** 2 - (mu + smooth) * a.real + mu * smooth, real)
    p = p - 2 * cp.multiply((smooth - mu) * a.imag, imaginary) - 1
    q = psi + 2 * real
    off_real = cp.multiply(2 * a.real - mu - smooth, real)
    off_imaginary = (smooth - mu) * imaginary - 2 * cp.multiply(a.imag, real)
    cone = cp.SOC(p + q, cp.vstack([2 * off_real, 2 * off_imaginary, p - q]), axis=0)
    problem = cp.Problem(cp.Minimize((weights * power) @ psi), [cone, cp.sum(plus + minus) <= centre, p >= 0, q >= 0])
    problem.solve(solver="CLARABEL")
    return float(problem.value)


@pytest.mark.parametrize("plant", PLANTS[1:4:2], ids=str)
@pytest.mark.parametrize("white", [True, False])
def test_the_engine_agrees_with_cvxpy(plant: Plant, white: bool) -> None:
    w, weights = warped_grid(40, plant.width)
    power = np.ones(len(w)) if white else np.sqrt(distance_squared(plant.width, w))
    found = ConeProgram(plant, w, weights, lags=10).solve(power)
    reference = reference_value(plant, w, weights, power, lags=10)
    assert found.value == pytest.approx(reference, rel=1e-6)


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_the_matrix_inequality_holds_and_quadratics_are_covered(plant: Plant) -> None:
    """Both from the 2 x 2 matrices of the theorem, written out as they stand."""
    grid, weights = warped_grid(60, plant.width)
    multiplier = ConeProgram(plant, grid, weights, lags=12).solve(np.ones(60)).multiplier
    eta, mu, smooth = plant.learning_rate, plant.strong_convexity, plant.smoothness
    w = np.linspace(1e-4, np.pi, 500)
    psi = multiplier.gain(plant, w)
    lags = np.arange(1, 13)
    plus, minus = (multiplier.even + multiplier.odd) / 2, (multiplier.even - multiplier.odd) / 2
    assert (plus > 0).all() and (minus > 0).all() and plus.sum() + minus.sum() < multiplier.centre
    for k in range(500):
        lam = multiplier.centre - np.exp(-1j * w[k] * lags) @ plus - np.exp(1j * w[k] * lags) @ minus
        a = (1 - np.exp(1j * w[k])) / eta
        n = np.array([[-2 * mu * smooth * lam.real, mu * lam + smooth * np.conj(lam)], [0, -2 * lam.real]])
        n[1, 0] = np.conj(n[0, 1])
        to_signal = np.array([[1, 0], [a, -1]])  # (x, z) -> (x, g)
        matrix = np.diag([-1.0, psi[k]]) - to_signal.conj().T @ n @ to_signal
        # Theta and G enter conjugated on the left, so the off-diagonal may come conjugated: same eigenvalues
        assert np.linalg.eigvalsh(matrix).min() >= -1e-9 * np.abs(matrix).max()
        for curvature in np.linspace(mu, smooth, 7):
            assert psi[k] >= eta**2 / distance_squared(eta * curvature, w[k : k + 1])[0] * (1 - 1e-9)


def test_what_has_no_certificate_is_refused() -> None:
    with pytest.raises(ConditionNotMet, match="no certificate"):
        ConeProgram(Plant(2.0, 0.1, 1.0), *uniform(8), lags=2)
    with pytest.raises(ConditionNotMet, match="below strong_convexity"):
        Plant(0.1, 2.0, 1.0).check()


# --- proven integrals ---------------------------------------------------------------------------------------------


def test_bounds_are_ordered_and_hold_on_the_hardest_quadratic() -> None:
    plant = Plant(1.0, 1 / 16, 1.0)
    white, nu = white_bound(plant), nu_bound(plant, plant.width)
    best = design(plant, tolerance=1e-6, report=quiet)
    assert best.outcome is Outcome.LOCAL_OPTIMUM
    assert best.bound.upper < nu.upper < white.upper
    # the published shape of Figure 3 at condition number 16, twice the loss (L = 1)
    assert 2 * white.upper == pytest.approx(24.56, rel=1e-3)
    assert 2 * nu.upper == pytest.approx(17.13, rel=1e-3)
    assert 2 * best.bound.upper == pytest.approx(15.55, rel=1e-3)
    # E|x|^2 of a quadratic with curvature mu under white noise is eta^2 / (1 - (1 - eta mu)^2)
    assert 2 * white.lower >= 1 / (1 - (1 - 1 / 16) ** 2)


# --- strategies ---------------------------------------------------------------------------------------------------


def asked_of(n: int = 200, participation: Any = None, **mechanism: Any) -> Spec:
    return spec_of(n, {"kind": "spectral", **mechanism}, participation)


def searched(asked: Spec) -> Factorization:
    return solvers.solve(asked, evidence=False)


@pytest.mark.parametrize("curvature", [{"eigenvalues": [2.0, 2.0]}, {"strong_convexity": 2.0, "smoothness": 2.0}])
def test_one_curvature_is_nu_toeplitz(curvature: dict[str, Any]) -> None:
    found = searched(asked_of(learning_rate=0.05, **curvature))
    np.testing.assert_allclose(found.strategy.coefficients(), strategy_coefficients(200, 0.1), rtol=1e-14)
    asymptotic = found.manifest["solver"]["asymptotic"]
    assert asymptotic["objective"] == pytest.approx(asymptotic["nu_toeplitz"], rel=1e-12)


@pytest.mark.parametrize("eigenvalues", [[1.0, 0.5, 0.125], [1.0, 0.01], [30.0, 1.0]])
def test_the_noising_filter_has_the_optimal_spectrum(eigenvalues: list[float]) -> None:
    eta, n = 0.05, 20_000
    found = searched(asked_of(n, learning_rate=eta, eigenvalues=eigenvalues))
    column = found.strategy.coefficients()
    assert column is not None and column[0] == 1.0
    w = np.array([0.01, 0.3, 1.0, 3.0])
    response = np.abs(np.exp(-1j * np.outer(w, np.arange(n))) @ column) ** 2
    wanted = np.sqrt(quadratic_power(eigenvalues, eta)(w))
    np.testing.assert_allclose(response / response[0], wanted / wanted[0], rtol=1e-3)
    noising = found.rows("C_inv", n - 1, n)[0, ::-1]
    np.testing.assert_allclose(series_product(column, noising), np.eye(1, n)[0], atol=1e-11)


def test_the_manifest_states_the_asymptotic_loss_and_survives_storage(tmp_path: Any) -> None:
    found = searched(asked_of(learning_rate=0.5, strong_convexity=0.1, smoothness=1.0))
    asymptotic = found.manifest["solver"]["asymptotic"]
    assert asymptotic["kind"] == "upper_bound" and asymptotic["unit"] == "d G^2 / (2 rho)"
    assert asymptotic["objective"] < asymptotic["nu_toeplitz"] < asymptotic["dp_sgd"]
    assert 2 * asymptotic["dp_sgd"] == pytest.approx(5.67596, rel=1e-5)
    assert found.certificate.converged and found.certificate.loss.rmse > 0
    found.save(tmp_path / "filter.safetensors")
    again = load(tmp_path / "filter.safetensors")
    assert again.manifest["solver"]["asymptotic"] == asymptotic
    assert again.verify().loss == found.certificate.loss


@pytest.mark.parametrize("participation", [{"kind": "fixed_epochs", "epochs": 4}, {"kind": "min_sep", "min_sep": 50}])
def test_several_participations_are_exact_where_the_filter_falls(participation: Any) -> None:
    for mechanism in ({"eigenvalues": [1.0, 0.3, 0.1]}, {"strong_convexity": 0.05, "smoothness": 1.0}):
        found = searched(asked_of(2000, participation, learning_rate=0.5, **mechanism))
        assert found.certificate.sensitivity.kind == "exact"
