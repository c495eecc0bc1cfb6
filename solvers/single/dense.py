"""Single participation, any workload: the optimum over all lower-triangular matrices, by decompositions of T D.

The dual of minimising ||T C^-1||_F^2 over C with column norms at most 1, for a target T of shape (m, n), is
||T D||_*^2 / sum(v) with D = diag(sqrt(v)), maximal over v >= 0 (D22; docs/notes/method.md). With T D = U diag(s) Q^T:

    H = Q diag(s) Q^T,   X = D^-1 H D^-1,   X_ii = h_i / v_i,   h_i = sum_a Q_ia^2 s_a,   N = sum(s) = sum(h)

Newton's method in log v (newton.py) needs the derivative

    -V dX_ii / dv V x = diag(Q [(Q^T diag(x) Q) o Phi] Q^T),   Phi_ab = s_a s_b / (s_a + s_b).

C is the QL factor of diag(sqrt(s)) Q^T D^-1, whose Gram matrix is X: this never squares a condition number and never
fails.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from factorize.errors import InvalidParameter, SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.methods.compiled import Product
from factorize.solvers.methods.search import GAP_SHARE, End
from factorize.solvers.problem import Estimate, Problem, Reporter, StepReport, estimate_of, refuse_beyond_dense
from factorize.solvers.single.newton import ascend
from factorize.spec import Spec

_UNIT = 2.0**-52
_MIN_WEIGHT = 1e-60  # below this part of the largest a weight is as good as zero, and squares would underflow
_MIN_TRUSTED_RATIO = 1e-14  # scaling X's diagonal is trusted down to this ratio of singular values
_POWER_STEPS = 2  # more power steps let weights of loose constraints fall so far that X cannot be read off them


def scaled(target: np.ndarray) -> np.ndarray:
    """Return the target times the power of two that brings its largest entry to [0.5, 1); no optimum depends on it."""
    _, exponent = np.frexp(np.abs(target).max())
    return np.ldexp(target, -int(exponent))


@dataclass(frozen=True)
class AscentPoint:
    """Dual weights and the decomposition of T D.

    Attributes:
        target: T, shape (m, n), without zero columns.
        v: dual weights, shape (n,), scaled so that sum(v) = sum(h).
        s: singular values of T D, shape (r,).
        q: right singular vectors, shape (n, r).
        h: diagonal of H, shape (n,).
    """

    target: np.ndarray
    v: np.ndarray
    s: np.ndarray
    q: np.ndarray
    h: np.ndarray

    @property
    def lower(self) -> float:
        """The dual bound N^2 / sum(v), which equals N after scaling."""
        return float(self.v.sum())

    @property
    def ratio(self) -> np.ndarray:
        """X_ii, whose mean is 1."""
        return self.h / self.v

    @property
    def slack(self) -> np.ndarray:
        """1 - X_ii where that is positive: the exact derivative has v - h there, and the weight falls by a factor e."""
        return np.maximum(1.0 - self.ratio, 0.0)

    @property
    def delta(self) -> float:
        """Relative error of the decomposition."""
        return 8 * _UNIT

    def hessian(self) -> Product:
        """The product with -dX_ii / dv."""
        sums = self.s[:, None] + self.s
        phi = np.divide(self.s[:, None] * self.s, sums, out=np.zeros_like(sums), where=sums > 0)

        def product(x: np.ndarray) -> np.ndarray:
            inner = (self.q.T * (x / self.v)) @ self.q
            inner *= phi
            return np.einsum("ia,ia->i", self.q @ inner, self.q) / self.v

        return product

    @cached_property
    def gap(self) -> float:
        """Gap of the better of two feasible matrices: X / max X_ii, and X with its diagonal scaled to 1.

        The second is quadratically close to the optimum. With x = diag(X) its loss is
        ||T D diag(sqrt(x)) Q diag(s)^-1/2||_F^2; where that cannot be evaluated, X is scaled where x > 1 only, and the
        loss taken to first order.
        """
        x = np.maximum(self.h / self.v, 0.0)
        uniform = float(x.max()) - 1
        if self.s[-1] <= _MIN_TRUSTED_RATIO * self.s[0] or len(self.s) < len(x):
            scaled_down = float(np.maximum(self.h - self.v, 0.0).sum()) / self.lower
        else:
            half = (self.target * np.sqrt(self.v * x)) @ (self.q / np.sqrt(self.s))
            scaled_down = float(np.vdot(half, half)) / self.lower - 1
        return max(min(uniform, scaled_down), 0.0) + 16 * len(x) * _UNIT


def maximise(
    target: np.ndarray, tolerance: float, report: StepReport, *, start: End[AscentPoint] | None = None
) -> End[AscentPoint]:
    """Maximise the dual bound until the gap is safely below the tolerance or rounding stops progress.

    Args:
        target: T, shape (m, n), no zero column.
        tolerance: relative gap asked for.
        report: told the gap after each step.
        start: an ascent to go on from.
    """
    # without one, column norms of T: the weights that are exact where T is diagonal
    v, before = (np.linalg.norm(target, axis=0), 0) if start is None else (start.best.v, start.steps)

    def at(v: np.ndarray, _error: float) -> AscentPoint:
        return evaluate(target, v)

    enough = GAP_SHARE * tolerance
    return ascend(at, v, tolerance=tolerance, enough=enough, report=report, before=before, power_steps=_POWER_STEPS)


def evaluate(target: np.ndarray, v: np.ndarray) -> AscentPoint:
    """Decompose T diag(sqrt(v)) and scale v so that sum(v) is the nuclear norm."""
    v = np.maximum(v, _MIN_WEIGHT * float(v.max()))
    s, q = right_singular(target * np.sqrt(v))
    factor = float(s.sum()) / float(v.sum())
    v, s = v * factor**2, s * factor
    return AscentPoint(target, v, s, q, np.einsum("ia,a,ia->i", q, s, q))


def right_singular(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return singular values, descending, and right singular vectors as columns; see `singular`."""
    return singular(matrix)[1:]


