"""Privacy loss distributions of runs of independent blocks, every mass rounded up.

docs/notes/amplification-proofs.md has the likelihood ratio L of a block: theorem 9 for random allocation, where C has
one band and L is the mean of b copies of e^(w Z - w^2 / 2); theorem 10 for Poisson sampling, where it is
1 - q + q e^(w Z - w^2 / 2). w is a norm of C over sigma, and a run has the product of k independent copies of L.

Both hockey sticks grow when mass moves to the ends of its cell and keeps its mean, so one law serves both directions.
The places are e^(h i), i whole. Sums and products of two laws run over all pairs of their places, so that masses are
only added and multiplied, and none is a difference.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from flint import arb, ctx

from factorize.checker.arithmetic.balls import PLACES, normal
from factorize.checker.arithmetic.machine import EXP_SLACK, MIN_EXPONENT, exponentials
from factorize.checker.arithmetic.near import UNIT
from factorize.checker.sensitivity import bracket_sensitivity
from factorize.checker.strategy import Strategy
from factorize.errors import InvalidParameter

CELLS = 16
"""The fewest cells in a standard deviation of the logarithm of the number on a grid; at most 32 are used."""
MAX_DEVIATIONS = 11.5
"""The standard deviations of Z that the grid covers; either side beyond them has a mass below 7e-31."""
MIN_MASS = 1e-30
"""The mass that each operation may leave out at both ends together."""
MAX_VARIANCE = 100.0
"""The largest variance of w Z; with a larger one there is so little noise that nothing is private."""
MIN_WIDTH = 2.0**-17
"""The smallest w: a smaller one is raised to it, which is safe, as less noise has a larger w. Grids grow as 1 / w."""
MAX_DOT_CELLS = 8192
"""The most cells of one dot product: OpenBLAS shares longer ones among threads, which takes ten times as long."""
_PLACE_ROUNDING = 2.0**-40
"""The relative error that covers a place: the mean of two ends misses it by at most 2^-42 as doubles share a mass."""


class GridLaw(NamedTuple):
    """An upper bound of the law of a positive number at places e^(h i).

    Attributes:
        first: i of the first mass.
        masses: masses at first, first + 1, ...; each is at least that of exact operations.
        step: h.
        mean: logarithm of the mean.
        lost: at least the mass that was left out, by this law and by the law with the number itself as its weight.
    """

    first: int
    masses: np.ndarray
    step: float
    mean: float
    lost: float


StepLaw = Callable[[float, float, float], GridLaw]
"""A function that makes the law of a step from w, q, and the finest h."""


class Losses:
    """An upper bound of the law of the likelihood ratio of a run, where the example takes no part.

    Args:
        law: an upper bound of the law of the product of all blocks, times a constant.
        mean: its logarithmic mean, which is that constant.
        shift: the most that roundings of places may move the logarithm.
    """

    def __init__(self, law: GridLaw, mean: float, shift: float) -> None:
        places = np.arange(law.first, law.first + len(law.masses))
        self._masses, self._lost, self._shift = law.masses, law.lost, shift
        self._losses = law.step * places - mean

    def removal(self, epsilon: float) -> arb:
        """Return an upper bound of the mean of (L - e^epsilon)_+."""
        level = epsilon - self._shift
        above = self._losses > level
        losses = self._losses[above]
        kept = 1 - exponentials(np.maximum(level - losses, MIN_EXPONENT)) + 2 * EXP_SLACK
        return self._upper(float(self._masses[above] * exponentials(losses) @ kept))

    def addition(self, epsilon: float) -> arb:
        """Return an upper bound of the mean of (1 - e^epsilon L)_+."""
        sums = self._losses + (epsilon - self._shift)
        below = sums < 0
        kept = 1 - exponentials(np.maximum(sums[below], MIN_EXPONENT)) + 2 * EXP_SLACK
        return self._upper(float(self._masses[below] @ kept))

    @ctx.workprec(PLACES)
    def _upper(self, total: float) -> arb:
        rounded = 1 + 4 * EXP_SLACK + 2 * self._shift + 8 * len(self._masses) * UNIT
        return arb(total) * rounded + self._lost


def losses_of_blocks(square: Fraction, scale: float, bins: int, blocks: int, step_law: StepLaw | None = None) -> Losses:
    """Return the law of k independent blocks of b steps (theorem 9).

    Args:
        square: an upper bound of the largest squared entry of C.
        scale: a lower bound of the sigma of an entry, for contributions of norm 1.
        bins: b, the steps of a block.
        blocks: k, the number of blocks.
        step_law: makes the law of one step; with another than the proved one, the result is an estimate.

    Raises:
        InvalidParameter: there is so little noise that nothing is private.
    """
    width = width_of(square, scale)
    one = power((step_law or _step_law)(width, 1.0, width / CELLS), bins, _sum, lambda m: _deviation(width, m))
    alone = _deviation(width, bins)
    law = power(one._replace(mean=0.0), blocks, product, lambda m: alone * math.sqrt(m))
    return Losses(law, blocks * one.mean, shift_of(blocks, bins, width))


def width_of(square: Fraction, scale: float) -> float:
    """Return an upper bound of w, a root over a scale; raise InvalidParameter where nothing is private."""
    exact = square / Fraction(scale) ** 2
    if exact > MAX_VARIANCE:
        raise InvalidParameter("sigma is so small that nothing is private; use a larger one", field="sigma")
    width = max(math.sqrt(exact), MIN_WIDTH)
    while Fraction(width) ** 2 < exact:
        width = math.nextafter(width, math.inf)
    return width


def shift_of(blocks: int, bins: int, width: float) -> float:
    """Return the most that all places together may be off by, in the logarithm of the product of all blocks."""
    return _PLACE_ROUNDING * blocks * (2 * bins.bit_length() + 8 + width * width)


def power(
    law: GridLaw, number: int, joined: Callable[[GridLaw, GridLaw, float], GridLaw], deviation: Callable[[int], float]
) -> GridLaw:
    """Return the law of `number` independent copies, joined by doubling.

    `joined` returns the law of two, on a grid that fits a standard deviation of the logarithm.
    """
    whole, held, copies = None, 0, 1
    while True:
        if number & copies:
            held += copies
            whole = law if whole is None else joined(whole, law, deviation(held))
        copies *= 2
        if copies > number:
            assert whole is not None
            return whole
        law = joined(law, law, deviation(copies))


def _deviation(width: float, number: int) -> float:
    """Return the standard deviation of the logarithm of a sum, as if it were lognormal."""
    return math.sqrt(math.log1p(math.expm1(width * width) / number))


def _sum(one: GridLaw, other: GridLaw, deviation: float) -> GridLaw:
    """Return the law of the sum of two independent numbers, on a finer grid where the sum needs it."""
    while one.step != other.step:
        one, other = (_finer(one), other) if one.step > other.step else (one, _finer(other))
    times = 2 if one.step * CELLS > deviation else 1
    h, step = one.step, one.step / times
    nearest, farthest = other.first - one.first - len(one.masses) + 1, other.first + len(other.masses) - 1 - one.first
    apart = np.arange(nearest, farthest + 1)
    sums = 1 + exponentials(np.maximum(-h * np.abs(apart), MIN_EXPONENT))  # They are relative to the larger of the two.
    least, largest = (math.floor(math.log(each) / step) for each in (sums.min(), sums.max()))
    base = max(least - 1, 0)
    ends = exponentials(step * np.arange(base, largest + 3))  # They begin below all sums, and end above them.
    left = np.searchsorted(ends, sums, side="right") - 1
    shares = np.clip((sums - ends[left]) / (ends[left + 1] - ends[left]), 0.0, 1.0)
    lowest = max(one.first, other.first)
    most = max(one.first + len(one.masses), other.first + len(other.masses)) - lowest
    masses = np.zeros(times * most + len(ends))
    for d, place, share in zip(apart.tolist(), left.tolist(), shares.tolist(), strict=True):
        start = max(one.first, other.first - d)
        stop = min(one.first + len(one.masses), other.first + len(other.masses) - d)
        beside = slice(start + d - other.first, stop + d - other.first)
        pairs = one.masses[start - one.first : stop - one.first] * other.masses[beside]
        at = times * (start + max(d, 0) - lowest) + place
        end = at + times * (stop - start)
        masses[at:end:times] += (1 - share) * pairs
        masses[at + 1 : end + 1 : times] += share * pairs
    masses *= 1 + (2 * len(apart) + 8) * UNIT
    mean = max(one.mean, other.mean) + math.log1p(math.exp(-abs(one.mean - other.mean)))
    return _trimmed(GridLaw(times * lowest + base, masses, step, mean, one.lost + other.lost))


def product(one: GridLaw, other: GridLaw, deviation: float) -> GridLaw:
    """Return the law of the product of two independent numbers, on a coarser grid where the product allows it."""
    while one.step != other.step:
        one, other = (_coarser(one), other) if one.step < other.step else (one, _coarser(other))
    masses = np.zeros(len(one.masses) + len(other.masses) - 1)
    for start in range(0, len(other.masses), MAX_DOT_CELLS):
        part = np.convolve(one.masses, other.masses[start : start + MAX_DOT_CELLS])
        masses[start : start + len(part)] += part
    masses *= 1 + (2 * len(one.masses) + 8) * UNIT
    law = _trimmed(GridLaw(one.first + other.first, masses, one.step, one.mean + other.mean, one.lost + other.lost))
    while 2 * law.step * CELLS < deviation:
        law = _coarser(law)
    return law


def _finer(law: GridLaw) -> GridLaw:
    masses = np.zeros(2 * len(law.masses) - 1)
    masses[::2] = law.masses
    return law._replace(first=2 * law.first, masses=masses, step=law.step / 2)


def _coarser(law: GridLaw) -> GridLaw:
    """Return the law with odd places moved to both neighbours: 1 = (1 - u) e^-h + u e^h with u = 1 / (1 + e^h)."""
    odd = law.first % 2
    padded = np.concatenate([np.zeros(odd), law.masses, np.zeros((len(law.masses) + odd + 1) % 2)])
    share = 1 / (1 + float(exponentials(np.array([law.step]))[0]))
    masses = padded[::2].copy()
    masses[1:] += share * padded[1::2]
    masses[:-1] += (1 - share) * padded[1::2]
    return law._replace(first=(law.first - odd) // 2, masses=masses * (1 + 8 * UNIT), step=2 * law.step)


def _trimmed(law: GridLaw) -> GridLaw:
    """Leave out the ends: the lower one by its mass, the upper one by its share of the mean, which is larger there."""
    places = law.step * np.arange(law.first, law.first + len(law.masses)) - law.mean
    weighed = law.masses * exponentials(np.clip(places, MIN_EXPONENT, -MIN_EXPONENT))
    low = int(np.searchsorted(np.cumsum(law.masses), MIN_MASS / 2))
    high = len(weighed) - int(np.searchsorted(np.cumsum(weighed[::-1]), MIN_MASS / 2))
    return law._replace(first=law.first + low, masses=law.masses[low:high], lost=law.lost + 2 * MIN_MASS)


def largest_square(strategy: Strategy) -> Fraction:
    """Return an upper bound of the largest squared entry of a C with one band; raise InvalidParameter otherwise."""
    if strategy.bandwidth != 1:
        raise InvalidParameter(
            f"the claim is about random allocation, which needs C = I, but C has {strategy.bandwidth} bands",
            field="sampling",
        )
    return bracket_sensitivity(strategy, {"kind": "single"}).upper


_MAX_CELLS = 20_000  # The grid of one step has no more cells; a coarser grid moves more mass, which is safe.
_MAX_DEVIATION = 0.25
"""The deviation above which grids get no coarser: with little noise, most mass is far from where the moments are."""


def losses_of_samples(
    square: Fraction, scale: float, probability: float, number: int, step_law: StepLaw | None = None
) -> Losses:
    """Return the law of k steps that sample independently with probability q in (0, 1] (theorem 10).

    `square` is an upper bound of the largest squared norm of a column of C; see `losses_of_blocks` for the rest.
    """
    width = width_of(square, scale)
    deviation = min(math.sqrt(math.log1p(probability**2 * math.expm1(width * width))), _MAX_DEVIATION)
    one = (step_law or _step_law)(width, probability, deviation / CELLS)
    law = power(one, number, product, lambda m: deviation * math.sqrt(m))
    return Losses(law, 0.0, shift_of(number, 1, width))


def grid_of(width: float, probability: float, finest: float) -> tuple[int, int, float]:
    """Return the first place of a step's grid, its cells, and h; the mass beyond Z = MAX_DEVIATIONS + w is < 7e-31."""
    top = math.log1p(probability * math.expm1(width * (MAX_DEVIATIONS + width / 2)))
    low = math.log1p(-probability) if probability < 1 else -width * (MAX_DEVIATIONS + width / 2)
    step = max(finest, (top - low) / _MAX_CELLS)
    return math.floor(low / step) - 1, math.ceil((top - low) / step) + 3, step


