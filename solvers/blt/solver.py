"""The best buffered Toeplitz strategy for a spec: which loss applies, where to start, what to return.

Where columns will be normalised, under one participation, C diag(1 / |c_j|) has sensitivity 1, and its decoder is A
diag(|c_j|) C^-1: no Toeplitz matrix, so the error is a recursion of length n, and the few variables are moved by
differences of it. The optimum without normalisation is a poor start for the mean error and the one for the last row a
good one: a column-normalised matrix protects every step alike, as the objective `max` does.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from factorize.factors.solution import ProgressCallback, Solution
from factorize.solvers.blt.loss import ClosedLoss, SeriesLoss
from factorize.solvers.blt.parameters import Alternating, BltPoint, minimise, progressions
from factorize.solvers.epochs.fitted_columns import fitted_columns, fitting_cost
from factorize.solvers.formulas.closed_form import normalised, unit_columns
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, mechanism_of
from factorize.solvers.toeplitz import toeplitz_optimum as toeplitz
from factorize.solvers.toeplitz.gradients import LeadingPattern, ToeplitzLoss
from factorize.spec import Spec
from factorize.spec.mechanisms import Blt
from factorize.structures.base import MAX_DENSE
from factorize.structures.toeplitz import BltMatrix

MAX_BUFFERS = 15
MAX_SERIES_TERMS = 2**20
_MAX_N_BY_SERIES = 2**15
"""Up to this n the column is searched where only the last row counts more than the others: a few buffers have a larger
class then. Beyond, that takes minutes."""
_MAX_PAIRS = 2**21  # the limit of participations x buffers^2 in the closed loss; the other loss has its own limits
_MAX_PATTERN = 2**31
_MIN_SHRINKAGE = 2.0**-50
_BUFFER_STEPS, _STEPS, _QUICK_TOLERANCE, _QUICK_STEPS = 100, 400, 1e-2, 150
"""A search takes at most this many steps for each buffer and in all, and fewer in all from a tolerance on."""
_UNSEARCHED_COLUMNS = ("none", "fitted")  # the search does not see these columns; `fitted` ones are fitted after it
_STEP_WORK, _COLUMN_WORK, _CERTIFICATE_WORK = 3e7, 1e4, 6e4
"""Multiplications of a step, more for each buffer and scaled column, and of the certificate for each buffer and step,
from measured seconds."""


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    mechanism = mechanism_of(spec, Blt)
    if mechanism.buffers > MAX_BUFFERS:
        return (
            f"buffers={mechanism.buffers} exceeds {MAX_BUFFERS}: so many decays of an optimum lie closer together "
            "than double precision resolves; use fewer buffers, 4 to 8 are within a percent of the best Toeplitz matrix"
        )
    reason = toeplitz.supports(spec)
    return reason or _refuse_size(spec, mechanism)


def _refuse_size(spec: Spec, mechanism: Blt) -> str | None:
    workload = spec.optimize_for or spec.workload
    n, count = workload.n, spec.participation.spread(workload.n).most
    if mechanism.normalization == "columns" and n > MAX_DENSE and not spec.participation.single:
        return (
            f"normalised columns under several participations have no sensitivity rule above n={MAX_DENSE}, got n={n}; "
            'use normalization "none"'
        )
    if _is_closed(spec):
        if count * mechanism.buffers**2 > _MAX_PAIRS:
            return (
                f"{count} participations of {mechanism.buffers} buffers exceed {_MAX_PAIRS} pairs of buffers; use "
                "fewer buffers, or a larger min_sep"
            )
        return None
    if n > MAX_SERIES_TERMS or n * count > _MAX_PATTERN:
        return (
            f"n={n} with {count} participations is above the limits of a workload without a closed form "
            f"(n={MAX_SERIES_TERMS}, n x participations {_MAX_PATTERN}). Prefix sums with objective 'mean' or 'max' "
            "have a closed form; use optimize_for with the prefix workload"
        )
    return None


def estimate(spec: Spec) -> Estimate:
    """Return the cost: some hundred evaluations of the loss, and the certificate's recursions of length n."""
    mechanism = mechanism_of(spec, Blt)
    workload = spec.optimize_for or spec.workload
    n, m = float(workload.n), float(max(workload.m, workload.n))
    count = spec.participation.spread(workload.n).most
    certificate = _CERTIFICATE_WORK * n * mechanism.buffers
    steps = min(_BUFFER_STEPS * mechanism.buffers, _QUICK_STEPS if spec.tolerance >= _QUICK_TOLERANCE else _STEPS)
    searched = mechanism.normalization not in _UNSEARCHED_COLUMNS and workload.n <= MAX_N_POLISHED
    columns = _COLUMN_WORK * mechanism.buffers * n if searched else 0.0
    forms, fitting = fitting_cost(spec)
    search = steps * (_STEP_WORK + columns) + fitting
    if _is_closed(spec):
        return estimate_of(
            entries=30 * n + 40.0 * count * mechanism.buffers**2 + forms,
            multiplications=1e4 * count * mechanism.buffers**2 + search + certificate,
        )
    if not workload.time_invariant:
        return estimate_of(entries=8 * n * m + forms, multiplications=200 * n * n + 4 * n * n * m + search)
    tries = 500 if workload.n <= _MAX_N_BY_SERIES else 2000  # the transforms of long columns leave the caches
    evaluations = tries * (1500 * n + 20 * mechanism.buffers * n + count * n)
    return estimate_of(entries=(40 + 4 * mechanism.buffers) * n + forms, multiplications=evaluations + search)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the best strategy found with that many buffers; a local optimum, since the loss is not convex."""
    mechanism = mechanism_of(problem.spec, Blt)
    report = Reporter(progress)
    separation = problem.participation.spread(problem.n).separation
    loss = loss_of(problem, mechanism.buffers)
    minimum = minimise(
        loss,
        progressions(loss.parameters, problem.n, separation),
        tolerance=0.1 * problem.tolerance,
        report=lambda step: report(step, None),
    )
    plain = _matrix(problem, loss.parameters.at(minimum.variables))
    point = None
    if mechanism.normalization not in _UNSEARCHED_COLUMNS:
        point = best_point(problem, loss, minimum.variables, lambda step: report(minimum.steps + step, None))
    if mechanism.fitted:
        return Solution(fitted_columns(problem, plain), minimum.outcome, minimum.steps)
    other = None if point is None else _matrix(problem, point)
    carried = problem.participation.single and problem.spec.workload.state_space() is not None
    return Solution(normalised(problem.spec, plain, other, carried=carried), minimum.outcome, minimum.steps)


def loss_of(problem: Problem, buffers: int) -> ClosedLoss | SeriesLoss:
    """Return the logarithm of the loss as a function of a few variables, and what they stand for."""
    separation, count, _ = problem.participation.spread(problem.n)
    if _is_closed(problem.spec):
        mean, last = problem.objective.quadratic, problem.objective.weight_of_last(problem.n) or 0.0
        return ClosedLoss(buffers, problem.n, mean=mean, separation=separation, count=count, last=last)
    pattern = LeadingPattern(separation, count, problem.n)
    loss = ToeplitzLoss(problem.n, toeplitz.error_form(problem), pattern)
    return SeriesLoss(Alternating(buffers, free_end=count == 1), loss)


def _is_closed(spec: Spec) -> bool:
    workload, objective = spec.optimize_for or spec.workload, spec.objective
    closed = objective.uniform or not objective.quadratic
    if workload.n > _MAX_N_BY_SERIES:
        closed = closed or objective.weight_of_last(workload.n) is not None
    return workload.running_sums and closed


def _matrix(problem: Problem, point: BltPoint) -> BltMatrix:
    """Round the point to a matrix; over several participations its scales sum to at most 1 exactly, as the point's."""
    omega = point.omega
    while not problem.participation.single and sum(map(Fraction, omega.tolist())) > 1:
        omega = omega * (1.0 - _MIN_SHRINKAGE)
    return BltMatrix(point.theta, omega, problem.n)


