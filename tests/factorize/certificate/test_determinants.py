"""The lower bound by log-determinants: never above singular values, tight, and its arithmetic as stated."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from specs import spec_of

from factorize.certificate.lower_bounds import determinants
from factorize.certificate.lower_bounds.composition import composed
from factorize.certificate.lower_bounds.filter_recurrences import log_determinant, reach
from factorize.numbers.double_double import add, multiply, reciprocal, root
from factorize.objective import MaxError
from factorize.spec import Spec
from factorize.workloads.state_space import StateSpace

U = Fraction(1, 2**53)
COOLDOWN = {"kind": "linear_cooldown", "steps": 2000, "final": 0.05}


def factors(case: Spec) -> list[StateSpace]:
    found, objective = case.workload.recursions(), case.objective.state_space(case.workload.m)
    assert found is not None
    assert objective is not None
    return [*found, objective]


def compare(case: Spec, weights: np.ndarray) -> None:
    true = np.linalg.svd(case.objective.weigh(case.workload.dense()) * np.sqrt(weights), compute_uv=False).sum()
    bound = determinants.nuclear_norm_below(factors(case), weights)
    assert bound is not None
    assert true * (1 - 1e-11) <= bound <= true * (1 + 1e-12)


WORKLOADS: dict[str, dict[str, Any]] = {
    "prefix": {"kind": "prefix"},
    "heavy ball": {"kind": "momentum", "momentum": 0.95},
    "nesterov": {"kind": "momentum", "momentum": 0.9, "nesterov": True},
    "cosine": {"kind": "momentum", "momentum": 0.99, "learning_rates": {"kind": "cosine", "final": 1e-9}},
    "to zero": {"kind": "momentum", "momentum": 0.9, "learning_rates": {"kind": "cosine", "final": 0.0}},
    "srg": {"kind": "srg", "momentum": 0.9, "decay": 0.5},
    "mu2 w": {"kind": "mu2", "output": "w"},
    "mu2 x": {"kind": "mu2", "output": "x"},
    "coupled": {"kind": "weight_decay", "rate": 0.01, "mode": "coupled", "momentum": 0.9},
    "decoupled": {"kind": "weight_decay", "rate": 0.1, "mode": "decoupled", "momentum": 0.9},
}


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("n", [1, 2, 5, 200])
def test_below_singular_values_and_tight(name: str, n: int) -> None:
    weights = np.exp(np.random.default_rng(n).normal(size=n) * 3)
    compare(spec_of(WORKLOADS[name], n=n), weights)


@pytest.mark.parametrize("name", ["heavy ball", "srg", "to zero"])
@pytest.mark.parametrize("objective", [{"kind": "lambda_tau", "tau": 7}, {"kind": "weighted", "weights": [0, 2] * 42}])
def test_objectives_are_factors_too(name: str, objective: dict[str, Any]) -> None:
    compare(spec_of(WORKLOADS[name], n=84, objective=objective), np.exp(np.random.default_rng(0).normal(size=84)))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=60),
    st.floats(0, 0.999),
    st.booleans(),
    st.integers(-100, 100),
)
@example([(0.0, 0.0), (1e-282, 1.0)], 0.0, False, 0)
def test_random_schedules_and_weights(rows: list[tuple[float, float]], mu: float, nesterov: bool, power: int) -> None:
    """Rates and weights may vanish; the weights' scale does not matter."""
    rates, weights = (np.array(column) for column in zip(*rows, strict=True))
    rates[0], weights[0] = 1.0, 1.0
    case = spec_of(
        {"kind": "momentum", "momentum": mu, "nesterov": nesterov, "learning_rates": list(rates)}, n=len(rates)
    )
    compare(case, weights * 2.0**power)


def test_more_states_than_the_proof_covers() -> None:
    case = spec_of({"kind": "mu2", "output": "x"}, n=8)
    assert determinants.nuclear_norm_below(factors(case) * 3, np.ones(8)) is None


def test_nothing_and_next_to_nothing() -> None:
    case = spec_of({"kind": "schedule", "learning_rates": [0.0, 1.0]}, n=2)
    assert determinants.nuclear_norm_below(factors(case), np.array([1.0, 0.0])) == 0.0
    bound = determinants.nuclear_norm_below(factors(case), np.array([1.0, 1e-240]))
    assert bound is not None
    assert 0 <= bound <= 1e-120


def test_numbers_out_of_range_give_no_bound() -> None:
    case = spec_of({"kind": "mu2", "output": "w"}, n=4)
    huge = [StateSpace(p.follow, p.feed, p.read * 1e170, p.through * 1e170) for p in factors(case)]
    assert determinants.nuclear_norm_below(huge, np.ones(4)) is None


