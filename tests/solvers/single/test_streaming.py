"""The streaming factor: generators, dense matrix, noise recurrence, exact column norms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorize.solvers.methods.poles import zolotarev_with
from factorize.solvers.single.bidiagonal import Bidiagonal
from factorize.solvers.single.newton import maximise
from factorize.solvers.single.streaming import Generators, streaming_factor


def optimal_factor(p, q):
    structure = Bidiagonal(p, q)
    optimum = maximise(structure, tolerance=1e-10)
    return optimum, streaming_factor(structure, optimum.v, optimum.poles)


def loss(a, c):
    return (np.linalg.solve(c.T, a.T) ** 2).sum() * (c**2).sum(axis=0).max()


SCHEDULES = {
    "prefix": np.ones(200),
    "cosine": 1e-6 + 0.5 * (1 + np.cos(np.pi * np.arange(200) / 199)),
    "log-normal": np.exp(2 * np.random.default_rng(1).normal(size=200)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_factor_attains_the_bound(name):
    p = 1 / SCHEDULES[name]
    optimum, factor = optimal_factor(p, p)
    c = factor.dense()
    assert np.array_equal(c, np.tril(c))
    achieved = loss(np.tril(np.outer(np.ones(200), SCHEDULES[name])), c)
    assert optimum.lower_bound <= achieved * (1 + 1e-12)
    assert achieved <= optimum.lower_bound * (1 + 1e-10)


def test_the_noise_recurrence_inverts_c():
    """x = C^-1 y needs the buffers alone."""
    _, factor = optimal_factor(np.ones(100), np.ones(100))
    t = factor.tensors()
    y = np.random.default_rng(0).normal(size=100)
    x, state = np.empty(100), np.zeros(t["decay"].shape[1])
    for i in range(100):
        state = t["decay"][i] * state
        x[i] = (y[i] - t["output"][i] @ state) / t["diagonal"][i]
        state += t["input"][i] * x[i]
    assert np.allclose(factor.dense() @ x, y, rtol=0, atol=1e-13)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 1.5)), min_size=1, max_size=90),
    st.integers(1, 6),
)
def test_any_weights_and_poles_factor_their_own_x(rows, count):
    """Not only at the optimum: C^T C is X with its columns normalised."""
    p = np.exp([row[0] for row in rows])
    q = np.where(np.array([row[1] for row in rows]) < 1e-9, 0.0, [row[1] for row in rows]) * p
    structure = Bidiagonal(p, q)
    v = structure.start()
    poles = zolotarev_with(*structure.interval(v), count=count)
    c = streaming_factor(structure, v, poles).dense()
    g = np.diag(p) - np.diag(q[1:], -1)
    x = sum(w * np.linalg.inv(g @ g.T + t * np.diag(v)) for t, w in zip(poles.nodes, poles.weights, strict=True))
    root = np.sqrt(np.diag(x))
    assert np.allclose(c.T @ c, x / np.outer(root, root), rtol=0, atol=1e-8)
    assert np.allclose(np.diag(structure.diagonal(v, poles)), np.diag(np.diag(x)), rtol=1e-7)


def test_few_buffers_stay_close_to_the_optimum():
    """Five poles are within a few 1e-4 at this size, and fewer are worse."""
    ones = np.ones(256)
    optimum = maximise(Bidiagonal(ones, ones), tolerance=1e-9)
    structure, a = Bidiagonal(ones, ones), np.tril(np.ones((256, 256)))
    excess = []
    for count in (2, 4, 6, 8):
        poles = zolotarev_with(*structure.interval(optimum.v), count=count)
        factor = streaming_factor(structure, optimum.v, poles)
        assert factor.tensors()["decay"].shape == (256, count)
        excess.append(loss(a, factor.dense()) / optimum.lower_bound - 1)
    assert np.all(np.diff(excess) < 0)
    assert excess[1] < 0.02
    assert excess[3] < 1e-5


def test_an_indefinite_x_is_refused():
    class Indefinite:
        def generators(self, v, poles):
            ones = np.ones((3, 1, 1))
            return Generators(ones[..., None], ones, ones)  # the all-ones matrix has rank one

    with pytest.raises(FloatingPointError, match="pivot of step 1"):
        streaming_factor(Indefinite(), np.ones(3), zolotarev_with(1.0, 2.0, count=1))
