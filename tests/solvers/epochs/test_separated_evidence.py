"""Evidence under `min_sep`: against the conic program, formulas, decompositions with Newton's method, and dense algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import spec_of

from factorize.certificate.lower_bounds.separated_bounds import disjoint_patterns, separated_lower_bound
from factorize.errors import Cancelled
from factorize.solution import Progress
from factorize.solvers.epochs import separated_evidence
from factorize.solvers.epochs.blocks import Ring
from factorize.solvers.epochs.correlation_blocks import start
from factorize.solvers.epochs.decompositions import DecompositionSearch
from factorize.solvers.epochs.pieces import PieceRing, start_of
from factorize.solvers.epochs.separated_evidence import banded_evidence
from factorize.solvers.epochs.step_kernels import interval, left_end, measure, right_end
from factorize.solvers.epochs.whole_target import WholeTarget
from factorize.solvers.problem import Problem, Reporter
from factorize.spec import Spec

Document = dict[str, Any]


def apart(workload: int | Document, min_sep: int, most: int | None = None, **more: Any) -> Spec:
    participation = {"kind": "min_sep", "min_sep": min_sep} | ({"max_participations": most} if most else {})
    return spec_of(workload, "identity", participation, **more)


def quiet(_step: Progress) -> None:
    """Ignore the progress."""


def bound_of(spec: Spec) -> float:
    found = separated_lower_bound(spec, banded_evidence(spec, Reporter(quiet)))
    assert found is not None
    return found.objective


def patterns_of(spec: Spec) -> np.ndarray:
    separation, most, _ = spec.participation.spread(spec.workload.n)
    return disjoint_patterns(spec.workload.n, separation, most)


def conic_optimum(spec: Spec) -> float:
    """The least loss of a matrix that is feasible for the disjoint patterns: X_p <= Diag(l), sum l <= 1."""
    import cvxpy

    target = Problem(spec).target
    m, n = target.shape
    x, y = cvxpy.Variable((n, n), PSD=True), cvxpy.Variable((m, m), PSD=True)
    constraints = [cvxpy.bmat([[x, target.T], [target, y]]) >> 0]
    for pattern in patterns_of(spec):
        steps = pattern[pattern >= 0]
        shares = cvxpy.Variable(len(steps))
        block = cvxpy.bmat([[x[i, j] for j in steps] for i in steps])
        constraints += [cvxpy.diag(shares) - (block + block.T) / 2 >> 0, cvxpy.sum(shares) <= 1]
    found = cvxpy.Problem(cvxpy.Minimize(cvxpy.trace(y)), constraints).solve(solver="CLARABEL")
    return float(found) * spec.objective.scale(spec.workload.m)


@pytest.mark.parametrize(
    "spec",
    [
        apart(9, 3),
        apart(10, 4),
        apart(11, 2, 3),
        apart(8, 1, 3),
        apart({"kind": "momentum", "n": 9, "momentum": 0.8}, 2),
        apart({"kind": "window", "n": 10, "width": 4}, 3, objective={"kind": "lambda_tau", "tau": 2}),
        apart({"kind": "schedule", "n": 9, "learning_rates": [1, 0.5, 2, 1, 0, 1, 0.1, 1, 3]}, 2, 4),
        apart({"kind": "schedule", "n": 9, "learning_rates": [1, 1, 0.5, 0.5, 2, 1, 1, 0, 0]}, 2, 2),
        apart({"kind": "schedule", "n": 8, "learning_rates": [1, 1, 0.5, 0.5, 2, 1, 1, 0]}, 1, 7),
        apart({"kind": "weight_decay", "n": 8, "rate": 0.3, "mode": "coupled", "momentum": 0.5}, 3),
    ],
    ids=lambda spec: f"{spec.workload.kind}-{spec.participation.min_sep}-{spec.participation.max_participations}",
)
def test_agrees_with_the_conic_program(spec: Spec) -> None:
    optimum = conic_optimum(spec)
    assert optimum * (1 - 3e-4) < bound_of(spec) < optimum * (1 + 2e-5)


@pytest.mark.parametrize("ring", [True, False])
@pytest.mark.parametrize("workload", [20, {"kind": "weight_decay", "n": 24, "rate": 0.2, "mode": "decoupled"}])
def test_who_may_take_part_in_every_step_has_a_diagonal_optimum(
    workload: int | Document, ring: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X is diagonal with trace 1, so the loss is sum M_ii / x_i, which is least at (sum sqrt(M_ii))^2."""
    monkeypatch.setattr(separated_evidence, "_MOST_EPOCHS", 1 << 20 if ring else 0)
    spec = apart(workload, 1)
    optimum = np.linalg.norm(Problem(spec).target, axis=0).sum() ** 2 * spec.objective.scale(spec.workload.m)
    assert optimum * (1 - 3e-4) < bound_of(spec) < optimum * (1 + 1e-12)


@pytest.mark.parametrize(
    ("workload", "b", "most"),
    [
        ("prefix", 9, None),
        ("prefix", 16, 3),
        ("prefix", 7, 12),
        ("prefix", 3, None),
        ("momentum", 9, None),
        ("momentum", 16, 3),
        ("window", 12, None),
    ],
)
def test_certifies_what_decompositions_and_newtons_method_do(workload: str, b: int, most: int | None) -> None:
    more = {"momentum": {"momentum": 0.9}, "window": {"width": 20}}.get(workload, {})
    spec = apart({"kind": workload, "n": 100} | more, b, most)
    patterns, target = patterns_of(spec), Problem(spec).target
    order = patterns.ravel().copy()
    missing = order < 0
    order[missing] = len(target) + np.arange(missing.sum())
    wide = np.hstack([target, np.zeros((len(target), int(missing.sum())))])
    search = DecompositionSearch(start(wide, order, patterns.shape[1]), lambda _step, _gap: None)
    search.run(1e-3)
    other = separated_lower_bound(spec, {"factors": search.dual.factors})
    assert other is not None
    assert other.objective * (1 - 1e-4) < bound_of(spec) < other.objective * (1 + 1e-3)


