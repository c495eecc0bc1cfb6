"""Every answer of the contract suite, checked again in exact arithmetic: nothing understated, exact kinds to one unit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from cases import MECHANISMS, OBJECTIVES, PARTICIPATIONS, WORKLOADS, N
from exact_files import parts, sealed

from factorize import parse_spec, solvers
from factorize.errors import UnsupportedProblem
from factorize.exact import Report, check_factor_file
from factorize.factorization import Factorization
from factorize.workloads import UserMatrix

FAST = [name for name in MECHANISMS if name != "semidefinite"]


def answers(mechanism: str) -> Iterator[Factorization]:
    """All that the mechanism answers; the objectives take turns, so that each meets each participation."""
    objectives = itertools.cycle(OBJECTIVES)
    for workload, participation in itertools.product(WORKLOADS, PARTICIPATIONS):
        objective = next(objectives)
        document = {
            "workload": WORKLOADS[workload],
            "participation": PARTICIPATIONS[participation],
            "objective": OBJECTIVES[objective],
            "mechanism": MECHANISMS[mechanism],
            "tolerance": 1e-6,
        }
        if objective == "weighted" and parse_spec({"workload": WORKLOADS[workload]}).workload.m != N:
            continue
        try:
            yield solvers.solve(parse_spec(document))
        except UnsupportedProblem:
            continue


def checked(result: Factorization) -> Report:
    workload = result.spec.workload
    user = {str(workload.sha256): workload.array} if isinstance(workload, UserMatrix) else {}
    return check_factor_file(sealed(*parts(result)), user=user)


@pytest.mark.parametrize("mechanism", FAST)
def test_every_answer_is_supported_exactly(mechanism: str) -> None:
    found = 0
    for result in answers(mechanism):
        found += 1
        report, spec = checked(result), result.spec.document()
        assert report.supported, (spec, report.failed)
        assert not any("losses" in text for text in report.not_checked), (spec, report.not_checked)
        units = report.sensitivity["overstated_ulps"]
        assert 0 <= units <= (1 if result.certificate.sensitivity.kind == "exact" else 1e15), (spec, units)
    assert found
