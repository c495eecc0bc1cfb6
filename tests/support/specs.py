"""Specs in few words, and their solutions."""

from __future__ import annotations

import json
from typing import Any

from factorize import solvers
from factorize.factors.factorization import Factorization
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.spec import Spec, parse_spec
from factorize.structures.base import Matrix

SOLVER = {"mechanism": "square_root", "version": "0", "seconds": 0.0, "environment": {}}

Part = str | dict[str, Any] | None


def document_of(
    workload: int | Part,
    /,
    mechanism: Part = None,
    participation: int | Part = None,
    objective: Part = None,
    **more: Any,
) -> dict[str, Any]:
    """Write a spec that states what is given and nothing else.

    Args:
        workload: prefix sums of so many steps, a kind, or fields; fields with a workload among them are those of a whole
            spec, over which the rest is written.
        mechanism: a kind, or fields.
        participation: so many epochs, a kind, or fields.
        objective: a kind, or fields.
        more: further fields of the spec; `n` is the workload's.
    """
    document = workload if isinstance(workload, dict) and "workload" in workload else {"workload": workload}
    parts = {"mechanism": mechanism, "participation": participation, "objective": objective}
    document = {**document, **{name: part for name, part in parts.items() if part is not None}, **more}
    n = {"n": document.pop("n")} if "n" in document else {}
    document = {name: _fields(name, part) for name, part in document.items()}
    return {**document, "workload": {**document["workload"], **n}}


def _fields(name: str, part: Any) -> Any:
    if isinstance(part, int) and name in ("workload", "optimize_for"):
        return {"kind": "prefix", "n": part}
    if isinstance(part, int) and name == "participation":
        return {"kind": "fixed_epochs", "epochs": part}
    return {"kind": part} if isinstance(part, str) else part


def spec_text(*parts: Any, **more: Any) -> str:
    """Write what `document_of` takes as JSON."""
    return json.dumps(document_of(*parts, **more))


def spec_of(*parts: Any, **more: Any) -> Spec:
    """Parse what `document_of` takes."""
    return parse_spec(document_of(*parts, **more))


def solved(*parts: Any, progress: ProgressCallback | None = None, evidence: bool = True, **more: Any) -> Factorization:
    """Solve a spec, or what `document_of` takes; without evidence for a bound where nobody asks for one."""
    spec = parts[0] if isinstance(parts[0], Spec) else spec_of(*parts, **more)
    return solvers.solve(spec, progress=progress, evidence=evidence)


def claimed(
    spec: Spec, strategy: Matrix, outcome: Outcome = Outcome.CLOSED_FORM, *, dual: Any = None, solver: Any = SOLVER
) -> Factorization:
    """Certify a strategy that no solver has found as the answer to a spec."""
    return Factorization.from_solution(spec, Solution(strategy, outcome, 0, dual or {}), solver=solver)
