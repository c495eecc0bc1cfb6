"""The objective to minimise: a variance, as a function of the decoder B and the squared sensitivity.

Every objective but `max` is scale * sens(C)^2 * ||W B||_F^2 with a fixed matrix W, so it is the mean objective of the
weighted workload W A; `weigh` applies W. Where W is diagonal, the squared row norms of B are enough (`row_weights`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from factorize.errors import InvalidParameter, UnsupportedProblem
from factorize.numbers.state_space import StateSpace, differences_from_reference, identity, scaling
from factorize.plain_data import Count, Frozen, Long, NonNegative
from factorize.workloads.operators import BidiagonalInverse

if TYPE_CHECKING:
    from factorize.workloads.base import Workload


class Objective(Frozen):
    """Base: the mean squared error's answers, changed by each kind where it differs.

    Attributes:
        uniform: whether it is the plain mean over the outputs.
        quadratic: whether it is scale * sens(C)^2 * ||W B||_F^2 with a fixed W.
        listed: whether it states a number for each row, and so fits one number of rows only.
    """

    uniform: ClassVar[bool] = False
    quadratic: ClassVar[bool] = True
    listed: ClassVar[bool] = False

    def check(self, m: int) -> None:
        """Raise InvalidParameter if the objective does not fit m outputs."""

    def leaves(self, workload: Workload) -> bool:  # noqa: ARG002  only weights may be zero
        """Return whether W A has an entry, so that there is something to minimise; the workload's numbers are known."""
        return True

    def check_endless(self) -> None:
        """Raise InvalidParameter if the objective has no meaning without a last output."""
        raise InvalidParameter(
            "this objective needs a last step, and n is 'unbounded'; use 'mean' or 'max', or leave the objective out",
            field="/objective/kind",
        )

    def by_row_errors(self, m: int) -> bool:  # noqa: ARG002  only blocks of steps may be shorter
        """Return whether the squared row norms of a B of m rows decide the objective."""
        return True

    def reach(self, m: int) -> int:
        """Return how many of m rows errors add up over: all, or those from one restart to the next."""
        return m

    def remark(self, m: int) -> str | None:
        """Return the certificate's remark on the objective of m outputs, if there is one."""
        return None

    def scale(self, m: int) -> float:
        """Return the constant factor between ||W B||_F^2 and the objective."""
        return 1.0

    def weigh(self, rows: np.ndarray) -> np.ndarray:
        """Return W times a matrix of all m rows, shape (m, d)."""
        return rows

    def row_weights(self, m: int) -> np.ndarray | None:
        """Return the weights of the squared row norms of B, shape (m,), or None if they do not decide."""
        return np.ones(m) if self.quadratic else None

    def weight_of_last(self, m: int) -> float | None:  # noqa: ARG002  only restarts depend on m
        """Return how many times more the last of m rows counts than each other one; None where others differ too."""
        return 0.0 if self.uniform else None

    def series_weights(self, n: int) -> np.ndarray | None:
        """Return weights of the squares of a Toeplitz B's first column, of which each row is a beginning."""
        rows = self.row_weights(n)
        return None if rows is None else np.cumsum(rows[::-1])[::-1]

    def state_space(self, m: int) -> StateSpace | None:
        """Return W as a recursion with few states; None where there is no W."""
        return identity(m) if self.quadratic else None

    def weighted_inverse(self, inverse: BidiagonalInverse) -> BidiagonalInverse | None:
        """Return (W A)^-1 if it is bidiagonal like A^-1, else None."""
        return inverse if self.quadratic else None

    def of_row_errors(self, errors: np.ndarray) -> float:
        """Return the objective at sensitivity 1 from the squared row norms of B, shape (m,)."""
        weights = self.row_weights(len(errors))
        if weights is None:
            raise UnsupportedProblem(f"{type(self).__name__} needs the whole decoder, not only its row norms")
        return self.scale(len(errors)) * float(weights @ errors)


class Mean(Objective):
    """Mean squared error: sens(C)^2 ||B||_F^2 / m."""

    uniform: ClassVar[bool] = True

    kind: Literal["mean"] = "mean"

    def check_endless(self) -> None:
        """Accept it: the limit of the means exists, and may be infinite."""

    def scale(self, m: int) -> float:
        """Return one over the number of outputs."""
        return 1.0 / m