def pieces_of(n: int, b: int, most: int, seed: int) -> tuple[PieceRing, WholeTarget, np.ndarray]:
    """A ring of random rates, the same target whole, and definite blocks of patterns with constant diagonals."""
    rng = np.random.default_rng(seed)
    patterns, epochs = disjoint_patterns(n, b, most), -(-n // b)
    extra = epochs * b - n
    p, q = np.exp(0.3 * rng.normal(size=(2, epochs * b)))
    q[0] = 0.0
    whole = np.linalg.inv(np.diag(p) - np.diag(q[1:], -1))
    # Without the steps that nobody has, whose rows of A mean nothing to the others.
    target = np.linalg.cholesky((whole.T @ whole)[extra:, extra:]).T
    pieces = PieceRing(Ring(p, q, epochs), np.where(patterns >= 0, patterns + extra, -1))
    blocks = rng.normal(size=(*patterns.shape, 2 * patterns.shape[1]))
    here = patterns >= 0
    blocks = blocks @ blocks.swapaxes(1, 2) * (here[:, :, None] & here[:, None, :])
    place = np.arange(patterns.shape[1])
    blocks[:, place, place] = np.where(here, blocks[:, place, place], 1.0)
    roots = np.sqrt(blocks[:, place, place])
    dual = blocks / roots[:, :, None] / roots[:, None, :] * rng.uniform(0.5, 2.0, size=(len(patterns), 1, 1))
    return pieces, WholeTarget(target, patterns), dual / dual[:, 0, 0].sum()


@settings(max_examples=40)
@given(st.integers(1, 7), st.integers(4, 30), st.integers(2, 6), st.integers(0, 10_000))
def test_both_resolvents_of_pieces_agree(b: int, n: int, most: int, seed: int) -> None:
    pieces, target, dual = pieces_of(n, b, most, seed)
    poles = pieces.poles(dual, 1e-13)
    x, y = pieces.gradient(dual, poles)
    other, also = target.gradient(dual, target.poles(dual, 1e-13))
    np.testing.assert_allclose(x, other, atol=1e-9 * np.abs(other).max())
    rings, decompositions = measure(dual, x, y, float(poles.weights.sum())), measure(dual, other, also, 0.0)
    np.testing.assert_allclose(rings, decompositions, rtol=1e-6)


@settings(max_examples=40)
@given(st.integers(1, 7), st.integers(4, 30), st.integers(2, 6), st.integers(0, 10_000))
def test_poles_cover_the_spectrum_within_the_patterns(b: int, n: int, most: int, seed: int) -> None:
    pieces, target, dual = pieces_of(n, b, most, seed)
    found = pieces.poles(dual, 1e-6)
    factors = np.linalg.cholesky(dual)
    products = np.concatenate(list(target._columns @ factors), axis=1)
    squares = np.linalg.svd(products, compute_uv=False) ** 2
    squares = squares[: target.size][squares[: target.size] > 0]
    assert found.lower <= 1 / squares.max() * (1 + 1e-9) and 1 / squares.min() <= found.upper * (1 + 1e-9)


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10_000))
def test_the_ends_of_whole_classes_are_those_of_the_interval(b: int, k: int, seed: int) -> None:
    pieces, _, dual = pieces_of(b * k, b, k, seed)
    ring, diagonal = pieces.ring, pieces._diagonal
    ends = left_end(ring.p, ring.q, dual, diagonal), right_end(dual, np.ascontiguousarray(diagonal.reshape(k, b).T))
    assert interval(ring.p, ring.q, dual) == pytest.approx(ends, rel=1e-12)


@pytest.mark.parametrize(("n", "b", "most"), [(250, 8, None), (256, 8, None), (250, 8, 16), (256, 4, None)])
def test_weights_of_few_epochs_leave_few_steps(n: int, b: int, most: int | None) -> None:
    """From the norms of columns it takes 14 to 18 steps with all epochs."""
    steps: list[int] = []
    banded_evidence(apart(n, b, most), Reporter(lambda step: steps.append(step.iteration)))
    last = len(steps) - steps[::-1].index(1)
    assert len(steps[last:]) <= 7


def test_few_epochs_of_patterns_that_none_of_them_meets_get_the_least_weight() -> None:
    p, q = np.ones((2, 60))
    q[0] = 0.0
    places = np.full((5, 17), -1)
    places[0, :15] = np.arange(0, 60, 4)
    places[1, :15] = np.arange(1, 60, 4)
    places[2, :13] = np.arange(2, 54, 4)
    places[3, :15] = np.arange(3, 60, 4)
    places[4, :2] = [54, 58]
    pieces = PieceRing(Ring(p, q, 15), places)
    weights = start_of(pieces, lambda _step, _gap: None)[:, 0, 0]
    assert weights.sum() == pytest.approx(1) and weights[4] == weights.min() > 0 and weights[0] == weights.max()


def test_a_search_ends_when_it_is_asked_to() -> None:
    def stop(_step: Progress) -> None:
        raise Cancelled("enough")

    for spec in (apart(40, 6), apart({"kind": "momentum", "n": 40, "momentum": 0.9}, 6)):
        with pytest.raises(Cancelled):
            banded_evidence(spec, Reporter(stop))
