"""Moments of one block: an example takes part in one of b steps, uniformly, and C = I. Their logs, from above.

L = mean_j exp(Y_j) with Y_1, ..., Y_b independent normals of variance c and mean -c/2. For an integer m >= 2

    E L^m = m! / b^m [x^m] (sum_i e^{(i^2 - i) c / 2} x^i / i!)^b,

a sum over how often each step is drawn by m copies. For eta >= 1, with phi(u) = E exp(-u e^Y),

    E L^-eta = (1 / Gamma(eta)) int_0^inf t^(eta-1) phi(t / b)^b dt.

phi and phi^b fall and are convex, so that chords are above them; what is left of the integral beyond some time has a
bound of its own, and any such time will do (theorem 9 of docs/notes/amplification-proofs.md).
"""

from __future__ import annotations

import math

import numpy as np

LARGEST_ORDER = 128
LARGEST_TILT = 64
_SLACK = 1e-9
"""Of a log, relative and absolute: more than doubles lose here, and less than a checker with finer grids gains."""

_STEP = 0.03  # of log t
_T_LEAST, _T_MOST = 1e-5, 1e8
_POINTS, _REACH = 400, 9.5  # of Y, and in standard deviations
_BATCH = 256


def log_moments(variance: float, bins: int, largest: int = LARGEST_ORDER) -> np.ndarray:
    """Return log E L^m from above, shape (largest + 1,), for m = 0, 1, ..., largest.

    Args:
        variance: c, the squared entry of C over s^2.
        bins: b.
        largest: the largest m.
    """
    from scipy.special import gammaln

    order = np.arange(largest + 1)
    power = (order * order - order) * (variance / 2) - gammaln(order + 1)
    found, left = None, bins
    while left:
        if left & 1:
            found = power if found is None else _product(found, power)
        left >>= 1
        power = _product(power, power) if left else power
    assert found is not None
    logs = found + gammaln(order + 1) - order * math.log(bins)
    return logs + _SLACK * (1 + np.abs(logs) + np.abs(found))


def _product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the logs of a product of power series with positive coefficients, cut to as many."""
    size = len(first)
    terms = np.full((size, size), -np.inf)  # (m, i): coefficient i of the first with m - i of the second
    for i in range(size):
        terms[i:, i] = first[i] + second[: size - i]
    top = terms.max(axis=1)
    found: np.ndarray = top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
    return found


class InverseMoments:
    """E L^-eta of one block at one variance, for every eta from 1 to 64.

    Args:
        variance: c.
        bins: b.
    """

    def __init__(self, variance: float, bins: int) -> None:
        self._variance, self._bins = variance, bins
        times = np.arange(math.log(_T_LEAST), math.log(_T_MOST), _STEP)
        self._times = times
        self._logs = bins * np.log(np.minimum(_transform(np.exp(times) / bins, variance), 1.0))

    def log(self, eta: float) -> float:
        """Return log E L^-eta from above."""
        from scipy.special import gammaln

        cells = math.log(math.expm1(eta * _STEP) / eta) + eta * self._times[:-1]
        parts = cells + np.logaddexp(self._logs[:-1], self._logs[1:]) - math.log(2)
        within = np.logaddexp.accumulate(np.append(eta * self._times[0] - math.log(eta), parts))
        value = float(np.logaddexp(within, self._tails(eta)).min()) - float(gammaln(eta))
        return value + _SLACK * (1 + abs(value) + float(gammaln(eta)))

    def _tails(self, eta: float) -> np.ndarray:
        """Return logs of what is beyond each time, by phi^b <= (q / (e t))^q E L^-q and L >= exp(mean Y)."""
        c, best = self._variance, np.full(len(self._times), math.inf)
        for q in (eta + 1, 2 * eta + 8, 4 * eta + 40):
            moment = q * c / 2 + q * q * c / (2 * self._bins)
            best = np.minimum(best, q * (math.log(q) - 1) + moment + (eta - q) * self._times - math.log(q - eta))
        return best


def _transform(rates: np.ndarray, variance: float) -> np.ndarray:
    """Return at least E exp(-u e^Y) for each u: the law of e^Y in cells, each moved to its ends with the same mean."""
    from scipy.special import ndtr

    root = math.sqrt(variance)
    y = np.linspace(-variance / 2 - _REACH * root, variance / 2 + _REACH * root, _POINTS)
    places, z = np.exp(y), (y + variance / 2) / root
    mass, first = _between(z), _between(z - root)  # of the cells, and of e^Y over them
    right = np.clip((first - mass * places[:-1]) / np.diff(places) - 1e-12 * mass, 0.0, mass)
    weights = np.zeros(_POINTS)
    weights[1:] += right
    weights[:-1] += mass - right
    weights[-1] += ndtr(-z[-1])
    found = np.empty(len(rates))
    for start in range(0, len(rates), _BATCH):
        part = slice(start, start + _BATCH)
        found[part] = np.exp(-np.minimum(rates[part, None] * places, 700.0)) @ weights
    return found + float(ndtr(z[0]))


def _between(z: np.ndarray) -> np.ndarray:
    """Return the normal probability of each cell, by the tail in which it is small."""
    from scipy.special import ndtr

    below, above = ndtr(z), ndtr(-z)
    return np.where(z[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
