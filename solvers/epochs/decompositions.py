"""Fixed epochs, any workload: the optimum over all lower-triangular matrices.

The power step on correlation blocks with Anderson's extrapolation (correlation_blocks.py, solvers/methods/anderson.py),
and where that is slow Newton's method (block_newton.py). Each iterate also gives a feasible matrix
(feasible_strategies.py), so the gap that ends the search is one between two numbers in hand.
"""

from __future__ import annotations

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.epochs import block_newton
from factorize.solvers.epochs.correlation_blocks import (
    BlockIterate,
    evaluate,
    importance,
    normalised,
    pack,
    power,
    start,
    unpack,
)
from factorize.solvers.epochs.feasible_strategies import candidates, dominating, masked, strategy_of
from factorize.solvers.methods.anderson import Anderson
from factorize.solvers.methods.search import GAP_SHARE, End, run
from factorize.solvers.problem import Estimate, Problem, Reporter, StepReport, estimate_of, refuse_beyond_dense
from factorize.solvers.single.dense import loss_of, refuse_objective, scaled
from factorize.spec import Spec

_UNIT = 2.0**-52
_MAX_STEPS = 400
_PATIENCE = 6  # the gap must fall to _PACE of itself within these power steps, or Newton's method takes over
_PACE = 0.05
_STALL_STEPS = 12  # after this many steps without a clearly better gap rounding is what is missing, not work
_FIRST_RIDGE = 1e-9  # the ridge of a first strategy where the workload is singular
_FIRST_CENTRING = 0.1  # the gap that the first point of Newton's central path aims at
_LAST_CENTRING = 0.01  # the central path ends at this part of the tolerance
_CENTRING_FALL = 0.1
_NEAR_CHANGE = 1.0  # the path is near enough to follow it further when a step changes W by less
_DECOMPOSITION_WORK = 20.0  # multiplications of a decomposition over n^3
_NEWTON_STEPS = 8.0  # a search takes about this many steps of Newton's method


def own(spec: Spec) -> bool:
    """Return whether a spec has fixed epochs and an objective that a fixed target expresses."""
    return spec.participation.periodic and refuse_objective(spec) is None


