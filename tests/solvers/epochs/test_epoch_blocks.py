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
from factorize.errors import Cancelled
from factorize.solvers import problem as problem_room
from factorize.solvers.epochs import decompositions as epochs
from factorize.solvers.epochs import epochs_optimum as epoch_optimum
from factorize.solvers.epochs.block_kernels import entry, invert
from factorize.solvers.epochs.blocks import Ring, evaluate, maximise
from factorize.solvers.epochs.cholesky import reverse_cholesky
from factorize.solvers.epochs.gram import masked, whole_gram
from factorize.solvers.methods.compiled_anderson import Extrapolation
from factorize.solvers.methods.lanes import WIDTH
from factorize.solvers.problem import Problem

WORKLOADS = {
    "prefix": {"kind": "prefix", "n": 64},
    "cosine": {"kind": "schedule", "n": 64, "learning_rates": {"kind": "cosine", "final": 0.01}},
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


def dense_gram(ring, dual, poles):
    inverse = inverse_workload(ring)
    target, w = inverse @ inverse.T, whole(ring, dual)
    return sum(
        weight * np.linalg.inv(target + node * w) for node, weight in zip(poles.nodes, poles.weights, strict=True)
    )


def loss(ring, strategy):
    return np.linalg.norm(np.linalg.inv(strategy @ inverse_workload(ring))) ** 2


def dense_bound(ring, dual):
    factor = whole(ring, np.linalg.cholesky(dual))
    norm = np.linalg.svd(np.linalg.solve(inverse_workload(ring), factor), compute_uv=False).sum()
    return norm**2 / dual[:, 0, 0].sum()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_eight_inverses_at_a_time(size):
    side = 2 * size
    roots = np.random.default_rng(size).standard_normal((WIDTH, side, side))
    matrices = roots @ roots.transpose(0, 2, 1) + np.eye(side)
    pairs = [(i, j) for i in range(side) for j in range(side) if i // 2 >= j // 2]
    tiles = np.empty(2 * size * (size + 1) * WIDTH)
    for i, j in pairs:
        tiles[entry(i, j) * WIDTH :][:WIDTH] = matrices[:, i, j]
    invert(tiles, size, np.empty(4 * size * WIDTH), np.empty(4 * size * WIDTH))
    expected = -np.linalg.inv(matrices)
    for i, j in pairs:
        assert np.allclose(tiles[entry(i, j) * WIDTH :][:WIDTH], expected[:, i, j], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("epochs", "classes"), [(2, 2), (2, 3), (3, 1), (3, 8), (4, 5), (5, 40), (8, 6)])
def test_blocks_and_whole_matrix_against_dense_inverses(epochs, classes):
    rng = np.random.default_rng(epochs * 100 + classes)
    ring = ring_of_rates(np.exp(rng.standard_normal(epochs * classes)), epochs, decay=0.9)
    point = evaluate(ring, random_dual(ring, classes), 1e-9)
    expected = dense_gram(ring, point.dual, point.poles)
    blocks = np.array([expected[np.ix_(pattern, pattern)] for pattern in patterns(ring)])
    scale = np.sqrt(np.diagonal(expected))
    assert np.allclose(point.x, blocks, rtol=1e-10, atol=1e-11 * scale.min() ** 2)
    assert point.norm == pytest.approx(np.vdot(blocks, point.dual), rel=1e-12)
    gram = whole_gram(ring, point) * point.norm
    assert np.abs((gram - expected) / scale / scale[:, None]).max() < 1e-11


def test_the_spectrum_lies_within_the_poles():
    for seed in range(4):
        ring = ring_of_rates(np.exp(np.random.default_rng(seed).standard_normal(24)), 4)
        dual = random_dual(ring, seed)
        half = np.linalg.inv(np.linalg.cholesky(whole(ring, dual))) @ inverse_workload(ring)
        spectrum = np.linalg.svd(half, compute_uv=False) ** 2
        poles = ring.poles(dual, 1e-6)
        assert poles.lower <= spectrum.min()
        assert spectrum.max() <= poles.upper


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
    assert 1 - 1e-13 < found.sensitivity.value <= 1


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


def test_both_gaps_mean_what_they_say():
    ring = prefix_ring(4, 6)
    optimum = maximise(ring, tolerance=1e-13).point.lower
    for tolerance in (1e-2, 1e-4, 1e-6):
        point = evaluate(ring, maximise(ring, tolerance=tolerance).point.dual, 1e-12)
        gram = whole_gram(ring, point)
        masked(gram, 4)
        reached = loss(ring, reverse_cholesky(gram)) / point.lower - 1
        assert point.gap == pytest.approx(reached, rel=0.3)
        assert optimum / point.lower - 1 <= point.gap * 1.3
        assert reached <= point.proven_gap


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


@pytest.mark.parametrize(("classes", "tolerance"), [(16, 1e-6), (32, 8e-7)])
def test_the_gap_that_is_proven_without_c(classes, tolerance):
    ring = prefix_ring(4, classes)
    ascent = maximise(ring, tolerance=tolerance, proven=True)
    assert ascent.converged
    point = ascent.point
    optimum = evaluate(ring, maximise(ring, tolerance=1e-13).point.dual, 1e-13).lower
    assert point.lower <= optimum <= point.norm**2 * (1 + point.proven_gap)
    assert point.proven_gap <= tolerance


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-9])
def test_the_poles_of_the_result_are_as_good_as_the_tolerance_asks(tolerance):
    ascent = maximise(prefix_ring(4, 16), tolerance=tolerance)
    assert ascent.converged
    assert ascent.point.poles.delta <= 0.02 * math.sqrt(tolerance)


