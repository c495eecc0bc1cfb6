"""`min_sep`, any workload: the optimum over all matrices of few steps; of more, that of which few steps overlap.

The sensitivity of a C whose columns overlap is bounded by the largest sum of |X_ij| over a pattern. The best C for that
bound and the bound over all matrices, for contributions of any dimension, are two problems: both are solved by an
interior point method (interior_point.py). They meet where no three steps of a pattern have X of frustrated signs; for
prefix sums they are 6e-5 apart at most, for matrices of random signs up to 1 %.

With more steps, a step of a pattern overlaps only with the two before it, or, with few participations, all do and the
worst patterns are searched, or steps further apart count by a bound (pattern_search.py). The bound over all matrices
(overlapping_patterns.py) shows what that costs. For many steps both come from cells of neighbouring steps (cells.py).
"""

import math

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.participation import few_participations
from factorize.solvers.epochs.feasible_strategies import strategy_of
from factorize.solvers.methods.compiled import Array
from factorize.solvers.min_sep.cells import Cells
from factorize.solvers.min_sep.interior_point import AbsoluteSums, InteriorPoint, Vectors, blocks_from
from factorize.solvers.min_sep.overlapping_patterns import dual_carried, dual_of_listed
from factorize.solvers.min_sep.pattern_search import MAX_DUAL_STEPS, PatternSearch, searches_patterns
from factorize.solvers.min_sep.patterns import Places, count_of_patterns, maximal_patterns
from factorize.solvers.problem import Estimate, Problem, Reporter, StepReport, estimate_of
from factorize.solvers.single.dense import RIDGES, loss_of, refuse_objective, scaled, triangle
from factorize.spec import Spec
from factorize.structures.banded import BandedMatrix
from factorize.structures.dense import DenseMatrix

MAX_PAIRS = 900
"""The most pairs of steps that meet in a pattern, the unknowns of a Newton step: about a second."""
MAX_ENTRIES = 1 << 22
"""The most entries of the blocks' second derivatives, which every Newton step adds up: about a second."""
MAX_N, MAX_N_OF_LONG_PATTERNS, MAX_PARTICIPATIONS = 1024, 512, 16
"""The most steps of a search over listed patterns, which decomposes X some hundred times: a minute or two, four of 1024
steps with 16 participations. With more of them patterns are so long that fewer steps are searched."""
_MAX_SHORT_PAIRS, _MAX_SHORT_ENTRIES = 150, 1 << 17
_NEWTON_STEPS = 160.0  # both problems together take about this many steps
_SEARCH_WORK = 1e6  # multiplications of a search over listed patterns and of its bound, over n^2.5
_MIN_SEARCH_WORK = 1e11
_CELL_SEARCH_WORK = 2.6e9  # multiplications of a search by cells, over n, for patterns of this many steps:
_FEW_PARTICIPATIONS = 10
_EVIDENCE_ACCURACY = 1e-8
_MIN_WEIGHT = 1e-14  # what a pattern below this part of the largest weight adds to a bound is lost in rounding


def own(spec: Spec) -> bool:
    """Return whether a spec has `min_sep` and an objective that a fixed target expresses."""
    return spec.participation.free and refuse_objective(spec) is None


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    n = spec.workload.n
    separation, participations, _ = spec.participation.spread(n)
    limit, often, other = MAX_N, "", f"banded with bands={separation}"
    if participations > 3 and few_participations(spec.objective.reach(n), separation, participations):
        limit, often, other = MAX_DUAL_STEPS, f" with {participations} participations of many that fit", "toeplitz"
    elif participations > MAX_PARTICIPATIONS:
        limit, often = MAX_N_OF_LONG_PATTERNS, f" with {participations} participations"
    if is_solved(spec) or n <= limit:
        return None
    return (
        f"the optimum over all matrices under min_sep={separation} can be searched for up to {limit} steps{often}, "
        f"but n={n}; use {other}, as 'auto' does"
    )


def is_solved(spec: Spec) -> bool:
    """Return whether the steps are so few that the optimum over all matrices is found."""
    pairs, entries = _sizes(spec)
    return pairs <= MAX_PAIRS and entries <= MAX_ENTRIES


def _sizes(spec: Spec) -> tuple[float, float]:
    """Return the unknowns of a Newton step and the entries that it adds up, over patterns of all lengths, few twice."""
    n = spec.workload.n
    separation, most, _ = spec.participation.spread(n)
    pairs = n + max(n - separation, 0) * (n - separation + 1) / 2
    if pairs > MAX_PAIRS:
        return pairs, math.inf
    return pairs, count_of_patterns(n, separation, most) * (most * (most + 1) / 2) ** 2


def is_short(spec: Spec) -> bool:
    """Return whether the best evidence takes less than a second, so that any claim may have it."""
    pairs, entries = _sizes(spec)
    return pairs <= _MAX_SHORT_PAIRS and entries <= _MAX_SHORT_ENTRIES


