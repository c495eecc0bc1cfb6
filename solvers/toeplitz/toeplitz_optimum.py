"""The best Toeplitz strategy, whole or banded: projected gradients with FFTs.

The loss log(E S) is not convex in the coefficients, so what is found is a stationary point, and the outcome says so.
Where columns cannot overlap, the certificate then proves it the global optimum of the class
(checker/bounds/classes.py). The gap to the optimum over *all* matrices is another bound.
Started at the square root of the workload's series (C C = A, which is optimal for the max objective) the descent takes
about ten steps at every n.

Sensitivity under several participations is exact for two kinds of column only, and the search stays inside them:
non-negative coefficients that do not increase (KL24, Theorem 2), where each step is projected by isotonic regression;
and at most as many diagonals as steps lie between two participations, where any signs will do.

For n above 4096 and one participation the search starts from the solution at n / 16: relative to the square root,
coefficients depend on t / n to a few parts in a thousand, so that two or three steps at full length remain.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.epochs.fitted_columns import fitted_columns, fitting_cost, refuse_fitted
from factorize.solvers.formulas.closed_form import needs_decoder, normalised, recursion_cost, strategy_coefficients
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.projected_gradient import Slope, descend
from factorize.solvers.methods.search import End
from factorize.solvers.methods.transforms import square_root
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of
from factorize.solvers.single.dense import refuse_weights
from factorize.solvers.toeplitz.gradients import (
    DisjointColumns,
    ErrorForm,
    LambdaError,
    LeadingPattern,
    QuadraticError,
    ToeplitzError,
    ToeplitzLoss,
)
from factorize.spec import Spec
from factorize.spec.mechanisms import BandedToeplitz
from factorize.spec.objective import LambdaTau, MaxError
from factorize.structures.toeplitz import ToeplitzMatrix

MAX_N_QUADRATIC = 4096
_MAX_DIRECT_STEPS = 4096  # up to this length a solve from scratch costs next to nothing
_COARSE_RATIO = 16
_DAMPINGS = (0.0, 0.7, 3.0, 10.0, 30.0, 100.0)  # dampings of starting points over the n steps
_STEP_WORK = 1.5e6  # multiplications over n, measured from 500 to 8192 steps
_LONG_FACTOR = 4  # above this many times the bands, damping over n changes little within the bands
_MIN_COEFFICIENT = 1e-300  # smaller coefficients are set to zero: denormal numbers are slow and carry no accuracy
_MIN_TOLERANCE = 1e-14  # the loss itself is not known better
_TOLERANCE_SHARE = 0.3  # the descent ends at this part of the tolerance, since the gap that stops it is an estimate


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    workload = spec.optimize_for or spec.workload
    if isinstance(spec.mechanism, BandedToeplitz) and spec.mechanism.bands > workload.n:
        return f"bands={spec.mechanism.bands} exceeds n={workload.n}; use bands <= n"
    if spec.mechanism.fitted and spec.sampling is None and (refusal := refuse_fitted(spec)) is not None:
        return refusal
    if workload.time_invariant:
        return refuse_weights(spec)
    if isinstance(spec.objective, MaxError):
        return (
            f"objective 'max' has no Toeplitz solver for the {workload.kind} workload, which is not Toeplitz; use "
            "objective 'mean', or nu_toeplitz"
        )
    if workload.n > MAX_N_QUADRATIC:
        return (
            f"n={workload.n} exceeds {MAX_N_QUADRATIC}, the limit of this solver for a workload that is not Toeplitz "
            f"({workload.kind}); use nu_toeplitz, or optimize_for the prefix workload"
        )
    return refuse_weights(spec)


def estimate(spec: Spec) -> Estimate:
    """Return the cost: some hundred evaluations of a dozen FFTs, or of a dense quadratic form, and the certificate."""
    workload = spec.optimize_for or spec.workload
    n, m, (entries, work) = float(workload.n), float(max(workload.m, workload.n)), fitting_cost(spec)
    if not workload.time_invariant or needs_decoder(spec):
        return estimate_of(entries=8 * n * m + entries, multiplications=4 * n * n * m + work)
    entries, work = (sum(parts) for parts in zip((entries, work), recursion_cost(spec), strict=True))
    return estimate_of(entries=60 * n + entries, multiplications=_STEP_WORK * n + work)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the best Toeplitz strategy found, with at most `bands` diagonals if the mechanism says so.

    Raises:
        SolveFailed: the loss leaves the range of double precision at every starting point.
    """
    report = Reporter(progress)
    error = error_form(problem)
    optima = [optimise(problem.n, error, kind, problem.tolerance, report) for kind in classes(problem)]
    best = min(optima, key=lambda end: end.best.value)
    plain = ToeplitzMatrix(_tidy(best.best.x), problem.n)
    fitted = problem.spec.mechanism.fitted
    strategy = fitted_columns(problem, plain) if fitted else normalised(problem.spec, plain)
    return Solution(
        strategy=strategy,
        outcome=best.outcome if problem.tolerance >= _MIN_TOLERANCE else Outcome.ROUNDING_LIMIT,
        iterations=sum(end.steps for end in optima),
    )


@dataclass(frozen=True)
class ColumnClass:
    """Columns over which the sensitivity is exact.

    Attributes:
        sensitivity: the formula.
        bands: number of coefficients.
        monotone: whether they must be non-negative and not increase.
    """

    sensitivity: LeadingPattern | DisjointColumns
    bands: int
    monotone: bool

    def project(self, column: Array) -> Array:
        """Return the nearest column of the class: least squares among non-increasing, cut off at zero."""
        if not self.monotone:
            return column
        from scipy.optimize import isotonic_regression

        return np.maximum(isotonic_regression(column, increasing=False).x, 0.0)


