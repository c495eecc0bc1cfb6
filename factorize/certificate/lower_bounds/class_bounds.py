"""Lower bounds within a class: matrices with at most `bands` diagonals and equal column norms.

Toeplitz classes have theirs in `lower_bounds/toeplitz_bounds.py`.

Let X = C^T C with X_ij = 0 for |i - j| >= bands, M = T^T T for the target T, f = tr(M X^-1), W = X^-1 M X^-1, E be W in
the band, without its diagonal, and P = E - Delta with any diagonal Delta >= 0. V = W - P is a dual matrix of the class:
for every Y of the class with unit diagonal, tr(V Y) = tr V. With Q = (M^1/2 W M^1/2)^1/2, so that tr Q = f, and
D = M^1/2 P M^1/2,

    tr(M Y^-1) >= N^2 / sum_i V_ii,     N = tr (Q^2 - D)^1/2                             (docs/notes/method.md)

To first order N is f - <X, P> / 2 = (f + sum_i V_ii X_ii) / 2. For the second, let eta < 1 be at least the largest
eigenvalue of P W^-1, so that Q^2 - t D >= (1 - t eta) Q^2. The second derivative of tr sqrt is, by its integral
representation, a negative multiple of the integral of lambda^-1/2 tr(R D R D), R = (Q^2 - t D + lambda)^-1; that only
grows if Q^2 - t D is replaced by the smaller (1 - t eta) Q^2, and is homogeneous of degree -3/2; at Q^2 it is
at most tr(P W^-1 P X) / 4. Hence N >= (f + sum_i V_ii X_ii) / 2 - g / 2 with

    g = (1 - eta)^-3/2 |C P X M^-1/2|_F^2 / 4,      W^-1 = X M^-1 X,

and since (a + y / 2)^2 / y >= 2 a for every y > 0, with y = sum_i V_ii X_ii >= min_i X_ii sum_i V_ii,

    tr(M Y^-1) >= min_i X_ii (f - g)                      for every Y of the class with diagonal at most 1.

The bound is quadratic in P, holds for any X of the band, and needs no unit diagonal. It needs no evidence but C.

Where a search was stopped so early that g is large, the tangent at X gives more: by Cauchy and Schwarz, for
Y^(1/2) X^-1 T^T and Y^(-1/2) T^T, and since |Y_ij| <= 1,

    tr(M Y^-1) >= f^2 / sum |W_ij|        over i = j and all i, j in the band.

Of the two bounds the larger one is taken. The second is linear in E and needs neither Delta nor eta.

Delta is zero near the optimum, where every row i of |E| |W^-1| s is below `LARGEST_RATIO` s_i, s the roots of W's
diagonal. Elsewhere it takes all pairs of E with a step i whose row is above `CALM_RATIO` s_i: Delta_i is the sum of
|E_ik| over them, which leaves them negative semidefinite, and eta is what the other pairs need. Since Delta costs
nothing to first order, a search that was stopped early keeps a bound.

What it allows for. g is evaluated with every entry of W off by `ENTRY_ERROR` sqrt(W_ii W_jj), or by sixteen times the
defect of tr(W X) = f if that is larger: an allowance above all errors that we measured, not a proven one. f is lowered
by the proven relative error of substitution, 2 (bands + 2) u | |C| |C^-1| |_2, with the norm bounded through the
smallest eigenvalue of X; beyond n = 2048, where f comes from a recursion of covariances, that figure is not proven.
"""

from __future__ import annotations

from dataclasses import dataclass

from factorize.certificate.lower_bounds.bounds import LowerBound
from factorize.certificate.lower_bounds.class_terms import (
    lower_gram,
    lower_rows,
    relative_rounding,
    terms_by_bands,
    terms_dense,
)
from factorize.certificate.lower_bounds.toeplitz_bounds import toeplitz_lower_bound
from factorize.errors import ConditionNotMet
from factorize.mechanisms import Banded, BandedToeplitz, Toeplitz
from factorize.numbers.rounding import UNIT
from factorize.participation import AnyParticipation
from factorize.spec import Spec
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix
from factorize.structures.toeplitz import ToeplitzMatrix

