"""Families of Toeplitz strategies as functions of free variables, each with the loss at fixed weights of the bins.

Taps to start from are interpolated between the entries of a table of searches that ended.
`python -m benchmarks.starting_taps` writes the table, starting_taps.json: an entry for each of `BUFFERS`, then of
`BINS`, `EPOCHS` and `EPSILONS`, the last the fastest. A start proves nothing: what is made of it is certified, and its
noise is claimed and tested, like any other's.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from importlib.resources import files

import numpy as np

from factorize.encoding import read_json
from factorize.solvers.amplified.spread_sensitivity import SpreadSensitivity
from factorize.solvers.blt.loss import SeriesLoss, powers
from factorize.solvers.blt.parameters import Alternating, progressions
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.transforms import Transforms, reciprocal
from factorize.solvers.toeplitz.gradients import ErrorForm, ToeplitzLoss
from factorize.structures.base import Matrix
from factorize.structures.toeplitz import BltMatrix, InverseBandedToeplitz, ToeplitzMatrix

_MIN_COEFFICIENT = 1e-12  # a coefficient's least size at the start, relative to the first: its logarithm is a variable
_STARTS = ((0.5, 0.003), (0.5, 0.01), (0.5, 0.03), (0.7, 0.003), (0.7, 0.02), (0.85, 0.0))
"""Exponents of (1 - x) and dampings over a step: roots, gamma-BIFR; with two taps these are lambda-CGD."""


class Family(ABC):
    """Strategies of one structure.

    Args:
        n: number of steps.
        error: E as a form in the series of A C^-1.
        separation: b.
        count: participations.
    """

    signed = False

    def __init__(self, n: int, error: ErrorForm, separation: int, count: int) -> None:
        self.n, self.error, self.separation, self.count = n, error, separation, count

    @abstractmethod
    def starts(self) -> Iterator[Array]:
        """Yield variables to start from."""

    @abstractmethod
    def column(self, variables: Array) -> Array:
        """Return the coefficients of C, shape (n,)."""

    @abstractmethod
    def matrix(self, variables: Array) -> Matrix:
        """Return C."""

    @abstractmethod
    def loss_at(self, variables: Array, sensitivity: SpreadSensitivity) -> tuple[float, Array]:
        """Return log(E S) and its derivative by the variables."""

    def sensitivity(self, forms: Array) -> SpreadSensitivity:
        """Return what stands for sigma^2 in this family, from forms of shape (forms, b, b)."""
        return SpreadSensitivity(np.ascontiguousarray(forms), self.n, smooth=self.signed)

    def log_error(self, column: Array) -> float:
        """Return log E."""
        series = self.error.series(reciprocal(column, self.n), self._fft)
        return float(np.log(self.error.value_and_gradient(series)[0]))

    @cached_property
    def _fft(self) -> Transforms:
        return Transforms(self.n)

    def _toeplitz(self, column: Array, sensitivity: SpreadSensitivity) -> tuple[float, Array]:
        return ToeplitzLoss(self.n, self.error, sensitivity)(column)


class AllTaps(Family):
    """Toeplitz matrices with positive coefficients: the logarithms of all but the first are free."""

    def starts(self) -> Iterator[Array]:
        """Yield damped square roots of the prefix sum."""
        for exponent, damping in _STARTS:
            column = reciprocal(_power(exponent, damping, self.n), self.n)
            yield np.log(np.maximum(column[1:], _MIN_COEFFICIENT))

    def column(self, variables: Array) -> Array:
        """Return the exponentials of the variables, after a first coefficient of 1."""
        return np.exp(np.concatenate([[0.0], np.clip(variables, -600.0, 600.0)]))

    def matrix(self, variables: Array) -> ToeplitzMatrix:
        """Return the Toeplitz matrix with that column."""
        return ToeplitzMatrix(self.column(variables), self.n)

    def loss_at(self, variables: Array, sensitivity: SpreadSensitivity) -> tuple[float, Array]:
        """Return the loss and its derivative, which has a factor c for each logarithm."""
        column = self.column(variables)
        value, slope = self._toeplitz(column, sensitivity)
        return value, (slope * column)[1:]


class InverseTaps(Family):
    """Matrices whose inverse is Toeplitz with a few diagonals, the first coefficient 1.

    The variables are the inverse hyperbolic tangents of the taps' reflection coefficients: whatever they are, the taps
    have no root within the unit circle, so that C does not grow, and the narrow valley along it becomes a wide one.

    Args:
        taps: diagonals of C^-1.
    """

    signed = True

    def __init__(self, n: int, error: ErrorForm, separation: int, count: int, *, taps: int) -> None:
        super().__init__(n, error, separation, count)
        self.taps = taps

    def starts(self) -> Iterator[Array]:
        """Yield powers of 1 - x, cut off: roots, gamma-BIFR, lambda-CGD."""
        for exponent, damping in _STARTS:
            yield np.arctanh(reflections(_power(exponent, damping, self.taps)))

    def column(self, variables: Array) -> Array:
        """Return one over the taps' series."""
        return reciprocal(polynomials(np.tanh(variables))[-1], self.n)

    def matrix(self, variables: Array) -> InverseBandedToeplitz:
        """Return C by its inverse: the format wants no tap but the first above 0, and a sum of all that is not below.

        The optima for sums have such taps, and a search that ends a rounding away from them is put back. Those for
        momentum may not, and without their positive taps the others are too large.
        """
        taps = polynomials(np.tanh(variables))[-1]
        taps[1:] = np.where(taps[1:] > -_MIN_COEFFICIENT, 0.0, taps[1:])
        taps[1:] /= max(1.0, -taps[1:].sum())
        while sum(map(Fraction, taps.tolist())) < 0:
            taps[1:] *= 1 - 2.0**-50
        return InverseBandedToeplitz(taps, self.n)

    def loss_at(self, variables: Array, sensitivity: SpreadSensitivity) -> tuple[float, Array]:
        """Return the loss and its derivative: a change dq of the taps moves c by -c c dq."""
        turned = np.tanh(variables)
        taps = polynomials(turned)
        column = reciprocal(taps[-1], self.n)
        if not np.isfinite(column).all():
            return np.inf, np.zeros(len(variables))
        value, slope = self._toeplitz(column, sensitivity)
        by_tap = -self._fft.correlate(slope, self._fft.product(column, column))[: self.taps]
        return value, by_reflection(taps, turned, by_tap) * (1 - turned**2)


