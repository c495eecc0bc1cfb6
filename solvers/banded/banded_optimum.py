"""The optimum over matrices with few diagonals.

Minimise tr(T^T T X^-1) over X = C^T C with zeros at distance `bands` and beyond. If no two steps of one user lie within
the band, the squared sensitivity is the largest sum of X_ii over a pattern (docs/sensitivity.md). Over fixed epochs the
columns of a pattern share it as is best; under `min_sep` blocks of so many steps share it, with columns of equal norm
within. The problem is searched in X with ones on its diagonal, and in the shares; with equal norms it is convex. The
descent (gram_descent.py) starts at the best banded Toeplitz matrix. Where its arrays would not fit in memory that start
is the answer, with the shares of a diagonal X.
"""

import numpy as np
from numpy.typing import NDArray

from factorize.checker.bounds.evidence import MAX_N_IN_BAND
from factorize.errors import ConditionNotMet, SolveFailed, TooLarge, UnsupportedProblem
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.numbers.state_space import StateSpace
from factorize.participation import AnyParticipation, Single
from factorize.solvers.banded.gram_descent import MIN_SHARE, GramDescent, GramPoint, Landscape, own_forms, shares_of
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, mechanism_of, outline_of
from factorize.solvers.single.dense import refuse_objective
from factorize.solvers.toeplitz import toeplitz_optimum as toeplitz
from factorize.spec import Spec
from factorize.spec.mechanisms import Banded
from factorize.spec.objective import Mean, Objective
from factorize.structures.banded import BandedMatrix
from factorize.workloads import Prefix, Workload

MAX_ENTRIES = 2**26  # the limit of n x bands
MAX_ENTRIES_SEARCHED = 2**22  # the limit of n x bands for a search; above it the Toeplitz start is the answer
_MIN_BAND_LENGTHS = 64  # that start is near the optimum where n is this many times `bands`
MAX_STATES = 16
_START_TOLERANCE = 1e-3
_STEP_COST = 180.0  # multiplications of a step over n (bands + 8)^2, at the pace of a product of matrices
_FEW_STEPS, _MANY_STEPS = 50, 2000
_REPEAT_FACTOR = 8  # a search takes this many times the steps where somebody takes part again
_MIN_STATEFUL_STEPS = 600
"""With momentum the steps are at least this many: few specs stop after 100, most go on to the limit of 2000."""
_START_COST = 1e6  # multiplications of the start and its certificate for each step, where the start is the answer
_MIN_STEP_COST = 7.5e6  # multiplications of a step, however short the run


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    workload, bands = spec.optimize_for or spec.workload, mechanism_of(spec, Banded).bands
    if bands > workload.n:
        return f"bands={bands} exceeds n={workload.n}; use bands <= n"
    try:
        refuse_overlaps(spec.participation, workload.n, bands)
    except ConditionNotMet as error:
        return str(error)
    weights = spec.objective.row_weights(workload.m) if spec.objective.listed else None
    if weights is not None and not weights.all():
        return "with a weight of 0, no bound certifies the banded optimum; use positive weights"
    refused = refuse_objective(spec)
    if refused is None and workload.n * bands <= MAX_ENTRIES:
        try:
            _target(outline_of(spec), spec.objective)
        except UnsupportedProblem as error:
            return str(error)
    return refused


def refuse_overlaps(participation: AnyParticipation, n: int, bands: int) -> None:
    """Refuse bands in which two steps of one user overlap; else the count of participations is the squared sensitivity.

    Raises:
        ConditionNotMet: they overlap.
        UnsupportedProblem: the participation does not say how far apart they are.
    """
    separation, count, name = participation.spread(n)
    if count > 1 and bands > separation:
        raise ConditionNotMet(
            f"bands={bands} exceeds {name}={separation}, so two steps of one user would overlap and the closed form "
            f"for the sensitivity would not hold; use bands <= {separation}",
            field="/mechanism/bands",
        )


