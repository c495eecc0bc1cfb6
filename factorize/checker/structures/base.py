"""Readings, which answer the exact checker's questions about a C from its tensors, without its columns' factors.

There is one class per structure. An answer that a structure does not have is None; the caller then takes another road
or reports that there is none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from factorize.checker.arithmetic.balls import Balls, errors_of, nearest, of_doubles
from factorize.checker.arithmetic.near import Columns, Near, NotEnclosed, share
from factorize.checker.spec.programs import Program, reciprocal_pairs
from factorize.checker.structures.covariances import Factor, Recursion, Statement, negative, variances


class Buffers(NamedTuple):
    """The numbers of buffers: diagonal (n,), transitions (n, groups, s, s), inputs and outputs (n, groups, s)."""

    diagonal: np.ndarray
    transition: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray

    @property
    def nonnegative(self) -> bool:
        """Whether every number is non-negative, and with them every entry of C."""
        return all((part >= 0).all() for part in self)

    def balanced(self) -> Buffers:
        """Return the same matrix with states multiplied by powers of two, so that inputs match outputs in size.

        The largest state bounds the loss of a step, so that a large state that is hardly read spoils the bound.
        Learning rates that fall by many magnitudes make states that grow by as many.
        """
        sizes = [np.frexp(np.abs(part).max(axis=2))[1] for part in (self.outputs, self.inputs)]
        powers = ((sizes[0] - sizes[1]) // 2)[:, :, None]
        growth = np.diff(powers, axis=0, prepend=powers[:1])[..., None]
        inputs, outputs = np.ldexp(self.inputs, powers), np.ldexp(self.outputs, -powers)
        transition = np.ldexp(self.transition, growth)
        back = np.ldexp(inputs, -powers), np.ldexp(outputs, powers), np.ldexp(transition, -growth)
        pairs = zip(back, (self.inputs, self.outputs, self.transition), strict=True)
        same = all((one == own).all() for one, own in pairs)
        return self._replace(inputs=inputs, outputs=outputs, transition=transition) if same else self


class Reading(ABC):
    """A matrix C by its structure.

    Attributes:
        n: side.
        diagonal: numbers that are positive if the diagonal is.
        signed: whether an entry is negative, or may be, where entries would have to be computed to know.
        bandwidth: number of diagonals up to the last that is not all zero, with the main one, as far as numbers tell.
        computed: whether the entries are computed from stored numbers, and so enclosed.
        column: the first column of a Toeplitz matrix, where it is stored.
        buffers: C as a diagonal and buffers, where it has that form.
    """

    n: int
    diagonal: np.ndarray
    signed: bool
    bandwidth: int
    computed: ClassVar[bool] = True
    column: np.ndarray | None = None
    buffers: Buffers | None = None

    @abstractmethod
    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        """Read the tensors of the structure, which the format has checked."""

    @cached_property
    def series(self) -> Balls | None:
        """The first column of a Toeplitz matrix, in balls."""
        return None if self.column is None else of_doubles(self.column)

    @property
    def doubles(self) -> np.ndarray | None:
        """The whole of C as the doubles that it is, where its entries are stored."""
        return None

    @property
    def near_series(self) -> Near | None:
        """The first column of a Toeplitz matrix in doubles."""
        return None if self.column is None else Near(self.column, 0.0)

    @cached_property
    def bands(self) -> np.ndarray | None:
        """The diagonals where they are stored, shape (bandwidth, n), or (bandwidth, 1) for a Toeplitz matrix."""
        return None if self.column is None else self.column[: self.bandwidth, None]

    @abstractmethod
    def column_norms(self) -> Near:
        """Return the squared norms of the columns.

        Raises:
            NotEnclosed: rounding loses too much.
        """

    @abstractmethod
    def near_columns(self, indices: np.ndarray) -> Columns:
        """Return some columns in doubles.

        Raises:
            TooLarge: n is above the limit of a structure whose columns are solved for.
            NotEnclosed: rounding loses too much.
        """

    def inverse(self) -> Recursion:
        """Return C^-1 as a recursion.

        Raises:
            NotEnclosed: C^-1 is no recursion of few states.
        """
        if self.column is not None:
            places = np.flatnonzero(self.column)[1:]
            return Recursion(solved({(0, d): -float(self.column[d]) for d in places}, self.column[:1]))
        if self.buffers is None:
            raise NotEnclosed("C is not a recursion of few states")
        return Recursion(_of_buffers(self.buffers.balanced()))

    def variances(self, program: Program, most: int, scale: np.ndarray | None = None) -> np.ndarray:
        """Return ends of the variances of the rows of A C^-1 y for white noise y, shape (2, n).

        Args:
            program: the program of A.
            most: the most units of work.
            scale: factors of the columns of C, shape (n,), where there are factors.

        Raises:
            NotEnclosed: C is no recursion of few states, or `covariances.variances` raises it.
        """
        inverse = self.inverse()
        return variances(self.n, (inverse if scale is None else inverse.over(scale)).then(program), most)


class StoredReading(Reading):
    """A reading of a C whose entries are stored numbers."""

    computed = False

    @abstractmethod
    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns as the doubles that they are, shape (n, len(indices))."""

    @property
    def doubles(self) -> np.ndarray:
        """The whole of C."""
        return self.entries_of(np.arange(self.n))

    def near_columns(self, indices: np.ndarray) -> Columns:
        """Return some columns, which are exact."""
        return Columns(self.entries_of(indices), np.zeros(len(indices)))


