"""Integrals with proven bounds: interval arithmetic on a function and its first two derivatives.

On a cell of half width r around c, Taylor's theorem gives

    int f = 2 r f(c) + (r^3 / 3) f''(somewhere in the cell),

so an interval that contains f'' over the cell bounds the integral between two grid points, however the function behaves
there. `Jet` carries intervals for f, f' and f'' over every cell at once through sums, products, quotients and roots.
Each interval operation is widened by a few units in the last place, so the bounds hold for the real function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from factorize.errors import SolveFailed
from factorize.solvers.methods.compiled import Array

_WIDENING = 8 * 2.0**-53
_TINY_WIDTH = 1e-290
_MAX_CELLS = 2**18


@dataclass(frozen=True)
class CellIntervals:
    """Numbers between `low` and `high`, one pair per cell.

    Attributes:
        low: shape (cells,).
        high: shape (cells,).
    """

    low: Array
    high: Array

    @classmethod
    def around(cls, low: Array, high: Array) -> CellIntervals:
        """Return the interval, widened for the rounding of the operation that made its ends."""
        return cls(low - _WIDENING * np.abs(low) - _TINY_WIDTH, high + _WIDENING * np.abs(high) + _TINY_WIDTH)

    @classmethod
    def ball(cls, centre: Array, radius: Array | float) -> CellIntervals:
        """Return centre +- radius."""
        return cls.around(centre - radius, centre + radius)

    def __add__(self, other: CellIntervals | float) -> CellIntervals:
        """Return the sum."""
        if not isinstance(other, CellIntervals):
            return CellIntervals.around(self.low + other, self.high + other)
        return CellIntervals.around(self.low + other.low, self.high + other.high)

    def __neg__(self) -> CellIntervals:
        """Return the negative."""
        return CellIntervals(-self.high, -self.low)

    def __sub__(self, other: CellIntervals) -> CellIntervals:
        """Return the difference."""
        return self + (-other)

    def __mul__(self, other: CellIntervals | float) -> CellIntervals:
        """Return the product."""
        if isinstance(other, CellIntervals):
            ends = [self.low * other.low, self.low * other.high, self.high * other.low, self.high * other.high]
        else:
            ends = [self.low * other, self.high * other]
        return CellIntervals.around(np.minimum.reduce(ends), np.maximum.reduce(ends))

    def square(self) -> CellIntervals:
        """Return the square, which is never negative."""
        largest = np.maximum(np.abs(self.low), np.abs(self.high))
        smallest = np.where((self.low <= 0) & (self.high >= 0), 0.0, np.minimum(np.abs(self.low), np.abs(self.high)))
        return CellIntervals.around(smallest**2, largest**2)

    def reciprocal(self) -> CellIntervals:
        """Return one over it, infinite where it contains zero."""
        safe = self.low > 0
        low = np.divide(1.0, self.high, out=np.full_like(self.low, -np.inf), where=safe)
        high = np.divide(1.0, self.low, out=np.full_like(self.low, np.inf), where=safe)
        return CellIntervals.around(low, high)

    def root(self) -> CellIntervals:
        """Return the square root of a positive interval."""
        return CellIntervals.around(np.sqrt(np.maximum(self.low, 0.0)), np.sqrt(np.maximum(self.high, 0.0)))


@dataclass(frozen=True)
class Jet:
    """A function over every cell: intervals of its value and of its first two derivatives.

    Attributes:
        value: f.
        first: f'.
        second: f''.
    """

    value: CellIntervals
    first: CellIntervals
    second: CellIntervals

    def __add__(self, other: Jet) -> Jet:
        """Return the sum."""
        return Jet(self.value + other.value, self.first + other.first, self.second + other.second)

    def __sub__(self, other: Jet) -> Jet:
        """Return the difference."""
        return self + other * -1.0

    def shifted(self, constant: float) -> Jet:
        """Return the function plus a constant."""
        return Jet(self.value + constant, self.first, self.second)

    def __mul__(self, other: Jet | float) -> Jet:
        """Return the product."""
        if not isinstance(other, Jet):
            return Jet(self.value * other, self.first * other, self.second * other)
        second = self.second * other.value + self.first * other.first * 2.0 + self.value * other.second
        return Jet(self.value * other.value, self.first * other.value + self.value * other.first, second)

    def square(self) -> Jet:
        """Return the square."""
        return Jet(
            self.value.square(), self.value * self.first * 2.0, (self.first.square() + self.value * self.second) * 2.0
        )

    def reciprocal(self) -> Jet:
        """Return one over a positive function: (1/f)' = -f'/f^2, (1/f)'' = 2 f'^2/f^3 - f''/f^2."""
        inverse = self.value.reciprocal()
        squared = inverse.square()
        return Jet(
            inverse, -(self.first * squared), self.first.square() * squared * inverse * 2.0 - self.second * squared
        )

    def root(self) -> Jet:
        """Return the square root of a positive function: f'/(2 g), (f'' - f'^2/(2 f)) / (2 g) with g = sqrt(f)."""
        root = self.value.root()
        half = root.reciprocal() * 0.5
        bend = self.second - self.first.square() * self.value.reciprocal() * 0.5
        return Jet(root, self.first * half, bend * half)


