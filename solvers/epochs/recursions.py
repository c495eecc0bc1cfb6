"""Recursions with few states, for one epoch or fixed epochs: from a spec to C without decompositions.

Workloads with a bidiagonal inverse take the dual from `blocks` and X from `gram`. For the others (momentum, Nesterov
and SRG over epochs, coupled weight decay that oscillates, Lambda_tau times these, rates of zero with momentum) both
come from `ring`. C comes from `cholesky`; the certificate is that of `factorize.solvers.single.dense` and
`decompositions`.

A step that moves nothing of its own (rate zero) makes A singular, and its optimum is the limit of those for small
rates: it gets one that is below the tolerance. For one epoch the weights of such steps vanish and nothing else happens.
Over epochs that is so where the column of the step is zero, and where the rate is zero at the same place of every
epoch and the column is a multiple of the next one (momentum, also with coupled decay; not Nesterov). Others make blocks
of the dual singular, and decompositions with a barrier (`decompositions`) remain the way.
"""

import math
from dataclasses import replace

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.numbers.state_space import StateSpace
from factorize.solvers.epochs import decompositions as epochs
from factorize.solvers.epochs.blocks import BlockPoint, Ring, after_power_step, maximise
from factorize.solvers.epochs.cholesky import reverse_cholesky
from factorize.solvers.epochs.class_blocks import factors
from factorize.solvers.epochs.gram import mask, whole_gram
from factorize.solvers.epochs.ring import RecursionRing
from factorize.solvers.methods.search import GAP_SHARE, End
from factorize.solvers.problem import (
    Estimate,
    Problem,
    Reporter,
    StepReport,
    estimate_of,
    outline_of,
    refuse_beyond_dense,
)
from factorize.solvers.single import dense
from factorize.solvers.single.newton import require_range
from factorize.spec import Spec
from factorize.structures.base import MAX_DENSE
from factorize.workloads import Workload
from factorize.workloads.operators import BidiagonalInverse

MIN_N = 128
"""Below this n decompositions are as fast, and compiled code need not be loaded."""

MAX_EPOCHS, MAX_FILTERED_EPOCHS = 128, 64
"""The most epochs with a bidiagonal inverse, and without."""

MIN_EPOCH_STEPS = 4
"""With fewer steps per epoch the blocks are nearly the whole matrix."""

MAX_N_REPLACED = 1024
"""Up to this n decompositions take over where this solver misses the tolerance."""

_MAX_STATES = 6
_LAST_SHARE, _MIN_GAP = 0.01, 1e-11
"""Steps go on to this part of the tolerance, and to this gap at the least. Each is cheap beside a product of whole
matrices, of which the proof makes two less where its guess is as near to a polar factor as the root of that gap."""
_GRAM_ERROR = 0.02
"""The relative error of X beside the root of the tolerance. It costs some twenty times its square: 1 % of that."""
_PATIENCE_STEPS = 60  # ill-conditioned workloads pass through phases of this many steps where the gap does not fall
_MIN_RATE, _MAX_RATE = 1e-12, 1e-9  # a step of rate zero gets a rate between these parts of the largest
_PARALLEL_ERROR = 1e-14
_RIDGES = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
_POLES, _STEPS, _MAX_STEPS = 40, 60, 400
_MIN_STEPS = 6  # the evidence beside a claim takes at least this many steps


def own(spec: Spec) -> bool:
    """Return whether a spec has such a workload, one or fixed epochs, and sizes where that pays."""
    k, n = spec.participation.passes, (spec.optimize_for or spec.workload).n
    if k is None or dense.refuse_objective(spec) is not None or not MIN_N <= n <= MAX_DENSE or n < MIN_EPOCH_STEPS * k:
        return False
    if k > 1 and _inverse(spec, outline_of(spec)) is not None:
        return k <= MAX_EPOCHS
    return k <= MAX_FILTERED_EPOCHS and _is_filtered(spec, k)


