"""Every mechanism on every small spec: a certified answer or UnsupportedProblem, and nothing else."""

import itertools

import numpy as np
import pytest
from cases import MECHANISMS, OBJECTIVES, PARTICIPATIONS, WORKLOADS

from factorize import parse_spec, solvers
from factorize.errors import UnsupportedProblem

FAST = [name for name in MECHANISMS if name != "semidefinite"]
EVERY = list(itertools.product(FAST, WORKLOADS))


def spec_of(mechanism, workload, participation, objective, **more):
    document = {
        "workload": WORKLOADS[workload],
        "participation": PARTICIPATIONS[participation],
        "objective": OBJECTIVES[objective],
        "mechanism": MECHANISMS[mechanism],
        "tolerance": 1e-6,
        **more,
    }
    return parse_spec(document)


def fits(workload, objective):
    """Weights are one per output, and two of the matrices have another number of outputs."""
    return objective != "weighted" or parse_spec({"workload": WORKLOADS[workload]}).workload.m == 12


def true_loss(found):
    """The objective at sensitivity 1 by explicit inversion, sharing nothing with solvers and certificates."""
    strategy = found.strategy.dense()
    workload = found.spec.workload.dense()
    decoder = np.linalg.lstsq(strategy.T, workload.T, rcond=None)[0].T
    objective, m = found.spec.objective, len(workload)
    errors = (decoder**2).sum(axis=1)
    match objective.kind:
        case "mean":
            return errors.mean()
        case "max":
            return errors.max()
        case "weighted":
            return np.dot(objective.weights, errors)
    total, tau = 0.0, objective.tau
    for t in range(1, m + 1):
        reference = t - tau if t % tau == 0 else t // tau * tau
        before = decoder[reference - 1] if reference else 0.0
        total += ((decoder[t - 1] - before) ** 2).sum() * (1.0 if t % tau == 0 else 1 / tau)
    return total


def deficient(spec):
    """Whether the weighted workload has dependent columns, so that the optimum is approached and not attained."""
    if spec.objective.kind == "max":
        return False
    target = spec.objective.weigh(spec.workload.dense())
    return np.linalg.matrix_rank(target) < target.shape[1]


def check(found, spec):
    certificate = found.certificate
    sensitivity = certificate.sensitivity
    assert certificate.loss.objective == pytest.approx(sensitivity.value**2 * true_loss(found), rel=1e-7)
    if certificate.lower_bound is not None:
        assert certificate.lower_bound.objective <= certificate.loss.objective
    if spec.mechanism.unrestricted:
        # The conic reference takes its dual from the inverse of a nearly singular X; it only has to be honest there.
        allowed = {"dense": 1e-3, "semidefinite": 1.0}[spec.mechanism.kind] if deficient(spec) else spec.tolerance
        assert certificate.relative_gap <= allowed, certificate.warnings
        assert certificate.converged == (certificate.relative_gap <= spec.tolerance)
        assert sensitivity.value == pytest.approx(1, abs=1e-13)
        assert sensitivity.value <= 1


def answers(spec):
    """Run the whole path; return the result, or None where the spec is refused."""
    try:
        chosen = solvers.choose(spec)
    except UnsupportedProblem as refusal:
        assert "; " in str(refusal) or "use " in str(refusal), "a refusal names a way out"
        with pytest.raises(UnsupportedProblem):
            solvers.solve(spec)
        with pytest.raises(UnsupportedProblem):
            solvers.estimate(spec)
        return None
    assert chosen.mechanism.kind != "auto"
    assert solvers.estimate(spec).bytes > 0
    found = solvers.solve(spec)
    assert found.spec == chosen
    check(found, chosen)
    return found


@pytest.mark.parametrize(("mechanism", "workload"), EVERY)
def test_every_mechanism_answers_or_refuses(mechanism, workload):
    for participation, objective in itertools.product(PARTICIPATIONS, OBJECTIVES):
        if fits(workload, objective):
            answers(spec_of(mechanism, workload, participation, objective))


@pytest.mark.parametrize("objective", ["mean", "lambda_tau"])
@pytest.mark.parametrize("participation", ["single", "fixed epochs", "min_sep"])
@pytest.mark.parametrize("workload", ["prefix", "momentum with a schedule", "tall matrix"])
def test_the_conic_reference_answers_or_refuses(workload, participation, objective):
    spec = spec_of("semidefinite", workload, participation, objective, tolerance=1e-3)
    found = answers(spec)
    assert (found is None) == (participation == "min_sep")
    if found is not None:
        dense = solvers.solve(spec_of("dense", workload, participation, objective))
        assert found.certificate.loss.objective >= dense.certificate.lower_bound.objective * (1 - 1e-12)


@pytest.mark.parametrize("objective", ["mean", "lambda_tau", "weighted"])
@pytest.mark.parametrize("participation", ["single", "fixed epochs"])
@pytest.mark.parametrize("mechanism", ["nu_toeplitz", "square_root", "identity"])
def test_closed_forms_state_their_gap(mechanism, participation, objective):
    found = solvers.solve(spec_of(mechanism, "prefix", participation, objective))
    dense = solvers.solve(spec_of("dense", "prefix", participation, objective))
    assert found.certificate.lower_bound.objective == pytest.approx(dense.certificate.lower_bound.objective, rel=1e-5)
    assert found.certificate.converged


@pytest.mark.parametrize("mechanism", ["dense", "nu_toeplitz tuned", "square_root"])
def test_one_workload_optimised_and_another_evaluated(mechanism):
    spec = spec_of(mechanism, "momentum", "single", "mean", optimize_for=WORKLOADS["prefix"])
    found = solvers.solve(spec)
    other = solvers.solve(spec_of(mechanism, "prefix", "single", "mean"))
    own = solvers.solve(spec_of("dense", "momentum", "single", "mean"))
    assert np.allclose(found.strategy.dense(), other.strategy.dense(), rtol=0, atol=1e-7)
    assert found.certificate.loss.objective > own.certificate.loss.objective
    assert found.certificate.lower_bound.objective <= own.certificate.loss.objective
    assert found.certificate.relative_gap > 1e-3
