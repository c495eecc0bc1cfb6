"""A in doubles, by rows and by columns, with a bound on what each entry is off by; and A times a matrix, as a guess.

A workload whose factors are those of every step has one column, which its program makes number by number; of others the
program makes the columns that are asked for, all at once. What is rounded is carried along beside each state: the error
of a sum is known exactly (Knuth), that of a product is at most u of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.checker.arithmetic.integers import Numbers
from factorize.checker.arithmetic.intervals import NotEnclosed
from factorize.checker.doubles.roundings import SLACK, TINY, UNIT
from factorize.checker.spec import program_of, toeplitz_column
from factorize.checker.spec.programs import Coefficient, Program, X

_NONE = np.zeros((1, 1))
"""The errors of numbers that are exact."""
_LONGEST_KEPT = 1024
"""Steps of a program with factors that change, up to which all of A is kept: 16 MB with its errors."""
_LOST_AT_MOST = 24  # binary places by which errors may grow over the steps
_WHOLE = 1 << 53
_FINEST = -1000  # exponent of a unit whose multiples are normal numbers
_GROWN = 1 + 2.0**-46  # covers the few operations by which an error is carried one step


class Near(NamedTuple):
    """Numbers, and what each of them is off by at most, of the same shape (or 0 for all)."""

    values: np.ndarray
    errors: np.ndarray

    def minus(self, other: Near) -> Near:
        """Subtract."""
        values = self.values - other.values
        return Near(values, (self.errors + other.errors + UNIT * np.abs(values)) * _GROWN)

    def times(self, factors: np.ndarray) -> Near:
        """Multiply by exact numbers that are not negative."""
        values = self.values * factors
        return Near(values, (self.errors * factors + UNIT * np.abs(values)) * _GROWN + TINY)


def approximation(numbers: Numbers) -> np.ndarray:
    """Return the nearest doubles, or nearly; only guesses are made from them."""
    bits = int(abs(numbers.values).max()).bit_length()
    drop = max(bits - 900, 0)
    return np.ldexp((numbers.values >> drop).astype(np.float64), numbers.exponent + drop)


def nearly(numbers: Numbers) -> Near:
    """Return numbers as doubles, and what those are off by."""
    values = approximation(numbers)
    largest = int(abs(numbers.values).max())
    if not numbers.radius and largest <= _WHOLE and numbers.exponent > _FINEST:
        return Near(values, np.zeros(1))
    radius = approximation(numbers._replace(values=np.array([numbers.radius + 1], dtype=object)))
    return Near(values, 2 * UNIT * np.abs(values) + radius * (1 + SLACK) + TINY)


class WorkloadRows:
    """A, whole or by its program.

    Args:
        document: the spec's workload.
        user: numbers of user-supplied matrices by sha256.

    Attributes:
        rows: m.
        columns: n.

    Raises:
        NotEnclosed: the numbers of a user's matrix are not known.
    """

    def __init__(self, document: Mapping[str, Any], user: Mapping[str, np.ndarray]) -> None:
        self.rows, self.columns = document.get("shape") or (document["n"], document["n"])
        self._program = program_of(document)
        self._array, self._column = None, None
        if self._program is None:
            self._array = _whole(document, user)
        elif self._program.sums:
            self._column = Near(np.ones(self.rows), np.zeros(self.rows))
        elif self._program.constant:
            self._column = _column_of(self._program, document)

    @property
    def triangular(self) -> bool:
        """Whether entries above the diagonal are known to be 0."""
        return self._array is None

    @property
    def of_ones(self) -> bool:
        """Whether every entry on and below the diagonal is known to be exactly 1."""
        if self._column is None or self.rows != self.columns:
            return False
        return bool((self._column.values == 1).all()) and not self._column.errors.any()

    def row_block(self, start: int, stop: int) -> Near:
        """Return some rows."""
        if self._array is not None:
            return Near(self._array[start:stop], _NONE)
        if self._column is not None:
            values, errors = self._column
            exact = not errors.any()
            return Near(_by_rows(values, start, stop), _NONE if exact else _by_rows(errors, start, stop))
        return Near(*(part[start:stop] for part in self._every))

    def column_block(self, indices: np.ndarray) -> Near:
        """Return some columns, shape (m, len(indices))."""
        if self._array is not None:
            return Near(self._array[:, indices], _NONE)
        if self._column is not None:
            return Near(*(part if part.size == 1 else part[:, indices] for part in self.row_block(0, self.rows)))
        if self.columns <= _LONGEST_KEPT:  # columns are asked for more than once, and each time is a run of n steps
            return Near(*(part[:, indices] for part in self._every))
        return self._of_program(indices)

    @property
    def _every(self) -> Near:
        """All entries, where the factors change from step to step; kept, as rows are asked for one block at a time."""
        if not hasattr(self, "_kept"):
            self._kept = self._of_program(np.arange(self.columns))
        return self._kept

    def _of_program(self, indices: np.ndarray) -> Near:
        assert self._program is not None
        inputs = ((indices == i).astype(np.float64) for i in range(self.rows))
        made = Near(*(np.zeros((self.rows, len(indices))) for _ in range(2)))
        for i, (values, errors) in enumerate(_run(self._program, ([each] for each in inputs))):
            made.values[i], made.errors[i] = values, errors
        return made

    def applied(self, matrix: np.ndarray, start: int, stop: int, states: dict[int, np.ndarray]) -> np.ndarray:
        """Return rows start..stop-1 of A times a matrix, nearly: rows have to be asked for in order.

        Args:
            matrix: shape (n, any).
            start: first row.
            stop: row after the last one.
            states: what a program holds from block to block; empty before the first one.
        """
        if self._program is None:
            return np.asarray(self.row_block(start, stop).values @ matrix)
        out = np.empty((stop - start, matrix.shape[1]))
        statements = [
            (target, [(source, _doubles(factor)) for source, factor in terms.items()])
            for target, terms in self._program.statements
        ]
        for i in range(start, stop):
            states[X] = matrix[i]
            for target, terms in statements:
                parts = [_scaled(states[s], _at(f, i)) for s, f in terms if s in states and _at(f, i)]
                states[target] = sum(parts[1:], parts[0]) if parts else np.zeros(matrix.shape[1])
            out[i - start] = states[self._program.output]
        return out


def _column_of(program: Program, document: Mapping[str, Any]) -> Near:
    """The first column, in finer numbers where what is carried along beside doubles would outgrow them."""
    if program.lost_places(document["n"]) > _LOST_AT_MOST:
        column = toeplitz_column(document)
        assert column is not None  # the factors are those of every step
        return nearly(column)
    states = [run for run in _run(program, [[1.0]] + [[0.0]] * (document["n"] - 1))]
    return Near(*(np.array(part) for part in zip(*states, strict=True)))


def _whole(document: Mapping[str, Any], user: Mapping[str, np.ndarray]) -> np.ndarray:
    if document["kind"] == "matrix":
        found = user.get(document["sha256"])
        if found is None or found.shape != tuple(document["shape"]):
            raise NotEnclosed("the workload's numbers are not known here")
        return np.asarray(found, dtype=np.float64)
    places = np.subtract.outer(np.arange(document["n"]), np.arange(document["n"]))
    return ((places >= 0) & (places < document["width"])).astype(np.float64)


def _by_rows(column: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Rows of a Toeplitz matrix as views of one vector."""
    n = len(column)
    padded = np.concatenate([column[::-1], np.zeros(n - 1)])
    return np.lib.stride_tricks.sliding_window_view(padded, n)[n - stop : n - start][::-1]