def test_an_ascent_goes_on_beyond_its_tolerance_while_steps_win():
    """To the gap that is asked for, or until rounding is what is missing: whether it has converged is as before."""
    ring = prefix_ring(4, 16)
    met = maximise(ring, tolerance=1e-6)
    further = maximise(ring, tolerance=1e-6, beyond=1e-10)
    assert met.converged and further.converged
    assert further.point.gap <= 1e-10 < met.point.gap
    assert met.iterations < further.iterations < 2 * met.iterations
    last = maximise(ring, tolerance=1e-6, beyond=0.0)
    assert last.converged and last.point.gap < 1e-11
    assert last.iterations < further.iterations + 12


@pytest.mark.parametrize(("tolerance", "most"), [(1e-9, 1e-11), (1e-6, 1e-8), (1e-11, 3e-12)])
def test_a_solve_goes_on_beyond_its_tolerance(tolerance, most):
    seen = []
    solvers.solve(spec_of(128, "dense", 4, tolerance=tolerance), progress=lambda step: seen.append(step.relative_gap))
    assert min(gap for gap in seen if gap is not None) <= most


def test_a_start_near_the_optimum_saves_steps():
    ring = prefix_ring(4, 16)
    cold = maximise(ring, tolerance=1e-9)
    assert maximise(ring, tolerance=1e-9, start=cold.point.dual).iterations < cold.iterations / 3


def test_cancellation_between_steps():
    spec = solvers.choose(spec_of(128, "dense", 4))
    seen = []

    def cancel(step):
        seen.append(step.relative_gap)
        if step.iteration == 3:
            raise Cancelled("asked to")

    with pytest.raises(Cancelled):
        solvers.solve(spec, progress=cancel)
    assert len(seen) == 3
    assert seen[0] > seen[2] > 0


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


def test_what_is_outside_says_why():
    def reason(workload, epochs_):
        spec = spec_of(workload, participation=epochs_)
        return epoch_optimum.supports(spec.canonical())

    assert reason({"kind": "prefix", "n": 256}, 8) is None
    assert "bidiagonal" in reason({"kind": "momentum", "n": 256, "momentum": 0.9}, 8)
    assert "bidiagonal" in reason({"kind": "schedule", "n": 256, "learning_rates": {"kind": "cosine"}}, 8)
    assert "decompositions" in reason({"kind": "prefix", "n": 256}, 128)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("n", [1, 2, 31, 64, 65, 128, 129, 200, 700])
def test_cholesky_from_the_end(n, overwrite):
    """In one block of rows, in several, and in two threads; what is above the diagonal of X is not read."""
    root = np.random.default_rng(n).standard_normal((n, n))
    gram = root @ root.T + np.eye(n)
    given = np.tril(gram) + np.triu(root, 1)
    kept = given.copy()
    strategy = reverse_cholesky(given, overwrite=overwrite)
    assert (strategy is given) == overwrite
    assert overwrite or (given == kept).all()
    assert not np.triu(strategy, 1).any()
    assert np.abs(strategy.T @ strategy - gram).max() < 1e-13 * gram.max() * math.sqrt(n)


@pytest.mark.parametrize("epochs", [4, 16, 32])
def test_the_last_units_of_a_strategy_take_one_sum_in_wide_numbers(epochs, monkeypatch):
    values = []
    found = problem_room.sensitivity_kept
    monkeypatch.setattr(problem_room, "sensitivity_kept", lambda *of: values.append(found(*of).value) or found(*of))
    spec = spec_of(256, "dense", epochs)
    strategy = np.tril(np.random.default_rng(epochs).standard_normal((256, 256))) + 16 * np.eye(256)
    matrix = Problem(spec.canonical()).with_unit_sensitivity(strategy)
    assert len(values) == 1 and 1 - 64 * 2.0**-52 <= values[0] <= 1
    assert np.isfinite(matrix.dense()).all()


@pytest.mark.parametrize("epochs", [16, 32])
def test_correlations_count_less_than_weights_in_an_extrapolation(epochs):
    """Counted alike they take 25 and 33 steps."""
    found = maximise(prefix_ring(epochs, 256 // epochs), tolerance=3e-10, beyond=1e-11)
    assert found.converged and found.iterations <= {16: 24, 32: 31}[epochs]


@pytest.mark.parametrize("wrong", [-1.0, 0.0, math.nan, -math.inf])
@pytest.mark.parametrize("n", [100, 300])
def test_cholesky_refuses_what_is_not_definite(wrong, n):
    gram = np.eye(n)
    gram[70, 70] = wrong
    with pytest.raises(FloatingPointError, match="step 70"):
        reverse_cholesky(gram)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("row", [70, 170])
def test_cholesky_refuses_what_is_no_number_beside_the_diagonal(wrong, row):
    gram = np.eye(row + 30)
    gram[row, 40] = gram[40, row] = wrong
    with pytest.raises(FloatingPointError, match="not definite"):
        reverse_cholesky(gram)


def test_extrapolation_solves_a_linear_fixed_point():
    rng = np.random.default_rng(2)
    matrix = 0.9 * np.linalg.qr(rng.standard_normal((6, 6)))[0]
    constant = rng.standard_normal(6)
    mixer, x = Extrapolation(6), np.zeros(6)
    for _ in range(9):
        image = matrix @ x + constant
        mixed = mixer.mix(x, image, np.ones(6))
        x = image if mixed is None else mixed
    assert np.allclose(x, np.linalg.solve(np.eye(6) - matrix, constant), atol=1e-8)
