"""Single participation, largest variance of an output: the optimum over all lower-triangular matrices.

Minimise max_i ||(A C^-1)[i, :]||^2 over C with column norms at most 1. The dual has weights for rows and columns
(two_sided.py); it is evaluated by decompositions for any workload, and in O(n) per pole where the inverse of
the workload is bidiagonal. For prefix sums the optimum is the square of the factorization norm gamma_2: 4/3 for n = 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.problem import Estimate, Problem, Reporter, StepReport, estimate_of, refuse_beyond_dense
from factorize.solvers.single.dense import RIDGES, best_of, filled, row_losses, scaled, short_of
from factorize.solvers.single.few_states import Merged, merge
from factorize.solvers.single.streaming import streaming_factor
from factorize.solvers.single.two_sided import Pair, maximise
from factorize.solvers.single.two_sided_bidiagonal import TwoSidedBidiagonal
from factorize.spec import Spec
from factorize.spec.objective import MaxError
from factorize.workloads import Workload

_UNIT = 2.0**-52
_MIN_N_STRUCTURED = 128  # below this n decompositions are as fast, and compiled code need not be loaded
_TOLERANCE_SHARE = 0.4  # the solver stops this far below the tolerance, so that the certificate's own allowances fit in
_MIN_SINGULAR_VALUE = 1e-13
"""What lies below this part of the largest singular value is left out of the loss that a step estimates."""
_NODE_STEP, _LOWER_TAIL, _UPPER_TAIL = 1.2, -7.0, 2.0  # in log tau; a thousandth of Phi lies beyond the ends


def own(spec: Spec) -> bool:
    """Return whether a spec has this objective and single participation."""
    return spec.participation.single and isinstance(spec.objective, MaxError)


def estimate(spec: Spec) -> Estimate:
    """Return the cost: mostly products with the curvature, or the certificate where the inverse is bidiagonal."""
    workload = spec.optimize_for or spec.workload
    n, m = spec.workload.n, max(spec.workload.m, spec.workload.n)
    work = 1.5 * n**3 if is_structured(workload) else 2000.0 * n * n * m
    return refuse_beyond_dense(estimate_of(entries=14.0 * n * m, multiplications=work), n, m)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum of a spec with single participation and objective `max`.

    Raises:
        SolveFailed: the workload's numbers leave the range of double precision.
    """
    route = solve_bidiagonal if is_structured(problem.workload) else solve_dense
    try:
        return route(problem, Reporter(progress))
    except (ValueError, FloatingPointError, np.linalg.LinAlgError) as error:
        raise SolveFailed(f"{error}; rescale the workload so that its entries lie near 1") from None


def dual_evidence(workload: Workload, accuracy: float, report: StepReport) -> dict[str, np.ndarray]:
    """Return evidence for the lower bound: `weights` of the columns and `row_weights`."""
    if is_structured(workload):
        merged = _merged(workload)
        ascent = maximise(TwoSidedBidiagonal(merged.p, merged.q), tolerance=accuracy, report=report)
        return _evidence_of(ascent.best, merged.rows, merged.columns, workload)
    target = _Target.of(workload)
    return target.evidence(maximise(target, tolerance=accuracy, report=report).best)


def is_structured(workload: Workload) -> bool:
    """Return whether the O(n) route is taken."""
    return workload.n >= _MIN_N_STRUCTURED and workload.outline().first_order() is not None


def _evidence_of(best: Pair, rows: np.ndarray, columns: np.ndarray, workload: Workload) -> dict[str, np.ndarray]:
    row_weights, weights = np.zeros(workload.m), np.zeros(workload.n)
    row_weights[rows], weights[columns] = best.u, best.v
    return {"weights": weights, "row_weights": row_weights}


def _merged(workload: Workload) -> Merged:
    """Return the workload without steps that move nothing: their rows repeat others, with a factor of at most 1."""
    steps = workload.first_order()
    if steps is None:
        raise SolveFailed("the inverse of the workload is not bidiagonal")
    return merge(steps, np.where(steps.feed > 0, 1.0, 0.0))


def solve_bidiagonal(problem: Problem, report: Reporter) -> Solution:
    """Return the optimum where the inverse of the workload is bidiagonal, up to steps of rate zero.

    Raises:
        SolveFailed: it is not.
        FloatingPointError: rounding lost a pivot of C.
    """
    merged = _merged(problem.workload)
    two_sided = TwoSidedBidiagonal(merged.p, merged.q)
    ascent = maximise(two_sided, tolerance=_TOLERANCE_SHARE * problem.tolerance, report=report)
    best = ascent.best
    poles = two_sided.poles(best.u, best.v, max(1e-15, 1e-2 * _TOLERANCE_SHARE * problem.tolerance))
    factor = streaming_factor(two_sided.columns(best.u).generators(best.v, poles))
    # Columns whose constraint is not tight stay below 1: raising them could raise a row of B.
    strategy = factor * np.sqrt(best.x / best.x.max())
    return Solution(
        strategy=problem.with_unit_sensitivity(merged.embed(strategy)),
        outcome=ascent.outcome,
        iterations=ascent.steps,
        dual=_evidence_of(best, merged.rows, merged.columns, problem.workload),
    )