class LambdaTau(Objective):
    """DP-MF+: sens(C)^2 ||Lambda_tau B||_F^2 (a sum), rewarding low noise between restarts of length tau.

    Lambda_tau is lower-triangular (K23, Appendix B, made exact). For step t = 1..m: if tau divides t, row t is
    e_t - e_{t-tau}; otherwise (e_t - e_{floor(t/tau) tau}) / sqrt(tau); e_0 is zero.
    """

    kind: Literal["lambda_tau"]
    tau: Count

    def reach(self, m: int) -> int:
        """Return the rows from one restart to the next."""
        return min(self.tau, m)

    def by_row_errors(self, m: int) -> bool:
        """Return whether no block has a predecessor, so that W is diagonal; otherwise differences of rows matter."""
        return self.tau >= m

    def remark(self, m: int) -> str | None:
        """Return a remark if tau does not divide m."""
        if m % self.tau == 0:
            return None
        return f"tau={self.tau} does not divide {m}, so the last iterate has weight 1/tau"

    def weigh(self, rows: np.ndarray) -> np.ndarray:
        """Subtract each row's reference row and scale."""
        t = np.arange(1, len(rows) + 1)
        closing = t % self.tau == 0
        reference = np.where(closing, t - self.tau, t // self.tau * self.tau)
        out = np.array(rows, dtype=np.float64)
        later = reference > 0
        out[later] -= rows[reference[later] - 1]
        return out * self._scales(len(rows))[:, None]

    def weight_of_last(self, m: int) -> float | None:
        """Return tau - 1 where the only restart is at the last row, and 0 where there is none."""
        return None if self.tau < m else float((self.tau - 1) * (self.tau == m))

    def _scales(self, m: int) -> np.ndarray:
        return np.where(np.arange(1, m + 1) % self.tau == 0, 1.0, self.tau**-0.5)

    def state_space(self, m: int) -> StateSpace:
        """Return a recursion with one state, the reference row."""
        scales = self._scales(m)
        return differences_from_reference(scales, scales == 1.0 if self.tau > 1 else np.ones(m, dtype=bool))

    def weighted_inverse(self, inverse: BidiagonalInverse) -> BidiagonalInverse | None:
        """Return the inverse, which exists since references cancel.

        Within a block the reference cancels from x_t = y_t / scale_t - y_{t-1} / scale_{t-1}; across blocks it is x.
        This needs A = S diag(rates), whose inverse takes differences of one size per step.
        """
        p, q = inverse
        if (q[1:] != p[1:]).any():
            return None
        scales = self._scales(len(p))
        first_of_block = np.arange(len(p)) % self.tau == 0
        before = np.concatenate([[1.0], scales[:-1]])
        return BidiagonalInverse(p / scales, np.where(first_of_block, 0.0, q / before))

    def row_weights(self, m: int) -> np.ndarray | None:
        """Return the squared scales of a single block; None where differences of rows matter."""
        return self._scales(m) ** 2 if self.by_row_errors(m) else None


class MaxError(Objective):
    """Largest variance of an output: sens(C)^2 max_i ||B[i, :]||^2."""

    quadratic: ClassVar[bool] = False

    kind: Literal["max"]

    def check_endless(self) -> None:
        """Accept it: the supremum exists, and may be infinite."""

    def weigh(self, rows: np.ndarray) -> np.ndarray:
        """Raise, since there is no fixed W."""
        raise UnsupportedProblem(
            "the max objective cannot be written as one weighted decoder, which this needs; use mean or weighted"
        )

    def series_weights(self, n: int) -> np.ndarray:
        """Return ones: the rows are longer and longer pieces of one series, of which the last is the largest."""
        return np.ones(n)

    def of_row_errors(self, errors: np.ndarray) -> float:
        """Return the largest squared row norm."""
        return float(errors.max())


MIN_WEIGHT, MAX_WEIGHT = 1e-80, 1e80
"""The limits of positive weights: outside, squares of numbers from their roots leave the range of doubles."""


class Weighted(Objective):
    """Weighted sum of variances: sens(C)^2 sum_i weights_i ||B[i, :]||^2."""

    listed: ClassVar[bool] = True

    kind: Literal["weighted"]
    weights: Annotated[list[NonNegative], Field(min_length=1), Long]

    def check(self, m: int) -> None:
        """Check that there is one weight per output, and not all are zero."""
        if len(self.weights) != m or not any(self.weights):
            raise InvalidParameter(
                f"weights has {len(self.weights)} entries, {sum(map(bool, self.weights))} of them positive, but the "
                f"workload has {m} outputs; give one weight per output and at least one positive",
                field="/objective/weights",
            )
        strange = next((one for one in self.weights if one and not MIN_WEIGHT <= one <= MAX_WEIGHT), None)
        if strange is not None:
            raise InvalidParameter(
                f"weight {strange!r} must be 0, or from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}; divide all weights by the "
                "largest, and give 0 to outputs that do not matter",
                field="/objective/weights",
            )

    def weigh(self, rows: np.ndarray) -> np.ndarray:
        """Scale the rows by the roots of the weights."""
        return rows * np.sqrt(self.row_weights(len(rows)))[:, None]

    def leaves(self, workload: Workload) -> bool:
        """Return whether a row with a positive weight has an entry."""
        rows = (row for row, weight in zip(range(workload.m), self.weights, strict=False) if weight)
        return all(self.weights) or any(workload.row_block(row, row + 1).any() for row in rows)

    def row_weights(self, m: int) -> np.ndarray:
        """Return the weights."""
        return np.array(self.weights)

    def state_space(self, m: int) -> StateSpace:
        """Return the diagonal map with the roots of the weights."""
        return scaling(np.sqrt(self.row_weights(m)))

    def weighted_inverse(self, inverse: BidiagonalInverse) -> BidiagonalInverse | None:
        """Return the inverse with columns over the weights' roots; None with a zero weight, or with other outputs."""
        roots = np.sqrt(self.row_weights(len(inverse.p)))
        if len(roots) != len(inverse.p) or not roots.all():
            return None
        return BidiagonalInverse(inverse.p / roots, inverse.q / np.concatenate([[1.0], roots[:-1]]))


AnyObjective = Annotated[Mean | LambdaTau | MaxError | Weighted, Field(discriminator="kind")]