class ComputedToeplitzReading(Reading):
    """A reading of a Toeplitz C whose first column is enclosed."""

    @property
    @abstractmethod
    def series(self) -> Balls:
        """The first column, in balls."""

    @property
    @abstractmethod
    def near_series(self) -> Near:
        """The first column in doubles."""

    def column_norms(self) -> Near:
        """Return the squared norms of the columns."""
        return prefix_norms(self.near_series)

    @cached_property
    def _rounded(self) -> tuple[np.ndarray, float]:
        """The first column in doubles, each rounded once from its ball, and an upper bound of the norm of their error.

        Raises:
            NotEnclosed: an entry leaves the range of doubles.
        """
        values = nearest(self.series)
        far = float(np.linalg.norm(errors_of(self.series, values))) * (1 + 2.0**-20)
        if not np.isfinite(far):
            raise NotEnclosed("entries of C leave the range of doubles")
        return values, far

    def near_columns(self, indices: np.ndarray) -> Columns:
        """Return some columns, each the series from its diagonal on."""
        values, far = self._rounded
        return Columns(placed([values] * len(indices), indices, self.n), np.full(len(indices), far))


def solved(terms: dict[tuple[int, int], Factor], diagonal: np.ndarray) -> list[Statement]:
    """Return statements that add terms to noise in state 0, and divide by the diagonal, which may be one number."""
    if (diagonal == 1).all():
        return [Statement(0, terms)]
    by: Factor = 1 / Fraction(float(diagonal[0])) if len(diagonal) == 1 else reciprocal_pairs(diagonal)
    return [Statement(0, terms), Statement(0, {(0, 0): by})]


def _of_buffers(buffers: Buffers) -> list[Statement]:
    """Return statements that move the states group by group, solve for x, and add it to them."""
    diagonal, transition, inputs, outputs = buffers
    groups, s = inputs.shape[1:]
    spare, moves = 1 + groups * s, []
    for g in range(groups):
        own = [1 + g * s + a for a in range(s)]
        for a in range(s):
            row = {(own[c], 0): _entries(transition, g, a, c) for c in range(s)}
            moves.append(Statement(own[a] if s == 1 else spare + a, row))
        moves += [Statement(own[a], {(spare + a, 0): 1.0}) for a in range(s) if s > 1]
    read = {(1 + k, 0): _entries(outputs, *divmod(k, s), sign=-1) for k in range(groups * s)}
    fed = [Statement(1 + k, {(1 + k, 0): 1.0, (0, 0): _entries(inputs, *divmod(k, s))}) for k in range(groups * s)]
    return [*moves, *solved(read, diagonal), *fed]


def _entries(array: np.ndarray, *place: int, sign: int = 1) -> Factor:
    """Return the factor made of one entry of each step's numbers, or of the numbers of all steps."""
    if len(array) == 1:
        return sign * float(array[0, *place])
    values = np.moveaxis(array, 0, -1)[place]
    return values if sign > 0 else negative(values)


def placed(entries: list[np.ndarray], indices: np.ndarray, n: int) -> np.ndarray:
    """Return columns, shape (n, columns), from their entries from the diagonal on."""
    out = np.zeros((n, len(indices)))
    for place, (j, column) in enumerate(zip(indices.tolist(), entries, strict=True)):
        stop = min(len(column), n - j)
        out[j : j + stop, place] = column[:stop]
    return out


def prefix_norms(series: Near) -> Near:
    """Return the squared column norms of a Toeplitz matrix: column j holds the first n - j coefficients."""
    return Near(np.cumsum(series.values**2)[::-1], share(2 * series.off, roundings=len(series.values) + 4))