def solve_dense(problem: Problem, report: Reporter) -> Solution:
    """Return the optimum of any workload, by singular value decompositions.

    Raises:
        SolveFailed: no strategy could be inverted.
    """
    target = _Target.of(problem.workload)
    ascent = maximise(target, tolerance=_TOLERANCE_SHARE * problem.tolerance, report=report)
    strategy, loss = target.recover(ascent.best, problem.tolerance)
    reached = loss <= ascent.best.value**2 * (1 + problem.tolerance)
    whole = np.eye(problem.n)
    whole[np.ix_(target.columns, target.columns)] = strategy
    return Solution(
        strategy=problem.with_unit_sensitivity(whole),
        outcome=Outcome.CONVERGED if reached else short_of(ascent.outcome),
        iterations=ascent.steps,
        dual=target.evidence(ascent.best),
    )


@dataclass(frozen=True)
class _Target:
    """Any workload without its zero rows and columns, evaluated by decompositions.

    Attributes:
        matrix: shape (rows kept, columns kept), its largest entry in [0.5, 1).
        rows: numbers of the rows kept.
        columns: numbers of the columns kept.
        workload: whole.
    """

    matrix: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    workload: Workload

    @classmethod
    def of(cls, workload: Workload) -> _Target:
        whole = workload.dense()
        rows, columns = (np.flatnonzero(whole.any(axis=axis)) for axis in (1, 0))
        return cls(np.ascontiguousarray(scaled(whole[np.ix_(rows, columns)])), rows, columns, workload)

    def evidence(self, best: Pair) -> dict[str, np.ndarray]:
        return _evidence_of(best, self.rows, self.columns, self.workload)

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the norms of rows and of columns."""
        return np.linalg.norm(self.matrix, axis=1), np.linalg.norm(self.matrix, axis=0)

    def evaluate(self, u: np.ndarray, v: np.ndarray, _error: float) -> Pair:
        """Decompose diag(sqrt u) A diag(sqrt v).

        The gap is that of the better of two feasible matrices: X / max x, and X with only the entries of its diagonal
        lowered that are above 1.
        """
        left, s, right = np.linalg.svd(np.sqrt(u)[:, None] * self.matrix * np.sqrt(v), full_matrices=False)
        right = np.ascontiguousarray(right.T)
        value = float(s.sum())
        s = s / value
        e, x = (left**2) @ s / u, (right**2) @ s / v
        main = s > _MIN_SINGULAR_VALUE * s[0]
        decoder = (self.matrix * np.sqrt(v * np.maximum(x, 1))) @ (right[:, main] / np.sqrt(s[main]))
        lowered = float(np.einsum("ia,ia->i", decoder, decoder).max()) / value**2
        gap = max(min(float(x.max() * e.max()), lowered) - 1, 0.0) + 16 * len(s) * _UNIT

        def solve(diagonal: np.ndarray, wanted: np.ndarray) -> np.ndarray:
            root = np.sqrt(np.concatenate([u, v]))
            matrix = _curvature(left, s, right) / (root[:, None] * root) + 0.5 * root[:, None] * root
            matrix[np.diag_indices_from(matrix)] += diagonal
            return np.linalg.solve(matrix, root * wanted) / root

        return Pair(u, v, e, x, value, gap, 8 * _UNIT, solve)

    def recover(self, best: Pair, tolerance: float) -> tuple[np.ndarray, float]:
        """Return lower-triangular C with unit columns, shape (n, n), and its loss.

        C^T C is X with its diagonal lowered to 1 and filled up to 1, and with a ridge where X is singular: what is
        added to X lowers every row of B.

        Raises:
            SolveFailed: no candidate could be inverted.
        """
        return best_of(
            self._candidates(best),
            lambda strategy: float(row_losses(self.matrix, strategy).max()),
            best.value**2 * (1 + 0.5 * tolerance),
        )

    def _candidates(self, best: Pair) -> Iterator[np.ndarray]:
        _, s, right = np.linalg.svd(np.sqrt(best.u)[:, None] * self.matrix * np.sqrt(best.v), full_matrices=False)
        root = np.sqrt(s / s.sum())[:, None] * right / np.sqrt(best.v)
        x = np.einsum("ai,ai->i", root, root)
        for ridge in RIDGES:
            for top in (np.maximum(x, 1.0), x.max()):
                yield filled(root, x, top, ridge)


def _curvature(left: np.ndarray, s: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the map Z of two_sided.py as a matrix.

    Phi_ab = integral of exp(-tau / s_a) exp(-tau / s_b) dtau; the trapezoidal rule in log tau is right to 0.3 %, keeps
    Z semidefinite, and makes Z a sum of elementwise squares of few products.
    """
    both, m = np.vstack([left, right]), len(left)
    s = np.maximum(s, _MIN_SINGULAR_VALUE * s[0])
    first, last = np.log(s[-1]) + _LOWER_TAIL, np.log(s[0]) + _UPPER_TAIL
    total = np.zeros((len(both), len(both)))
    for tau in np.exp(np.arange(first, last + _NODE_STEP, _NODE_STEP)):
        part = both * np.exp(-0.5 * tau / s)
        total += _NODE_STEP * tau * (part @ part.T) ** 2
    total[:m, m:] *= -1
    total[m:, :m] *= -1

    return total
