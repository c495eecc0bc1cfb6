"""Bets that share: the part of the noise that all bins share is integrated, and not drawn.

With K = R + t^2 1 1^T the likelihood ratio is L0 e^(t g - t^2 / 2), g a standard normal of its own and L0 that of R.
Given L0 = e^y, the mean of (L - T)+ is call(y) = e^y Phi(d) - T Phi(d - t), d = (y - epsilon) / t + t / 2: it takes the
place of (L - T)+ in the weights of theorem 5 for R. log call is concave, so the largest call(y) e^(-m y) is below a
tangent. docs/notes/bins-1.md has the limits and what doubles lose.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np

from factorize.errors import InvalidParameter
from factorize.exact.arithmetic.enclosures import SLACK, Enclosed, context, decimal, normal
from factorize.exact.sampling.bets import (
    CHUNK,
    UNIT,
    Covariance,
    Stream,
    Weights,
    covariance,
    log_ratio,
    means_of,
    slack,
    star_samples,
    tables_of,
)
from factorize.exact.sampling.quantiles import normals
from factorize.exact.sampling.star import log_moment

LEAST_SPREAD, MOST_SPREAD, MOST_EPSILON, DEEPEST = 2.0**-5, 30.0, 1000.0, 30.0
_SERIES = 31.0  # from here on the asymptotic series of Mills' ratio is good to 16 digits


class Tangent(NamedTuple):
    """log call(y) - m y at a point, and its slope there, both between decimals."""

    value: Enclosed
    slope: Enclosed


class SharedRemoval(NamedTuple):
    """What the bets of one direction share.

    Attributes:
        rest: the covariance of what is drawn.
        bound: W, rounded up.
        constant: of the logarithm of a weight.
        added: V, to every weight.
        near: epsilon less the slack.
        spread: t.
    """

    rest: Covariance
    bound: Decimal
    constant: float
    added: float
    near: float
    spread: float

    def weights(self, ratio: np.ndarray, exponent: np.ndarray | float, order: int) -> np.ndarray:
        """Return call(y) e^(-m y + exponent + constant) + V, y = log L0 or what stands for a smaller one."""
        y = np.maximum(ratio, self.near - self.spread * (DEEPEST + self.spread / 2))
        logarithm = log_call(y, self.near, self.spread) - order * y + exponent + self.constant
        return np.asarray(np.exp(logarithm) + self.added)


def shared_removal(gram: np.ndarray, scale: float, epsilon: float, order: int, shared: float) -> Weights:
    """Weights whose mean is delta where the example's contributions are taken out; see `removal_of`."""
    found = removal_of(gram, scale, epsilon, order, shared)
    tables = tables_of(found.rest.kernel, order)

    def draw(stream: Stream) -> np.ndarray:
        return found.weights(*star_samples(found.rest, tables, order, stream), order)

    return Weights(found.bound, draw)


def removal_of(gram: np.ndarray, scale: float, epsilon: float, order: int, shared: float) -> SharedRemoval:
    """Return the bound and the constants of bets where the example's contributions are taken out.

    Args:
        gram: G rounded up, shape (bins, bins).
        scale: s, rounded down.
        epsilon: of the claim.
        order: m, at least 2.
        shared: t^2 of the claim.

    Raises:
        InvalidParameter: t, epsilon or m is beyond the limits, or G / s^2 - t^2 is no covariance.
    """
    rest = covariance(gram, scale, shared)
    spread, lost = math.sqrt(shared), 2 * slack(rest, order)
    near = epsilon - lost
    _check_limits(spread, near)
    with localcontext(context()):
        moment = log_moment(rest.kernel, order)
        plain = moment + log_most(decimal(epsilon) - decimal(lost), shared, order)
        extra = plain.exp() * order * len(gram) * decimal((len(gram) + 4 + order * rest.largest) * (4 * UNIT))
        bound = (plain + 2 * decimal(lost)).exp() + extra * (1 + SLACK)
    return SharedRemoval(rest, bound, float(moment) + 2 * lost, float(extra), near, spread)


