"""The structured optimum for momentum with learning rates and decay, against dense and 60-digit arithmetic."""

import dataclasses

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.buffered.streaming import streaming_factor
from solvers.poles import zolotarev, zolotarev_with
from solvers.single import bidiagonal
from solvers.single.momentum import Momentum, solve
from solvers.single.newton import bounds


def chain(factors):
    """Lower-triangular products of the factors from each step to the next."""
    n = len(factors)
    out = np.eye(n)
    for i in range(1, n):
        out[i, :i] = out[i - 1, :i] * factors[i - 1]
    return out


def dense(beta, eta, lam):
    return chain(lam) @ np.diag(eta) @ chain(beta)


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
        "cosine": 1e-3 + 0.5 * (1 + np.cos(np.pi * i / n)),
        "random": np.exp(np.random.default_rng(0).normal(size=n)),
    }[name]


@pytest.mark.parametrize(("n", "digits"), [(64, 8372.967919013)])
def test_known_optimum(n, digits):
    """solvers.md, section 9: dense Newton at beta 0.9."""
    optimum = solve(np.full(n, 0.9), np.ones(n), np.ones(n), tolerance=1e-11)
    assert optimum.lower_bound == pytest.approx(digits, rel=2e-11)
    assert optimum.relative_gap < 1e-11


@pytest.mark.parametrize("name", ["constant", "cooldown", "cosine", "random"])
@pytest.mark.parametrize("beta", [0.5, 0.95])
def test_the_dense_optimum_is_reached(name, beta):
    n = 128
    arguments = np.full(n, beta), schedule(name, n), np.full(n, 0.999)
    optimum = solve(*arguments, tolerance=1e-9)
    lower, upper = dense_bounds(dense(*arguments), optimum.v)
    assert optimum.relative_gap < 1e-9
    assert optimum.lower_bound <= lower * (1 + 1e-12)
    assert lower <= optimum.lower_bound * (1 + 1e-9)
    assert upper <= lower * (1 + 1e-8)


def test_strong_momentum_with_a_vanishing_schedule():
    """Where Newton's method without care for tiny weights diverges."""
    n = 512
    eta = 1e-12 + 0.5 * (1 + np.cos(np.pi * np.arange(n) / (n - 1)))
    optimum = solve(np.full(n, 0.99), eta, np.ones(n), tolerance=1e-9)
    assert optimum.relative_gap < 1e-9


def test_without_momentum_it_is_the_bidiagonal_workload():
    n = 100
    eta, lam = schedule("random", n), np.linspace(0.9, 1.0, n)
    here = solve(np.zeros(n), eta, lam, tolerance=1e-10)
    there = bidiagonal.solve(1 / eta, np.concatenate([[0.0], lam[:-1] / eta[1:]]), tolerance=1e-10)
    # x[i] = lam[i-1] x[i-1] + eta[i] g[i]: the same map
    assert here.lower_bound == pytest.approx(there.lower_bound, rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_steps(n):
    optimum = solve(np.full(n, 0.9), np.full(n, 2.0), np.full(n, 0.5), tolerance=1e-10)
    lower, upper = dense_bounds(dense(np.full(n, 0.9), np.full(n, 2.0), np.full(n, 0.5)), optimum.v)
    assert optimum.lower_bound <= lower * (1 + 1e-13)
    assert upper <= optimum.upper_bound * (1 + 1e-13)
    assert optimum.relative_gap < 1e-10


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(-4, 4), st.floats(0.01, 1)), min_size=1, max_size=20),
    st.integers(0, 2**32 - 1),
)
def test_random_workloads(rows, seed):
    """Per-step beta, eta and lam: no dual value, dense ones included, exceeds a primal one."""
    beta, eta, lam = (np.array(column) for column in zip(*rows, strict=True))
    eta = np.exp(eta)
    optimum = solve(beta, eta, lam, tolerance=1e-9)
    assert optimum.relative_gap < 1e-9
    a = dense(beta, eta, lam)
    lower, _ = dense_bounds(a, optimum.v)
    assert optimum.lower_bound <= lower * (1 + 1e-12) <= optimum.upper_bound * (1 + 1e-11)
    other = optimum.v * np.exp(np.random.default_rng(seed).normal(size=len(rows)))
    assert dense_bounds(a, other)[0] <= optimum.upper_bound * (1 + 1e-12)


@pytest.fixture(scope="module")
def precise():
    """A cooldown at 60 digits: structure, v, poles over the whole interval, (L + t V)^-1 for each."""
    n = 20
    arguments = np.full(n, 0.95), schedule("cooldown", n), np.full(n, 0.99)
    structure = Momentum(*arguments)
    v = structure.start()
    poles = zolotarev_with(*structure.interval(v), count=4)
    with mpmath.workdps(60):
        exact = [mpmath.matrix(chain_of.tolist()) for chain_of in (np.eye(n), np.eye(n))]
        for factors, m in zip((structure.lam, structure.beta), exact, strict=True):
            for i in range(1, n):
                for k in range(i):
                    m[i, k] = m[i - 1, k] * mpmath.mpf(float(factors[i - 1]))
        a = exact[0] * mpmath.diag([mpmath.mpf(float(x)) for x in structure.eta]) * exact[1]
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


