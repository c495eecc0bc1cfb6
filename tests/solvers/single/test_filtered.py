"""What every workload with filters from both ends keeps, against dense and 60-digit arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from filter_cases import dense, dense_bounds, momentum, nesterov, optimum_of, srg, uneven
from hypothesis import given, settings
from hypothesis import strategies as st

from factorize.solvers.methods.poles import Poles, zolotarev, zolotarev_with
from factorize.solvers.single.cascade import Cascade
from factorize.solvers.single.filtered import Filtered
from factorize.solvers.single.momentum import MomentumFilters
from factorize.solvers.single.nesterov import Nesterov, couplings
from factorize.solvers.single.newton import bounds
from factorize.solvers.single.streaming import streaming_factor

Make = Callable[[int], Filtered]

ONE_EACH: dict[str, Make] = {"momentum": momentum, "nesterov": nesterov, "cascade": uneven}
MANY: dict[str, Make] = {
    **{
        f"momentum {beta} {rates}": partial(momentum, beta=beta, rates=rates)
        for beta in (0.5, 0.95)
        for rates in ("constant", "cooldown", "cosine", "wild")
    },
    **{
        f"nesterov {mu} {rates}": partial(nesterov, mu=mu, rates=rates)
        for mu in (0.001, 0.95)
        for rates in ("constant", "cooldown", "cosine", "warmup", "random")
    },
    **{f"srg {mu} {decay}": partial(srg, mu=mu, decay=decay) for mu, decay in ((0.9, 0.08), (0.95, 0.95), (0.3, 1.0))},
}


@pytest.mark.parametrize("name", MANY)
def test_the_dense_optimum_is_reached(name: str) -> None:
    structure = MANY[name](128)
    optimum = optimum_of(structure)
    lower, upper = dense_bounds(dense(structure), optimum.v)
    assert optimum.relative_gap < 1e-9
    assert optimum.lower_bound <= lower * (1 + 1e-12)
    assert lower <= optimum.lower_bound * (1 + 1e-9)
    assert upper <= lower * (1 + 1e-8)


def check_bounds(structure: Filtered, seed: int, gap: float = 1e-9) -> None:
    """No dual value, dense ones included, exceeds a primal one."""
    optimum = optimum_of(structure)
    assert optimum.relative_gap < gap
    a = dense(structure)
    lower, _ = dense_bounds(a, optimum.v)
    assert optimum.lower_bound <= lower * (1 + 1e-12) <= optimum.upper_bound * (1 + 1e-11)
    other = optimum.v * np.exp(np.random.default_rng(seed).normal(size=structure.size))
    assert dense_bounds(a, other)[0] <= optimum.upper_bound * (1 + 1e-12)


seeds = st.integers(0, 2**32 - 1)


def columns(*ranges: tuple[float, float], most: int) -> st.SearchStrategy[np.ndarray]:
    rows = st.lists(st.tuples(*(st.floats(*limits) for limits in ranges)), min_size=1, max_size=most)
    return rows.map(lambda found: np.array(found).T)


@settings(max_examples=25)
@given(columns((0, 1), (-4, 4), (0.01, 1), most=20), seeds)
def test_random_momentum(found: np.ndarray, seed: int) -> None:
    beta, eta, lam = found
    check_bounds(MomentumFilters(beta, np.exp(eta), lam), seed)


@settings(max_examples=20)
@given(columns((1e-6, 1), (-3, 3), (0.01, 1), (1e-6, 1.2), most=16), seeds)
def test_random_cascades(found: np.ndarray, seed: int) -> None:
    beta, eta, lam, decay = found
    check_bounds(Cascade(beta, np.exp(eta), lam, decay), seed)


@settings(max_examples=30)
@given(columns((0.05, 1), (0.01, 1), most=20), st.floats(0.01, 1), seeds)
def test_random_nesterov(found: np.ndarray, mu: float, seed: int) -> None:
    """Rates that fall at will and rise up to the limit, where the couplings vanish and what is known of them fades."""
    shares, lam = found
    rises = shares[1:] * (1 + 1 / mu) * lam[:-1] * (1 - 1e-15)
    eta = np.cumprod(np.concatenate([[1.0], rises]))
    if eta.min() < 1e-12 or eta.max() > 1e12:
        eta = np.clip(np.minimum.accumulate(eta), 1e-12, 1.0)
        lam = np.ones(len(eta))
    left = couplings(mu, eta, lam)[:-1] / (eta * lam)[:-1]
    check_bounds(Nesterov(mu, eta, lam), seed, gap=1e-9 if (left > 1e-9).all() else 1e-6)


class Precise(NamedTuple):
    """A workload, poles over the whole interval of its start, and (L + t V)^-1 for each at 60 digits."""

    structure: Filtered
    v: np.ndarray
    poles: Poles
    inverses: list[Any]


PRECISE: dict[str, Make] = {
    "momentum": momentum,
    "cascade": uneven,
    **{f"nesterov {rates}": partial(nesterov, rates=rates, lam=1.0) for rates in ("cooldown", "warmup", "random")},
}


@pytest.fixture(scope="module", params=PRECISE)
def precise(request: pytest.FixtureRequest) -> Precise:
    structure = PRECISE[request.param](18)
    v = structure.start()
    poles = zolotarev_with(*structure.interval(v), count=4)
    with mpmath.workdps(60):
        inverse = mpmath.matrix(dense(structure, mpmath.mpf).tolist()) ** -1
        low = inverse * inverse.T
        weights = mpmath.diag([mpmath.mpf(float(x)) for x in v])
        return Precise(structure, v, poles, [(low + mpmath.mpf(float(t)) * weights) ** -1 for t in poles.nodes])


def test_the_generators_make_the_inverse(precise: Precise) -> None:
    structure, v, poles, inverses = precise
    generators = structure.generators(v, poles)
    for j in range(structure.size):
        state = generators.inputs[j]
        for i in range(j, structure.size):
            if i > j:
                state = np.einsum("pab,pb->pa", generators.transition[i], state)
            exact = float(sum(w * k[i, j] for w, k in zip(poles.weights, inverses, strict=True)))
            assert (generators.outputs[i] * state).sum() == pytest.approx(exact, rel=1e-12)


STREAMED: dict[str, Make] = {
    "momentum constant": partial(momentum, beta=0.9, rates="constant", lam=1.0),
    "momentum cooldown": momentum,
    "momentum wild": partial(momentum, beta=0.9, rates="wild", lam=1.0),
    "nesterov": nesterov,
    "srg": srg,
}


@pytest.mark.parametrize("name", STREAMED)
def test_the_streaming_factor_attains_the_bound(name: str) -> None:
    structure = STREAMED[name](180)
    optimum = optimum_of(structure, 1e-10)
    c = streaming_factor(structure, optimum.v, optimum.poles).dense()
    assert np.array_equal(c, np.tril(c))
    norms = np.sqrt((c**2).sum(axis=0))
    assert 1.0 - 1e-10 <= norms.min() <= norms.max() <= 1.0
    loss = (np.linalg.solve(c.T, dense(structure).T) ** 2).sum() * norms.max() ** 2
    assert optimum.lower_bound <= loss * (1 + 1e-11)
    assert loss <= optimum.lower_bound * (1 + 2e-10)


@pytest.mark.parametrize(("name", "states"), [("momentum", 2), ("nesterov", 2), ("cascade", 3)])
def test_the_state_space_tensors_follow_the_contract(name: str, states: int) -> None:
    n, structure = 90, ONE_EACH[name](90)
    optimum = optimum_of(structure, 1e-6)
    factor = streaming_factor(structure, optimum.v, optimum.poles)
    tensors = factor.tensors()
    assert set(tensors) == {"diagonal", "transition", "input", "output"}
    blocks = optimum.poles.nodes.size
    assert tensors["transition"].shape == (n, blocks, states, states)
    c = np.diag(tensors["diagonal"])
    for j in range(n):
        state = tensors["input"][j]
        for i in range(j + 1, n):
            state = (tensors["transition"][i] @ state.reshape(blocks, states, 1)).ravel()
            c[i, j] = tensors["output"][i] @ state
    assert np.allclose(factor.dense(), c, rtol=0, atol=1e-12)


def test_a_wrong_quadrature_is_caught() -> None:
    structure = momentum(50, rates="constant")
    v = structure.start()
    good = zolotarev(*structure.interval(v), error=1e-9)
    lower, upper = bounds(structure, v, good)
    assert lower < upper
    with pytest.raises(FloatingPointError, match="promised"):
        bounds(structure, v, dataclasses.replace(good, nodes=good.nodes * 1.001))


TWO = [1.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (MomentumFilters, ([1.5, 0.0], TWO, TWO), "beta holds 1.5"),
        (MomentumFilters, ([0.5, 0.0], [1.0, 0.0], TWO), "eta holds 0.0"),
        (MomentumFilters, ([0.5, 0.0], TWO, [0.0, 1.0]), "lam holds 0.0"),
        (MomentumFilters, ([0.5, 0.0], [1.0, np.inf], TWO), "eta holds inf"),
        (
            MomentumFilters,
            ([0.5], TWO, TWO),
            r"beta, eta, lam must be vectors of one length, got shapes \(1,\), \(2,\), \(2,\)",
        ),
        (MomentumFilters, ([], [], []), "one length"),
        (Nesterov, (1.5, TWO, TWO), "mu holds 1.5"),
        (Nesterov, (0.0, TWO, TWO), "mu holds 0.0"),
        (Nesterov, (0.5, [1.0, 0.0], TWO), "eta holds 0.0"),
        (Nesterov, (0.5, TWO, [0.0, 1.0]), "lam holds 0.0"),
        (Nesterov, (0.5, [1.0, 3.1], TWO), "rises from 1 to 3.1"),
        (Nesterov, (0.5, [1.0], TWO), "one length"),
        (Cascade, ([1.0, 0.0], TWO, TWO, TWO), "beta holds 0.0"),
        (Cascade, (TWO, [1.0, -1.0], TWO, TWO), "eta holds -1.0"),
        (Cascade, (TWO, TWO, [1.0, 2.0], TWO), "lam holds 2.0"),
        (Cascade, (TWO, TWO, TWO, [0.0, 1.0]), "decay holds 0.0"),
        (Cascade, (TWO, [1.0], TWO, TWO), "one length"),
    ],
)
def test_bad_arrays_are_refused(kind: Callable[..., Filtered], arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(*(np.array(given) for given in arguments))