MAX_N_POLISHED = 16_384
_MAX_N_MEASURED, _FEW_BUFFERS = 2**17, 2
"""Above that n starts are not measured, which takes seconds. From 4e4 to 4e5 steps the one for the last row was better
where that row counts more, and for the mean with more than two buffers."""
_MAX_STEPS = 60
_MIN_GRADIENT = 1e-6  # differences do not resolve a smaller gradient


def best_point(
    problem: Problem, loss: ClosedLoss | SeriesLoss, variables: Array, report: Callable[[int], None]
) -> BltPoint | None:
    """Return the best point for normalised columns, or None where there is no recursion for its error, or n is large.

    Args:
        problem: one participation, or None is returned.
        loss: the loss without normalisation.
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
    if isinstance(loss, ClosedLoss) and n > _MAX_N_MEASURED:
        starts = starts[-1:] if loss.last or loss.parameters.buffers > _FEW_BUFFERS else starts[:1]
    best = starts[0] if len(starts) == 1 and n > MAX_N_POLISHED else min(starts, key=error)
    return loss.parameters.at(_polish(error, best, report) if n <= MAX_N_POLISHED else best)


def _polish(error: Callable[[Array], float], start: Array, report: Callable[[int], None]) -> Array:
    from scipy.optimize import minimize

    steps = 0

    def watch(_: Array) -> None:
        nonlocal steps
        steps += 1
        report(steps)

    with np.errstate(all="ignore"):
        minimum = minimize(
            error, start, method="BFGS", callback=watch, options={"gtol": _MIN_GRADIENT, "maxiter": _MAX_STEPS}
        )
    return np.asarray(minimum.x) if minimum.fun <= error(start) else start