def _is_filtered(spec: Spec, k: int) -> bool:
    """Return whether the filters of `ring` find the dual."""
    system = _system(spec)
    if system is None or system.feed.shape[1] > _MAX_STATES:
        return False
    moving = np.flatnonzero(system.through)
    if not moving.size:
        return False
    lost = (system.through == 0) & system.feed.any(axis=1)
    lost[moving[-1] :] = False
    return k == 1 or _harmless(system, lost, k)


def _harmless(system: StateSpace, lost: np.ndarray, k: int) -> bool:
    """Return whether steps are lost in every epoch or in none, and their columns are multiples of the next."""
    by_class = lost.reshape(k, -1)
    if (by_class.any(axis=0) & ~by_class.all(axis=0)).any():
        return False
    here = np.flatnonzero(lost)
    later = here + 1
    fed = system.feed[here]
    read = np.einsum("is,is->i", system.read[later], fed)[:, None]
    passed = np.concatenate([read, np.einsum("irs,is->ir", system.follow[later], fed)], axis=1)
    own = np.concatenate([system.through[later, None], system.feed[later]], axis=1)
    lengths = np.linalg.norm(passed, axis=1) * np.linalg.norm(own, axis=1)
    return bool((lengths - np.abs(np.einsum("ir,ir->i", passed, own)) <= _PARALLEL_ERROR * lengths).all())


def _system(spec: Spec) -> StateSpace | None:
    """Return W A as a recursion, or None."""
    workload = spec.optimize_for or spec.workload
    objective = spec.objective.state_space(workload.m)
    inner = workload.state_space() if workload.m == workload.n else None
    return None if objective is None or inner is None else inner.then(objective)


def _inverse(spec: Spec, workload: Workload) -> BidiagonalInverse | None:
    inverse = workload.bidiagonal_inverse()
    return None if inverse is None else spec.objective.weighted_inverse(inverse)