@ctx.workprec(160)  # Chances are within 2^-156, so all masses and the mean are within 2^-112.
def _step_law(width: float, probability: float, finest: float) -> GridLaw:
    """Return the law of L on a grid, with the mass and the share of the mean that lie beyond it."""
    first, cells, step = grid_of(width, probability, finest)
    w, q = arb(width), arb(probability)
    place, gap = (arb(step) * first).exp(), arb(step).exp()
    masses = np.zeros(cells + 1)

    def below(place: arb) -> tuple[arb, arb]:
        """Return the chances that L is below a place, without and with the example."""
        rest = place - (1 - q)
        if not rest > 0:
            return arb(0), arb(0)
        z = ((rest / q).log() + w * w / 2) / w
        return normal(z), normal(z - w)

    without, taking = below(place)
    for i in range(cells):
        beyond = place * gap
        next_without, next_taking = below(beyond)
        mass = next_without - without
        mean = (1 - q) * mass + q * (next_taking - taking)
        right = (mean - mass * place) / (beyond - place)
        masses[i] += float(mass - right)
        masses[i + 1] += float(right)
        without, taking, place = next_without, next_taking, beyond
    return GridLaw(first, np.maximum(masses, 0.0) * (1 + 8 * UNIT), step, 0.0, 2 * MIN_MASS + 2.0**-112)
