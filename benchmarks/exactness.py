"""Every answer of the contract suite, checked again in exact arithmetic.

Each mechanism on each workload under each participation, as in the contract tests. Goals: nothing understated, nothing
left unsupported, and claims of kind `exact` at most one unit in the last place above the true value.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from benchmarks.report import Report, at_least
from factorize.errors import FactorizeError, UnsupportedProblem
from factorize.exact import check_factor_file

SLOW = "semidefinite"


def answers(cases: Any, mechanism: str, workloads: list[str]) -> Iterator[Any]:
    """All that a mechanism answers."""
    from factorize import parse_spec, solvers

    for workload, participation in itertools.product(workloads, cases.PARTICIPATIONS):
        document = {
            "workload": cases.WORKLOADS[workload],
            "participation": cases.PARTICIPATIONS[participation],
            "mechanism": cases.MECHANISMS[mechanism],
            "tolerance": 1e-6,
        }
        try:
            yield solvers.solve(parse_spec(document))
        except UnsupportedProblem:
            continue


def finding(files: Any, result: Any) -> str:
    """Return `supported`, or what is wrong with a result."""
    from factorize.workloads import UserMatrix

    workload, claim = result.spec.workload, result.certificate.sensitivity
    user = {str(workload.sha256): workload.array} if isinstance(workload, UserMatrix) else {}
    try:
        report = check_factor_file(files.sealed(*files.parts(result)), user=user)
    except FactorizeError as error:
        return f"refused: {error}"
    units = report.sensitivity["overstated_ulps"]
    if units < 0:
        return "understated"
    if report.failed or "certificate.loss" in report.unseen:
        return f"not supported: {[*report.failed, *report.not_checked]}"
    return "an exact claim more than one unit above" if claim.kind == "exact" and units > 1 else "supported"


def run(report: Report) -> None:
    """Count by mechanism."""
    cases, files = import_module("cases"), import_module("exact_files")
    workloads = list(cases.WORKLOADS)[: 2 if report.quick else None]
    for mechanism in cases.MECHANISMS:
        if mechanism == SLOW and report.quick:
            continue
        began, found = time.process_time(), Counter[str]()
        for result in answers(cases, mechanism, workloads):
            words = finding(files, result)
            found[words.partition(":")[0]] += 1
            if words != "supported":
                report.remark(f"{mechanism}, {result.spec.document()}: {words[:300]}")
        count = sum(found.values())
        goals = [at_least(f"supported of {count}", found["supported"], count)]
        seconds = time.process_time() - began
        report.row(mechanism, seconds=seconds, ratio=found["supported"] / count, of="the answers", goals=goals)
