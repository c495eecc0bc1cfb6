"""The dual of the optimum for single participation, and its ascent by decompositions of T D.

The dual of minimising ||T C^-1||_F^2 over C with column norms at most 1 is ||T D||_*^2 / sum(v) with D = diag(sqrt(v)),
maximal over v >= 0 (D22; docs/notes/method.md). With T D = U diag(s) Q^T:

    H = Q diag(s) Q^T,   X = D^-1 H D^-1,   X_ii = h_i / v_i,   h_i = sum_a Q_ia^2 s_a,   N = sum(s) = sum(h)

Newton's method in log v (newton.py) needs the derivative

    -V dX_ii / dv V x = diag(Q [(Q^T diag(x) Q) o Phi] Q^T),   Phi_ab = s_a s_b / (s_a + s_b).

C is the QL factor of diag(sqrt(s)) Q^T D^-1, whose Gram matrix is X: this never squares a condition number and never
fails.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from factorize.errors import SolveFailed
from factorize.solvers.methods.search import End
from factorize.solvers.problem import StepReport
from factorize.solvers.single.newton import Product, ascend

_UNIT = 2.0**-52
_SMALLEST_WEIGHT = 1e-60  # of the largest: below that a weight is as good as zero and squares would underflow
_WELL_CONDITIONED = 1e-14  # ratio of singular values down to which scaling X's diagonal is trusted
_POWER_STEPS = 2  # more let weights of loose constraints fall so far that X cannot be read off them
_SAFETY = 0.3  # the solver stops this far below the tolerance, so that the certificate's own allowances fit in


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
        if self.s[-1] <= _WELL_CONDITIONED * self.s[0] or len(self.s) < len(x):
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

    enough = _SAFETY * tolerance
    return ascend(at, v, tolerance=tolerance, enough=enough, report=report, before=before, power_steps=_POWER_STEPS)


def evaluate(target: np.ndarray, v: np.ndarray) -> AscentPoint:
    """Decompose T diag(sqrt(v)) and scale v so that sum(v) is the nuclear norm."""
    v = np.maximum(v, _SMALLEST_WEIGHT * float(v.max()))
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