def estimate(spec: Spec) -> Estimate:
    """Return the cost: about thirty decompositions of n x n matrices, and room for Newton's linear system."""
    n, m = spec.workload.n, max(spec.workload.m, spec.workload.n)
    system = min(block_newton.MAX_UNKNOWNS, n * n)
    needed = estimate_of(entries=14.0 * n * m + 3.0 * system**2, multiplications=900.0 * n * n * m)
    return refuse_beyond_dense(needed, n, m)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum of a spec with fixed epochs.

    Raises:
        SolveFailed: the target leaves the range of double precision, or no candidate could be inverted.
    """
    search, end = _optimise(problem, problem.tolerance, Reporter(progress))
    strategy = search.strategy(problem.tolerance)
    return Solution(
        strategy=problem.with_unit_sensitivity(strategy),
        outcome=Outcome.CONVERGED if search.distance <= problem.tolerance else end.outcome,
        iterations=end.steps,
        dual={"factors": search.dual.factors},
    )


def dual_factors(problem: Problem, accuracy: float, report: StepReport, work: float) -> np.ndarray:
    """Return dual factors, shape (b, k, k), with a bound within about `accuracy` of the optimum.

    Args:
        problem: spec.
        accuracy: relative.
        report: told the gap after each step.
        work: multiplications after which what is found is returned.
    """
    steps = int(work / (_DECOMPOSITION_WORK * problem.n**3))
    unknowns = int((3 * work / _NEWTON_STEPS) ** (1 / 3))
    search, _ = _optimise(problem, accuracy, report, most_steps=max(2 * _PATIENCE, steps), largest_system=unknowns)
    return search.dual.factors


def _optimise(
    problem: Problem,
    tolerance: float,
    report: StepReport,
    *,
    most_steps: int = _MAX_STEPS,
    largest_system: int = block_newton.MAX_UNKNOWNS,
) -> tuple[DecompositionSearch, End[BlockIterate]]:
    patterns = problem.participation.patterns(problem.n)
    assert patterns is not None  # they are listed for fixed epochs
    first = start(scaled(problem.target), patterns.ravel(), patterns.shape[1])
    search = DecompositionSearch(first, min(largest_system, block_newton.MAX_UNKNOWNS), _LAST_CENTRING * tolerance)
    enough, most = GAP_SHARE * tolerance, min(most_steps, _MAX_STEPS)
    end = run(search, first, enough=enough, most=most, stall=_STALL_STEPS, report=report)
    return search, end


class DecompositionSearch:
    """The best dual iterate and the best strategy so far, and the steps that improve them.

    Args:
        first: the iterate to start from.
        largest_system: unknowns up to which Newton's method takes over.
        last_centring: centring at the end of its central path.
    """

    def __init__(self, first: BlockIterate, largest_system: int, last_centring: float) -> None:
        self.k = first.q.shape[1]
        self.current = self.dual = first
        self._newton_fits = block_newton.unknowns(*first.factors.shape[:2]) <= largest_system
        self._last_centring = last_centring
        self._best: np.ndarray | None = None
        self._loss = np.inf
        self._mixer = Anderson()
        self._gaps: list[float] = []
        self._centring: float | None = None
        self.offer(first.gram())

    @property
    def distance(self) -> float:
        """The loss of the best strategy over the best bound, less 1, and what rounding may hide."""
        return max(self._loss / self.dual.lower - 1, 0.0) + 16 * len(self.dual.order) * _UNIT

    def gap(self, _at: BlockIterate) -> float:
        """The distance."""
        return self.distance

    def step(self, _at: BlockIterate, _number: int) -> BlockIterate | None:
        """Return a power step, or, once these are slow, a Newton step along the central path."""
        self._gaps.append(self.distance)
        slow = len(self._gaps) > _PATIENCE and self._gaps[-1] > _PACE * self._gaps[-1 - _PATIENCE]
        if self._centring is None and slow and self._newton_fits:
            self._centring = _FIRST_CENTRING
            self.visit(block_newton.centred(self.current))
        if self._centring is None:
            return self.visit(self._power_step())
        step = block_newton.newton(self.current, self._centring)
        if step is None:
            return None
        self.offer(step.gram)
        if step.change < _NEAR_CHANGE:
            self._centring = max(self._centring * _CENTRING_FALL, self._last_centring)
        return self.visit(step.iterate)

    def strategy(self, tolerance: float) -> np.ndarray:
        """Return the best strategy found, shape (n, n); where it misses the tolerance, other repairs of X are tried.

        Raises:
            SolveFailed: no candidate could be inverted.
        """
        if self.distance > tolerance:
            for candidate in candidates(self.dual.gram(), self.k):
                self._consider(candidate)
                if self.distance <= tolerance:
                    break
        if self._best is None:
            raise SolveFailed(
                "no invertible strategy was found in double precision; rescale the workload so that its entries lie "
                "near 1"
            )
        return self._best

    def offer(self, gram: np.ndarray) -> None:
        """Take the strategy that is nearest to a Gram matrix in class order, if it is better."""
        gram = self.current.settle(gram)
        self._consider(masked(gram, self.k))
        if self._best is None:
            ridge = _FIRST_RIDGE / self.k * np.eye(len(gram))
            self._consider(masked(dominating(gram, self.k) + ridge, self.k))

    def _consider(self, feasible: np.ndarray) -> None:
        strategy = strategy_of(feasible, self.dual.order)
        loss = np.inf if strategy is None else loss_of(self.dual.target, strategy)
        if loss < self._loss:
            self._best, self._loss = strategy, loss

    def visit(self, iterate: BlockIterate) -> BlockIterate:
        """Go to an iterate and take what is better there."""
        self.current = iterate
        if iterate.lower > self.dual.lower:
            self.dual = iterate
        self.offer(iterate.gram())
        return iterate

    def _power_step(self) -> BlockIterate:
        """Return an extrapolated step; the plain power step where the extrapolation is not allowed or loses ground."""
        at = self.current
        weights, correlations = power(at)
        mixed = self._mixer.mix(pack(*normalised(at.products)), pack(weights, correlations), importance(at))
        unpacked = None if mixed is None else unpack(mixed, *correlations.shape[:2])
        if unpacked is not None:
            trial = evaluate(at.target, at.order, *unpacked)
            if trial.lower >= at.lower * (1 - 1e-13):
                return trial
        if mixed is not None:
            self._mixer.forget()
        return evaluate(at.target, at.order, weights, correlations)
