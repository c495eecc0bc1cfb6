"""Each step's noise takes a share of the next one's: C = I + share x (the diagonal below)."""

from __future__ import annotations

import numpy as np
from factorize.structures.bidiagonal import BidiagonalMatrix

from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.problem import Estimate, Problem, estimate_of
from factorize.spec import Spec
from factorize.spec.mechanisms import Neighbours


def supports(spec: Spec) -> str | None:
    """Every finite spec."""
    return None


def estimate(spec: Spec) -> Estimate:
    """Two numbers for each step."""
    return estimate_of(entries=2.0 * spec.workload.n, multiplications=spec.workload.n)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the formula."""
    mechanism = problem.spec.mechanism
    assert isinstance(mechanism, Neighbours)
    below = np.full(problem.n, mechanism.share)
    below[0] = 0.0
    return Solution(BidiagonalMatrix(np.ones(problem.n), below), Outcome.CLOSED_FORM, 1)
