"""The lower bound by log-determinants: never above singular values, tight, and its arithmetic as stated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from specs import spec_of

from factorize.certificate.lower_bounds import determinants
from factorize.objective import MaxError
from factorize.spec import Spec
from factorize.workloads.state_space import StateSpace

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


def test_numbers_out_of_range_give_no_bound() -> None:
    case = spec_of({"kind": "mu2", "output": "w"}, n=4)
    huge = [StateSpace(p.follow, p.feed, p.read * 1e170, p.through * 1e170) for p in factors(case)]
    assert determinants.nuclear_norm_below(huge, np.ones(4)) is None


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


@pytest.mark.parametrize("objective", [{"kind": "mean"}, {"kind": "max"}], ids=lambda objective: objective["kind"])
@pytest.mark.parametrize("workload", ["momentum", "prefix"])
def test_none_is_stated_beyond_what_the_checker_proves(workload: str, objective: dict[str, Any]) -> None:
    """Prefix sums have theirs by resolvents, at any length."""
    from factorize.certificate.lower_bounds.bounds import lower_bound
    from factorize.exact.bounds.determinants import LARGEST

    assert determinants.LARGEST == LARGEST
    n = LARGEST + 1
    fields = {"kind": workload} | ({"momentum": 0.9} if workload == "momentum" else {})
    bound = lower_bound(spec_of(fields, objective=objective, n=n), {"weights": np.ones(n), "row_weights": np.ones(n)})
    assert (bound is None) == (workload == "momentum")


def test_no_evidence_is_searched_that_proves_no_bound() -> None:
    """Neither in time nor in the price: at the limit there is a price, and one step beyond there is none."""
    from factorize.solvers.evidence import evidence, work
    from factorize.solvers.problem import Reporter

    long, longest = (spec_of({"kind": "momentum", "momentum": 0.9}, n=determinants.LARGEST + more) for more in (1, 0))
    assert evidence(long, Reporter(lambda _step: None)) == {}
    assert work(long) == 0 < work(longest)