class BufferedTaps(Family):
    """Buffered linear Toeplitz matrices with falling coefficients.

    Args:
        buffers: number of decays.
    """

    def __init__(self, n: int, error: ErrorForm, separation: int, count: int, *, buffers: int) -> None:
        super().__init__(n, error, separation, count)
        self.parameters = Alternating(buffers, free_end=False)

    def starts(self) -> Iterator[Array]:
        """Yield decays in geometric progression."""
        yield from progressions(self.parameters, self.n, self.separation)

    def column(self, variables: Array) -> Array:
        """Return a sum of decays."""
        point = self.parameters.at(variables)
        return np.concatenate([[1.0], point.omega @ powers(point.theta, self.n - 1)])

    def matrix(self, variables: Array) -> BltMatrix:
        """Return the matrix of the decays and their scales."""
        point = self.parameters.at(variables)
        return BltMatrix(point.theta, point.omega, self.n)

    def loss_at(self, variables: Array, sensitivity: SpreadSensitivity) -> tuple[float, Array]:
        """Return the loss and its derivative, by the chain rule through the column."""
        return SeriesLoss(self.parameters, ToeplitzLoss(self.n, self.error, sensitivity))(variables)


def _power(exponent: float, damping: float, terms: int) -> Array:
    """Return the first terms of (1 - x)^exponent, term t times e^(-damping t)."""
    t = np.arange(1.0, terms)
    return np.concatenate([[1.0], np.cumprod((t - 1 - exponent) / t * np.exp(-damping))])


def polynomials(reflected: Array) -> list[Array]:
    """Return the taps of 0, 1, ..., p reflections, the last of p + 1 taps (Levinson's recursion).

    Args:
        reflected: reflection coefficients in (-1, 1), shape (p,).
    """
    taps = [np.ones(1)]
    for coefficient in reflected:
        padded = np.append(taps[-1], 0.0)
        taps.append(padded + coefficient * padded[::-1])
    return taps


def reflections(taps: Array) -> Array:
    """Return the reflection coefficients of taps without a root within the unit circle, shape (taps - 1,)."""
    coefficients, left = np.empty(len(taps) - 1), taps / taps[0]
    for m in range(len(taps) - 1, 0, -1):
        coefficients[m - 1] = left[m]
        left = ((left - left[m] * left[::-1]) / (1 - left[m] ** 2))[:m]
    return coefficients


def by_reflection(taps: list[Array], reflected: Array, slope: Array) -> Array:
    """Return the derivative by the reflection coefficients from that by the last taps."""
    derivatives = np.empty(len(reflected))
    for m in range(len(reflected), 0, -1):
        padded = np.append(taps[m - 1], 0.0)
        derivatives[m - 1] = slope @ padded[::-1]
        slope = (slope + reflected[m - 1] * slope[::-1])[:m]
    return derivatives


BUFFERS = (1, 2)
BINS = (8, 32, 128, 512)
EPOCHS = (1, 4, 16)
EPSILONS = (0.5, 2.0, 8.0)
DELTA = 1e-6
TABLE = files(__package__) / "starting_taps.json"


def starting_taps(buffers: int, bins: int, epochs: int, epsilon: float) -> Array | None:
    """Return variables of `families.BufferedTaps` to start from, shape (2 buffers,), or None for other buffers.

    The variables are linear in the logarithms of bins, epochs and epsilon between the table's entries, constant beyond.
    """
    if buffers not in BUFFERS:
        return None
    shape = (len(BINS), len(EPOCHS), len(EPSILONS))
    per_table = math.prod(shape)
    first = per_table * BUFFERS.index(buffers)
    values = np.array(read_json(TABLE.read_bytes())[first : first + per_table]).reshape(*shape, 2 * buffers)
    for axis, at in ((BINS, bins), (EPOCHS, epochs), (EPSILONS, epsilon)):
        place = float(np.interp(math.log(at), np.log(axis), np.arange(len(axis))))
        low = min(int(place), len(axis) - 2)
        values = values[low] + (place - low) * (values[low + 1] - values[low])
    return np.asarray(values)
