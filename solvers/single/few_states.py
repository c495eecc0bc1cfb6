"""Single participation for workloads with few states: the optimum in O(n) per pole, dense C on demand.

The dual needs only the diagonal of a rational function of (A^T A)^-1 (bidiagonal.py, momentum_filters.py,
three_recursions.py, nesterov.py, newton.py); C follows from a recurrence (solvers/single/streaming.py). This is
`dense` for prefix sums, schedules, weight decay, momentum, SRG, and restarts of them: thousands of times faster than
decompositions, to the same certificate.
Steps of rate zero and outputs of weight zero are merged with others first, which leaves a smaller workload:
A is a first-order recursion: its rows are a_i = follow_i a_{i-1} + feed_i e_i^T. Two kinds of rows do not count.

- A step with feed 0 repeats the row before: a_i = follow_i a_{i-1}. Its weight goes there, times follow_i^2.
- A row of weight 0 (then or from the start) is only passed on. The columns of its step and of the next steps up to the
  first row that counts are multiples of each other in every row that counts.

So the steps fall into groups that end with a row that counts. Let r_k be the multiple of column k in its group. The
weighted loss tr(W A X^-1 A^T W) depends on X only through the matrix X' that is left when each group's columns are
merged, X >= R^T X' R with R[g, k] = r_k, and R^T X' R plus anything on the diagonal reaches X'. Hence X_kk <= 1 asks
r_k^2 X'_gg <= 1, and the largest r_k of a group decides: the others' constraints are not tight.
"""

from dataclasses import dataclass

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.methods.search import GAP_SHARE
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, refuse_beyond_dense
from factorize.solvers.single import dense
from factorize.solvers.single.bidiagonal import Bidiagonal
from factorize.solvers.single.dense import ql_factor
from factorize.solvers.single.momentum_filters import MomentumFilters
from factorize.solvers.single.nesterov import Nesterov
from factorize.solvers.single.newton import maximise
from factorize.solvers.single.pole_sweeps import Filtered
from factorize.solvers.single.streaming import streaming_factor
from factorize.solvers.single.three_recursions import Cascade
from factorize.spec import Spec
from factorize.structures.base import MAX_DENSE
from factorize.structures.dense import DenseMatrix
from factorize.workloads import Workload
from factorize.workloads.operators import FirstOrder

MIN_N = 128
"""Below this the decompositions of dense.py are as fast, and compiled code need not be loaded."""


MAX_N_REPLACED = 1024
"""Up to this n decompositions take over where the O(n) solver has no answer."""

_SLACK = 1e-5  # a column that stays below 1 by this part of its norm has a constraint that is not tight
_MIN_NESTEROV_MOMENTUM = 1e-3  # below this momentum the recurrences of nesterov.py lose digits
_RIDGE = 0.2  # the ridge over the tolerance where weights of zero leave columns equal: C has to tell them apart


@dataclass(frozen=True)
class Merged:
    """A weighted workload with fewer steps, known by its bidiagonal inverse.

    Attributes:
        p: diagonal of the inverse, positive, shape (groups,).
        q: negated subdiagonal of the inverse, shape (groups,).
        rows: the row of the whole workload that each group ends with, shape (groups,).
        columns: the column with the largest multiple of each group, shape (groups,).
        group: the group of each column, or -1 for columns that no row that counts sees, shape (n,).
        share: multiple of each column over the largest of its group, in [0, 1], shape (n,).
    """

    p: np.ndarray
    q: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    group: np.ndarray
    share: np.ndarray

    def spread(self, weights: np.ndarray) -> np.ndarray:
        """Return dual weights of all columns, shape (n,), from those of the groups."""
        whole = np.zeros(len(self.group))
        whole[self.columns] = weights
        return whole

    def embed(self, strategy: np.ndarray, ridge: float = 0.0) -> np.ndarray:
        """Return lower-triangular C for all steps from that of the groups, shape (n, n).

        C^T C is R^T X' R with its diagonal filled up to 1, and with a ridge where columns are merged, some of which may
        be equal. Columns that nothing sees get unit columns.
        """
        n = len(self.group)
        if (self.share > 0).sum() == len(self.rows):
            whole = np.eye(n)
            whole[np.ix_(self.columns, self.columns)] = strategy
            return whole
        seen = self.group >= 0
        root = np.zeros((len(self.rows), n))
        root[:, seen] = strategy[:, self.group[seen]] * self.share[seen]
        # The same ridge everywhere: columns of one group that were scaled differently would cost its inverse.
        fill = 1.0 - self.share**2 + ridge
        return ql_factor(np.vstack([root, np.diag(np.sqrt(fill))]))


