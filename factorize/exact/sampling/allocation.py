"""Bounds on what random allocation leaks where C has one band: moments of independent blocks (theorem 9).

An example takes part in k of n steps, chosen uniformly. docs/notes/amplification-proofs.md reduces it to k independent
blocks of b = n / k steps. With c the largest squared entry of C over sigma^2, and one block's L = mean_j e^{Y_j}, Y_j
independent normals of variance c and mean -c/2,

    removal    delta <= c_m (E L^m)^k,  E L^m = m! / b^m [x^m] (sum_i e^{(i^2 - i) c / 2} x^i / i!)^b
    addition   delta <= sup_x (1 - x) x^eta T^-eta (E L^-eta)^k,  Gamma(eta) E L^-eta = int t^(eta-1) phi(t/b)^b dt

with phi(u) = E exp(-u e^Y). phi and phi^b fall and are convex. On a cell a chord is above them, and moving mass to the
ends of a cell, with a mean that is not larger, raises the mean of a falling convex function.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from factorize.errors import InvalidParameter
from factorize.exact.arithmetic.enclosures import (
    EXP_SLACK,
    LEAST_EXPONENT,
    SLACK,
    Enclosed,
    context,
    decimal,
    exponentials,
    normal,
)
from factorize.exact.strategy import Strategy

MOST_ORDER, MOST_TILT = 128, 64
_MOST_VARIANCE = 400
_UNIT = 2.0**-52
_RATIO = 1.025  # of neighbouring times
_FIRST, _TIMES, _STRIDE = 1e-6, 1320, 10
_WIDTH, _REACH = Decimal("0.0385"), Decimal("9.6")  # of cells of Y, and of all of them, in standard deviations
_DIGITS, _LOST = 40, Decimal(10) ** -30
"""Of the masses of cells; what a few operations on numbers below 10^3 lose at so many places is below 10^-34."""


class LossCells(NamedTuple):
    """A law of e^Y with mass at some places, whose mean of a falling convex function is at least the true one."""

    places: np.ndarray
    weights: np.ndarray


class Blocks:
    """K independent blocks of b steps.

    Args:
        square: at least the largest squared entry of C.
        scale: at most sigma of an entry for contributions of norm 1.
        bins: b.
        number: k.

    Raises:
        InvalidParameter: there is so little noise that no moment is of use.
    """

    def __init__(self, square: Fraction, scale: float, bins: int, number: int) -> None:
        exact = square / Fraction(scale) ** 2
        if exact > _MOST_VARIANCE:
            raise InvalidParameter("there is so little noise that no moment is of use; take more", field="sigma")
        with localcontext(context()):
            self.variance = decimal(exact) * (1 + SLACK)
        self.bins, self.number = bins, number

    def removal(self, order: int, epsilon: float) -> Decimal:
        """Return the bound by E L^m, rounded up."""
        with localcontext(context()):
            m, less = Decimal(order), Decimal(order - 1)
            constant = less * (less.ln() - Decimal(epsilon)) - m * m.ln()
            return (self.number * self.moment(order).ln() + constant + SLACK).exp() * (1 + SLACK)

    def moment(self, order: int) -> Decimal:
        """Return E L^m, rounded up: a sum of positive terms alone."""
        with localcontext(context()):
            half, power, factorial = self.variance / 2, [], Decimal(1)
            for i in range(order + 1):
                factorial *= max(i, 1)
                power.append(((i * i - i) * half).exp() / factorial)
            found, left = [Decimal(1)] + [Decimal(0)] * order, self.bins
            while left:
                if left & 1:
                    found = _product(found, power)
                left >>= 1
                power = _product(power, power) if left else power
            return found[order] * factorial / Decimal(self.bins) ** order * (1 + SLACK)

    def addition(self, eta: int, epsilon: float) -> Decimal:
        """Return the bound by E L^-eta, rounded up."""
        with localcontext(context()):
            e, more = Decimal(eta), Decimal(eta + 1)
            constant = e * e.ln() - more * more.ln() - e * Decimal(epsilon)
            return (self.number * self.inverse_moment(eta).ln() + constant + SLACK).exp() * (1 + SLACK)

    def inverse_moment(self, eta: int) -> Decimal:
        """Return E L^-eta, rounded up."""
        times, heights = self._heights
        with localcontext(context()):
            powers = [Decimal(float(t)) ** eta / eta for t in times]
            logs = [Decimal(float(t)).ln() for t in times[::_STRIDE]]
            within, best = powers[0], Decimal("Infinity")
            for i in range(len(times) - 1):
                if i % _STRIDE == 0:
                    best = min(best, within + self._tail(eta, logs[i // _STRIDE]))
                within += (powers[i + 1] - powers[i]) * (heights[i] + heights[i + 1]) / 2
            return best / math.factorial(eta - 1) * (1 + SLACK)

    @cached_property
    def _heights(self) -> tuple[np.ndarray, list[Decimal]]:
        """Times, and phi(t / b)^b at each of them, rounded up."""
        times = _FIRST * _RATIO ** np.arange(_TIMES)
        found = self._transform(times / self.bins * (1 - 2 * _UNIT))
        with localcontext(context()):
            return times, [min(Decimal(float(value)), Decimal(1)) ** self.bins for value in found]

    def _tail(self, eta: int, log_time: Decimal) -> Decimal:
        """Return what is beyond a time, by e^-y <= (q / (e y))^q and L >= exp(mean Y)."""
        found = []
        for q in (eta + 1, 2 * eta + 8, 4 * eta + 40):
            moment = q * self.variance / 2 + q * q * self.variance / (2 * self.bins)
            found.append((q * (Decimal(q).ln() - 1) + moment + (eta - q) * log_time).exp() / (q - eta) * (1 + SLACK))
        return min(found)

    def _transform(self, rates: np.ndarray) -> np.ndarray:
        """Return at least phi at each rate."""
        cells = self._cells()
        products = np.nextafter(np.multiply.outer(rates, cells.places), 0.0)
        raised = exponentials(np.maximum(-products, LEAST_EXPONENT)) * (1 + EXP_SLACK)
        found: np.ndarray = (raised @ cells.weights) * (1 + (len(cells.places) + 8) * _UNIT)
        return found

    def _cells(self) -> LossCells:
        """Cells between e^(c^(1/2) z - c/2) at z = i h; h divides c^(1/2) where it can: one Phi serves two ends."""
        with localcontext(context()):
            width = self.variance.sqrt()
            shift = math.ceil(width / _WIDTH)
            step = width / shift if shift > 1 else _WIDTH
            half = math.ceil(_REACH / step)
            growth = (width * step).exp()
            ends = [(-self.variance / 2 - width * half * step).exp()]
            for _ in range(2 * half):
                ends.append(ends[-1] * growth)
            known = [_around(i * step) for i in range(half + shift + 1)] if shift > 1 else []
            laws = [_placed(known, i, i * step) for i in range(-half, half + 1)]
            means = [_placed(known, i - shift, i * step - width) for i in range(-half, half + 1)]
            weights = [Decimal(0)] * len(ends)
            for i in range(2 * half):
                mass = laws[i + 1].high - laws[i].low
                first = means[i + 1].low - means[i].high
                right = min(max((first - mass * ends[i]) / (ends[i + 1] - ends[i]) - _LOST, Decimal(0)), mass)
                weights[i] += mass - right
                weights[i + 1] += right
            weights[-1] += 1 - laws[-1].low
            heights = [np.nextafter(float(weight), np.inf) for weight in (laws[0].high, *weights)]
        places = np.array([float(end) for end in ends]) * (1 - 2 * _UNIT)  # a smaller place makes the mean larger
        return LossCells(np.concatenate([[0.0], places]), np.array(heights))


def _placed(known: list[Enclosed], place: int, z: Decimal) -> Enclosed:
    """Enclose Phi(z), from what is known of it at multiples |i| of a step where there is any."""
    if not known:
        return _around(z)
    found = known[abs(place)]
    return found if place >= 0 else Enclosed(max(1 - found.high, Decimal(0)), 1 - found.low)


def _around(z: Decimal) -> Enclosed:
    """Enclose Phi near a number that was rounded."""
    found = normal(z, _DIGITS)
    return Enclosed(max(found.low - _LOST, Decimal(0)), found.high + _LOST)


def _product(first: list[Decimal], second: list[Decimal]) -> list[Decimal]:
    size = range(len(first))
    return [sum((first[i] * second[m - i] for i in range(m + 1)), Decimal(0)) for m in size]


def largest_square(strategy: Strategy) -> Fraction:
    """Return at least the largest squared entry of a C with one band.

    Raises:
        InvalidParameter: it has more.
    """
    if strategy.bandwidth != 1:
        raise InvalidParameter(
            f"the claim is about random allocation, which is for C = I, and C has {strategy.bandwidth} bands",
            field="sampling",
        )
    diagonal, factors = np.broadcast_arrays(
        strategy.reading.diagonal, np.ones(1) if strategy.scale is None else strategy.scale
    )
    rounded = diagonal * factors
    near = np.flatnonzero(rounded >= rounded.max() * (1 - 2.0**-50))
    return max((Fraction(float(diagonal[i])) * Fraction(float(factors[i]))) ** 2 for i in near)