def singular(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return left singular vectors as columns, singular values, descending, and right singular vectors as columns.

    Raises:
        SolveFailed: the matrix left the range of double precision, or LAPACK gave up.
    """
    try:
        u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        raise SolveFailed(
            "the singular values did not converge; rescale the workload so that its entries lie near 1"
        ) from None
    if not 0 < float(s.sum()) < np.inf:
        raise SolveFailed(f"the dual value is {s.sum()}; rescale the workload so that its entries lie near 1")
    return u, s, vt.T


_MIN_SINGULAR_VALUE = 1e-13  # below this part of the largest a singular value is as good as zero
RIDGES = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)


def recover(at: AscentPoint, tolerance: float) -> tuple[np.ndarray, float]:
    """Return lower-triangular C with unit columns and C^T C near X, shape (n, n), and its loss.

    First X with its diagonal scaled to 1. Where T is singular, or nearly, X is too; then its diagonal is only lowered
    to 1, either everywhere by one factor or entry by entry, filled up to 1 where it is below, and given a ridge of
    growing size: whatever is added to X lowers the loss, so the ridge costs no more than its size. The first within
    half the tolerance is taken, else the one with the smallest loss.

    Raises:
        SolveFailed: no candidate could be inverted, or the singular values did not converge.
    """
    enough = at.lower * (1 + 0.5 * tolerance)
    return best_of(_candidates(at), partial(loss_of, at.target), enough)


def best_of(
    roots: Iterator[np.ndarray], loss: Callable[[np.ndarray], float], enough: float
) -> tuple[np.ndarray, float]:
    """Return the strategy of the smallest loss, shape (n, n), and its loss, by the QL factors of some matrices.

    Args:
        roots: roots of the Gram matrices to try, the best bet first.
        loss: loss of a strategy, infinite where it cannot be inverted.
        enough: a loss that is small enough to try no further.

    Raises:
        SolveFailed: no candidate could be inverted.
    """
    best, lowest = None, np.inf
    for root in roots:
        strategy = ql_factor(root)
        value = loss(strategy)
        if value < lowest:
            best, lowest = strategy, value
        if lowest <= enough:
            break
    if best is None:
        raise SolveFailed(
            "no invertible strategy was found in double precision; rescale the workload so that its entries lie near 1"
        )
    return best, lowest


def _candidates(at: AscentPoint) -> Iterator[np.ndarray]:
    """Yield matrices whose Gram matrix is X, or X with more on its diagonal."""
    yield np.sqrt(at.s)[:, None] * at.q.T / np.sqrt(at.v)
    root = _root_of_rank(at)
    x = np.einsum("ai,ai->i", root, root)
    for ridge in RIDGES[1:]:
        for top in (x.max(), np.maximum(x, 1.0)):
            yield filled(root, x, top, ridge)


def filled(root: np.ndarray, x: np.ndarray, top: np.ndarray | float, ridge: float) -> np.ndarray:
    """Return a root of X with its diagonal x divided by `top`, then filled up to 1, with a ridge."""
    return np.vstack([root / np.sqrt(top), np.diag(np.sqrt(np.maximum(1 - x / top, 0.0) + ridge))])


def _root_of_rank(at: AscentPoint) -> np.ndarray:
    """Return a root of X without what rounding makes of singular values of zero, shape (rank, n).

    Its rows are u^T T / sqrt(s), u a left singular vector of T D, so that no weight near zero divides.
    """
    u, s, _ = singular(at.target * np.sqrt(at.v))
    rank = int((s > _MIN_SINGULAR_VALUE * s[0]).sum())
    return (u[:, :rank].T @ at.target) / np.sqrt(s[:rank, None])


def ql_factor(root: np.ndarray) -> np.ndarray:
    """Return lower-triangular C with unit columns: the QL factor of a matrix, each column divided by its norm.

    Args:
        root: shape (r, n); rows are added as zeros where r < n.
    """
    r, n = root.shape
    if r < n:
        root = np.vstack([root, np.zeros((n - r, n))])
    lower = np.tril(triangle(root[:, ::-1])[::-1, ::-1])
    lower *= np.where(np.diagonal(lower) < 0, -1.0, 1.0)[:, None]
    norms = np.sqrt(np.einsum("ij,ij->j", lower, lower))
    return np.ascontiguousarray(lower / np.where(norms > 0, norms, 1.0)) + 0.0  # no -0.0 above the diagonal


def triangle(matrix: np.ndarray) -> np.ndarray:
    """Return the upper-triangular R of a QR decomposition."""
    upper: np.ndarray = np.linalg.qr(matrix, mode="r")  # type: ignore[assignment]  # numpy's stub ignores the mode
    return upper


def loss_of(target: np.ndarray, strategy: np.ndarray) -> float:
    """Return ||T C^-1||_F^2, or infinity where C cannot be inverted in double precision."""
    return float(row_losses(target, strategy).sum())


def row_losses(target: np.ndarray, strategy: np.ndarray) -> np.ndarray:
    """Return the squared norms of the rows of T C^-1, or infinity where C cannot be inverted in double precision."""
    from scipy.linalg import solve_triangular

    if (np.diagonal(strategy) <= 0).any():
        return np.array([np.inf])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        decoder = solve_triangular(strategy, target.T, trans="T", lower=True, check_finite=False)
        losses = np.einsum("ai,ai->i", decoder, decoder)
    return np.where(np.isfinite(losses), losses, np.inf)


_TOLERANCE_PARTS = (1e-2, 1e-4)  # the ascent goes to these parts of the tolerance in turn, until an answer meets it


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    refusal = refuse_objective(spec)
    if refusal is None and not spec.participation.single:
        return (
            f"the optimum over all matrices for participation {spec.participation.kind!r} is not known; use "
            "nu_toeplitz or square_root, whose sensitivity under min_sep is exact"
        )
    return refusal


def refuse_objective(spec: Spec) -> str | None:
    """Return why no fixed target expresses the objective, or None."""
    if not spec.objective.quadratic:
        return (
            "objective 'max' is optimised by 'dense' and 'auto' for single participation only; for others use "
            "nu_toeplitz or square_root, or optimise 'mean' or 'weighted' and read max_error from the result"
        )
    return refuse_weights(spec)


def refuse_weights(spec: Spec) -> str | None:
    """Return why the objective's weights do not fit the workload to optimise for, or None."""
    try:
        spec.objective.check((spec.optimize_for or spec.workload).m)
    except InvalidParameter as error:
        return f"optimize_for: {error}"
    return None


def estimate(spec: Spec) -> Estimate:
    """Return the cost: about eight decompositions and two hundred products of n x n matrices."""
    n, m = spec.workload.n, max(spec.workload.m, spec.workload.n)
    return refuse_beyond_dense(estimate_of(entries=12.0 * n * m, multiplications=800.0 * n * n * m), n, m)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum of a spec with single participation.

    Raises:
        SolveFailed: the target leaves the range of double precision.
    """
    report = Reporter(progress)
    target = scaled(problem.target[:, problem.kept])
    ascent = maximise(target, problem.tolerance, report)
    strategy, loss = recover(ascent.best, problem.tolerance)
    for part in _TOLERANCE_PARTS:
        if loss <= ascent.best.lower * (1 + problem.tolerance):
            break
        ascent = maximise(target, part * problem.tolerance, report, start=ascent)  # its gap was an estimate
        strategy, loss = recover(ascent.best, problem.tolerance)
    rounding = _UNIT * problem.n  # rounding of the loss; a smaller tolerance is met by chance
    reached = loss * (1 + rounding) <= ascent.best.lower * (1 + problem.tolerance)
    whole = np.eye(problem.n)
    whole[np.ix_(problem.kept, problem.kept)] = strategy
    return Solution(
        strategy=problem.with_unit_sensitivity(whole),
        outcome=Outcome.CONVERGED if reached else short_of(ascent.outcome),
        iterations=ascent.steps,
        dual={"weights": restore_weights(ascent.best.v, problem.kept)},
    )


def short_of(outcome: Outcome) -> Outcome:
    """Return how a search ended whose C misses the tolerance: where it met its own rule, rounding is what remains."""
    return Outcome.ROUNDING_LIMIT if outcome is Outcome.CONVERGED else outcome


def restore_weights(v: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return dual weights for all n columns, summing to 1: zero where the column of the target is zero."""
    weights = np.zeros(len(kept))
    weights[kept] = v / v.sum()
    return weights
