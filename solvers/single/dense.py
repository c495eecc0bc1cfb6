"""Single participation, any workload: the optimum over all lower-triangular matrices, by decompositions.

Minimise ||T C^-1||_F^2 over C with column norms at most 1, for a target T of shape (m, n): maximise the dual
(single/ascent.py) and read C off it (single/recovery.py).
"""

import numpy as np

from factorize.errors import InvalidParameter
from factorize.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.budget import Estimate, estimate_of, refuse_beyond_dense
from factorize.solvers.problem import Problem, Reporter
from factorize.solvers.single.ascent import maximise, scaled
from factorize.solvers.single.recovery import recover
from factorize.spec import Spec

_UNIT = 2.0**-52
_PARTS = (1e-2, 1e-4)  # of the tolerance, each if the answer before does not meet it


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    refusal = refuse_objective(spec)
    if refusal is None and not spec.participation.single:
        return (
            f"the optimum over all matrices for participation {spec.participation.kind!r} is not known; use "
            "nu_toeplitz or square_root, whose sensitivity under min_sep is exact"
        )
    return refusal


def refuse_objective(spec: Spec) -> str | None:
    """Return why no fixed target expresses the objective, or None."""
    if not spec.objective.quadratic:
        return (
            "objective 'max' is optimised by 'dense' and 'auto' for single participation only; for others use "
            "nu_toeplitz or square_root, or optimise 'mean' or 'weighted' and read max_error from the result"
        )
    return refuse_weights(spec)


def refuse_weights(spec: Spec) -> str | None:
    """Return why the objective's weights do not fit the workload to optimise for, or None."""
    try:
        spec.objective.check((spec.optimize_for or spec.workload).m)
    except InvalidParameter as error:
        return f"optimize_for: {error}"
    return None


def estimate(spec: Spec) -> Estimate:
    """Return the cost: about eight decompositions and two hundred products of n x n matrices."""
    n, m = spec.workload.n, max(spec.workload.m, spec.workload.n)
    return refuse_beyond_dense(estimate_of(entries=12.0 * n * m, multiplications=800.0 * n * n * m), n, m)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum of a spec with single participation.

    Raises:
        SolveFailed: the target leaves the range of double precision.
    """
    report = Reporter(progress)
    target = scaled(problem.target[:, problem.kept])
    ascent = maximise(target, problem.tolerance, report)
    strategy, loss = recover(ascent.best, problem.tolerance)
    for part in _PARTS:
        if loss <= ascent.best.lower * (1 + problem.tolerance):
            break
        ascent = maximise(target, part * problem.tolerance, report, start=ascent)  # its gap was an estimate
        strategy, loss = recover(ascent.best, problem.tolerance)
    rounding = _UNIT * problem.n  # of the loss, below which a tolerance is met by chance
    reached = loss * (1 + rounding) <= ascent.best.lower * (1 + problem.tolerance)
    whole = np.eye(problem.n)
    whole[np.ix_(problem.kept, problem.kept)] = strategy
    return Solution(
        strategy=problem.with_unit_sensitivity(whole),
        outcome=Outcome.CONVERGED if reached else _short_of(ascent.outcome),
        iterations=ascent.steps,
        dual={"weights": restore_weights(ascent.best.v, problem.kept)},
    )


def _short_of(outcome: Outcome) -> Outcome:
    """The ascent met its own rule, and C the tolerance not: rounding is what remains between them."""
    return Outcome.ROUNDING_LIMIT if outcome is Outcome.CONVERGED else outcome


def restore_weights(v: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return dual weights for all n columns, summing to 1: zero where the column of the target is zero."""
    weights = np.zeros(len(kept))
    weights[kept] = v / v.sum()
    return weights
