"""The structured optimum for Nesterov's momentum, against dense and 60-digit arithmetic."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.buffered.streaming import streaming_factor
from solvers.poles import zolotarev_with
from solvers.single.nesterov import Nesterov, couplings, solve


def chain(factors):
    """Lower-triangular products of the factors from each step to the next."""
    n = len(factors)
    out = np.eye(n)
    for i in range(1, n):
        out[i, :i] = out[i - 1, :i] * factors[i - 1]
    return out


def dense(mu, eta, lam):
    n = len(eta)
    return chain(lam) @ np.diag(eta) @ (np.eye(n) + mu * chain(np.full(n, mu)))


def dense_bounds(a, v):
    root = np.sqrt(v)
    _, s, vt = np.linalg.svd(a * root)
    diagonal = ((vt * s[:, None]) * vt).sum(axis=0) / v
    return s.sum() ** 2 / v.sum(), s.sum() * diagonal.max()


def schedule(name, n):
    i = np.arange(n)
    return {
        "constant": np.ones(n),
        "cooldown": np.where(i < 0.75 * n, 1.0, 1.0 - 0.95 * (i - 0.75 * n) / (0.25 * n)),
        "cosine": 1e-6 + 0.5 * (1 + np.cos(np.pi * i / n)),
        "warmup": np.minimum(1.0, (i + 1) / (0.2 * n)),
        "random": np.exp(np.random.default_rng(0).uniform(-0.3, 0.3, n)),
    }[name]


@pytest.mark.parametrize("name", ["constant", "cooldown", "cosine", "warmup", "random"])
@pytest.mark.parametrize("mu", [0.001, 0.95])
def test_the_dense_optimum_is_reached(name, mu):
    n = 128
    arguments = mu, schedule(name, n), np.full(n, 0.999)
    optimum = solve(*arguments, tolerance=1e-9)
    lower, upper = dense_bounds(dense(*arguments), optimum.v)
    assert optimum.relative_gap < 1e-9
    assert optimum.lower_bound <= lower * (1 + 1e-12)
    assert lower <= optimum.lower_bound * (1 + 1e-9)
    assert upper <= lower * (1 + 1e-8)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_steps(n):
    arguments = 0.9, np.full(n, 2.0), np.full(n, 0.75)
    optimum = solve(*arguments, tolerance=1e-10)
    lower, upper = dense_bounds(dense(*arguments), optimum.v)
    assert optimum.lower_bound <= lower * (1 + 1e-13)
    assert upper <= optimum.upper_bound * (1 + 1e-13)
    assert optimum.relative_gap < 1e-10


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.floats(0.05, 1), st.floats(0.01, 1)), min_size=1, max_size=20),
    st.floats(0.01, 1),
    st.integers(0, 2**32 - 1),
)
def test_random_workloads(rows, mu, seed):
    """Rates that fall at will and rise up to the limit: no dual value, dense ones included, exceeds a primal one."""
    lam, eta = np.array([lam for _, lam in rows]), [1.0]
    for (share, _), kept in zip(rows[1:], lam, strict=False):
        eta.append(share * (1 + 1 / mu) * kept * eta[-1] * (1 - 1e-15))
    eta = np.array(eta)
    if eta.min() < 1e-12 or eta.max() > 1e12:
        eta = np.clip(np.minimum.accumulate(eta), 1e-12, 1.0)
        lam = np.ones(len(eta))
    optimum = solve(mu, eta, lam, tolerance=1e-9)
    assert optimum.relative_gap < 1e-9
    a = dense(mu, eta, lam)
    lower, _ = dense_bounds(a, optimum.v)
    assert optimum.lower_bound <= lower * (1 + 1e-12) <= optimum.upper_bound * (1 + 1e-11)
    other = optimum.v * np.exp(np.random.default_rng(seed).normal(size=len(rows)))
    assert dense_bounds(a, other)[0] <= optimum.upper_bound * (1 + 1e-12)


@pytest.fixture(scope="module", params=["cooldown", "warmup", "random"])
def precise(request):
    """Structure, v, poles over the whole interval and (L + t V)^-1 for each of them at 60 digits."""
    n, mu = 20, 0.95
    eta = schedule(request.param, n)
    structure = Nesterov(mu, eta, np.ones(n))
    v = structure.start()
    poles = zolotarev_with(*structure.interval(v), count=4)
    with mpmath.workdps(60):
        total, momentum = mpmath.eye(n), mpmath.eye(n)
        for i in range(n):
            for k in range(i):
                total[i, k], momentum[i, k] = mpmath.mpf(1), mpmath.mpf(mu) ** (i - k)
        a = total * mpmath.diag([mpmath.mpf(float(x)) for x in eta]) * (mpmath.eye(n) + mpmath.mpf(mu) * momentum)
        inverse = a**-1
        low = inverse * inverse.T
        full = [
            (low + mpmath.diag([mpmath.mpf(float(t)) * mpmath.mpf(float(x)) for x in v])) ** -1 for t in poles.nodes
        ]
    return structure, v, poles, full


def test_diagonal_is_within_the_tracked_rounding(precise):
    structure, v, poles, full = precise
    x, bound = structure.certified_diagonal(v, poles)
    for i in range(structure.size):
        exact = sum(mpmath.mpf(float(w)) * k[i, i] for w, k in zip(poles.weights, full, strict=True))
        assert abs(x[i] / exact - 1) <= bound[i]
    assert bound.max() < 1e-12
    assert np.allclose(x, structure.diagonal(v, poles), rtol=1e-14)


def test_hessian_and_factor_against_sixty_digits(precise):
    structure, v, poles, full = precise
    n = structure.size
    arrays = [np.array([[float(k[i, j]) for j in range(n)] for i in range(n)]) for k in full]
    hessian = sum(w * t * k**2 for w, t, k in zip(poles.weights, poles.nodes, arrays, strict=True))
    product = structure.hessian(v, poles)
    got = np.array([product(column) for column in np.eye(n)])
    scale = np.sqrt(np.outer(np.diag(hessian), np.diag(hessian)))
    assert (np.abs(got - hessian) / scale).max() < 1e-11
    x = sum(w * k for w, k in zip(poles.weights, arrays, strict=True))
    root = np.sqrt(np.diag(x))
    c = streaming_factor(structure, v, poles).dense()
    assert np.allclose(c.T @ c, x / np.outer(root, root), rtol=0, atol=1e-9)


def test_the_spectrum_is_inside_the_interval():
    for name in ("constant", "warmup", "random"):
        eta, lam = schedule(name, 40), np.full(40, 0.98)
        structure = Nesterov(0.9, eta, lam)
        v = np.exp(np.random.default_rng(1).normal(size=40))
        lower, upper = structure.interval(v)
        eigenvalues = np.linalg.svd(dense(0.9, eta, lam) * np.sqrt(v), compute_uv=False) ** -2.0
        assert lower <= eigenvalues.min()
        assert eigenvalues.max() <= upper
        assert structure.start() == pytest.approx(np.sqrt((dense(0.9, eta, lam) ** 2).sum(axis=0)), rel=1e-13)


def test_the_coupling_keeps_its_digits():
    eta = np.array([0.1, 0.211111111111111])
    exact = Fraction(0.1) + Fraction(0.9) * (Fraction(0.1) - Fraction(float(eta[1])))
    assert abs(Fraction(float(couplings(0.9, eta, np.ones(2))[0])) - exact) <= exact * Fraction(1, 2**53)


@pytest.mark.parametrize(
    ("mu", "eta", "lam", "message"),
    [
        (1.5, [1.0, 1.0], [1.0, 1.0], "mu holds 1.5"),
        (0.0, [1.0, 1.0], [1.0, 1.0], "mu holds 0.0"),
        (0.5, [1.0, 0.0], [1.0, 1.0], "eta holds 0.0"),
        (0.5, [1.0, 1.0], [0.0, 1.0], "lam holds 0.0"),
        (0.5, [1.0, 3.1], [1.0, 1.0], "rises from 1 to 3.1"),
        (0.5, [1.0], [1.0, 1.0], "one length"),
    ],
)
def test_bad_arrays_are_refused(mu, eta, lam, message):
    with pytest.raises(ValueError, match=message):
        solve(mu, np.array(eta), np.array(lam), tolerance=1e-9)
