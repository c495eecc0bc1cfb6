"""A quadratic lower bound of log L under b-min-sep sampling, where contributions are put in (theorem 12 b)."""

import math
from functools import cached_property

import numpy as np
from flint import arb, ctx

from factorize.checker.arithmetic.balls import PLACES, normal
from factorize.checker.arithmetic.near import UNIT
from factorize.checker.sampling.bets import CHUNK, Stream, Weights, log_most, normals, slack_of
from factorize.checker.sampling.min_sep import NUMBERS_AT_ONCE, Field, MinSepSteps
from factorize.errors import InvalidParameter

_SQUARED_NORMAL = 150.0  # More than the square of the largest normal that a word gives.


class CurvedField:
    """The bound log L >= sum_t beta_t u_t + gamma / 2 sum_t u_t^2 - less where all |u_t| <= reach, u_t = <c_t, Z>.

    Args:
        law: the law of the steps.
        eta: the power of L that is bounded.
        rate: q, in (0, 1).
        reach: the largest |u_t|.

    Raises:
        InvalidParameter: the rate is so large, or the reach so small, that no such bound is proved.
    """

    def __init__(self, law: MinSepSteps, eta: float, rate: float, reach: float) -> None:
        n, b = law.columns.shape
        self.law, self.eta, self.rate, self.reach, p = law, eta, rate, reach, law.probability
        share = rate / (1 + (b - 1) * rate)
        free, least, slope = 1 - (b - 1) * share, 1 - 2 * (b - 1) * share, share / reach
        if not (2 * b * share < 1 and p < 1):
            raise InvalidParameter(
                f"rate {rate!r} is too large for a curved bound, which needs one below {1 / (b + 1):.6g} with {b} "
                "bands, and a probability below 1; use a smaller rate, or the closed form",
                field="rate",
            )
        steepest = free**2 * least * rate * (1 - rate)
        self.curvature = 2 * (slope - slope**2 / steepest)
        if not self.curvature > 0:
            raise InvalidParameter(
                f"reach {reach!r} is too small for a curved bound; use one above {share / steepest:.6g}", field="reach"
            )
        drawn, left = math.log(rate / p), math.log((1 - rate) / (1 - p))
        later = np.minimum(b - 1, n - 1 - np.arange(n))
        self.tilts = share - slope * (law.products[:, 0] / 2 + drawn - left * (1 + later))
        self.less = Field(law, rate).less

    @cached_property
    def _precision(self) -> np.ndarray:
        """The lower bands of A = I + eta gamma sum_t c_t c_t^T, the precision of the draws, shape (b, n)."""
        columns, (n, b) = self.law.columns, self.law.columns.shape
        precision = np.zeros((min(b, n), n))
        for d in range(min(b, n)):
            for e in range(min(b, n) - d):
                precision[d, e : n - d] += (columns[:, e] * columns[:, e + d])[: n - d - e]
        precision *= self.eta * self.curvature
        precision[0] += 1
        return precision

    @cached_property
    def factor(self) -> np.ndarray:
        """R, lower and banded, of R R^T = A, shape (b, n)."""
        from scipy.linalg import cholesky_banded

        return np.asarray(cholesky_banded(self._precision, lower=True))

    @cached_property
    def mean(self) -> np.ndarray:
        """The mean of the draws."""
        from scipy.linalg import cho_solve_banded

        return np.asarray(cho_solve_banded((self.factor, True), -self.eta * (self.law.matrix @ self.tilts)))

    @cached_property
    def lost(self) -> float:
        """S, which covers what doubles lose; InvalidParameter is raised above 2^-10."""
        n, b = self.law.columns.shape
        drawn = 2 * float(self._precision.sum(axis=0).max()) * (_SQUARED_NORMAL * n + float(self.mean @ self.mean))
        return self.law.slack(2 + self.eta) + slack_of(16 * (b + 2) ** 2 * UNIT * drawn)

    @cached_property
    def log_determinant(self) -> float:
        """Log det R."""
        return math.fsum(np.log(self.factor[0]).tolist())

    @cached_property
    def log_moment(self) -> arb:
        """Log E_Q exp(-eta times the bound)."""
        pulled = float(-self.eta * (self.law.matrix @ self.tilts) @ self.mean) / 2
        return arb(self.eta) * self.less + pulled - self.log_determinant

    @cached_property
    def beyond(self) -> arb:
        """The chance that some |u_t| is above the reach."""
        largest = arb(float(self.law.products[:, 0].max())).sqrt()
        return 2 * self.law.steps * normal(-arb(self.reach) / largest)


@ctx.workprec(PLACES)
def ceiling(field: CurvedField, epsilon: float) -> arb:
    """Return W, an upper bound of delta where the example's contributions are put in."""
    x = arb(field.eta)
    grown = field.log_moment - x * (arb(epsilon) - field.lost) + 2 * arb(field.lost)
    return (log_most(arb(0), 0.0, 1 + x) + grown).exp() + field.beyond


@ctx.workprec(PLACES)
def addition(field: CurvedField, epsilon: float) -> Weights:
    """Return weights with mean delta where the example's contributions are put in (theorem 12 b; `bets.addition`)."""
    law, near, n = field.law, epsilon - field.lost, field.law.steps
    constant, beyond = 2 * field.lost - field.log_determinant, float(field.beyond.upper())
    upper = np.zeros_like(field.factor)
    for d, row in enumerate(field.factor):
        upper[-1 - d, d:] = row[: n - d]

    def draw(stream: Stream) -> np.ndarray:
        from scipy.linalg import solve_banded

        weights, words, rows = np.full(CHUNK, beyond), stream.lane(0), max(NUMBERS_AT_ONCE // n, 1)
        for start in range(0, CHUNK, rows):
            size = min(rows, CHUNK - start)
            drawn = normals(words.random_raw(size * n)).reshape(size, n)
            z = solve_banded((0, len(upper) - 1), upper, drawn.T) + field.mean[:, None]
            inside = (np.abs(law.matrix.T @ z) <= field.reach).all(axis=0)
            left = -np.expm1(np.minimum(near + law.log_ratio(z), 0.0)) * inside
            grown = ((drawn**2).sum(axis=1) - (z**2).sum(axis=0)) / 2 + constant
            weights[start : start + size] += left * np.exp(grown)
        return weights

    return Weights(ceiling(field, epsilon), draw)
