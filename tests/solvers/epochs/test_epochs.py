"""The dense optimum for fixed epochs, against published values, other formulations and brute force."""

import numpy as np
import pytest
from specs import solved, spec_of

from factorize.errors import SolveFailed
from factorize.solvers import solve
from factorize.solvers.epochs import blocks, recursions, ring
from factorize.solvers.methods import compiled
from factorize.solvers.problem import Problem


def in_classes(found):
    """The blocks of X = C^T C within the classes, shape (b, k, k)."""
    strategy = found.strategy.dense()
    gram = strategy.T @ strategy
    patterns = found.spec.participation.patterns(len(gram))
    return np.array([gram[np.ix_(pattern, pattern)] for pattern in patterns])


@pytest.mark.parametrize(("k", "b"), [(2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2)])
def test_published_prefix_optima(vectors, k, b):
    expected = vectors[f"F.prefix.k{k}.b{b}"]
    found = solved(k * b, "dense", k, tolerance=1e-9)
    total = found.certificate.loss.total_squared
    assert total == pytest.approx(expected["masked_total"], rel=1e-6)
    assert k * b * found.certificate.lower_bound.objective == pytest.approx(expected["lower"], rel=1e-6)
    for variant in ("nonneg", "exact_vector"):
        assert total == pytest.approx(expected.get(variant, total), rel=1e-6)
    strategy = found.strategy.dense()
    if "C" in expected:
        assert np.allclose(strategy, expected["C"], rtol=0, atol=1e-3)
        assert np.allclose(strategy.T @ strategy, expected["X"], rtol=0, atol=1e-3)


@pytest.mark.parametrize(("k", "b"), [(2, 2), (3, 4), (4, 4)])
def test_reference_prefix_optima(reference_values, k, b):
    expected = reference_values[f"P2-prefix-k{k}-b{b}"]
    certificate = solved(k * b, "dense", k, tolerance=1e-10).certificate
    assert certificate.loss.total_squared == pytest.approx(expected["optimal_loss"], rel=1e-9)
    assert k * b * certificate.lower_bound.objective == pytest.approx(expected["dual_bound"], rel=1e-9)


@pytest.mark.parametrize(("k", "b", "optimum"), [(4, 128, 16209.859698), (8, 64, 37664.550409), (16, 32, 99920.668365)])
def test_optima_of_512_steps(k, b, optimum):
    """By blocks of a folded ring."""
    found = solved(512, "dense", k, tolerance=1e-9).certificate
    assert found.converged
    assert found.loss.total_squared == pytest.approx(optimum, rel=2e-9)
    assert 512 * found.lower_bound.objective == pytest.approx(optimum, rel=2e-9)


def test_closed_forms_state_their_gap_over_epochs():
    found = solved(1024, "square_root", 8).certificate
    assert 1024 * found.lower_bound.objective == pytest.approx(85401.5609, rel=1e-7)
    assert 0.5 < found.relative_gap < 2


def test_the_sensitivity_is_exact_and_one():
    found = solved(24, "dense", 4, tolerance=1e-6)
    sensitivity = found.certificate.sensitivity
    assert sensitivity.kind == "exact"
    assert 1 - 1e-9 < sensitivity.value <= 1
    blocks = in_classes(found)
    assert np.abs(blocks * (1 - np.eye(4))).max() < 1e-14
    assert np.allclose(np.einsum("jss->j", blocks), 1, atol=1e-12)


def test_one_class_has_a_closed_form():
    """With b = 1 every pair of steps is in one class: X is diagonal, and the optimum is (sum_j ||A e_j||)^2."""
    found = solved(6, "dense", 6, tolerance=1e-9)
    expected = sum(np.sqrt(np.arange(6, 0, -1))) ** 2
    assert found.certificate.loss.total_squared == pytest.approx(expected, rel=1e-8)


def test_a_tolerance_below_rounding_gets_an_honest_gap():
    found = solved(16, "dense", 4, tolerance=1e-17)
    assert not found.certificate.converged
    assert 0 < found.certificate.relative_gap < 1e-11


@pytest.mark.parametrize("part", [4, {"kind": "min_sep", "min_sep": 36}])
def test_weights_of_twenty_decades_warn_of_nothing(part):
    """Correlations and bounds of steps that hardly count are lost to rounding on the way; the bound stands."""
    weights = {"kind": "weighted", "weights": [float(10 ** (10 * np.sin(7 * i))) for i in range(144)]}
    found = solved(144, "dense" if part == 4 else "identity", part, weights, tolerance=1e-6).certificate
    assert found.converged and found.lower_bound is not None


def test_numbers_out_of_range_are_refused(monkeypatch):
    monkeypatch.setattr(recursions, "MAX_N_REPLACED", 1)
    workload = {"kind": "momentum", "n": 64, "momentum": 0.9, "learning_rates": [1e-300] * 32 + [1e300] * 32}
    with pytest.raises(SolveFailed, match="rescale"):
        recursions.solve(Problem(spec_of(workload, "dense", 4).canonical()), lambda _step: None)


@pytest.mark.parametrize("nesterov", [False, True], ids=["blocks", "ring"])
def test_an_answer_has_the_same_digits_on_one_processor_and_on_two(nesterov, monkeypatch):
    """So that two people who build the library have the same claims."""
    for module in (blocks, ring):
        monkeypatch.setattr(module, "_PARALLEL_WORK", -1)
    rates = {"kind": "cosine", "final": 0.0}
    workload = {"kind": "momentum", "n": 128, "momentum": 0.9, "learning_rates": rates, "nesterov": nesterov}
    spec, found = spec_of(workload, "dense", 4, tolerance=1e-3), []
    for processors in (1, 2):
        for module in (compiled, blocks, ring):
            monkeypatch.setattr(module, "CORES", processors, raising=False)
        found.append(solve(spec, evidence=False).digest)
    assert found[0] == found[1]