def classes(problem: Problem) -> Iterator[ColumnClass]:
    """Yield the classes of columns whose sensitivity under the problem's participation is exact."""
    n = problem.n
    bands = problem.spec.mechanism.diagonals or n
    separation, count, _ = problem.participation.spread(n)
    if problem.participation.single:
        yield ColumnClass(LeadingPattern(separation, count, n), bands, monotone=False)
        return
    yield ColumnClass(DisjointColumns(separation, count, n), min(bands, separation), monotone=False)
    if bands > separation:
        yield ColumnClass(LeadingPattern(separation, count, n), bands, monotone=True)


def error_form(problem: Problem) -> ErrorForm:
    """Return the squared error of a Toeplitz strategy for the problem's workload and objective."""
    workload, objective = problem.workload.coefficients, problem.objective
    if workload is None:
        return QuadraticError.of(problem.target * objective.scale(problem.workload.m) ** 0.5)
    if isinstance(objective, LambdaTau) and not objective.by_row_errors(problem.n):
        return LambdaError(workload, objective.tau)
    weights = objective.series_weights(problem.n)
    assert weights is not None  # all other objectives have weights
    return ToeplitzError(workload, weights * objective.scale(problem.n))


def optimise(n: int, error: ErrorForm, kind: ColumnClass, tolerance: float, report: Reporter) -> End[Slope]:
    """Return a stationary point of the loss in one class of columns.

    Args:
        n: number of steps.
        error: E.
        kind: the class.
        tolerance: tolerance on the relative gap within the class.
        report: told the estimated gap after each step.

    Raises:
        SolveFailed: the loss is not finite at any starting point.
    """
    loss = ToeplitzLoss(n, error, kind.sensitivity)
    return descend(
        loss,
        _start(loss, kind, report),
        tolerance=_TOLERANCE_SHARE * tolerance,
        report=lambda step, gap: report(step, None, gap),
        project=kind.project if kind.monotone else None,
    )


def _start(loss: ToeplitzLoss, kind: ColumnClass, report: Reporter) -> Array:
    """Return a column of norm 1 to start from."""
    if (
        isinstance(loss.error, ToeplitzError)
        and loss.n > _MAX_DIRECT_STEPS
        and kind.sensitivity == LeadingPattern(loss.n, 1, loss.n)
    ):
        root = _root(loss.error.workload)
        prolonged = _unit(_from_coarse(loss, root, report)[: kind.bands])
        # The decoder's series is the root itself where C C = A, so its loss costs no transform.
        squares = root**2
        better = loss(prolonged)[0] < np.log(squares @ loss.error.weights) + np.log(squares.sum())
        return prolonged if better else _unit(root[: kind.bands])
    with np.errstate(all="ignore"):
        candidates = [_unit(kind.project(column[: kind.bands])) for column in _candidates(loss, kind)]
        values = [loss(column)[0] if np.isfinite(column).all() else np.inf for column in candidates]
    best = int(np.argmin(values))
    if not np.isfinite(values[best]):
        raise SolveFailed("the loss is not finite at any start; rescale the workload so that its entries lie near 1")
    return candidates[best]


def _candidates(loss: ToeplitzLoss, kind: ColumnClass) -> Iterator[Array]:
    """Yield damped square roots of the workload's series and of the prefix sum, whole and cut at the separation."""
    n, t = loss.n, np.arange(loss.n)
    roots = [strategy_coefficients(n, 0.0)]
    if isinstance(loss.error, (ToeplitzError, LambdaError)) and (loss.error.workload != 1.0).any():
        roots.insert(0, _root(loss.error.workload))
    dampings = _DAMPINGS if n <= min(_MAX_DIRECT_STEPS, _LONG_FACTOR * kind.bands) else _DAMPINGS[:1]
    for root in roots:
        for damping in dampings:
            damped = root * np.exp(-damping / n * t)
            yield damped
            if kind.monotone:
                yield np.where(t < kind.sensitivity.separation, damped, 0.0)
    yield np.eye(1, n)[0]


def _unit(column: Array) -> Array:
    return column / np.linalg.norm(column)


def _root(workload: Array) -> Array:
    if (workload == 1.0).all():
        return strategy_coefficients(len(workload), 0.0)
    return square_root(workload)


def _from_coarse(loss: ToeplitzLoss, root: Array, report: Reporter) -> Array:
    """Solve at n / 16 and carry log(c / root) over, as a function of t / n."""
    assert isinstance(loss.error, ToeplitzError)
    n, size = loss.n, loss.n // _COARSE_RATIO
    middle = np.minimum((np.arange(size) * _COARSE_RATIO) + _COARSE_RATIO // 2, n - 1)
    error = replace(loss.error, workload=loss.error.workload[:size], weights=loss.error.weights[middle])
    kind = ColumnClass(LeadingPattern(size, 1, size), size, monotone=False)
    coarse = optimise(size, error, kind, 1e-9, report.within("coarse grid")).best.x
    with np.errstate(all="ignore"):
        logarithm = np.log(coarse / root[:size])
    if not np.isfinite(logarithm).all():
        return root
    places = (np.arange(size) + 0.5) / size
    return root * np.exp(np.interp((np.arange(n) + 0.5) / n, places, logarithm))


def _tidy(column: Array) -> Array:
    """Return a column with first coefficient 1, nothing denormal; neither changes the order of the coefficients."""
    scaled = column / column[0]
    scaled[np.abs(scaled) < _MIN_COEFFICIENT] = 0.0
    return scaled