BAND_RULE = "second-order dual of the band, over matrices with these bands and equal column norms"
TANGENT_RULE = "tangent of the loss, over matrices with these bands and equal column norms"
_LARGEST_DENSE = 2048


@dataclass(frozen=True)
class BandGap:
    """How far a banded matrix can be from the best of its class.

    Attributes:
        loss: f = tr(M X^-1), shared by the terms below.
        excess: g.
        least_norm: smallest squared column norm.
        rounding: relative error of f that is allowed for.
        magnitude: sum |W_ij| in the band, with what its errors may add.
    """

    loss: float
    excess: float
    least_norm: float
    rounding: float
    magnitude: float

    @property
    def second_order(self) -> float:
        """The bound by the dual matrix W - P, which may be minus infinity."""
        return self.least_norm * (self.loss * (1 - self.rounding) - self.excess) * (1 - 8 * UNIT)

    @property
    def tangent(self) -> float:
        """The bound by the tangent at X."""
        return self.loss * (max(1 - self.rounding, 0.0) ** 2 * (self.loss / self.magnitude)) * (1 - 8 * UNIT)

    @property
    def lower(self) -> float:
        """The bound on tr(M Y^-1) over Y with diagonal at most 1."""
        return max(self.second_order, self.tangent)


def class_lower_bound(spec: Spec, strategy: Matrix, objective: float) -> LowerBound | None:
    """Return a bound on the objective over the mechanism's class, or None where none is known.

    Args:
        spec: canonical spec.
        strategy: C.
        objective: of C at sensitivity 1, as the certificate computed it.
    """
    if spec.optimize_for is not None:
        return None
    if isinstance(spec.mechanism, (Toeplitz, BandedToeplitz)) and isinstance(strategy, ToeplitzMatrix):
        return toeplitz_lower_bound(spec, strategy)
    if not isinstance(spec.mechanism, Banded) or not isinstance(strategy, BandedMatrix):
        return None
    bands = spec.mechanism.bands
    if not spec.objective.quadratic or strategy.bandwidth() > bands:
        return None
    try:
        count = squared_sensitivity(spec.participation, spec.workload.n, bands)
    except ConditionNotMet:
        return None
    scale = spec.objective.scale(spec.workload.m)
    gap = band_gap(spec, strategy, objective / scale)
    if gap is None or not gap.lower > 0:
        return None
    rule = BAND_RULE if gap.second_order >= gap.tangent else TANGENT_RULE
    return LowerBound(count * scale * gap.lower, rule)


def squared_sensitivity(participation: AnyParticipation, n: int, bands: int) -> int:
    """Return the squared sensitivity of a banded matrix with unit columns: the number of participations (C.7).

    Raises:
        ConditionNotMet: two steps of one user could overlap in the band.
        UnsupportedProblem: the participation does not say how far apart they are.
    """
    separation, count, name = participation.spread(n)
    if count > 1 and bands > separation:
        raise ConditionNotMet(
            f"bands={bands} exceeds {name}={separation}, so two steps of one user would overlap and the closed form "
            f"for the sensitivity would not hold; use bands <= {separation}",
            field="/mechanism/bands",
        )
    return count


def band_gap(spec: Spec, strategy: BandedMatrix, loss: float) -> BandGap | None:
    """Return the terms of the bound for the spec's workload and objective, or None where they cannot be computed.

    Args:
        spec: canonical spec with a banded mechanism.
        strategy: C.
        loss: f.
    """
    assert isinstance(spec.mechanism, Banded)
    rows = lower_rows(strategy, min(spec.mechanism.bands, strategy.n))
    inverse = spec.workload.bidiagonal_inverse()
    inverse = None if inverse is None else spec.objective.weighted_inverse(inverse)
    if inverse is None and max(spec.workload.m, strategy.n) > _LARGEST_DENSE:
        return None
    gram = lower_gram(rows)
    rounding = relative_rounding(rows, gram)
    if rounding is None:
        return None
    if inverse is not None:
        terms = terms_by_bands(rows, gram, inverse, loss)
    else:
        terms = terms_dense(strategy.dense(), spec.objective.weigh(spec.workload.dense()), rows.shape[1], loss)
    if terms is None:
        return None
    return BandGap(loss, terms[0], float(strategy.column_norms_squared().min()), rounding, terms[1])