def estimate(spec: Spec) -> Estimate:
    """Return the cost: about a hundred evaluations, more of them where n / bands is large, and the certificate.

    Raises:
        TooLarge: more numbers than MAX_ENTRIES.
    """
    bands = mechanism_of(spec, Banded).bands
    n, b = float(spec.workload.n), float(bands)
    repeated = 1 if spec.participation.single else _REPEAT_FACTOR
    steps = min(repeated * _FEW_STEPS * max(1.0, n / (32 * b)) ** 0.6, _MANY_STEPS)
    if repeated > 1 and spec.workload.outline().first_order() is None:
        steps = max(steps, _MIN_STATEFUL_STEPS)
    entries, work = 60.0 * n * (b + 2), (_MIN_STEP_COST + _STEP_COST * n * (b + 8) ** 2) * steps
    if is_start_alone(spec.workload.n, bands):
        entries, work = 7.0 * n * (b + 12), _START_COST * n + _STEP_COST * n * (b + 8) ** 2
    if n <= MAX_N_IN_BAND and spec.optimize_for is None:  # the bound over the class is proved by whole matrices
        entries, work = entries + 6 * n**2, work + 2 * n**3
    needed = estimate_of(entries=entries, multiplications=work)
    if n * b > MAX_ENTRIES:
        raise TooLarge(
            f"n x bands = {n * b:.3g} would take about {needed.bytes / 2**30:.1f} GiB and {needed.seconds:.3g} s, "
            f"above the limit of {MAX_ENTRIES}; lower n or bands, or use banded_toeplitz"
        )
    return needed


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum over the class.

    Raises:
        UnsupportedProblem: the workload is no recursion with few states, or its target is singular.
        SolveFailed: the numbers leave the range of double precision.
    """
    report, bands = Reporter(progress), mechanism_of(problem.spec, Banded).bands
    target = recursion(problem)
    owners, firsts = _shared(problem)
    if is_start_alone(problem.n, bands):
        squares = np.bincount(firsts, own_forms(*target)[0], minlength=problem.n)
        shares = shares_of(np.sqrt(np.maximum(squares, MIN_SHARE * squares.max())), owners, firsts)
        strategy = with_columns_of(toeplitz_columns(problem, report)[0], np.sqrt(shares / shares.max()))
        return Solution(strategy=strategy, outcome=Outcome.NOT_SEARCHED, iterations=0)
    landscape = Landscape(target, problem.n, bands, owners, firsts)
    descent = GramDescent(landscape, start(problem, landscape, report))
    end = descent.descend(problem.tolerance, lambda step, gap: report(step, None, gap))
    return Solution(strategy=landscape.strategy(end.best), outcome=end.outcome, iterations=end.steps)


def _shared(problem: Problem) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the pattern that each step shares the sensitivity with, and the first step whose column has its norm.

    No two steps of a pattern lie in one block of `min_sep` steps, so that blocks share the sensitivity as epochs do; if
    fewer participations are allowed than there are blocks, nothing is gained by it.
    """
    n, steps = problem.n, np.arange(problem.n)
    separation, most, _ = problem.participation.spread(n)
    if problem.participation.periodic:
        return steps % separation, steps
    if 1 < most == -(-n // separation):
        return np.zeros_like(steps), steps // separation * separation
    return steps, steps


def is_start_alone(n: int, bands: int) -> bool:
    """Return whether the arrays of a search would not fit in memory, so that its start is the answer."""
    return n * bands > MAX_ENTRIES_SEARCHED and n >= _MIN_BAND_LENGTHS * bands


def with_columns_of(column: Array, lengths: Array) -> BandedMatrix:
    """Return the Toeplitz matrix of a column, shape (bands,), its columns made as long as `lengths`, shape (n,)."""
    n, norms = len(lengths), np.sqrt(np.cumsum(column**2))
    bands = np.zeros((len(column), n))
    for d, entry in enumerate(column):
        bands[d, : n - d] = entry / norms[np.minimum(n - 1 - np.arange(n - d), len(column) - 1)] * lengths[: n - d]
    return BandedMatrix(bands)


def recursion(problem: Problem) -> StateSpace:
    """Return the target as a recursion with few states.

    Raises:
        UnsupportedProblem: there is none, or the target is singular beyond columns of zeros.
    """
    return _target(problem.workload, problem.objective)


def _target(workload: Workload, objective: Objective) -> StateSpace:
    whole, weights = workload.state_space(), objective.state_space(workload.m)
    if whole is None or weights is None or whole.feed.shape[1] + weights.feed.shape[1] > MAX_STATES:
        raise UnsupportedProblem(
            f"'banded' needs a workload that is a recursion of at most {MAX_STATES} states, which {workload.kind} is "
            "not; use optimize_for with one that is, banded_toeplitz, or dense",
            field="/workload/kind",
        )
    target = whole.then(weights)
    still = target.through == 0
    if (still & target.feed.any(axis=1)).any():
        raise UnsupportedProblem(
            f"step {int(np.flatnonzero(still & target.feed.any(axis=1))[0])} has no effect of its own, so the workload "
            "is singular and no bound certifies a banded optimum; use positive learning rates",
            field="/workload",
        )
    return target


def start(problem: Problem, landscape: Landscape, report: Reporter) -> GramPoint:
    """Return the best banded Toeplitz matrix, columns normalised.

    Where the workload is not Toeplitz and has many steps, it is that of the prefix sum. With fewer, the better of both.

    Args:
        problem: a problem with a banded mechanism.
        landscape: its loss.
        report: asked after each step whether to go on.

    Raises:
        SolveFailed: the loss is not finite.
    """
    offsets = [_offsets(problem, column, landscape.dead) for column in toeplitz_columns(problem, report)]
    points = [point for point in map(landscape.balanced, offsets) if point is not None]
    points = points or [point for point in [landscape.balanced(np.zeros_like(offsets[0]))] if point is not None]
    if not points:
        raise SolveFailed("the loss is not finite at C = I; rescale the workload so that its entries lie near 1")
    return min(points, key=lambda point: point.loss)


def _offsets(problem: Problem, column: Array, dead: NDArray[np.bool_]) -> Array:
    """Return X[j + d, j] at [d - 1, j] of a Toeplitz matrix with normalised columns."""
    n, bands = problem.n, mechanism_of(problem.spec, Banded).bands
    norms = np.sqrt(np.cumsum(column**2))
    offsets = np.zeros((bands - 1, n))
    for d in range(1, bands):
        sums = np.cumsum(column[d:] * column[: bands - d])
        j = np.arange(n - d)
        lengths = norms[np.minimum(n - 1 - j, bands - 1)] * norms[np.minimum(n - 1 - j - d, bands - 1)]
        # Steps that move nothing stay apart from the others: nothing is gained by correlating them.
        apart = dead[j] | dead[j + d]
        offsets[d - 1, : n - d] = np.where(apart, 0.0, sums[np.minimum(n - 1 - d - j, bands - d - 1)] / lengths)
    return offsets


def toeplitz_columns(problem: Problem, report: Reporter) -> list[Array]:
    """Return the best column for a Toeplitz workload; for another one, the columns for it and for the prefix sum."""
    n = problem.n
    if problem.workload.time_invariant:
        return [_toeplitz_column(problem, problem.workload, problem.objective, report)]
    columns = [_toeplitz_column(problem, Prefix(kind="prefix", n=n), Mean(), report)]
    if n <= toeplitz.MAX_N_QUADRATIC and problem.workload.m == n:
        columns.append(_toeplitz_column(problem, problem.workload, problem.objective, report))
    return columns


def _toeplitz_column(problem: Problem, workload: Workload, objective: Objective, report: Reporter) -> Array:
    spec, n = problem.spec, problem.n
    changes = {"participation": Single(), "optimize_for": None, "workload": workload, "objective": objective}
    like = Problem(spec.model_copy(update=changes))
    kind = next(iter(toeplitz.classes(like)))
    return toeplitz.optimise(n, toeplitz.error_form(like), kind, _START_TOLERANCE, report).best.x
