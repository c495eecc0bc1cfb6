"""The optimum over matrices with few diagonals and equal column norms.

Minimise tr(T^T T X^-1) over X = C^T C with ones on the diagonal and zeros at distance `bands` and beyond. If no two
steps of one user lie within the band, the squared sensitivity is the number of participations whatever X is
(mathematics C.7), so this is all there is to minimise. The problem is convex in the entries of X below the diagonal.
The descent (descent.py) starts at the best banded Toeplitz matrix.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from factorize.errors import ConditionNotMet, SolveFailed, TooLarge, UnsupportedProblem
from factorize.lower_bounds.class_bounds import squared_sensitivity
from factorize.mechanisms import Banded
from factorize.objective import Mean, Weighted
from factorize.participation import Single
from factorize.solution import ProgressCallback, Solution
from factorize.spec import Spec
from factorize.workloads import Prefix, Workload
from factorize.workloads.state_space import StateSpace
from solvers.banded.evidence import work as evidence_work
from solvers.budget import Estimate, estimate_of
from solvers.evidence import evidence
from solvers.problem import Problem, Reporter
from solvers.single.dense import refuse_objective

if TYPE_CHECKING:  # the compiler behind it is heavy
    from solvers.banded.descent import Landscape, Point

Array = NDArray[np.float64]

LARGEST = 2**25  # of n x bands
MOST_STATES = 16
_START_TOLERANCE = 1e-3


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    assert isinstance(spec.mechanism, Banded)
    workload, bands = spec.optimize_for or spec.workload, spec.mechanism.bands
    if bands > workload.n:
        return f"bands={bands} exceeds n={workload.n}; use bands <= n"
    try:
        squared_sensitivity(spec.participation, workload.n, bands)
    except ConditionNotMet as error:
        return str(error)
    if isinstance(spec.objective, Weighted) and not all(spec.objective.weights):
        return "a weight of zero makes the banded optimum one that no bound certifies; use positive weights"
    refused = refuse_objective(spec)
    if refused is None and workload.n * bands <= LARGEST:
        try:
            recursion(Problem(spec))
        except UnsupportedProblem as error:
            return str(error)
    return refused


def estimate(spec: Spec) -> Estimate:
    """Return the cost: about a hundred evaluations, more of them where n / bands is large, and the certificate.

    Raises:
        TooLarge: more numbers than LARGEST.
    """
    assert isinstance(spec.mechanism, Banded)
    n, b = float(spec.workload.n), float(spec.mechanism.bands)
    steps = max(1.0, n / (32 * b)) ** 0.6
    work = 1500.0 * n * (b + 8) ** 2 * steps
    needed = estimate_of(entries=70.0 * n * (b + 4), multiplications=work + evidence_work(spec))
    if n * b > LARGEST:
        raise TooLarge(
            f"n x bands = {n * b:.3g} would take about {needed.bytes / 2**30:.1f} GiB and {needed.seconds:.3g} s, "
            f"above the limit of {LARGEST}; lower n or bands, or use banded_toeplitz"
        )
    return needed


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum over the class, with evidence for a bound over all matrices where that is not too dear.

    Raises:
        UnsupportedProblem: the workload is no recursion with few states, or its target is singular.
        SolveFailed: the numbers leave the range of double precision.
    """
    return replace(search(problem, progress), dual=evidence(problem.spec, Reporter(progress)))


def search(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum over the class alone; arguments and errors as `solve`."""
    assert isinstance(problem.spec.mechanism, Banded)
    from solvers.banded.descent import Descent, Landscape

    report = Reporter(progress)
    landscape = Landscape(recursion(problem), problem.n, problem.spec.mechanism.bands)
    descent = Descent(problem, landscape, start(problem, landscape, report), report)
    outcome = descent.run()
    return Solution(
        strategy=descent.strategy, outcome=outcome, iterations=descent.steps, dual={}, class_gap=descent.gap
    )


def recursion(problem: Problem) -> StateSpace:
    """Return the target as a recursion with few states.

    Raises:
        UnsupportedProblem: there is none, or the target is singular beyond columns of zeros.
    """
    whole, weights = problem.workload.state_space(), problem.objective.state_space(problem.workload.m)
    if whole is None or weights is None or whole.feed.shape[1] + weights.feed.shape[1] > MOST_STATES:
        raise UnsupportedProblem(
            f"the {problem.workload.kind} workload is no recursion with at most {MOST_STATES} states, which 'banded' "
            "needs; use optimize_for with a workload that is, banded_toeplitz, or dense",
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


def start(problem: Problem, landscape: Landscape, report: Reporter) -> Point:
    """Return the best banded Toeplitz matrix, columns normalised; of the prefix sum if the workload is not Toeplitz.

    Args:
        problem: with a banded mechanism.
        landscape: its loss.
        report: asked after each step whether to go on.

    Raises:
        SolveFailed: the loss is not finite.
    """
    n, bands = landscape.n, landscape.bands
    column = _toeplitz_column(problem, report)
    lengths = np.sqrt(np.cumsum(column**2))[np.minimum(n - 1 - np.arange(n), bands - 1)]
    offsets = np.zeros((bands - 1, n))
    for d in range(1, bands):
        sums = np.cumsum(column[d:] * column[: bands - d])
        j = np.arange(n - d)
        offsets[d - 1, : n - d] = sums[np.minimum(n - 1 - d - j, bands - d - 1)] / (lengths[j] * lengths[j + d])
    # Steps that move nothing stay apart from the others: nothing is gained by correlating them.
    dead = landscape.dead
    for d in range(1, bands):
        offsets[d - 1, : n - d][dead[d:] | dead[: n - d]] = 0.0
    for candidate in (offsets, np.zeros_like(offsets)):
        point = landscape(candidate)
        if point is not None:
            return point
    raise SolveFailed("the loss is not finite at C = I; rescale the workload so that its entries lie near 1")


def _toeplitz_column(problem: Problem, report: Reporter) -> Array:
    from solvers.toeplitz import optimum as toeplitz

    spec, n = problem.spec, problem.n
    assert isinstance(spec.mechanism, Banded)
    invariant = problem.workload.time_invariant
    workload: Workload = problem.workload if invariant else Prefix(kind="prefix", n=n)
    objective = problem.objective if invariant else Mean()
    changes = {"participation": Single(), "optimize_for": None, "workload": workload, "objective": objective}
    like = Problem(spec.model_copy(update=changes))
    kind = next(iter(toeplitz.classes(like)))
    return toeplitz.optimise(n, toeplitz.error_form(like), kind, _START_TOLERANCE, report).x
