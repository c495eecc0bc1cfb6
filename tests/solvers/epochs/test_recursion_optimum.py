"""The optimum of recursions by filters over epochs: against dense algebra, decompositions, CVXPY and published optima."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import solved, spec_of

from factorize import solvers
from factorize.certificate.certificate import certify
from factorize.errors import SolveFailed
from factorize.solvers.epochs import decompositions as epochs
from factorize.solvers.epochs import recursions as recursion_optimum
from factorize.solvers.epochs.blocks import evaluate, maximise
from factorize.solvers.epochs.ring import RecursionRing
from factorize.solvers.problem import Problem
from factorize.solvers.single import dense
from factorize.spec import Spec

N = 64
COOLDOWN = {"kind": "linear_cooldown", "steps": 16}  # the last rate is zero
HOLES = [1.0] * 20 + [0.0] * 4 + [0.5] * 20 + [0.0] * 8 + [0.1] * 12
WORKLOADS: dict[str, dict[str, Any]] = {
    "prefix": {"kind": "prefix"},
    "momentum": {"kind": "momentum", "momentum": 0.9},
    "cooldown": {"kind": "momentum", "momentum": 0.95, "learning_rates": COOLDOWN},
    "cosine": {"kind": "momentum", "momentum": 0.99, "learning_rates": {"kind": "cosine_to_last"}},
    "nesterov": {"kind": "momentum", "momentum": 0.9, "nesterov": True},
    "srg": {"kind": "srg", "momentum": 0.95, "decay": 0.95},
    "mu2": {"kind": "mu2", "output": "x"},
    "decoupled": {"kind": "weight_decay", "rate": 0.1, "mode": "decoupled", "momentum": 0.9},
    "coupled": {"kind": "weight_decay", "rate": 0.1, "mode": "coupled", "momentum": 0.9},
}


def asked(workload: dict[str, Any], k: int, n: int = N, **parts: Any) -> Spec:
    return spec_of({"n": n} | workload, "dense", k if k > 1 else "single", **parts).canonical()


def by_filters(spec: Spec) -> Any:
    solution = recursion_optimum.solve(Problem(spec), lambda _step: None)
    return certify(spec, solution.strategy, solution.dual, outcome=solution.outcome)


def by_decompositions(spec: Spec) -> Any:
    solver = dense if spec.participation.kind == "single" else epochs
    solution = solver.solve(Problem(spec), lambda _step: None)
    return certify(spec, solution.strategy, solution.dual, outcome=solution.outcome)


def random_dual(ring: RecursionRing, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((ring.classes, ring.epochs, ring.epochs + 2))
    products = roots @ roots.transpose(0, 2, 1)
    scale = np.sqrt(np.einsum("jss->js", products))
    weights = rng.uniform(0.5, 2.0, ring.classes)
    return (weights / weights.sum())[:, None, None] * products / scale[:, :, None] / scale[:, None, :]


def whole(blocks: np.ndarray) -> np.ndarray:
    b, k, _ = blocks.shape
    out = np.zeros((b * k, b * k))
    for j in range(b):
        out[np.ix_(j + b * np.arange(k), j + b * np.arange(k))] = blocks[j]
    return out


def exact(ring: RecursionRing, spec: Spec, dual: np.ndarray) -> tuple[np.ndarray, float]:
    """X and N by singular values, in the units of the ring."""
    target = spec.objective.weigh(spec.workload.dense())
    factor = whole(np.linalg.cholesky(dual))
    _, s, right = np.linalg.svd(target @ factor / np.abs(np.diagonal(target)).max())
    inverse = np.linalg.inv(factor)
    return inverse.T @ (right.T * s) @ right @ inverse, float(s.sum())


@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("name", WORKLOADS)
def test_agrees_with_decompositions(name: str, k: int) -> None:
    spec = asked(WORKLOADS[name], k)
    ours, theirs = by_filters(spec), by_decompositions(spec)
    assert ours.converged
    assert 0 <= ours.relative_gap <= 1e-9
    assert ours.sensitivity.kind == "exact"
    assert ours.loss.objective == pytest.approx(theirs.loss.objective, rel=2e-9)
    assert ours.lower_bound.objective <= theirs.loss.objective
    assert theirs.lower_bound.objective <= ours.loss.objective


def test_columns_of_zero_over_epochs() -> None:
    spec = asked({"kind": "schedule", "learning_rates": HOLES}, 4, tolerance=1e-8)
    ours, theirs = by_filters(spec), by_decompositions(spec)
    assert ours.converged
    assert ours.loss.objective == pytest.approx(theirs.loss.objective, rel=2e-8)


def in_every_epoch(places: list[int], k: int, n: int) -> list[float]:
    rates = np.linspace(1.0, 0.3, n)
    for place in places:
        rates[place :: n // k] = 0.0
    return [float(rate) for rate in rates]


@pytest.mark.parametrize(("k", "b"), [(2, 2), (2, 4), (3, 3), (4, 2)])
def test_published_prefix_optima(vectors: dict[str, Any], k: int, b: int) -> None:
    expected = vectors[f"F.prefix.k{k}.b{b}"]
    found = by_filters(asked({"kind": "prefix"}, k, n=k * b))
    assert found.loss.total_squared == pytest.approx(expected["masked_total"], rel=1e-6)
    assert k * b * found.lower_bound.objective == pytest.approx(expected["lower"], rel=1e-6)


@pytest.mark.parametrize("name", ["momentum", "nesterov", "coupled"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_conic_program_finds_nothing_better(name: str, k: int) -> None:
    spec = asked(WORKLOADS[name], k, n=12)
    ours = by_filters(spec)
    conic = solved(spec.document(), "semidefinite", tolerance=1e-3)
    loss = conic.certificate.loss.objective
    assert ours.loss.objective <= loss * (1 + 1e-9)
    assert ours.loss.objective == pytest.approx(loss, rel=1e-3)
    assert ours.lower_bound.objective <= loss


rates = st.lists(st.floats(0.01, 1.0), min_size=24, max_size=24)


@settings(max_examples=12)
@given(rates, st.floats(0.0, 0.95), st.sampled_from([1, 2, 3, 6]), st.booleans())
def test_random_schedules(learning_rates: list[float], momentum: float, k: int, nesterov: bool) -> None:
    workload = {
        "kind": "momentum",
        "momentum": momentum,
        "learning_rates": learning_rates,
        "nesterov": nesterov and momentum > 0.01,
    }
    spec = asked(workload, k, n=24, tolerance=1e-7)
    ours = by_filters(spec)
    assert ours.converged
    assert ours.lower_bound.objective <= ours.loss.objective
    assert ours.loss.objective == pytest.approx(by_decompositions(spec).loss.objective, rel=2e-7)


@settings(max_examples=12)
@given(st.integers(0, 1000))
def test_no_dual_point_is_above_the_optimum(seed: int) -> None:
    spec = asked(WORKLOADS["momentum"], 3, n=12)
    ring = recursion_optimum.ring_of(Problem(spec))
    best = maximise(ring, tolerance=1e-9).point.lower
    point = evaluate(ring, random_dual(ring, seed), 1e-8)
    assert point.lower <= exact(ring, spec, point.dual)[1] ** 2
    assert point.lower <= best * (1 + 1e-8)


def test_a_wrong_quadrature_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RecursionRing.poles

    def wrong(self: RecursionRing, dual: np.ndarray, error: float) -> Any:
        poles = right(self, dual, error)
        return replace(poles, weights=poles.weights * np.linspace(0.5, 2.0, poles.weights.size))

    monkeypatch.setattr(RecursionRing, "poles", wrong)
    monkeypatch.setattr(recursion_optimum, "LARGEST_REPLACED", 1)
    spec = asked(WORKLOADS["momentum"], 4)
    ours, theirs = by_filters(spec), by_decompositions(spec)
    assert not ours.converged
    assert ours.relative_gap > 1e-4
    assert ours.lower_bound.objective <= theirs.loss.objective


def test_numbers_out_of_range_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recursion_optimum, "LARGEST_REPLACED", 1)
    spec = asked({"kind": "momentum", "momentum": 0.9, "learning_rates": [1e-300] * 32 + [1e300] * 32}, 4)
    with pytest.raises(SolveFailed, match="rescale"):
        recursion_optimum.solve(Problem(spec), lambda _step: None)


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("name", ["coupled", "cooldown"])
def test_it_is_the_route_of_a_spec(name: str, k: int) -> None:
    spec = asked(WORKLOADS[name], k, n=192)
    assert recursion_optimum.supports(spec) is None
    found = solvers.solve(spec).certificate
    assert found.converged
    assert found.loss.objective == pytest.approx(by_decompositions(spec).loss.objective, rel=2e-9)


def test_large_ones_are_certified_in_linear_time() -> None:
    certificate: Any = solvers.solve(asked(WORKLOADS["coupled"], 1, n=768)).certificate
    assert 0 <= certificate.relative_gap <= 1e-9
    assert certificate.lower_bound is not None
    assert certificate.lower_bound.rule.endswith("by log-determinants")


def test_what_is_outside_says_why() -> None:
    def reason(workload: dict[str, Any], k: int, n: int = 256, **parts: Any) -> str | None:
        return recursion_optimum.supports(asked(workload, k, n=n, **parts))

    assert reason({"kind": "momentum", "momentum": 0.9}, 8) is None
    assert "decompositions" in str(reason({"kind": "momentum", "momentum": 0.9}, 8, n=64))
    assert "decompositions" in str(reason({"kind": "momentum", "momentum": 0.9}, 128))
    assert "recursion" in str(reason({"kind": "window", "width": 8}, 8))
    assert "max" in str(reason({"kind": "prefix"}, 8, objective={"kind": "max"}))
    holes = {"kind": "momentum", "momentum": 0.9, "learning_rates": [1.0] * 100 + [0.0] * 8 + [1.0] * 148}
    assert "singular" in str(reason(holes, 8))
    assert reason(holes, 1) is None
    periodic = {"kind": "momentum", "momentum": 0.9, "learning_rates": in_every_epoch([3, 9], 8, 256)}
    assert reason(periodic, 8) is None
    assert "singular" in str(reason(periodic | {"nesterov": True}, 8))
    assert "singular" in str(reason(periodic, 16)), "not in every epoch"
    last = {"kind": "momentum", "momentum": 0.9, "learning_rates": in_every_epoch([31], 8, 256)}
    assert "singular" in str(reason(last, 8)), "the last of them has a column of zeros, the others do not"
    assert reason({"kind": "momentum", "momentum": 0.9, "learning_rates": COOLDOWN}, 8) is None