def estimate(spec: Spec) -> Estimate:
    """Return the cost: Newton steps of both problems, or a search over listed patterns and their dual."""
    n = float(spec.workload.n)
    if not is_solved(spec):
        separation, most, _ = spec.participation.spread(spec.workload.n)
        longer = max(1.0, most / _FEW_PARTICIPATIONS)
        search = _MIN_SEARCH_WORK + _SEARCH_WORK * n**2.5 if n <= MAX_DUAL_STEPS else _CELL_SEARCH_WORK * n * longer
        search *= most - 2 if searches_patterns(spec.workload.n, separation, most) else 1
        return estimate_of(entries=60 * n**2, multiplications=search)
    pairs, entries = _sizes(spec)
    return estimate_of(
        entries=6 * pairs**2 + 8 * entries, multiplications=_NEWTON_STEPS * (6 * pairs**3 + 300 * entries)
    )


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum, and evidence of a bound over all matrices.

    Raises:
        SolveFailed: the target leaves the range of double precision.
    """
    report = Reporter(progress)
    if not is_solved(problem.spec):
        return _over_listed(problem, report)
    target, patterns = _setting(problem)
    end = InteriorPoint(target, patterns, AbsoluteSums(), problem.tolerance).climb(report)
    strategy = _best_root(problem, target, end.best.gram)
    dual = evidence(problem, report.within("bound")) if problem.evaluates_itself else {}
    outcome = Outcome.CONVERGED if end.gap <= problem.tolerance else Outcome.ROUNDING_LIMIT
    return Solution(strategy, outcome, end.steps, dual)


def _over_listed(problem: Problem, report: Reporter) -> Solution:
    target, (separation, most, _) = _target(problem), problem.participation.spread(problem.n)
    search = PatternSearch(triangle(target), separation, most)
    found = search.best(report)
    strategy = _best_root(problem, target, found.gram)
    bands = np.zeros((search.bands, problem.n))
    for d in range(search.bands):
        bands[d, : problem.n - d] = strategy.array.diagonal(-d)
    dual = {}
    if problem.evaluates_itself:
        few, bound = found.for_dual(), report.within("bound")
        factors, patterns = dual_of_listed(few.target, few.gram, few.patterns, few.shares, bound)
        if few is not found:
            cells = Cells(problem.n, separation, few.separation)
            factors, patterns = dual_carried(triangle(scaled(problem.target)), cells, factors, patterns, bound)
        dual = {"factors": factors, "patterns": patterns.astype(np.float64)}
    return Solution(BandedMatrix(bands), Outcome.CONVERGED, found.steps, dual)


def _best_root(problem: Problem, target: Array, gram: Array) -> DenseMatrix:
    ridges = (gram + ridge * np.eye(problem.n) * gram.trace() / problem.n for ridge in RIDGES)
    roots = (strategy_of(each, np.arange(problem.n)) for each in ridges)
    found = [problem.with_unit_sensitivity(root) for root in roots if root is not None]
    if not found:
        raise SolveFailed("no invertible strategy was found in double precision; rescale the workload")
    return min(found, key=lambda each: loss_of(target, each.array))


def _target(problem: Problem) -> Array:
    """Return T, with next to nothing where a step moves nothing."""
    target, still = scaled(problem.target), ~problem.kept
    return np.vstack([target, np.sqrt(_MIN_WEIGHT) * np.eye(problem.n)[still]]) if still.any() else target


def _setting(problem: Problem) -> tuple[Array, list[Places]]:
    """Return T and the patterns."""
    separation, most, _ = problem.participation.spread(problem.n)
    return _target(problem), maximal_patterns(problem.n, separation, most)


def evidence(problem: Problem, report: StepReport) -> dict[str, Array]:
    """Return the best factors and patterns of the dual for vectors of any dimension, see checker/bounds/evidence.py.

    Args:
        problem: a problem with `min_sep`.
        report: told after each step; what it raises ends the search.
    """
    target, patterns = _setting(problem)
    best = InteriorPoint(target, patterns, Vectors(), _EVIDENCE_ACCURACY).climb(report).best
    most = max(some.shape[1] for some in patterns)
    largest = max(float(part[:, 0].max()) for part in best.unknowns)
    factors, places = [], []
    for part, some in zip(best.unknowns, patterns, strict=True):
        steps, seen = some.shape[1], part[:, 0] > _MIN_WEIGHT * largest
        lacking = most - steps
        blocks = np.linalg.cholesky(blocks_from(part[seen], steps))
        factors.append(np.pad(blocks, ((0, 0), (0, lacking), (0, lacking))))
        places.append(np.pad(some[seen], ((0, 0), (0, lacking)), constant_values=-1))
    return {"factors": np.concatenate(factors), "patterns": np.concatenate(places).astype(np.float64)}
