"""The loss of a BLT and its gradient: in O(buffers^2) per participation for prefix sums, else through its column.

C has the coefficients c_t = sum_r omega_r theta_r^(t-1) and the prefix sum's decoder b_t = sum_r beta_r phi_r^t. All
sums over steps are geometric. With G_m(e) = sum_{t < m} (1 - e)^t and e_rs = 1 - theta_r theta_s, one column has below
the diagonal the squared norm sum_rs omega_r omega_s G_{n-1}(e_rs). Columns 0, b, .., (k-1) b, added up (the leading
pattern), have

    sum_{j < k} 1 + sum_rs omega_r omega_s (1 + 2 theta_r Q_rj) G_{n-1-jb}(e_rs) + 2 sum_r omega_r Q_rj,
    Q_rj = sum_{i = 1..j} theta_r^(ib-1)

and the error is sum_rs beta_r beta_s K(1 - phi_r phi_s), K = G_n for the last (and largest) row, sum_t (n - t) r^t for
all rows. With r = 1 - e and n terms,

    plain      G = sum_{t < n} r^t           = (1 - r^n) / e
    weighted   H = sum_{t < n} (n - t) r^t   = (n - r G) / e

For n e below 0.3 both lose digits to cancellation. There G is sum_k (-e)^k C(n, k + 1), and H is sum_k (-e)^k
C(n + 1, k + 2).

Reference: Dvijotham et al. (2024), Lemmas 5.3 and 5.4, for one participation and the last row; the rest derived here.
"""

import math

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.blt.parameters import Alternating
from factorize.solvers.methods.compiled import Array
from factorize.solvers.toeplitz.gradients import ToeplitzLoss

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
        last: how many times more the last row counts in the mean.
    """

    def __init__(
        self, buffers: int, n: int, *, mean: bool, separation: int = 1, count: int = 1, last: float = 0.0
    ) -> None:
        self.parameters = Alternating(buffers)
        self.n, self.mean, self.last = n, mean, last
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
        products = _products(places)
        sums, slopes = (sum_weighted if self.mean else plain)(products, float(self.n))
        if self.last:
            ends, end_slopes = plain(products, float(self.n))
            sums, slopes = sums + self.last * ends, slopes + self.last * end_slopes
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
    """Return 1 - (1 - p_r)(1 - p_s) without cancellation."""
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


_BLOCK_TERMS = 1024


class SeriesLoss:
    """log(sensitivity^2 error) in the variables of `Alternating`, O(n (buffers + log n)) per evaluation.

    Args:
        parameters: what the variables stand for; the coefficients fall unless its end is free.
        loss: loss of a column.
    """

    def __init__(self, parameters: Alternating, loss: ToeplitzLoss) -> None:
        self.parameters, self.loss = parameters, loss
        self._exponents = np.arange(1.0, loss.n - 1)

    def __call__(self, variables: Array) -> tuple[float, Array]:
        """Return the value, infinity where it is not finite, and its gradient."""
        point = self.parameters.at(variables)
        table = powers(point.theta, self.loss.n - 1)
        value, slope = self.loss(np.concatenate([[1.0], point.omega @ table]))
        by_place, by_scale = np.zeros(len(point.places)), np.zeros(len(point.places))
        by_scale[1::2] = point.omega * (table @ slope[1:])
        by_place[1::2] = -point.omega * (table[:, :-1] @ (slope[2:] * self._exponents))
        return value, self.parameters.back(point, by_place, by_scale)


def powers(theta: Array, count: int) -> Array:
    """Return theta^t for t < count, shape (buffers, count): a table times a table."""
    blocks = -(-count // _BLOCK_TERMS)
    with np.errstate(under="ignore"):
        within = theta[:, None] ** np.arange(min(_BLOCK_TERMS, count))
        before = theta[:, None] ** (float(_BLOCK_TERMS) * np.arange(blocks))
        products = (before[:, :, None] * within[:, None, :]).reshape(len(theta), -1)[:, :count]
    products[products < 1e-300] = 0.0
    return products


_MAX_SERIES_ARGUMENT = 0.3
_SERIES_TERMS = 13  # the binomial series has this many terms: 0.3^13 / 14! is below 1e-17


def plain(e: Array, n: Array | float) -> tuple[Array, Array]:
    """Return G and its derivative with respect to e.

    Args:
        e: 1 - ratio in (0, 1], any shape.
        n: number of terms, a whole number, broadcast against e.
    """
    e, count = np.broadcast_arrays(np.asarray(e, dtype=np.float64), np.asarray(n, dtype=np.float64))
    total, slope = _plain(e, count)
    single = count < 1.5  # the powers of a ratio of 0 are not defined by logarithms
    return np.where(single, count, total), np.where(single, 0.0, slope)


def sum_weighted(e: Array, n: float) -> tuple[Array, Array]:
    """Return H and its derivative with respect to e; arguments as for `plain`."""
    inner, inner_slope = plain(e, n)
    with np.errstate(all="ignore"):
        total = (n - (1.0 - e) * inner) / e
        slope = (inner - (1.0 - e) * inner_slope - total) / e
    near = n * e < _MAX_SERIES_ARGUMENT
    if near.any():
        total, slope = _replaced(near, total, slope, e, np.full_like(e, n), order=2)
    return total, slope


def _plain(e: Array, n: Array) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        logarithm = np.log1p(-e)
        total = -np.expm1(n * logarithm) / e
        slope = (n * np.exp((n - 1.0) * logarithm) - total) / e
    near = n * e < _MAX_SERIES_ARGUMENT
    return _replaced(near, total, slope, e, n, order=1) if near.any() else (total, slope)


def _replaced(
    near: NDArray[np.bool_], total: Array, slope: Array, e: Array, n: Array, *, order: int
) -> tuple[Array, Array]:
    """Put the binomial series where it is the accurate one; term k is (-e)^k C(n + order - 1, k + order)."""
    small, count = np.where(near, e, 0.0), np.where(near, n, 0.0)
    term = count if order == 1 else count * (count + 1.0) / 2.0
    first = -term * (count - 1.0) / (1 + order)
    sums, slopes, change = term.copy(), first.copy(), first
    for k in range(1, _SERIES_TERMS):
        factor = -small * (count - k) / (k + order)
        term = term * factor
        sums += term
        if k > 1:
            change = change * factor * k / (k - 1)
            slopes += change
    return np.where(near, sums, total), np.where(near, slopes, slope)
