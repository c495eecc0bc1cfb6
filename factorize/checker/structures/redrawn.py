"""Inverses of recursions that use earlier draws again (structure `redrawn`), enclosed.

What is stored is K = C^-1: x_i = sum_m direct[m, i] y_{i - m lag} + output_i . s, then s <- decay_i s + sum_m
input[m, i] y_{i - m lag}. Its inverse is solved for row by row, all columns together, in integers of 2^-256 that are
cut below. The states that are carried along are those of K for the rows found so far, but for what was cut: so it is
known what K makes of the computed Y, to R = I - K Y with |R| <= rho entry by entry. Then C - Y = C R, and with sums of
rows

    |C - Y| <= |C| rho,    |C| <= |Y| / (1 - n rho).

Beyond n = 2048 the columns that a pattern needs are found in pairs of doubles, by compiled code with its own running
bound (structures/redrawn_kernels.py), and the same holds with Frobenius norms.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from factorize.checker.arithmetic.integers import Limbs, Numbers, mantissas, split
from factorize.checker.arithmetic.intervals import PLACES, NotEnclosed, reciprocals
from factorize.checker.arithmetic.near import Columns, Near, share
from factorize.checker.spec.programs import Program
from factorize.checker.structures.base import ComputedReading, KeptNumbers
from factorize.errors import CorruptObject, InvalidStrategy, TooLarge

LARGEST = 2048
LARGEST_BY_COLUMNS = 16_384
_WIDEST = 1 << (PLACES - 80)
_AT_ONCE = 64  # columns, so that a row of them stays in the cache
_SLACK = 2.0**-50  # of a sum of two doubles
_ABOVE = 1 + 2.0**-30  # covers a few operations on doubles, and sums of `LARGEST_BY_COLUMNS` positive ones


class RedrawnInverse(NamedTuple):
    """decay, output (n, buffers), inputs (redraws + 1, n, buffers), direct (redraws + 1, n), and the steps of a lag."""

    decay: np.ndarray
    output: np.ndarray
    inputs: np.ndarray
    direct: np.ndarray
    lag: int


def read(parts: dict[str, np.ndarray], n: int) -> RedrawnInverse:
    """Take the tensors of the structure.

    Raises:
        CorruptObject: their shapes do not fit each other, or the lag is no number of steps.
        InvalidStrategy: a draw is used before there is one.
        KeyError: one is missing.
    """
    decay, output, inputs, direct = (parts.pop(name) for name in ("decay", "output", "input", "direct"))
    lag = parts.pop("lag")
    if lag.shape != (1,) or not 1 <= lag[0] <= n or lag[0] != int(lag[0]):
        raise CorruptObject(f"the lag of a matrix with redraws and n={n} cannot be {lag[:2].tolist()}")
    fits = decay.ndim == 2 and len(decay) == n and decay.shape[1] >= 1 and direct.ndim == 2 and len(direct) >= 1
    if not fits or output.shape != decay.shape or inputs.shape != (len(direct), *decay.shape) or direct.shape[1] != n:
        raise CorruptObject(f"the tensors of a matrix with redraws do not fit n={n} and each other")
    found = RedrawnInverse(decay, output, inputs, direct, int(lag[0]))
    for m in range(1, len(direct)):
        if (inputs[m, : m * found.lag] != 0).any() or (direct[m, : m * found.lag] != 0).any():
            raise InvalidStrategy(f"input[{m}] or direct[{m}] uses a draw before step {m * found.lag}, where none is")
    return found


class _Sum(NamedTuple):
    """A sum of vectors with doubles as factors, which is cut once: by less than a unit.

    Attributes:
        factors: integers.
        shift: the factors are to be divided by 2^shift; not negative.
    """

    factors: list[int]
    shift: int

    @classmethod
    def of(cls, doubles: np.ndarray) -> _Sum:
        """Bring doubles to one exponent."""
        numbers, exponents = mantissas(doubles)
        unit = min((int(e) for x, e in zip(numbers, exponents, strict=True) if x), default=0)
        unit = min(unit, 0)
        pairs = zip(numbers.tolist(), exponents.tolist(), strict=True)
        return cls([x << e - unit if x else 0 for x, e in pairs], -unit)

    def times(self, vectors: list[Any]) -> Any:
        """Return the sum, rounded down; 0 where every factor is."""
        terms = [vector * factor for factor, vector in zip(self.factors, vectors, strict=True) if factor]
        return sum(terms[1:], terms[0]) >> self.shift if terms else 0

    def sizes(self, bounds: list[int]) -> int:
        """Return at least the sum of bounds times the magnitudes of their factors."""
        total = sum(abs(factor) * bound for factor, bound in zip(self.factors, bounds, strict=True))
        return -(-total >> self.shift)


def entries(given: RedrawnInverse) -> Numbers:
    """Return all of C.

    Raises:
        TooLarge: n is above the limit, or 256 places do not enclose the inverse.
    """
    n, buffers = given.decay.shape
    if n > LARGEST:
        raise TooLarge(f"solving for C from its inverse exactly is limited to n={LARGEST}; this matrix has n={n}")
    whole = np.full((n, n), 0, dtype=object)
    state, lost = np.full((buffers, n), 0, dtype=object), [0] * buffers
    worst = 0
    for i in range(n):
        earlier = [whole[j, : i + 1] for j in range(i - given.lag, -1, -given.lag)][: len(given.direct) - 1]
        count, states = len(earlier), [row[: i + 1] for row in state]
        read_out = _Sum.of(np.concatenate([given.output[i], given.direct[1 : count + 1, i]]))
        found = -read_out.times([*states, *earlier]) + np.full(i + 1, 0, dtype=object)
        found[i] += 1 << PLACES
        number, exponent = (int(part[0]) for part in mantissas(given.direct[:1, i]))
        found = (found << -exponent) // number if exponent < 0 else found // (number << exponent)
        whole[i, : i + 1] = found
        # What is cut in x, what the states have lost, and the last unit of y.
        worst = max(worst, 1 + read_out.sizes([*lost, *[0] * count]) + _Sum.of(given.direct[:1, i]).sizes([1]))
        for a in range(buffers):
            move = _Sum.of(np.concatenate([given.decay[i, a : a + 1], given.inputs[: count + 1, i, a]]))
            state[a, : i + 1] = move.times([states[a], found, *earlier])
            lost[a] = 1 + move.sizes([lost[a], *[0] * (count + 1)])
    longest = max(int(row.sum()) for row in abs(whole))
    if 2 * n * worst >= 1 << PLACES or (radius := 1 + (2 * longest * worst >> PLACES)) > _WIDEST:
        raise TooLarge("the inverse of C is so ill-conditioned that 256 places do not enclose C")
    return Numbers(whole, -PLACES, radius)


class ByColumns:
    """Products of a few columns of C at a time.

    Args:
        given: K.

    Raises:
        TooLarge: n is above the limit.
        NotEnclosed: pairs of doubles do not enclose C.
    """

    def __init__(self, given: RedrawnInverse) -> None:
        self.n = len(given.decay)
        if self.n > LARGEST_BY_COLUMNS:
            raise TooLarge(f"columns of a C with redraws are solved for up to n={LARGEST_BY_COLUMNS}; got n={self.n}")
        if max(float(np.abs(part).max()) for part in given[:4]) > 1e100 or given.direct[0].min() < 1e-100:
            raise NotEnclosed("a number of C^-1 is beyond 1e100, which pairs of doubles do not enclose")
        self._given = given
        self._reciprocals = reciprocals(given.direct[0])

    def _solved(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from factorize.checker.structures.redrawn_kernels import columns

        decay, output, inputs, direct, lag = self._given
        order = np.argsort(indices, kind="stable")
        starts = indices[order].astype(np.int64)
        high, low, defects = *np.zeros((2, self.n, len(starts))), np.empty(len(starts))
        if not columns(decay, output, inputs, direct, self._reciprocals, lag, starts, high, low, defects):
            raise NotEnclosed("C has entries above 1e100, or the inverse that is stored is not finite")
        back = np.argsort(order)
        return high[:, back], low[:, back], np.sqrt(defects[back]) * _ABOVE

    @cached_property
    def _size(self) -> float:
        """At least the Frobenius norm of C."""
        squares = defects = 0.0
        for start in range(0, self.n, _AT_ONCE):
            high, low, apart = self._solved(np.arange(start, min(start + _AT_ONCE, self.n)))
            squares += float(((np.abs(high) + np.abs(low)) ** 2).sum())
            defects += float((apart**2).sum())
        rest = math.sqrt(defects) * _ABOVE
        if not rest < 0.5:
            raise NotEnclosed(
                f"C^-1 is too ill-conditioned: what it makes of its computed inverse differs from I by {rest:.3g}"
            )
        return math.sqrt(squares) / (1 - rest) * _ABOVE

    def columns(self, indices: np.ndarray) -> Columns:
        """Return some columns."""
        high, low, defects = self._solved(indices)
        return Columns(high, (np.sqrt((low**2).sum(axis=0)) + defects * self._size) * _ABOVE)

    def magnitudes(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        """Return both ends of the magnitudes of one column, shape (n,)."""
        values, far = self.columns(np.array([column]))
        size = np.abs(values[:, 0])
        return np.maximum(size - far[0] * _ABOVE, 0.0) * (1 - _SLACK), (size + far[0] * _ABOVE) * (1 + _SLACK)


class RedrawnReading(ComputedReading):
    """C by its inverse, which uses earlier draws again.

    Args:
        inverse: the numbers.
    """

    parts = frozenset({"decay", "output", "input", "direct", "lag"})

    def __init__(self, inverse: RedrawnInverse) -> None:
        self.n, self._inverse = len(inverse.decay), inverse
        self.memory = KeptNumbers(inverse.output.shape[1], len(inverse.inputs) - 1)

    @classmethod
    def read(cls, parts: dict[str, np.ndarray], n: int) -> Self:
        """Take the tensors; see `read`."""
        return cls(read(parts, n))

    @property
    def diagonal(self) -> np.ndarray:
        """The diagonal of the inverse."""
        return self._inverse.direct[0]

    @property
    def signed(self) -> bool:
        """True for all that is known without the inverse."""
        return True

    @cached_property
    def by_columns(self) -> ByColumns:
        """A C that is too long to be had whole."""
        return ByColumns(self._inverse)

    def column_norms(self) -> Near:
        """Squared norms of the columns."""
        blocks = [self.near_columns(np.arange(i, min(i + _AT_ONCE, self.n))) for i in range(0, self.n, _AT_ONCE)]
        lengths = np.concatenate([np.sqrt((values**2).sum(axis=0)) for values, _ in blocks])
        loose = float((np.concatenate([far for _, far in blocks]) / lengths).max())
        return Near(lengths**2, share(3 * loose, roundings=2 * self.n + 16))

    def near_columns(self, indices: np.ndarray) -> Columns:
        """Return some columns."""
        return self.by_columns.columns(indices)

    def _whole(self) -> Limbs:
        return split(entries(self._inverse))

    def variances(self, program: Program, most: int) -> np.ndarray | None:
        """Return variances column by column; see `Reading`."""
        if self.n**2 * (self._inverse.decay.shape[1] + len(program.statements)) > most:
            return None
        from factorize.checker.structures.redrawn_kernels import variances

        ends = np.empty((2, self.n))
        if not variances(*self._inverse, len(program.statements), *program.arrays(), program.output, ends):
            raise NotEnclosed("a number of A C^-1 is above 1e100, or lost")
        return ends
