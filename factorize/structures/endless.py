"""Strategies whose rows have no end, known by a few parameters: Toeplitz, with coefficients that fall towards zero.

The first n rows and columns of such a matrix are the finite matrix with the same parameters, and those of its inverse
are the inverse of that matrix. Every row can be computed, and no column ends. Quantities that grow with n raise an
error.
"""

import math
from abc import abstractmethod
from typing import ClassVar, NoReturn

import numpy as np

from factorize.errors import InvalidParticipation, TooLarge, UnsupportedProblem
from factorize.numbers.triangular import toeplitz_rows
from factorize.structures.base import Matrix, StrategyMatrix
from factorize.structures.toeplitz import BltMatrix, ToeplitzMatrix, noising_coefficients, strategy_coefficients

MAX_ROWS = 1_000_000
"""The number of rows that are served, since row i has i + 1 entries."""
MAX_PATTERN_STEPS = 100_000
"""The most participations that are added up."""
_MEAN_STEPS = 20  # Each step to the arithmetic-geometric mean doubles its digits once it is near.


class EndlessMatrix(StrategyMatrix):
    """A lower-triangular Toeplitz matrix without a last row.

    It is no `Matrix`, since it has no number of rows; `until` returns the leading part, which is one.

    Attributes:
        side: None, where a matrix has n.
    """

    side: ClassVar[None] = None

    def finite(self) -> NoReturn:
        """Raise UnsupportedProblem, since rows without end have no number."""
        raise UnsupportedProblem(
            "this needs a number of steps, and this strategy has no last step; give n in the workload, or read rows "
            "up to the one you need",
            field="/workload/n",
        )

    @abstractmethod
    def until(self, stop: int) -> Matrix:
        """Return the leading stop x stop part."""

    @abstractmethod
    def squared_limit(self, separation: int, most: int) -> float:
        """Return the limit of the squared sensitivity, or a bound of it, in ordinary floating point.

        Args:
            separation: least number of steps between two participations.
            most: number of participations; with 1 it is the squared norm of every column.
        """

    @property
    @abstractmethod
    def gain(self) -> float:
        """The sum of the inverse's column, to which the prefix sum's decoder tends, so that errors grow."""

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop-1 up to column stop - 1, shape (stop - start, stop)."""
        return self.until(_checked(stop)).rows(start, stop)

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop-1 of the inverse up to column stop - 1, shape (stop - start, stop)."""
        return self.until(_checked(stop)).inverse_rows(start, stop)

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Return the block times the inverse of the leading part that is as wide as the block."""
        return self.until(_checked(block.shape[1])).right_solve(block)


AnyStrategy = Matrix | EndlessMatrix
"""A C with or without a last row; `finite()` returns the matrix, or raises an error where there is none."""


class EndlessBlt(EndlessMatrix):
    """The structure `blt` without end.

    Args:
        theta: decays, shape (buffers,), in [0, 1), no two within 2^-43.
        omega: scales, shape (buffers,), not negative.

    Raises:
        InvalidStrategy: the parameters are outside these limits.
    """

    def __init__(self, theta: np.ndarray, omega: np.ndarray) -> None:
        self.theta, self.omega = self.keep("blt", {"theta": theta, "omega": omega}, None)

    def until(self, stop: int) -> BltMatrix:
        """Return the finite matrix with the same parameters."""
        return BltMatrix(self.theta, self.omega, stop)

    def squared_limit(self, separation: int, most: int) -> float:
        """Return geometric sums over the lags d b; where coefficients rise, those of the column (c_1, c_1, c_2, ..)."""
        if most > MAX_PATTERN_STEPS:
            raise InvalidParticipation(
                f"max_participations={most} is above {MAX_PATTERN_STEPS}, the limit for an unbounded n; give fewer, "
                "or give n",
                field="/participation/max_participations",
            )
        theta, omega, lags = self.theta, self.omega, np.arange(1.0, most)
        first = max(float(omega.sum()), 1.0) if most > 1 else 1.0
        inner = (omega / (1 - np.multiply.outer(theta, theta))).sum(axis=1)
        pairs = (theta[:, None] ** (lags * separation - 1)) @ (most - lags)
        return float(most * (first**2 + omega @ inner) + 2 * (omega * (first + theta * inner)) @ pairs)

    @property
    def gain(self) -> float:
        """The sum 1 / C(1)."""
        return 1.0 / (1.0 + math.fsum((self.omega / (1.0 - self.theta)).tolist()))


class EndlessNuToeplitz(EndlessMatrix):
    """The structure `nu_toeplitz`: coefficients of (1 - (1 - nu) x)^(-1/2), which no finite list holds.

    Args:
        nu: shape (1,), in (0, 1).

    Raises:
        InvalidStrategy: the parameters are outside these limits.
    """

    def __init__(self, nu: np.ndarray) -> None:
        (self._parameter,) = self.keep("nu_toeplitz", {"nu": nu}, None)
        self.nu = float(self._parameter[0])

    def until(self, stop: int) -> ToeplitzMatrix:
        """Return the finite matrix with the first coefficients, rounded to doubles."""
        return ToeplitzMatrix(strategy_coefficients(stop, self.nu), stop)

    def inverse_rows(self, start: int, stop: int) -> np.ndarray:
        """Slide over the inverse's own formula."""
        return toeplitz_rows(noising_coefficients(_checked(stop), self.nu), start, stop)

    def squared_limit(self, separation: int, most: int) -> float:
        """Return the squared norm of a column; the checker refuses several participations."""
        assert most == 1
        larger, smaller = 1.0, math.sqrt(self.nu * (2 - self.nu))
        for _ in range(_MEAN_STEPS):
            larger, smaller = (larger + smaller) / 2, math.sqrt(larger * smaller)
        return 1 / larger

    @property
    def gain(self) -> float:
        """The sum (1 - (1 - nu))^(1/2)."""
        return math.sqrt(self.nu)


def _checked(stop: int) -> int:
    if not 1 <= stop <= MAX_ROWS:
        raise TooLarge(
            f"rows up to {stop} are outside 0:{MAX_ROWS}, the rows of a strategy without a last step; ask for a range "
            "inside",
            field="rows",
        )
    return stop
