"""The loss for prefix sums in O(buffers^2) per participation, whatever n is, with its gradient.

C has the coefficients c_t = sum_r omega_r theta_r^(t-1) and the prefix sum's decoder b_t = sum_r beta_r phi_r^t. All
sums over steps are geometric. With G_m(e) = sum_{t < m} (1 - e)^t and e_rs = 1 - theta_r theta_s, one column has below
the diagonal the squared norm sum_rs omega_r omega_s G_{n-1}(e_rs). Columns 0, b, .., (k-1) b, added up (the leading
pattern), have

    sum_{j < k} 1 + sum_rs omega_r omega_s (1 + 2 theta_r Q_rj) G_{n-1-jb}(e_rs) + 2 sum_r omega_r Q_rj,
    Q_rj = sum_{i = 1..j} theta_r^(ib-1)

and the error is sum_rs beta_r beta_s K(1 - phi_r phi_s), K = G_n for the last (and largest) row, sum_t (n - t) r^t for
all rows.

Reference: Dvijotham et al. (2024), Lemmas 5.3 and 5.4, for one participation and the last row; the rest derived here.
"""

import math

import numpy as np

from factorize.solvers.blt.parameters import Alternating
from factorize.solvers.blt.sums import plain, sum_weighted
from factorize.solvers.methods.compiled import Array

Parts = tuple[float, Array, Array]
"""A sum, and the derivatives of its logarithm by log scale and by place."""


class ClosedLoss:
    """log(sensitivity^2 error) in the variables of `Alternating`.

    Args:
        buffers: number of decays.
        n: number of steps.
        mean: whether the error is the mean of all rows, or the last one.
        separation: steps between two participations.
        count: number of participations; (count - 1) separation < n.
    """

    def __init__(self, buffers: int, n: int, *, mean: bool, separation: int = 1, count: int = 1) -> None:
        self.parameters = Alternating(buffers)
        self.n, self.mean = n, mean
        self.separation, self.count = separation, count

    def __call__(self, variables: Array) -> tuple[float, Array]:
        """Return the value and its gradient, both of shape and meaning of `variables`."""
        point = self.parameters.at(variables)
        by_place, by_scale = np.zeros(len(point.places)), np.zeros(len(point.places))
        odd, even = slice(1, None, 2), slice(0, None, 2)
        squared, by_scale[odd], by_place[odd] = self._sensitivity(point.places[odd], point.scales[odd])
        error, by_scale[even], by_place[even] = self._error(point.places[even], point.scales[even])
        value = math.log(squared) + math.log(error) - (math.log(self.n) if self.mean else 0.0)
        return value, self.parameters.back(point, by_place, by_scale)

    def _error(self, places: Array, scales: Array) -> Parts:
        sums, slopes = (sum_weighted if self.mean else plain)(_products(places), float(self.n))
        return _quadratic(0.0, scales, places, sums, slopes)

    def _sensitivity(self, places: Array, scales: Array) -> Parts:
        if self.count == 1:
            sums, slopes = plain(_products(places), self.n - 1.0)
            return _quadratic(1.0, scales, places, sums, slopes)
        return self._pattern(places, scales)

    def _pattern(self, places: Array, scales: Array) -> Parts:
        j = np.arange(self.count, dtype=np.float64)[:, None]
        before, before_slope = _earlier(places, self.separation, j)
        lengths = (self.n - 1.0 - j * self.separation)[:, :, None]
        sums, slopes = plain(_products(places), lengths)
        theta = 1.0 - places
        weight = 1.0 + 2.0 * theta * before
        pairs = np.multiply.outer(scales, scales)
        inner = pairs * (weight[:, :, None] * sums).sum(axis=0)
        outer = scales * before.sum(axis=0)
        total = self.count + float(inner.sum()) + 2.0 * float(outer.sum())
        by_scale = inner.sum(axis=1) + inner.sum(axis=0) + 2.0 * outer
        bent = pairs * (weight[:, :, None] * slopes).sum(axis=0)
        by_place = bent @ theta + theta @ bent
        moved = 2.0 * (theta * before_slope - before)
        by_place += (pairs * (moved[:, :, None] * sums).sum(axis=0)).sum(axis=1)
        by_place += 2.0 * scales * before_slope.sum(axis=0)
        return total, by_scale / total, by_place / total


def _products(places: Array) -> Array:
    """1 - (1 - p_r)(1 - p_s) without cancellation."""
    return places[:, None] + places - places[:, None] * places


def _quadratic(constant: float, scales: Array, places: Array, sums: Array, slopes: Array) -> Parts:
    pairs = np.multiply.outer(scales, scales)
    weighed = pairs * sums
    total = constant + float(weighed.sum())
    return total, 2.0 * weighed.sum(axis=1) / total, 2.0 * (pairs * slopes) @ (1.0 - places) / total


def _earlier(places: Array, separation: int, j: Array) -> tuple[Array, Array]:
    """Return Q_rj for each j and r, shape (k, d), and its derivative by the place of r."""
    with np.errstate(all="ignore"):
        logarithm = np.log1p(-places)
        far = -np.expm1(separation * logarithm)
        lead = np.exp((separation - 1) * logarithm)
        lead_slope = -(separation - 1) * np.exp((separation - 2) * logarithm)
    sums, slopes = plain(far[None, :], j)
    return lead * sums, lead_slope * sums + lead * slopes * separation * lead
