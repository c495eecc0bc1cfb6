"""Single participation for workloads with few states: the optimum in O(n) per pole, dense C on demand.

The dual needs only the diagonal of a rational function of (A^T A)^-1 (bidiagonal.py, momentum_filters.py,
cascade.py, nesterov.py, newton.py); C follows from a recurrence (solvers/single/streaming.py). This is
`dense` for prefix sums, schedules, weight decay, momentum, SRG, and restarts of them: thousands of times faster than
decompositions, to the same certificate.
Steps of rate zero and outputs of weight zero are merged with others first (merging.py).
"""

import numpy as np

from factorize.errors import SolveFailed
from factorize.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, refuse_beyond_dense
from factorize.solvers.single import dense
from factorize.solvers.single.bidiagonal import Bidiagonal
from factorize.solvers.single.cascade import Cascade
from factorize.solvers.single.filtered import Filtered
from factorize.solvers.single.merging import Merged, merge
from factorize.solvers.single.momentum_filters import MomentumFilters
from factorize.solvers.single.nesterov import Nesterov
from factorize.solvers.single.newton import maximise
from factorize.solvers.single.streaming import streaming_factor
from factorize.spec import Spec
from factorize.structures.base import MAX_DENSE
from factorize.structures.dense import DenseMatrix
from factorize.workloads import Workload

SMALLEST = 128
"""Below this the decompositions of dense.py are as fast, and compiled code need not be loaded."""

_SAFETY = 0.3  # stop this far below the tolerance, so that the certificate's own allowances fit in


LARGEST_REPLACED = 1024
"""Up to this n decompositions take over where the O(n) solver has no answer."""

_LOOSE = 1e-5  # of its norm, by which a column stays below 1 before its constraint counts as one that is not tight
_LEAST_NESTEROV = 1e-3  # below, the recurrences of nesterov.py lose digits
_RIDGE = 0.2  # of the tolerance, where weights of zero leave columns equal: C needs something that tells them apart


def merged_of(workload: Workload, spec: Spec) -> Merged | None:
    """Return the weighted workload with its steps merged, or None where that is not needed or does not help."""
    inverse, steps = workload.bidiagonal_inverse(), workload.first_order()
    weights = spec.objective.row_weights(workload.m)
    if steps is None or weights is None:
        return None
    if inverse is not None and spec.objective.weighted_inverse(inverse) is not None:
        return None

    return merge(steps, weights)


def is_filtered(workload: Workload) -> bool:
    """Return whether A has a form with filters from both ends."""
    chain = workload.chain()
    if chain is None or not chain.eta.all():
        return False
    if not chain.ahead:
        return len(chain.inner) in (1, 2)
    rise = chain.eta[1:] / (chain.eta[:-1] * chain.lam[:-1])
    return chain.ahead >= _LEAST_NESTEROV and bool((rise <= (1 + 1 / chain.ahead) * (1 - 1e-12)).all())


def filtered_of(workload: Workload) -> Filtered | None:
    """Return A in a form with filters from both ends, or None if it has none."""
    chain = workload.chain() if is_filtered(workload) else None
    if chain is None:
        return None
    if chain.ahead:
        return Nesterov(chain.ahead, chain.eta, chain.lam)
    if len(chain.inner) == 2:
        decay, beta = chain.inner
        return Cascade(beta, chain.eta, chain.lam, decay)
    return MomentumFilters(chain.inner[0], chain.eta, chain.lam)


def structure_of(workload: Workload, spec: Spec) -> Bidiagonal | Filtered | None:
    """Return the weighted workload W A in a form with an O(n) solver, or None if it has none."""
    inverse = workload.bidiagonal_inverse()
    weighted = None if inverse is None else spec.objective.weighted_inverse(inverse)
    if weighted is not None:
        return Bidiagonal(*weighted)
    if _takes_filters(workload, spec):
        return filtered_of(workload)
    merged = merged_of(workload, spec)
    if merged is not None:
        return Bidiagonal(merged.p, merged.q)
    return None


def has_structure(workload: Workload, spec: Spec) -> bool:
    """Return whether `structure_of` finds a form, without loading the compiled code of one: an estimate asks."""
    inverse = workload.bidiagonal_inverse()
    if inverse is not None and spec.objective.weighted_inverse(inverse) is not None:
        return True
    merges = workload.first_order() is not None and spec.objective.row_weights(workload.m) is not None
    return _takes_filters(workload, spec) or merges


def _takes_filters(workload: Workload, spec: Spec) -> bool:
    return spec.objective.uniform and is_filtered(workload)


def dual_weights(workload: Workload, spec: Spec, v: np.ndarray) -> np.ndarray:
    """Return the dual weights of all steps, summing to 1, from those of the structure of a weighted workload."""
    merged = merged_of(workload, spec)
    weights = v if merged is None else merged.spread(v)
    return weights / weights.sum()


def own(spec: Spec) -> bool:
    """Return whether a spec has single participation, such a form, and sizes where it pays and C is not too large."""
    workload = spec.optimize_for or spec.workload
    return spec.participation.single and SMALLEST <= workload.n <= MAX_DENSE and has_structure(workload, spec)


def estimate(spec: Spec) -> Estimate:
    """Return the cost: C, B and their product in the certificate outweigh the solve."""
    n = spec.workload.n
    return refuse_beyond_dense(estimate_of(entries=6.0 * n * n, multiplications=1.5 * n**3), n, n)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum of a spec with single participation, C whole.

    Up to LARGEST_REPLACED steps, decompositions take over where the workload's numbers leave the range of its form.

    Raises:
        SolveFailed: the workload is singular to double precision, or its numbers leave its range.
    """
    structure = structure_of(problem.workload, problem.spec)
    if structure is None:
        raise SolveFailed("the weighted workload has no banded inverse")
    try:
        optimum = maximise(structure, tolerance=_SAFETY * problem.tolerance, report=Reporter(progress))
        whole = streaming_factor(structure.generators(optimum.best.v, optimum.best.poles))
    except (ValueError, FloatingPointError) as error:
        if problem.n <= LARGEST_REPLACED:
            return dense.solve(problem, progress)
        raise SolveFailed(
            f"{error}; rescale the workload so that its entries lie near 1, or use a milder schedule"
        ) from None
    # Columns whose constraint is not tight stay below 1: raising them could raise the loss.
    whole *= np.minimum(1.0, np.sqrt(optimum.best.x / ((1.0 - _LOOSE) * optimum.best.x.max())))
    merged = merged_of(problem.workload, problem.spec)
    if merged is None:
        whole.setflags(write=False)  # given away: it need not be copied
        strategy = DenseMatrix(whole)
    else:
        strategy = problem.with_unit_sensitivity(merged.embed(whole, _RIDGE * problem.tolerance))
    return Solution(
        strategy=strategy,
        outcome=Outcome.CONVERGED if optimum.gap <= problem.tolerance else Outcome.ROUNDING_LIMIT,
        iterations=optimum.steps,
        dual={"weights": dual_weights(problem.workload, problem.spec, optimum.best.v)},
    )