def estimate(spec: Spec) -> Estimate:
    """Return the cost: filters with q k states, X from them, and the certificate's products."""
    n, k, states, whole = float(spec.workload.n), spec.participation.passes or 1, 1, 6
    if k == 1 or _inverse(spec, outline_of(spec)) is None:
        system = _system(spec)
        states, whole = 1 if system is None else max(1, system.feed.shape[1]), 8
    solve = _STEPS * _POLES * 6 * n * (states * k) ** 2 + _POLES * n * n * states * k
    entries = whole * n * n + 5 * _POLES * n * states * k
    return refuse_beyond_dense(estimate_of(entries=entries, multiplications=solve + 2 * n**3), int(n), int(n))


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum, C whole.

    Raises:
        SolveFailed: the workload's numbers leave the range of double precision, or X is not definite in it.
    """
    try:
        ring = ring_of(problem)
        ascent = ascend(ring, GAP_SHARE * problem.tolerance, Reporter(progress), beyond=_LAST_SHARE * problem.tolerance)
        if ascent.outcome is not Outcome.CONVERGED and problem.n <= MAX_N_REPLACED and not isinstance(ring, Ring):
            return _by_decompositions(problem, progress)
        poles = ring.poles(ascent.best.dual, _GRAM_ERROR * math.sqrt(problem.tolerance))
        best = replace(ascent.best, poles=poles)
        gram = whole_gram(ring, best) if isinstance(ring, Ring) else ring.whole_gram(best)
        strategy = _factor(gram, ring.epochs, _RIDGES if problem.n > MAX_N_REPLACED else _RIDGES[:1])
        dual = _evidence(ascent.best.dual)
    except (ValueError, FloatingPointError) as error:
        if problem.n <= MAX_N_REPLACED:
            return _by_decompositions(problem, progress)
        raise SolveFailed(f"{error}; rescale the workload or use a milder schedule") from None
    return Solution(
        strategy=problem.with_unit_sensitivity(strategy), outcome=ascent.outcome, iterations=ascent.steps, dual=dual
    )


def _factor(gram: np.ndarray, k: int, ridges: tuple[float, ...]) -> np.ndarray:
    """Return C for X with its entries within classes set to zero, and as little of the identity as makes it definite.

    Raises:
        FloatingPointError: X is not definite in double precision, not even with the largest ridge.
    """
    for ridge in ridges:
        gram[np.diag_indices_from(gram)] += ridge / k
        gram /= 1 + ridge
        mask(gram, k)
        try:
            return reverse_cholesky(gram)
        except FloatingPointError:
            continue
    raise FloatingPointError("the Gram matrix is not definite in double precision")


def _by_decompositions(problem: Problem, progress: ProgressCallback) -> Solution:
    if problem.participation.single:
        return dense.solve(problem, progress)
    return epochs.solve(problem, progress)


def _evidence(dual: np.ndarray) -> dict[str, np.ndarray]:
    if dual.shape[1] == 1:
        return {"weights": np.ascontiguousarray(dual[:, 0, 0])}
    return {"factors": factors(dual)}


def dual_evidence(
    problem: Problem, accuracy: float, report: StepReport, work: float, *, settled: bool = False
) -> dict[str, np.ndarray]:
    """Return dual evidence with a bound within about `accuracy` of the optimum, or nothing; no n x n array.

    Args:
        problem: spec.
        accuracy: relative.
        report: told the gap after each step.
        work: multiplications after which what is found is returned, but for some steps that are taken in any case; a
            bidiagonal inverse needs few.
        settled: whether what misses the accuracy is nothing.
    """
    try:
        ring = ring_of(problem)
        if isinstance(ring, Ring):
            end = maximise(ring, tolerance=accuracy, report=report, coarse=True)
            dual = after_power_step(end.best)
        else:
            end = ascend(ring, accuracy, report, most_steps=max(_MIN_STEPS, int(work / ring.work(_POLES))))
            dual = end.best.dual
        return {} if settled and end.outcome is not Outcome.CONVERGED else _evidence(dual)
    except (ValueError, FloatingPointError):  # numbers outside the range of the filters
        return {}


def ring_of(problem: Problem) -> Ring | RecursionRing:
    """Return the weighted workload folded by epochs.

    Raises:
        ValueError: it is no recursion, or its numbers are not finite, or leave the range of its form.
    """
    ring = bidiagonal_ring(problem)
    if ring is not None:
        return ring
    system, k = _system(problem.spec), problem.participation.passes
    if system is None or k is None:
        raise ValueError("the weighted workload is no recursion with few states")
    return RecursionRing(system, k, min(_MAX_RATE, max(_MIN_RATE, 0.1 * problem.tolerance)))


def bidiagonal_ring(problem: Problem) -> Ring | None:
    """Return the weighted workload folded by epochs, or None for one epoch or without a bidiagonal inverse.

    Raises:
        ValueError: its numbers leave the range in which their fourth powers are safe.
    """
    k, inverse = problem.participation.passes or 1, _inverse(problem.spec, problem.workload)
    if k == 1 or inverse is None:
        return None
    p, q = (np.array(part, dtype=np.float64) for part in inverse)
    q[0] = 0.0
    require_range("p", p, 1e-60, 1e60)
    require_range("q", q[q != 0.0], 1e-60, 1e60)
    return Ring(p, q, k)


def ascend(
    ring: Ring | RecursionRing,
    tolerance: float,
    report: StepReport,
    *,
    beyond: float = math.inf,
    most_steps: int = _MAX_STEPS,
) -> End[BlockPoint]:
    """Return dual blocks whose gap is below the tolerance, or as good as rounding or `most_steps` allow.

    Args:
        ring: the workload.
        tolerance: relative gap.
        report: told the gap after each step.
        beyond: a smaller gap, to which cheap steps go on.
        most_steps: the most steps of the ascent.
    """
    with np.errstate(all="ignore"):
        return maximise(
            ring,
            tolerance=tolerance,
            beyond=max(beyond, _MIN_GAP) if isinstance(ring, Ring) else math.inf,
            report=report,
            patience=_PATIENCE_STEPS,
            most_steps=most_steps,
        )
