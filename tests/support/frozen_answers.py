"""The answers to the cases of the contract suite as they are kept, and what a new answer changes of them.

`python tests/support/frozen_answers.py` keeps them anew. A formula's sensitivity is at least the one that is kept and at most 1e-9
above it, and its loss the same to 1e-9. The digits of an optimum follow the processor's: its loss may differ by twice the
tolerance of the cases, 1e-6, and its sensitivity and lower bound, which are of another C and another dual, by 1e-4.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cases import PARTICIPATIONS, SIZES, N, case_of, covering, small

from factorize import solvers
from factorize.errors import CertificateError, UnsupportedProblem
from factorize.factors.factorization import Factorization

TABLE = Path(__file__).parents[1] / "data" / "frozen-answers.json"
FORMULAS = {
    "nu_toeplitz", "square_root", "square_root with unit columns", "identity", "banded_square_root",
    "banded_inverse_square_root", "banded_inverse_fractional_root", "lambda_cgd", "tree", "tree with estimates",
    "tree with all nodes, restarted", "fft", "fft with the best decoder", "anti_pgd",
}  # fmt: skip
ROUNDING = 1e-12
Case = tuple[str, str, str, str]


def every_case() -> list[tuple[int, Case]]:
    """Return all cases, each with its number of steps."""
    cases = [(N, case) for case in small(len(PARTICIPATIONS))]
    return cases + [(n, case) for n in SIZES for case in covering(n)]


def name_of(n: int, case: Case) -> str:
    """Return the key of a case."""
    return f"{n}: {'; '.join(case)}"


def numbers(answer: Factorization | None) -> list[float | None] | None:
    """Return sensitivity, objective and lower bound; None for a refusal, and for what another workload was taken for."""
    if answer is None or answer.spec.optimize_for is not None:
        return None
    certificate = answer.certificate
    bound = certificate.lower_bound
    return [certificate.sensitivity.value, certificate.loss.objective, None if bound is None else bound.objective]


def changes(answer: Factorization | None, n: int, case: Case) -> list[str]:
    """Return what an answer changes of the one that is kept."""
    before, now = kept()[name_of(n, case)], numbers(answer)
    if before is None or now is None:
        return [] if before is now else [f"was {before}, is {now}"]
    exact = case[0] in FORMULAS
    above, below = (1e-9, ROUNDING) if exact else (1e-4, 1e-4)
    allowed = {
        "sensitivity": (below, above),
        "objective": (1e-9, 1e-9) if exact else (2e-6, 2e-6),
        "lower bound": (1e-4, 1e-4),
    }
    found = []
    for (name, (less, more)), old, new in zip(allowed.items(), before, now, strict=True):
        same = (old is None) == (new is None)
        if old is not None and new is not None:
            same = old * (1 - less) <= new <= old * (1 + more)
        if not same:
            found.append(f"{name} was {old!r}, is {new!r}")
    return found


_kept: dict[str, Any] = {}


def kept() -> dict[str, Any]:
    """Return the table."""
    if not _kept:
        _kept.update(json.loads(TABLE.read_text()))
    return _kept


def answer_of(n: int, case: Case) -> Factorization | None:
    """Solve a case; None where it is refused."""
    try:
        return solvers.solve(case_of(*case, n=n))
    except (UnsupportedProblem, CertificateError):
        return None


if __name__ == "__main__":
    lines = [f"{json.dumps(name_of(*each))}: {json.dumps(numbers(answer_of(*each)))}" for each in every_case()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