@pytest.mark.parametrize("step", [1.0, 2.0])
def test_a_coarse_quadrature_shows_in_delta(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own delta and tail a coarse rule stays below; with the delta of the fine rule it does not."""
    case = spec_of(WORKLOADS["prefix"], n=1)
    monkeypatch.setattr(determinants, "_STEP", step)
    monkeypatch.setattr(determinants, "_TAIL", math.exp(-step) / (1 - math.exp(-step)))
    scales = np.exp(np.linspace(0, 2 * step, 9))
    careless = []
    for scale in scales:
        moved = [StateSpace(p.follow, p.feed, p.read * scale, p.through * scale) for p in factors(case)[:1]]
        monkeypatch.setattr(determinants, "_middle", lambda _: 0.0)
        careless.append((determinants.nuclear_norm_below(moved, np.ones(1)) or 0.0) / scale)
    first = 2.0 / math.cosh(math.pi**2 / step) / math.hypot(1.0, 2 * math.pi / step)
    assert max(careless) > 1 + first / 2
    assert max(careless) <= 1 + first * 1.0001


def test_the_determinant_against_fifty_digits() -> None:
    case = spec_of({"kind": "srg", "momentum": 0.9, "decay": 0.7}, n=12)
    weights = np.exp(np.random.default_rng(3).normal(size=12) * 4)
    roots = np.sqrt(weights)
    for shift in (1e-12, 1.0, 1e12, 1e24):
        value = log_determinant(*composed(factors(case), roots), shift)
        with mpmath.workdps(60):
            one, low, mid, high = (mpmath.eye(12) for _ in range(4))
            for i in range(12):
                for j in range(i):
                    low[i, j], mid[i, j], high[i, j] = (mpmath.mpf(f) ** (i - j) for f in (0.7, 0.9, 1.0))
            f = high * mid * low * mpmath.diag([mpmath.mpf(float(r)) for r in roots])
            true = mpmath.log(mpmath.det(one + mpmath.mpf(shift) * (f * f.T)))
            assert abs(value / true - 1) < 1e-15


def test_reach_is_above_the_norms_that_it_stands_for() -> None:
    case = spec_of({"kind": "weight_decay", "rate": 0.05, "mode": "coupled", "momentum": 0.9}, n=40)
    c = composed(factors(case), np.ones(40))[0]
    states = np.zeros((2, 40))
    responses = np.zeros((41, 2))
    seen = np.zeros((2, 2))
    for i in range(39, -1, -1):
        seen = np.outer(c[i, 0, :2], c[i, 0, :2]) + c[i, 1:, :2].T @ seen @ c[i, 1:, :2]
        responses[i] = np.sqrt(np.diag(seen))
    total = 0.0
    for i in range(40):
        rows = c[i, :, :2] @ states
        rows[:, i] += c[i, :, 2]
        sizes = np.sqrt((rows**2).sum(axis=1))
        total += sizes[0] + sizes[1:] @ responses[i + 1]
        states = rows[1:]
    assert total <= reach(c, 0.0) <= 10 * total


def test_momentum_beyond_any_array_has_a_certified_bound() -> None:
    from factorize.certificate.lower_bounds.bounds import DETERMINANT_RULE, MAX_DETERMINANT_RULE, lower_bound
    from factorize.solvers.single.momentum import MomentumFilters
    from factorize.solvers.single.newton import maximise

    n = 9000
    case = spec_of({"kind": "momentum", "momentum": 0.95, "learning_rates": COOLDOWN}, n=n)
    form = case.workload.momentum_form()
    assert form is not None
    optimum = maximise(MomentumFilters(*form), tolerance=1e-9)
    bound = lower_bound(case, {"weights": optimum.v})
    assert bound is not None
    assert bound.rule == DETERMINANT_RULE
    assert optimum.upper_bound * (1 - 1e-9) <= n * bound.objective <= optimum.upper_bound
    largest = case.model_copy(update={"objective": MaxError(kind="max")})
    evidence = {"weights": optimum.v, "row_weights": np.ones(n)}
    same = lower_bound(largest, evidence)
    assert same is not None
    assert same.rule == MAX_DETERMINANT_RULE
    assert same.objective == pytest.approx(bound.objective, rel=1e-12)


numbers = st.floats(1e-30, 1e30)


@given(numbers, numbers, st.floats(-1, 1), st.floats(-1, 1), st.booleans())
def test_double_doubles_against_fractions(x: float, y: float, p: float, q: float, minus: bool) -> None:
    a = add(x, 0.0, p * x * 2.0**-54, 0.0)
    b = add(-y if minus else y, 0.0, q * y * 2.0**-54, 0.0)
    exact_a, exact_b = (Fraction(z[0]) + Fraction(z[1]) for z in (a, b))

    def off(pair: tuple[float, float], true: Fraction) -> Fraction:
        return abs(Fraction(pair[0]) + Fraction(pair[1]) - true)

    assert off(add(*a, *b), exact_a + exact_b) <= 8 * U**2 * (abs(exact_a) + abs(exact_b))
    assert off(multiply(*a, *b), exact_a * exact_b) <= 32 * U**2 * abs(exact_a * exact_b)
    assert off(reciprocal(*a), 1 / exact_a) <= 32 * U**2 / exact_a
    high, low = root(*a)
    squared = (Fraction(high) + Fraction(low)) ** 2
    assert abs(squared - exact_a) <= 2 * 32 * U**2 * exact_a
