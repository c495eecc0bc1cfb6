"""Bounds on what random allocation leaks where C has one band: moments of independent blocks (theorem 10).

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
_CELLS, _REACH = 500, 9.6  # of e^Y, and in standard deviations
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
        root = math.sqrt(float(self.variance))
        inner = np.exp(np.linspace(-root * root / 2 - _REACH * root, root * root / 2 + _REACH * root, _CELLS))
        places = [Decimal(float(x)) for x in inner]
        with localcontext(context(_DIGITS)):
            width = self.variance.sqrt()
            z = [(x.ln() + self.variance / 2) / width for x in places]
            laws, means = [_around(one) for one in z], [_around(one - width) for one in z]
            weights = [Decimal(0)] * _CELLS
            for i in range(_CELLS - 1):
                mass = laws[i + 1].high - laws[i].low
                first = means[i + 1].low - means[i].high
                right = min(max((first - mass * places[i]) / (places[i + 1] - places[i]) - _LOST, Decimal(0)), mass)
                weights[i] += mass - right
                weights[i + 1] += right
            weights[-1] += 1 - laws[-1].low
            below = laws[0].high
        heights = [np.nextafter(float(weight), np.inf) for weight in (below, *weights)]
        return LossCells(np.concatenate([[0.0], inner]), np.array(heights))


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
    norms = strategy.column_norms
    return norms.fraction(max(norms.values) + norms.radius)
