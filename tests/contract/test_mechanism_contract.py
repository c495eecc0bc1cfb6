"""Every mechanism on small specs: a certified answer or UnsupportedProblem, and nothing else.

Of 12 steps every mechanism meets every workload, each time with the participation and the objective whose turn it is, so that any
two of the four have met; WHOLE_PRODUCTS=1 takes every participation and every objective each time. Answers of the objective in
turn are checked again in exact arithmetic: nothing is understated, and what is called exact is attained within 1e-9.
"""

import itertools
import os

import numpy as np
import pytest
from cases import (
    FAST,
    MECHANISMS,
    OBJECTIVES,
    PARTICIPATIONS,
    SIZES,
    WORKLOADS,
    N,
    case_of,
    covering,
    in_turn,
    small,
)
from checker_files import parts, sealed
from frozen_answers import changes
from scipy.linalg import solve_triangular
from specs import solved

from factorize import solvers
from factorize.checker.check import check_factor_file
from factorize.errors import CertificateError, UnsupportedProblem
from factorize.workloads import UserMatrix

WHOLE = bool(os.environ.get("WHOLE_PRODUCTS"))


def true_loss(found):
    """The objective at sensitivity 1 by explicit inversion, sharing nothing with solvers and certificates."""
    strategy = found.strategy.dense()
    workload = found.spec.workload.dense()
    decoder = solve_triangular(strategy, workload.T, trans="T", lower=True).T
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
        if certificate.relative_gap > spec.tolerance:
            allowed = {"dense": 1e-3, "semidefinite": 1.0}[spec.mechanism.kind]
            apart = spec.participation.free  # C is the best by absolute sums, the bound one for vectors
            assert certificate.relative_gap <= allowed and (apart or deficient(spec)), certificate.warnings
        assert certificate.converged == (certificate.relative_gap <= spec.tolerance)
        assert sensitivity.value == pytest.approx(1, abs=1e-9)
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
    try:
        found = solvers.solve(spec)
    except CertificateError as refusal:
        assert spec.workload.n > N and "ill-conditioned" in str(refusal) and "; use " in str(refusal)
        return None
    assert found.spec == chosen
    check(found, chosen)
    return found


def check_exactly(found):
    workload, spec = found.spec.workload, found.spec.document()
    user = {str(workload.sha256): workload.array} if isinstance(workload, UserMatrix) else {}
    report = check_factor_file(sealed(*parts(found)), user=user)
    assert report.supported, (spec, report.failed)
    unproved = [
        text for text in report.not_checked if "losses" in text and not text.startswith("residual: no B is stored")
    ]
    if (
        unproved and np.linalg.matrix_rank(workload.dense()) < workload.n
    ):  # the optimum is approached by nearly singular C
        unproved = [text for text in unproved if "C is too ill-conditioned" not in text and "relative gap" not in text]
    assert not unproved, (spec, report.not_checked)
    lower, upper = (report.sensitivity[end] for end in ("lower", "upper"))
    stated = found.certificate.sensitivity
    headroom = 1e-8 if "C.lag" in parts(found)[1] else 1e-9  # buffers of a stored inverse may cancel to a 10,000th
    assert upper <= stated.value <= upper * (1 + headroom), spec
    assert stated.kind == "upper_bound" or stated.value <= lower * (1 + 1e-9), spec


def test_any_two_have_met():
    names = (FAST, WORKLOADS, PARTICIPATIONS, OBJECTIVES)
    for left, right in ((0, 2), (0, 3), (1, 2), (2, 3)):
        met = {(case[left], case[right]) for case in covering(N)}
        assert met == set(itertools.product(names[left], names[right]))


@pytest.mark.parametrize("mechanism", FAST)
@pytest.mark.parametrize("n", [pytest.param(N, marks=pytest.mark.always), *SIZES])
def test_every_mechanism_answers_or_refuses(n, mechanism):
    for case in small(len(PARTICIPATIONS)) if WHOLE and n == N else covering(n):
        if case[0] == mechanism:
            found = answers(case_of(*case, n=n))
            assert not changes(found, n, case)
            if found is not None:
                check_exactly(found)
            for objective in in_turn(*case[:3])[1:] if WHOLE and n == N else ():
                answers(case_of(*case[:3], objective))


@pytest.mark.parametrize("mechanism", FAST)
def test_every_mechanism_answers_something_in_its_turn(mechanism):
    chosen = solvers.choose(case_of(mechanism, "prefix", "single", "mean"))
    assert mechanism == "auto" or chosen.mechanism.kind == MECHANISMS[mechanism]["kind"]


@pytest.mark.parametrize("objective", ["mean", "lambda_tau"])
@pytest.mark.parametrize("participation", ["single", "fixed epochs", "min_sep"])
@pytest.mark.parametrize("workload", ["prefix", "momentum with a schedule", "tall matrix"])
def test_the_conic_reference_answers_or_refuses(workload, participation, objective):
    spec = case_of("semidefinite", workload, participation, objective, tolerance=1e-3)
    found = answers(spec)
    assert (found is None) == (participation == "min_sep")
    if found is not None:
        dense = solvers.solve(case_of("dense", workload, participation, objective))
        assert found.certificate.loss.objective >= dense.certificate.lower_bound.objective * (1 - 1e-12)


@pytest.mark.parametrize("objective", ["mean", "lambda_tau", "weighted"])
@pytest.mark.parametrize("participation", ["single", "fixed epochs"])
@pytest.mark.parametrize("mechanism", ["nu_toeplitz", "square_root", "identity"])
def test_closed_forms_state_their_gap(mechanism, participation, objective):
    found = solvers.solve(case_of(mechanism, "prefix", participation, objective))
    dense = solvers.solve(case_of("dense", "prefix", participation, objective))
    assert found.certificate.lower_bound.objective == pytest.approx(dense.certificate.lower_bound.objective, rel=1e-5)
    assert found.certificate.converged


@pytest.mark.parametrize("mechanism", ["blt", "toeplitz", "nu_toeplitz normalised", "banded_inverse_square_root"])
def test_blocks_as_long_as_the_run_weigh_rows(mechanism):
    """Lambda_n is diagonal: 1 in the last row and n^-1/2 in all others."""
    rows = {"kind": "weighted", "weights": [1 / N] * (N - 1) + [1.0]}
    restarted, weighted = (
        solved(N, MECHANISMS[mechanism], PARTICIPATIONS["fixed epochs"], objective)
        for objective in ({"kind": "lambda_tau", "tau": N}, rows)
    )
    assert restarted.certificate.loss.objective == pytest.approx(weighted.certificate.loss.objective, rel=1e-9)


@pytest.mark.parametrize("mechanism", ["dense", "nu_toeplitz tuned", "square_root"])
def test_one_workload_optimised_and_another_evaluated(mechanism):
    spec = case_of(mechanism, "momentum", "single", "mean", optimize_for=WORKLOADS["prefix"])
    found = solvers.solve(spec)
    other = solvers.solve(case_of(mechanism, "prefix", "single", "mean"))
    own = solvers.solve(case_of("dense", "momentum", "single", "mean"))
    assert np.allclose(found.strategy.dense(), other.strategy.dense(), rtol=0, atol=1e-7)
    assert found.certificate.loss.objective > own.certificate.loss.objective
    assert found.certificate.lower_bound.objective <= own.certificate.loss.objective
    assert found.certificate.relative_gap > 1e-3
