"""The privacy loss distribution of random allocation at C = I, in doubles: an estimate from above (theorem 9).

The likelihood ratio of b steps is a mean of b independent lognormal numbers, and that of k blocks a product of k
copies. Laws stand on grids e^(h i). Mass that falls into a cell is moved to its ends, about its mean, which raises
delta in both directions. The checker proves what is claimed by its own code, on the same grids.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from factorize.checker.sampling.allocation import LEAST, REACH


class GridLaw(NamedTuple):
    """Masses at e^(h i) for i = first, first + 1, ..., the logarithm of the mean, and h."""

    first: int
    masses: np.ndarray
    mean: float
    step: float


class AllocationLosses(NamedTuple):
    """The law of log L where the example is left out; where it takes part, each mass counts L times.

    Attributes:
        losses: log L, growing.
        masses: of each.
    """

    losses: np.ndarray
    masses: np.ndarray

    def log_removal(self, level: float) -> float:
        """Return log E (L - e^level)_+."""
        above = self.losses > level
        gained = np.exp(self.losses[above]) * -np.expm1(level - self.losses[above])
        return _log(float(self.masses[above] @ gained))

    def log_addition(self, level: float) -> float:
        """Return log E (1 - e^level L)_+."""
        sums = np.minimum(self.losses + level, 0.0)
        return _log(float(self.masses @ -np.expm1(sums)))


def _log(value: float) -> float:
    return math.log(value + LEAST)


@lru_cache(maxsize=32)
def allocation_losses(variance: float, bins: int, blocks: int, cells: int) -> AllocationLosses:
    """Return the losses of k independent blocks of b steps.

    Args:
        variance: c, the squared entry of C over s^2.
        bins: b.
        blocks: k.
        cells: of a standard deviation of each law on a grid, at least.
    """
    width = math.sqrt(variance)

    def deviation(number: int) -> float:
        return math.sqrt(math.log1p(math.expm1(variance) / number)) / cells

    one = _joined(_lognormal(width, cells), bins, lambda a, b, m: _sum(a, b, deviation(m)))
    step = deviation(bins)
    run = _joined(one, blocks, lambda a, b, m: _product(a, b, step * math.sqrt(m)))
    return AllocationLosses(run.step * np.arange(run.first, run.first + len(run.masses)) - run.mean, run.masses)


def _joined(law: GridLaw, number: int, join: Callable[[GridLaw, GridLaw, int], GridLaw]) -> GridLaw:
    """Return so many independent copies joined, by the binary digits of their number, the first one first."""
    if number == 1:
        return law
    whole, copies, held = law if number % 2 else None, 1, number % 2
    while number := number // 2:
        law, copies = join(law, law, 2 * copies), 2 * copies
        if number % 2:
            held += copies
            whole = law if whole is None else join(whole, law, held)
    assert whole is not None
    return whole


def _lognormal(width: float, cells: int) -> GridLaw:
    """Return the law of e^(w Z), Z normal."""
    from scipy.special import ndtr

    def between(z: np.ndarray) -> np.ndarray:
        below, above = ndtr(z), ndtr(-z)
        return np.where(z[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])

    first, step = -math.ceil(REACH * cells), width / cells
    places = np.arange(first, math.ceil((REACH + width) * cells) + 1)
    inside = between(places / cells)
    grown = between(places / cells - width) * np.exp(width**2 / 2 - step * places[:-1])  # mean over the left end
    right = np.clip((grown - inside) / math.expm1(step), 0.0, inside)
    return _ended(first, np.append(inside - right, 0.0) + np.append(0.0, right), width**2 / 2, step)


def _sum(one: GridLaw, other: GridLaw, most: float) -> GridLaw:
    """Return the law of a sum, on a grid of half the step if that is above the most that is allowed."""
    while one.step != other.step:
        one, other = (_stretched(one), other) if one.step > other.step else (one, _stretched(other))
    parts = 2 if one.step > most else 1
    step, sizes = one.step / parts, (len(one.masses), len(other.masses))
    top, beyond = max(one.first, other.first), math.ceil(math.log(2) / step) + 2
    span = max(one.first + sizes[0], other.first + sizes[1]) - top
    masses = np.zeros(parts * span + beyond)
    for apart in range(other.first - one.first - sizes[0] + 1, other.first - one.first + sizes[1]):
        begin, end = max(one.first, other.first - apart), min(one.first + sizes[0], other.first + sizes[1] - apart)
        pairs = one.masses[begin - one.first : end - one.first]
        pairs = pairs * other.masses[begin + apart - other.first : end + apart - other.first]
        rise = math.log1p(math.exp(-one.step * abs(apart)))
        cell = math.floor(rise / step)
        share = math.expm1(rise - step * cell) / math.expm1(step)
        start = parts * (max(begin, begin + apart) - top) + cell
        stop = start + parts * len(pairs)
        masses[start:stop:parts] += (1 - share) * pairs
        masses[start + 1 : stop + 1 : parts] += share * pairs
    return _ended(parts * top, masses, float(np.logaddexp(one.mean, other.mean)), step)


def _product(one: GridLaw, other: GridLaw, most: float) -> GridLaw:
    """Return the law of a product, on a grid of twice the step as often as that is allowed."""
    while one.step != other.step:
        one, other = (_gathered(one), other) if one.step < other.step else (one, _gathered(other))
    masses = np.convolve(one.masses, other.masses)
    law = _ended(one.first + other.first, masses, one.mean + other.mean, one.step)
    while 2 * law.step < most:
        law = _gathered(law)
    return law


def _stretched(law: GridLaw) -> GridLaw:
    masses = np.zeros(2 * len(law.masses) - 1)
    masses[::2] = law.masses
    return GridLaw(2 * law.first, masses, law.mean, law.step / 2)


def _gathered(law: GridLaw) -> GridLaw:
    """Return the law on every second place; what is between two is shared so that the mean stays."""
    before = law.first % 2
    masses = np.pad(law.masses, (before, (len(law.masses) + before + 1) % 2))
    right = masses[1::2] / (1 + math.exp(law.step))
    kept = masses[::2] + np.append(masses[1::2] - right, 0.0) + np.append(0.0, right)
    return GridLaw((law.first - before) // 2, kept, law.mean, 2 * law.step)


def _ended(first: int, masses: np.ndarray, mean: float, step: float) -> GridLaw:
    """Return the law without ends that are too light to count, in mass below and in mass times place above."""
    heights = masses * np.exp(step * np.arange(first, first + len(masses)) - mean)
    low = int(np.searchsorted(np.cumsum(masses), LEAST / 2))
    high = len(masses) - int(np.searchsorted(np.cumsum(heights[::-1]), LEAST / 2))
    return GridLaw(first + low, masses[low:high], mean, step)