@dataclass(frozen=True)
class Arcs:
    """A partition of (0, pi).

    Attributes:
        centre: shape (cells,).
        radius: half widths, shape (cells,).
    """

    centre: Array
    radius: Array

    @classmethod
    def between(cls, left: Array, right: Array) -> Arcs:
        """Return the cells between these ends; their radius covers the rounding of their centre."""
        centre = 0.5 * (left + right)
        return cls(centre, np.maximum(right - centre, centre - left) * (1 + 2.0**-50))

    def series(self, cosines: Array, sines: Array) -> Jet:
        """Return the jet of sum_t cosines_t cos(t w) + sines_t sin(t w), t = 0, 1, ...

        Each derivative is its value at the centre, give or take the radius times a bound on the next one; the third is
        bounded by sum_t t^3 |(cosines_t, sines_t)|.

        Args:
            cosines: shape (terms,).
            sines: shape (terms,); the first one is ignored.
        """
        t = np.arange(float(len(cosines)))
        angles = self.centre[:, None] * t
        cosine, sine = np.cos(angles), np.sin(angles)
        size = np.abs(cosines) + np.abs(sines)
        # the angle of each term errs by up to t pi 2^-53, the cosine by one unit, the sum by one for each term
        noise = [2.0**-52 * float(((2.0 * t + len(t) + 8.0) * t**k) @ size) for k in range(3)]
        values = (
            cosine @ cosines + sine @ sines,
            cosine @ (t * sines) - sine @ (t * cosines),
            -(cosine @ (t**2 * cosines) + sine @ (t**2 * sines)),
        )
        bound = np.full_like(self.centre, float(t**3 @ size) * (1 + 1e-12))
        jets: list[CellIntervals] = []
        for order in (2, 1, 0):
            interval = CellIntervals.ball(values[order], self.radius * bound + noise[order])
            bound = np.maximum(np.abs(interval.low), np.abs(interval.high))
            jets.append(interval)
        return Jet(jets[2], jets[1], jets[0])


@dataclass(frozen=True)
class Enclosure:
    """Proven bounds of a mean over the circle.

    Attributes:
        lower: not above the mean.
        upper: not below the mean.
        cells: number of cells used.
    """

    lower: float
    upper: float
    cells: int


def mean_enclosure(function: Callable[[Arcs], Jet], edges: Array, *, tolerance: float) -> Enclosure:
    """Return bounds of the mean over the circle of an even function, halving the cells that keep them apart.

    Args:
        function: the jet over given cells.
        edges: edges of the first partition of (0, pi), increasing.
        tolerance: relative distance of the bounds at which to stop.

    Raises:
        SolveFailed: at the limit the bounds are still apart by more than the tolerance, or infinite.
    """
    left, right = edges[:-1], edges[1:]
    lower, upper = _integrals(function, left, right)
    while True:
        below, above = float(lower.sum()), float(upper.sum())
        if np.isfinite(above - below) and above - below <= tolerance * abs(below):
            allowance = 2.0**-50 * len(left) * max(abs(below), abs(above))  # the rounding of the two sums, and of pi
            return Enclosure((below - allowance) / np.pi, (above + allowance) / np.pi, len(left))
        if 2 * len(left) > _MAX_CELLS:
            raise SolveFailed(
                f"the bound could not be verified between grid points: {len(left)} cells leave it within "
                f"[{below / np.pi:.6g}, {above / np.pi:.6g}]; use a smaller condition number or another learning_rate"
            )
        fair = 0.25 * tolerance * abs(below) / len(left) if np.isfinite(below) else np.inf
        wide = ~(upper - lower <= fair) if np.isfinite(below) else ~np.isfinite(upper - lower)
        middle = 0.5 * (left[wide] + right[wide])
        halves = np.concatenate([left[wide], middle]), np.concatenate([middle, right[wide]])
        fresh = _integrals(function, *halves)
        left, right = (np.concatenate([a[~wide], b]) for a, b in zip((left, right), halves, strict=True))
        lower, upper = (np.concatenate([a[~wide], b]) for a, b in zip((lower, upper), fresh, strict=True))


def _integrals(function: Callable[[Arcs], Jet], left: Array, right: Array) -> tuple[Array, Array]:
    """Return lower and upper bounds of the integral over each cell; infinite where the function may not exist."""
    cells = Arcs.between(left, right)
    middle = Arcs(cells.centre, np.full_like(left, 2.0**-51))  # contains the exact midpoint
    with np.errstate(all="ignore"):
        cube = cells.radius**3 / 3
        width = CellIntervals.around(right - left, right - left)
        total = function(middle).value * width + function(cells).second * CellIntervals(cube * (1 - 2.0**-40), cube)
    broken = ~(np.isfinite(total.low) & np.isfinite(total.high))
    return np.where(broken, -np.inf, total.low), np.where(broken, np.inf, total.high)
