"""`min_sep`, any workload of few steps: the optimum over all matrices, with the sensitivity that is proved of them.

The sensitivity of a C whose columns overlap is bounded by the largest sum of |X_ij| over a pattern. The best C for that
bound and the bound over all matrices, for contributions of any dimension, are two problems: both are solved by an
interior point method (interior_point.py). They meet where no three steps of a pattern have X of frustrated signs; for
prefix sums they are 6e-5 apart at most, for matrices of random signs up to 1 %.
"""

from __future__ import annotations

import math

import numpy as np

from factorize.errors import SolveFailed
from factorize.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.budget import Estimate, estimate_of
from factorize.solvers.epochs.feasible import strategy_of
from factorize.solvers.epochs.interior_point import AbsoluteSums, InteriorPoint, Vectors, blocks_from
from factorize.solvers.epochs.patterns import Places, count_of_patterns, maximal_patterns
from factorize.solvers.methods.arrays import Array
from factorize.solvers.problem import Problem, Reporter, StepReport
from factorize.solvers.single.ascent import scaled
from factorize.solvers.single.dense import refuse_objective
from factorize.solvers.single.recovery import RIDGES, loss_of
from factorize.spec import Spec

MAX_PAIRS = 900
"""Pairs of steps that meet in a pattern, the unknowns of a Newton step: about a second."""
MAX_ENTRIES = 1 << 22
"""Entries of the blocks' second derivatives, which every Newton step adds up: about a second."""
_SHORT_PAIRS, _SHORT_ENTRIES = 150, 1 << 17
_NEWTON_STEPS = 160.0  # of both problems
_EVIDENCE_ACCURACY = 1e-8
_FAINT = 1e-14  # of the largest weight: what a pattern below it adds to a bound is lost in rounding


def own(spec: Spec) -> bool:
    """Return whether a spec has `min_sep` and an objective that a fixed target expresses."""
    return spec.participation.free and refuse_objective(spec) is None


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    pairs, entries = _sizes(spec)
    if pairs <= MAX_PAIRS and entries <= MAX_ENTRIES:
        return None
    separation, most, _ = spec.participation.spread(spec.workload.n)
    return (
        f"the optimum over all matrices under min_sep={separation} with max_participations={most} is computed for few "
        f"steps (n={spec.workload.n} has {pairs:.3g} pairs of steps that meet, limit {MAX_PAIRS}, and {entries:.3g} "
        f"entries of patterns, limit {MAX_ENTRIES}); use banded with bands={separation}, which 'auto' names"
    )


def _sizes(spec: Spec) -> tuple[float, float]:
    """Unknowns of a Newton step, and entries that it adds up; patterns of all lengths count, few of them twice."""
    n = spec.workload.n
    separation, most, _ = spec.participation.spread(n)
    pairs = n + max(n - separation, 0) * (n - separation + 1) / 2
    if pairs > MAX_PAIRS:
        return pairs, math.inf
    return pairs, count_of_patterns(n, separation, most) * (most * (most + 1) / 2) ** 2


def is_short(spec: Spec) -> bool:
    """Return whether the best evidence takes less than a second, so that any claim may have it."""
    pairs, entries = _sizes(spec)
    return pairs <= _SHORT_PAIRS and entries <= _SHORT_ENTRIES


def estimate(spec: Spec) -> Estimate:
    """Return the cost: Newton steps of both problems."""
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
    target, patterns = _setting(problem)
    end = InteriorPoint(target, patterns, AbsoluteSums(), problem.tolerance).climb(report)
    gram = end.best.gram
    ridges = (gram + ridge * np.eye(problem.n) * gram.trace() / problem.n for ridge in RIDGES)
    roots = (strategy_of(each, np.arange(problem.n)) for each in ridges)
    found = [problem.with_unit_sensitivity(root) for root in roots if root is not None]
    if not found:
        raise SolveFailed("no invertible strategy was found in double precision; rescale the workload")
    strategy = min(found, key=lambda each: loss_of(target, each.array))
    dual = evidence(problem, report.within("bound")) if problem.evaluates_itself else {}
    outcome = Outcome.CONVERGED if end.gap <= problem.tolerance else Outcome.ROUNDING_LIMIT
    return Solution(strategy, outcome, end.steps, dual)


def _setting(problem: Problem) -> tuple[Array, list[Places]]:
    """T, with next to nothing where a step moves nothing, and the patterns."""
    target, still = scaled(problem.target), ~problem.kept
    target = np.vstack([target, np.sqrt(_FAINT) * np.eye(problem.n)[still]]) if still.any() else target
    separation, most, _ = problem.participation.spread(problem.n)
    return target, maximal_patterns(problem.n, separation, most)


def evidence(problem: Problem, report: StepReport) -> dict[str, Array]:
    """Return factors and patterns of the dual optimum for vectors of any dimension, see checker/bounds/evidence.py."""
    target, patterns = _setting(problem)
    best = InteriorPoint(target, patterns, Vectors(), _EVIDENCE_ACCURACY).climb(report).best
    most = max(some.shape[1] for some in patterns)
    largest = max(float(part[:, 0].max()) for part in best.unknowns)
    factors, places = [], []
    for part, some in zip(best.unknowns, patterns, strict=True):
        steps, seen = some.shape[1], part[:, 0] > _FAINT * largest
        lacking = most - steps
        blocks = np.linalg.cholesky(blocks_from(part[seen], steps))
        factors.append(np.pad(blocks, ((0, 0), (0, lacking), (0, lacking))))
        places.append(np.pad(some[seen], ((0, 0), (0, lacking)), constant_values=-1))
    return {"factors": np.concatenate(factors), "patterns": np.concatenate(places).astype(np.float64)}
