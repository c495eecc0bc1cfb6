"""The structured optimum with three states (SRG), against dense and 60-digit arithmetic."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.buffered.streaming import streaming_factor
from solvers.poles import zolotarev, zolotarev_with
from solvers.single import momentum
from solvers.single.cascade import Cascade, solve


def chain(factors):
    """Lower-triangular products of the factors from each step to the next."""
    n = len(factors)
    out = np.eye(n)
    for i in range(1, n):
        out[i, :i] = out[i - 1, :i] * factors[i - 1]
    return out


def dense(beta, eta, lam, decay):
    return chain(lam) @ np.diag(eta) @ chain(beta) @ chain(decay)


def dense_bounds(a, v):
    root = np.sqrt(v)
    _, s, vt = np.linalg.svd(a * root)
    diagonal = ((vt * s[:, None]) * vt).sum(axis=0) / v
    return s.sum() ** 2 / v.sum(), s.sum() * diagonal.max()


def srg(n, mu=0.9, c=0.0820849986238988):
    return np.full(n, mu), np.ones(n), np.ones(n), np.full(n, c)


@pytest.mark.parametrize("n", [4, 8])
def test_published_srg_optimum(n, vectors):
    optimum = solve(*srg(n), tolerance=1e-11)
    reference = vectors[f"B.srg_true.opt.n{n}"]["opt_total"]
    assert optimum.lower_bound <= reference * (1 + 1e-13)
    assert reference * (1 - 1e-13) <= optimum.upper_bound
    assert optimum.relative_gap < 1e-11


def test_the_map_is_the_srg_workload(vectors):
    row = dense(*srg(6))[:, 0]
    assert np.allclose(row, vectors["B.srg_true.n6"]["toeplitz_coef"], rtol=1e-14)


@pytest.mark.parametrize(("mu", "c"), [(0.9, 0.0820849986238988), (0.95, 0.95), (0.3, 1.0)])
def test_the_dense_optimum_is_reached(mu, c):
    arguments = srg(96, mu, c)
    optimum = solve(*arguments, tolerance=1e-9)
    lower, upper = dense_bounds(dense(*arguments), optimum.v)
    assert optimum.relative_gap < 1e-9
    assert optimum.lower_bound <= lower * (1 + 1e-12)
    assert lower <= optimum.lower_bound * (1 + 1e-9)
    assert upper <= lower * (1 + 1e-8)


def test_a_vanishing_decay_is_momentum():
    n = 80
    eta = np.exp(np.random.default_rng(0).normal(size=n))
    here = solve(np.full(n, 0.8), eta, np.ones(n), np.full(n, 1e-14), tolerance=1e-10)
    there = momentum.solve(np.full(n, 0.8), eta, np.ones(n), tolerance=1e-10)
    assert here.lower_bound == pytest.approx(there.lower_bound, rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_steps(n):
    arguments = np.full(n, 0.9), np.full(n, 2.0), np.full(n, 0.5), np.full(n, 0.7)
    optimum = solve(*arguments, tolerance=1e-10)
    lower, upper = dense_bounds(dense(*arguments), optimum.v)
    assert optimum.lower_bound <= lower * (1 + 1e-13)
    assert upper <= optimum.upper_bound * (1 + 1e-13)
    assert optimum.relative_gap < 1e-10


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(1e-6, 1), st.floats(-3, 3), st.floats(0.01, 1), st.floats(1e-6, 1.2)),
        min_size=1,
        max_size=16,
    ),
    st.integers(0, 2**32 - 1),
)
def test_random_workloads(rows, seed):
    """Per-step factors: no dual value, dense ones included, exceeds a primal one."""
    beta, eta, lam, decay = (np.array(column) for column in zip(*rows, strict=True))
    arguments = beta, np.exp(eta), lam, decay
    optimum = solve(*arguments, tolerance=1e-9)
    assert optimum.relative_gap < 1e-9
    a = dense(*arguments)
    lower, _ = dense_bounds(a, optimum.v)
    assert optimum.lower_bound <= lower * (1 + 1e-12) <= optimum.upper_bound * (1 + 1e-11)
    other = optimum.v * np.exp(np.random.default_rng(seed).normal(size=len(rows)))
    assert dense_bounds(a, other)[0] <= optimum.upper_bound * (1 + 1e-12)


@pytest.fixture(scope="module")
def precise():
    """Structure, v, poles over the whole interval and (L + t V)^-1 for each of them at 60 digits."""
    n = 16
    rng = np.random.default_rng(5)
    eta = np.linspace(1.0, 0.05, n)
    structure = Cascade(np.full(n, 0.95), eta, np.full(n, 0.99), rng.uniform(0.5, 1.1, n))
    v = structure.start()
    poles = zolotarev_with(*structure.interval(v), count=4)
    with mpmath.workdps(60):

        def exact_chain(factors):
            m = mpmath.eye(n)
            for i in range(1, n):
                for k in range(i):
                    m[i, k] = m[i - 1, k] * mpmath.mpf(float(factors[i - 1]))
            return m

        scale = mpmath.diag([mpmath.mpf(float(x)) for x in eta])
        a = exact_chain(structure.lam) * scale * exact_chain(structure.beta) * exact_chain(structure.decay)
        inverse = a**-1
        full = [
            (inverse * inverse.T + mpmath.diag([mpmath.mpf(float(t)) * mpmath.mpf(float(x)) for x in v])) ** -1
            for t in poles.nodes
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


def test_the_streaming_factor_attains_the_bound():
    n = 150
    optimum = solve(*srg(n), tolerance=1e-10)
    factor = streaming_factor(Cascade(*srg(n)), optimum.v, optimum.poles)
    assert factor.tensors()["transition"].shape == (n, optimum.poles.nodes.size, 3, 3)
    c = factor.dense()
    norms = np.sqrt((c**2).sum(axis=0))
    assert norms.max() <= 1.0
    loss = (np.linalg.solve(c.T, dense(*srg(n)).T) ** 2).sum() * norms.max() ** 2
    assert optimum.lower_bound <= loss * (1 + 1e-11)
    assert loss <= optimum.lower_bound * (1 + 2e-10)


def test_threads_change_nothing(monkeypatch):
    structure = Cascade(*srg(200))
    v = structure.start()
    poles = zolotarev(*structure.interval(v), error=1e-9)
    alone, product = structure.certified_diagonal(v, poles), structure.hessian(v, poles)(v)
    monkeypatch.setattr("solvers.single.filtered._PARALLEL_WORK", 0)
    assert np.allclose(alone, structure.certified_diagonal(v, poles), rtol=1e-14, atol=0)
    assert np.allclose(product, structure.hessian(v, poles)(v), rtol=1e-13)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [(0, 0.0, "beta holds 0.0"), (1, -1.0, "eta holds -1.0"), (2, 2.0, "lam holds 2.0"), (3, 0.0, "decay holds 0.0")],
)
def test_bad_arrays_are_refused(place, value, message):
    arguments = list(srg(3))
    arguments[place] = np.array([1.0, value, 1.0])
    with pytest.raises(ValueError, match=message):
        solve(*arguments, tolerance=1e-9)


def test_arrays_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        solve(np.ones(2), np.ones(3), np.ones(3), np.ones(3), tolerance=1e-9)
