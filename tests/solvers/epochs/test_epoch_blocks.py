"""Fixed epochs by blocks of a folded ring: against dense algebra, published optima and the solver by decompositions."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from specs import spec_of

from factorize import parse_spec, solvers
from factorize.certificate.certificate import certify
from factorize.solvers.epochs import decompositions as epochs
from factorize.solvers.epochs import epochs_optimum as epoch_optimum
from factorize.solvers.epochs.blocks import Ring, evaluate, maximise
from factorize.solvers.epochs.cholesky import reverse_cholesky
from factorize.solvers.epochs.gram import masked, whole_gram
from factorize.solvers.problem import Problem

WORKLOADS = {
    "prefix": {"kind": "prefix", "n": 64},
    "cosine": {"kind": "schedule", "n": 64, "learning_rates": {"kind": "cosine_to_last", "final": 0.01}},
    "cooldown": {
        "kind": "schedule",
        "n": 64,
        "learning_rates": {"kind": "linear_cooldown", "steps": 16, "final": 0.001},
    },
    "weight decay": {"kind": "weight_decay", "n": 64, "rate": 0.1, "mode": "decoupled"},
}


def ring_of_rates(rates, epochs, decay=1.0):
    p = 1 / np.asarray(rates, dtype=float)
    return Ring(p, np.concatenate([[0.0], decay * p[:-1]]), epochs)


def prefix_ring(epochs, classes):
    return ring_of_rates(np.ones(epochs * classes), epochs)


def patterns(ring):
    return np.arange(ring.p.size).reshape(ring.epochs, -1).T


def inverse_workload(ring):
    return np.diag(ring.p) - np.diag(ring.q[1:], -1)


def whole(ring, blocks):
    out = np.zeros((ring.p.size, ring.p.size))
    for pattern, block in zip(patterns(ring), blocks, strict=True):
        out[np.ix_(pattern, pattern)] = block
    return out


def random_dual(ring, seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((ring.classes, ring.epochs, ring.epochs + 1))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    weights = rng.uniform(0.2, 1.0, ring.classes)
    return (rows @ rows.transpose(0, 2, 1)) * (weights / weights.sum())[:, None, None]


def loss(ring, strategy):
    return np.linalg.norm(np.linalg.inv(strategy @ inverse_workload(ring))) ** 2


def dense_bound(ring, dual):
    factor = whole(ring, np.linalg.cholesky(dual))
    norm = np.linalg.svd(np.linalg.solve(inverse_workload(ring), factor), compute_uv=False).sum()
    return norm**2 / dual[:, 0, 0].sum()


@pytest.mark.parametrize(("k", "b"), [(2, 2), (3, 4), (4, 4)])
def test_reference_prefix_optima(reference_values, k, b):
    expected = reference_values[f"P2-prefix-k{k}-b{b}"]
    ring = prefix_ring(k, b)
    best = evaluate(ring, maximise(ring, tolerance=1e-12).point.dual, 1e-13)
    assert best.lower == pytest.approx(expected["dual_bound"], rel=1e-11)
    assert best.lower <= expected["primal_value"] * (1 + 1e-12)  # the reference has thirteen digits


@pytest.mark.parametrize(("k", "b", "optimum"), [(4, 128, 16209.859698), (8, 64, 37664.550409), (16, 32, 99920.668365)])
def test_optima_of_512_steps(k, b, optimum):
    spec = spec_of(512, "dense", k, tolerance=1e-9)
    entries = [found for found in solvers.SOLVERS["dense"] if found.supports(spec) is None]
    assert entries[0].solve is epoch_optimum.solve
    found = solvers.solve(spec).certificate
    assert found.converged
    assert 0 <= found.relative_gap <= 1e-9
    assert found.loss.total_squared == pytest.approx(optimum, rel=2e-9)
    assert 512 * found.lower_bound.objective == pytest.approx(optimum, rel=2e-9)
    assert found.sensitivity.kind == "exact"
    assert 1 - 1e-9 < found.sensitivity.value <= 1


def both(workload, k, tolerance=1e-8, **more):
    document = {"workload": workload, "participation": {"kind": "fixed_epochs", "epochs": k}, "tolerance": tolerance}
    spec = solvers.choose(parse_spec({"mechanism": {"kind": "dense"}, **document, **more}))
    solutions = [solver(Problem(spec), lambda step: None) for solver in (epoch_optimum.solve, epochs.solve)]
    return [certify(spec, found.strategy, found.dual, outcome=found.outcome) for found in solutions]


@pytest.mark.parametrize("k", [2, 16])
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_agreement_with_decompositions(workload, k):
    ours, theirs = both(workload, k)
    assert ours.converged
    assert ours.loss.objective == pytest.approx(theirs.loss.objective, rel=2e-8)
    assert ours.lower_bound.objective == pytest.approx(theirs.lower_bound.objective, rel=2e-8)
    assert ours.loss.objective >= theirs.lower_bound.objective
    assert theirs.loss.objective >= ours.lower_bound.objective


@pytest.mark.parametrize(
    "objective", [{"kind": "lambda_tau", "tau": 8}, {"kind": "weighted", "weights": [1.0, 2.0] * 32}]
)
def test_other_objectives(objective):
    ours, theirs = both(WORKLOADS["prefix"], 4, objective=objective)
    assert ours.converged
    assert ours.loss.objective == pytest.approx(theirs.loss.objective, rel=2e-8)


STEEP = [3.0, -4.0, 0.0, 0.0, 0.0, 2.375, 0.0, 3.5, *[0.0] * 5, -1.0, *[0.0] * 5, -1.0, 2.5, *[0.0] * 14]
"""Logarithms of rates for which the gap grows for more than 25 steps before it falls."""


@settings(max_examples=25)
@example(4, 6, STEEP, 0.9)
@given(
    st.integers(2, 5),
    st.integers(1, 7),
    st.lists(st.floats(-3.0, 3.0), min_size=35, max_size=35),
    st.sampled_from([0.3, 0.9, 1.0]),
)
def test_random_schedules(k, b, logs, decay):
    """The dual stays below the primal, and both meet; evaluated with dense algebra."""
    ring = ring_of_rates(np.exp(logs[: k * b]), k, decay)
    ascent = maximise(ring, tolerance=1e-8)
    assert ascent.converged
    point = ascent.point
    gram = whole_gram(ring, point)
    masked(gram, k)
    strategy = reverse_cholesky(gram)
    in_classes = np.array([(strategy.T @ strategy)[np.ix_(a, a)] for a in patterns(ring)])
    assert np.allclose(np.einsum("jss->j", in_classes), 1, atol=1e-12)
    assert np.abs(in_classes * (1 - np.eye(k))).max() < 1e-13
    bound, reached = dense_bound(ring, point.dual), loss(ring, strategy)
    assert bound <= reached * (1 + 1e-12)
    assert reached <= bound * (1 + 2e-8)
    assert point.lower <= bound * (1 + 1e-11)


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_no_dual_point_is_above_the_optimum(seed):
    ring = prefix_ring(3, 4)
    point = evaluate(ring, random_dual(ring, seed), 1e-10)
    assert point.lower == pytest.approx(dense_bound(ring, point.dual), rel=1e-8)
    assert point.lower <= 102.5121133436


def test_a_wrong_quadrature_is_caught(monkeypatch):
    """Weights that are wrong by a smooth factor give a wrong W and a wrong X; the certificate shows the true gap."""
    right = Ring.poles

    def wrong(self, dual, error):
        poles = right(self, dual, error)
        tilt = np.linspace(0.5, 2.0, poles.weights.size)
        return replace(poles, weights=poles.weights * tilt)

    monkeypatch.setattr(Ring, "poles", wrong)
    ours, theirs = both(WORKLOADS["prefix"], 4)
    assert theirs.converged
    assert not ours.converged
    assert ours.relative_gap > 1e-4
    assert ours.lower_bound.objective <= theirs.loss.objective
    assert ours.loss.objective >= theirs.lower_bound.objective


def test_a_tolerance_below_rounding_ends():
    ascent = maximise(prefix_ring(4, 8), tolerance=1e-30)
    assert not ascent.converged
    assert 0 < ascent.point.gap < 1e-13
    assert ascent.iterations < 200


def test_evidence_without_a_matrix():
    spec = spec_of(512, participation=8)
    found = epoch_optimum.dual_factors(Problem(spec.canonical()), 1e-7, lambda step, gap: None)
    bound = np.linalg.svd(np.tri(512) @ whole(prefix_ring(8, 64), found), compute_uv=False).sum() ** 2
    assert 37664.550409 * (1 - 1e-7) < bound / np.einsum("jik,jik->ji", found, found).max(axis=1).sum() < 37664.55041


def test_closed_forms_state_their_gap_over_epochs():
    document = {"workload": {"kind": "prefix", "n": 1024}, "participation": {"kind": "fixed_epochs", "epochs": 8}}
    found = solvers.solve(parse_spec({**document, "mechanism": {"kind": "square_root"}})).certificate
    assert 1024 * found.lower_bound.objective == pytest.approx(85401.5609, rel=1e-7)
    assert 0.5 < found.relative_gap < 2


@pytest.mark.parametrize("wrong", [-1.0, 0.0, math.nan, -math.inf])
@pytest.mark.parametrize("n", [100, 300])
def test_cholesky_refuses_what_is_not_definite(wrong, n):
    gram = np.eye(n)
    gram[70, 70] = wrong
    with pytest.raises(FloatingPointError, match="step 70"):
        reverse_cholesky(gram)