def shared_addition(gram: np.ndarray, scale: float, epsilon: float, eta: float, shared: float) -> Weights:
    """Weights whose mean is delta where the example's contributions are put in.

    Args:
        gram: G rounded up, shape (bins, bins).
        scale: s, rounded down.
        epsilon: of the claim.
        eta: how far the normals are moved, above 0.
        shared: t^2 of the claim.

    Raises:
        InvalidParameter: t, epsilon or eta is beyond the limits, or G / s^2 - t^2 is no covariance.
    """
    rest = covariance(gram, scale, shared)
    spread, lost = math.sqrt(shared), 2 * slack(rest, 2 + eta)
    near = epsilon - lost
    _check_limits(spread, near)
    diagonal, whole = means_of(rest.kernel)
    with localcontext(context()):
        x = decimal(eta)
        grown = x * decimal(diagonal) / 2 + x * x * decimal(whole) / 2 - x * (decimal(epsilon) - decimal(lost))
        bound = (log_most(Decimal(0), shared, 1 + x) + grown + 2 * decimal(lost) + SLACK).exp()
    moved = -(eta / len(gram)) * rest.factor.sum(axis=0)
    constant = float(eta * eta * whole / 2) + 2 * lost

    def draw(stream: Stream) -> np.ndarray:
        x = (normals(stream.words(CHUNK * len(gram))).reshape(CHUNK, len(gram)) + moved) @ rest.factor.T
        ratio = log_ratio(x, rest.kernel)
        u = np.minimum(near + ratio, spread * (DEEPEST + spread / 2))
        # u - near is log L0, or where that is large a smaller number, at which put(y) e^(eta y) is larger
        put = u + log_call(-u, 0.0, spread)
        return np.asarray(np.exp(put + eta * (u - near - ratio) + eta * x.mean(axis=1) + constant))

    return Weights(bound, draw)


def _check_limits(spread: float, near: float) -> None:
    if not (LEAST_SPREAD <= spread <= MOST_SPREAD and abs(near) <= MOST_EPSILON):
        raise InvalidParameter(f"a shared part of {spread!r}, epsilon {near!r}: beyond the limits of bins-1")


def log_call(y: np.ndarray, near: float, spread: float) -> np.ndarray:
    """Return log call(y): below the money by the difference of two Mills ratios, which loses no digits to speak of."""
    d = (y - near) / spread + spread / 2
    found = np.empty(len(y))
    out = d <= 0
    far = -d[out]
    found[out] = y[out] - 0.5 * far * far - 0.5 * math.log(2 * math.pi) + np.log(_mills(far) - _mills(far + spread))
    inside = ~out
    second = np.exp(near - y[inside]) * _above(spread - d[inside])
    found[inside] = y[inside] + np.log(_above(-d[inside]) - second)
    return found


def _above(z: np.ndarray) -> np.ndarray:
    """Return the probability that a standard normal is above z."""
    return np.array([0.5 * math.erfc(x / math.sqrt(2)) for x in z.tolist()])


def _mills(z: np.ndarray) -> np.ndarray:
    """Return P(normal > z) over its density at z >= 0: 1/z - 1/z^3 + 3/z^5 - ... where z is large."""
    near = np.minimum(z, _SERIES)
    found = _above(near) * np.exp(0.5 * near * near) * math.sqrt(2 * math.pi)
    inverse = 1.0 / np.maximum(z, _SERIES) ** 2
    series = np.ones_like(z)
    for odd in (13, 11, 9, 7, 5, 3, 1):
        series = 1.0 - odd * inverse * series
    return np.where(z > _SERIES, series * np.sqrt(inverse), found)


def log_most(near: Decimal, shared: float, order: int | Decimal) -> Decimal:
    """Return the largest log call(y) - m y, rounded up: a tangent at the left end of a bracket of the maximum.

    Raises:
        InvalidParameter: the maximum is farther out than y may be raised.
    """
    with localcontext(context()):
        spread = decimal(shared).sqrt()
        low, high = near - spread * (Decimal(DEEPEST) + spread / 2), near + 1
        if _tangent(low, near, spread, order).slope.low < 0:
            raise InvalidParameter(f"order {order} is too large for the shared part {shared!r}", field="order")
        while _tangent(high, near, spread, order).slope.high > 0:
            high = near + 2 * (high - near)
        while high - low > Decimal(10) ** -6:
            middle = (low + high) / 2
            tangent = _tangent(middle, near, spread, order)
            if tangent.slope.low > 0:
                low = middle
            elif tangent.slope.high < 0:
                high = middle
            else:
                break
        left = _tangent(low, near, spread, order)
        return left.value.high + left.slope.high * (high - low) + SLACK  # at low the slope is not below 0


def _tangent(y: Decimal, near: Decimal, spread: Decimal, order: int | Decimal) -> Tangent:
    with localcontext(context()):
        d = (y - near) / spread + spread / 2
        first, second = _around(d), _around(d - spread)
        grown = (near - y).exp()
        call = Enclosed(first.low - grown * (1 + SLACK) * second.high, first.high - grown * (1 - SLACK) * second.low)
        if call.low <= 0:
            raise InvalidParameter("the call is too small for decimals of 60 places", field="shared")
        value = Enclosed(y + call.low.ln() - order * y - SLACK, y + call.high.ln() - order * y + SLACK)
        return Tangent(value, Enclosed(first.low / call.high - order - SLACK, first.high / call.low - order + SLACK))


def _around(d: Decimal) -> Enclosed:
    """Enclose Phi(d) for a d that is off by 10^-40 at most."""
    return Enclosed(normal(d - SLACK).low, normal(d + SLACK).high)