def test_generators_and_hessian_against_sixty_digits(precise):
    structure, v, poles, full = precise
    n = structure.size
    generators = structure.generators(v, poles)
    total = np.array(
        [
            [float(sum(w * k[i, j] for w, k in zip(poles.weights, full, strict=True))) for j in range(n)]
            for i in range(n)
        ]
    )
    for j in range(n):
        state = generators.inputs[j]
        for i in range(j, n):
            if i > j:
                state = np.einsum("pab,pb->pa", generators.transition[i], state)
            assert (generators.outputs[i] * state).sum() == pytest.approx(total[i, j], rel=1e-12)
    hessian = sum(
        w * t * np.array([[float(k[i, j]) ** 2 for j in range(n)] for i in range(n)])
        for w, t, k in zip(poles.weights, poles.nodes, full, strict=True)
    )
    product = structure.hessian(v, poles)
    got = np.array([product(column) for column in np.eye(n)])
    scale = np.sqrt(np.outer(np.diag(hessian), np.diag(hessian)))
    assert np.abs(got - hessian).max() <= 1e-13 * np.abs(scale).max()
    assert (np.abs(got - hessian) / scale).max() < 1e-12


@pytest.mark.parametrize(("beta", "name"), [(0.9, "constant"), (0.95, "cooldown"), (0.9, "random")])
def test_the_streaming_factor_attains_the_bound(beta, name):
    n = 200
    arguments = np.full(n, beta), schedule(name, n), np.ones(n)
    optimum = solve(*arguments, tolerance=1e-10)
    factor = streaming_factor(Momentum(*arguments), optimum.v, optimum.poles)
    c = factor.dense()
    assert np.array_equal(c, np.tril(c))
    norms = np.sqrt((c**2).sum(axis=0))
    assert norms.max() <= 1.0
    assert norms.min() >= 1.0 - 1e-10
    loss = (np.linalg.solve(c.T, dense(*arguments).T) ** 2).sum() * norms.max() ** 2
    assert optimum.lower_bound <= loss * (1 + 1e-11)
    assert loss <= optimum.lower_bound * (1 + 2e-10)


def test_the_state_space_tensors_follow_the_contract():
    n = 90
    arguments = np.full(n, 0.8), schedule("cooldown", n), np.full(n, 0.99)
    optimum = solve(*arguments, tolerance=1e-6)
    factor = streaming_factor(Momentum(*arguments), optimum.v, optimum.poles)
    tensors = factor.tensors()
    assert set(tensors) == {"diagonal", "transition", "input", "output"}
    half = optimum.poles.nodes.size
    assert tensors["transition"].shape == (n, half, 2, 2)
    c = np.diag(tensors["diagonal"])
    for j in range(n):
        state = tensors["input"][j]
        for i in range(j + 1, n):
            state = (tensors["transition"][i] @ state.reshape(half, 2, 1)).ravel()
            c[i, j] = tensors["output"][i] @ state
    assert np.allclose(factor.dense(), c, rtol=0, atol=1e-12)


def test_threads_and_blocks_change_nothing(monkeypatch):
    n = 300
    structure = Momentum(np.full(n, 0.9), schedule("random", n), np.full(n, 0.98))
    v = structure.start()
    poles = zolotarev(*structure.interval(v), error=1e-9)
    alone, product = structure.diagonal(v, poles), structure.hessian(v, poles)(v)
    monkeypatch.setattr("solvers.single.filtered._PARALLEL_WORK", 0)
    monkeypatch.setattr("solvers.single.filtered._LANES", 3)
    assert np.allclose(alone, structure.diagonal(v, poles), rtol=1e-14)
    assert np.allclose(product, structure.hessian(v, poles)(v), rtol=1e-13)


def test_a_wrong_quadrature_is_caught():
    structure = Momentum(np.full(50, 0.9), np.ones(50), np.ones(50))
    v = structure.start()
    good = zolotarev(*structure.interval(v), error=1e-9)
    lower, upper = bounds(structure, v, good)
    assert lower < upper
    with pytest.raises(FloatingPointError, match="promised"):
        bounds(structure, v, dataclasses.replace(good, nodes=good.nodes * 1.001))


@pytest.mark.parametrize(
    ("beta", "eta", "lam", "message"),
    [
        ([1.5, 0.0], [1.0, 1.0], [1.0, 1.0], "beta holds 1.5"),
        ([0.5, 0.0], [1.0, 0.0], [1.0, 1.0], "eta holds 0.0"),
        ([0.5, 0.0], [1.0, 1.0], [0.0, 1.0], "lam holds 0.0"),
        ([0.5, 0.0], [1.0, np.inf], [1.0, 1.0], "eta holds inf"),
        ([0.5], [1.0, 1.0], [1.0, 1.0], "one length"),
    ],
)
def test_bad_arrays_are_refused(beta, eta, lam, message):
    with pytest.raises(ValueError, match=message):
        solve(np.array(beta), np.array(eta), np.array(lam), tolerance=1e-9)