def merge(steps: FirstOrder, weights: np.ndarray) -> Merged:
    """Return the workload diag(sqrt(weights)) A with its steps merged.

    Args:
        steps: A as a recursion, `follow` and `feed` of shape (n,).
        weights: weights of the squared row norms of B, non-negative, shape (n,).

    Raises:
        SolveFailed: no row that counts sees any step.
    """
    follow, feed = steps
    counts = np.array(weights, dtype=np.float64)
    for i in range(len(counts) - 1, 0, -1):
        if feed[i] == 0:
            counts[i - 1] += follow[i] ** 2 * counts[i]
            counts[i] = 0.0
    counts[: int(np.argmax(feed > 0))] = 0.0
    rows = np.flatnonzero(counts)
    if not len(rows):
        raise SolveFailed("no output of positive weight depends on any step; give weight to a later output")
    group = np.searchsorted(rows, np.arange(len(counts)))
    multiple, through = _multiples(follow, feed, rows)
    group[multiple == 0] = -1
    largest = np.zeros(len(rows))
    np.maximum.at(largest, group[group >= 0], multiple[group >= 0])
    share = np.where(group >= 0, multiple / largest[group], 0.0)
    _, columns = np.unique(np.where(share == 1, group, -1)[::-1], return_index=True)
    columns = len(group) - 1 - columns[-len(rows) :]
    roots = np.sqrt(counts[rows])
    p = 1.0 / (largest * roots)
    q = through / (largest * np.concatenate([[1.0], roots[:-1]]))
    q[0] = 0.0
    return Merged(p, q, rows, columns, group, share)


def _multiples(follow: np.ndarray, feed: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each column's multiple at the end of its group, and each group's factor on the row that ends the last."""
    multiple, through = np.zeros(len(feed)), np.ones(len(rows))
    start = 0
    for g, row in enumerate(rows):
        reach = 1.0
        for k in range(row, start - 1, -1):
            multiple[k] = reach * feed[k]
            reach *= follow[k]
        through[g] = reach
        start = row + 1
    return multiple, through


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
    return chain.ahead >= _MIN_NESTEROV_MOMENTUM and bool((rise <= (1 + 1 / chain.ahead) * (1 - 1e-12)).all())


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
    return spec.participation.single and MIN_N <= workload.n <= MAX_DENSE and has_structure(workload, spec)


def estimate(spec: Spec) -> Estimate:
    """Return the cost: C, B and their product in the certificate outweigh the solve."""
    n = spec.workload.n
    return refuse_beyond_dense(estimate_of(entries=6.0 * n * n, multiplications=1.5 * n**3), n, n)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum of a spec with single participation, C whole.

    Up to MAX_N_REPLACED steps, decompositions take over where the workload's numbers leave the range of its form.

    Raises:
        SolveFailed: the workload is singular to double precision, or its numbers leave its range.
    """
    structure = structure_of(problem.workload, problem.spec)
    if structure is None:
        raise SolveFailed("the weighted workload has no banded inverse")
    try:
        optimum = maximise(structure, tolerance=GAP_SHARE * problem.tolerance, report=Reporter(progress))
        whole = streaming_factor(structure.generators(optimum.best.v, optimum.best.poles))
    except (ValueError, FloatingPointError) as error:
        if problem.n <= MAX_N_REPLACED:
            return dense.solve(problem, progress)
        raise SolveFailed(
            f"{error}; rescale the workload so that its entries lie near 1, or use a milder schedule"
        ) from None
    # Columns whose constraint is not tight stay below 1: raising them could raise the loss.
    whole *= np.minimum(1.0, np.sqrt(optimum.best.x / ((1.0 - _SLACK) * optimum.best.x.max())))
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