def _doubles(factor: Coefficient) -> float | list[float]:
    return [float(each) for each in factor] if isinstance(factor, list) else float(factor)


def _at(factor: float | list[float], i: int) -> float:
    return factor[i] if isinstance(factor, list) else factor


def _scaled(values: np.ndarray, factor: float) -> np.ndarray:
    return values if factor == 1.0 else values * factor


class _Factor(NamedTuple):
    """A factor as a double, and what rounding took from it at most."""

    value: float
    away: float


def _factors(exact: Coefficient) -> _Factor | None | list[_Factor | None]:
    """A factor, or one for each step; None for 0."""
    if isinstance(exact, list):
        return [_factor(each) for each in exact]
    return _factor(exact)


def _factor(exact: Fraction) -> _Factor | None:
    value = float(exact)
    away = UNIT * abs(value) + TINY  # below the normal numbers it may be off by more than u of it
    return _Factor(value, 0.0 if exact == value else away) if exact else None


def _run(program: Program, inputs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the output of each step and its error: of numbers, or of vectors of one length."""
    states: dict[int, tuple[Any, Any]] = {}
    statements = [
        (target, [(source, _factors(factor)) for source, factor in terms.items()])
        for target, terms in program.statements
    ]
    for i, (x,) in enumerate(inputs):
        states[X] = (x, 0.0 * x)
        for target, terms in statements:
            now = [(states[s], f[i] if isinstance(f, list) else f) for s, f in terms if s in states]
            states[target] = _sum(now, 0.0 * x)
        yield states[program.output]


def _sum(terms: list[tuple[tuple[Any, Any], _Factor | None]], zero: Any) -> tuple[Any, Any]:
    total, error = zero, zero
    for (value, off), known in terms:
        if known is None:
            continue
        factor, away = known
        if factor != 1.0 or away:
            off = abs(factor) * off + away * (abs(value) + off)
            value = value * factor
            off = (off + UNIT * abs(value)) * _GROWN + TINY
        moved = total + value
        part = moved - total
        lost = abs((total - (moved - part)) + (value - part))
        total, error = moved, (error + off + lost) * _GROWN
    return total, error
