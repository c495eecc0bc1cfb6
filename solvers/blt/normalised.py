"""The best buffered Toeplitz matrix among those that will have their columns normalised, under one participation.

C diag(1 / |c_j|) has sensitivity 1, and its decoder is A diag(|c_j|) C^-1: no Toeplitz matrix, so the error is a
recursion of length n, and the few variables are moved by differences of it. The optimum without normalisation is a
poor start for the mean error and the one for the last row a good one: a column-normalised matrix protects every step
alike, as the objective `max` does.
"""

from collections.abc import Callable

import numpy as np

from factorize.solvers.blt.loss import ClosedLoss, SeriesLoss
from factorize.solvers.blt.parameters import BltPoint
from factorize.solvers.blt.starts import minimise, progressions
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Problem
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import BltMatrix

LARGEST = 16_384
_MOST_STEPS = 60
_FLATTEST = 1e-6  # of a gradient by differences


def unit_columns(matrix: BltMatrix) -> ColumnScaled:
    """Return the matrix with its columns divided by their norms."""
    return ColumnScaled(matrix, 1.0 / np.sqrt(matrix.column_norms_squared()))


def best_point(
    problem: Problem, loss: ClosedLoss | SeriesLoss, variables: Array, report: Callable[[int], None]
) -> BltPoint | None:
    """Return the best point for normalised columns, or None where there is no recursion for its error, or n is large.

    Args:
        problem: one participation, or None is returned.
        loss: without normalisation.
        variables: its minimum.
        report: told the number of each step; what it raises ends the search.
    """
    n, objective = problem.n, problem.objective
    by_errors = problem.participation.single and objective.by_row_errors(n)
    states = problem.workload.state_space() if by_errors else None
    if states is None:
        return None

    def error(at: Array) -> float:
        point = loss.parameters.at(at)
        errors = unit_columns(BltMatrix(point.theta, point.omega, n)).decoder_errors(states)
        value = np.inf if errors is None else objective.of_row_errors(errors)
        return float(np.log(value)) if 0 < value < np.inf else np.inf

    starts = [variables]
    if isinstance(loss, ClosedLoss) and loss.mean:
        last = ClosedLoss(loss.parameters.buffers, n, mean=False)
        first = progressions(last.parameters, n, n)
        starts.append(minimise(last, first, tolerance=1e-6, report=report).variables)
    best = min(starts, key=error)
    return loss.parameters.at(_polish(error, best, report) if n <= LARGEST else best)


def _polish(error: Callable[[Array], float], start: Array, report: Callable[[int], None]) -> Array:
    from scipy.optimize import minimize

    steps = 0

    def watch(_: Array) -> None:
        nonlocal steps
        steps += 1
        report(steps)

    with np.errstate(all="ignore"):
        minimum = minimize(
            error, start, method="BFGS", callback=watch, options={"gtol": _FLATTEST, "maxiter": _MOST_STEPS}
        )
    return np.asarray(minimum.x) if minimum.fun <= error(start) else start
