"""Recursions: a lower-triangular matrix as a few statements on a few states, from which all products with it follow.

At each step the input is X, and statement k sets state k to a sum of factors times states and the input, of this step
or of earlier ones; state 0 is the output. A compiled loop (structures/recursion_engine.py) runs statements forwards or
transposed. Squared norms of rows and columns are sums of the squares of the outputs for unit inputs.
Where numba is absent, as in a training image, numpy runs the same statements, all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from factorize.numbers.compiling import HAS_COMPILER
from factorize.numbers.state_space import StateSpace
from factorize.structures import recursion_engine
from factorize.structures.base import Matrix

X = -1
"""The number of the state that is the input."""
Factor = float | np.ndarray | Callable[[int, int], np.ndarray]
"""One number for all steps, one for each, shape (n,), or a function that returns those of steps start..stop-1."""
Statement = dict[tuple[int, int], Factor]
"""The factors of states, by the state and how many steps back it is read."""

_NUMBERS = 1 << 15  # The number of factors that are laid out together.
_LANES = 256  # The number of rows that run together.
_UNITS = 64  # The unit inputs whose outputs are squared together.


class Layout(NamedTuple):
    """The layout of statements over the rings of their states.

    Attributes:
        rings: first slots and sizes of the rings, shape (2, states + 1); the last ring is the input's.
        targets: states that statements set, and steps back, shape (2, statements).
        starts: first term of each statement, shape (statements + 1,).
        terms: states, steps back and columns of factors, shape (3, terms).
    """

    rings: np.ndarray
    targets: np.ndarray
    starts: np.ndarray
    terms: np.ndarray

    def places(self, step: int, turn: int, *ends: int) -> np.ndarray:
        """Return the slots of terms, targets and states that are read or written at a step, and where their rings end.

        Each place moves on by one slot from one step to the next, in either direction.
        """
        states, lags = np.hstack([self.terms[:2], self.targets, [ends, [0] * len(ends)]])
        bases, sizes = self.rings[:, states]
        return np.array([bases + turn * (step - lags) % sizes, bases, bases + sizes])


class MatrixRecursion:
    """A lower-triangular matrix by statements.

    Args:
        n: side.
        statements: the first reads the input of the same step, with a factor that is never 0, and earlier steps; each
            reads values of the same step only from earlier statements.
        output: the state that is read.
    """

    def __init__(self, n: int, statements: list[Statement], output: int = 0) -> None:
        self.n, self.statements, self.output = n, statements, output
        every: list[Factor] = [1.0, *(factor for terms in statements for factor in terms.values())]
        self._factors = list({_name(factor): factor for factor in every}.values())
        self._constant = all(isinstance(factor, float) for factor in self._factors)

    def inverse(self) -> MatrixRecursion:
        """Return the recursion of the inverse, with the first statement solved for the input, and both exchanged."""
        first, places, solved = self.statements[0], {X: 0, 0: X}, Statement()
        for (state, lag), factor in first.items():
            if (state, lag) == (X, 0):
                solved[X, 0] = _ratio(1.0, factor)
            else:
                solved[places.get(state, state), lag] = _ratio(factor, first[X, 0], sign=-1.0)
        others = [{(places.get(v, v), lag): f for (v, lag), f in terms.items()} for terms in self.statements[1:]]
        return MatrixRecursion(self.n, [solved, *others])

    def then(self, after: StateSpace) -> MatrixRecursion:
        """Return the product `after` times this one, which is applied first."""
        made = len(self.statements)
        places = range(made + 1, made + 1 + after.feed.shape[1])
        added: list[Statement] = [{(0, 0): after.through, **{(u, 1): after.read[:, k] for k, u in enumerate(places)}}]
        for follow, feed in zip(after.follow.transpose(1, 2, 0), after.feed.T, strict=True):
            added.append({(0, 0): feed, **{(u, 1): follow[k] for k, u in enumerate(places) if follow[k].any()}})
        return MatrixRecursion(self.n, [*self.statements, *added], made)

    def products(self, block: np.ndarray) -> np.ndarray:
        """Return this matrix times each row of a block as a column, shape (r, n)."""
        return self._run(block, backwards=False)

    def transposed(self, block: np.ndarray) -> np.ndarray:
        """Return each row of a block times this matrix, shape (r, n)."""
        return self._run(block, backwards=True)

    def variances(self) -> np.ndarray:
        """Return the variance of the output at each step for white noise as input: squared row norms, shape (n,)."""
        return self._squares(backwards=False)

    def column_norms_squared(self) -> np.ndarray:
        """Return the squared column norms, shape (n,)."""
        return self._squares(backwards=True)

    def _run(self, block: np.ndarray, *, backwards: bool) -> np.ndarray:
        rows = np.ascontiguousarray(block, dtype=np.float64)
        out, pieces = np.zeros(rows.shape), list(self._pieces())[:: -1 if backwards else 1]
        for above in range(0, len(rows), _LANES):
            lanes, into = rows[above : above + _LANES], out[above : above + _LANES]
            state: np.ndarray | None = None
            for start, stop in pieces:
                if state is None:
                    moved = np.flatnonzero(lanes[:, start:stop].any(axis=0))
                    if not len(moved):
                        continue
                    start, stop = (start, start + moved[-1] + 1) if backwards else (start + moved[0], stop)
                    state = np.zeros((self._slots, len(lanes)))
                self._advance(start, stop, state, into, lanes, start, backwards=backwards)
        return out

    def _squares(self, *, backwards: bool) -> np.ndarray:
        """Return the sums of squares of outputs over all unit inputs, or those of the transposed steps.

        The states that earlier inputs left matter by their Gram matrix alone, so a triangle with the same one suffices.
        """
        if 2 * self._slots > self.n:
            product, out = self.transposed if backwards else self.products, np.zeros(self.n)
            for start in range(0, self.n, _LANES):
                out += (product(np.eye(min(_LANES, self.n - start), self.n, start)) ** 2).sum(axis=0)
            return out
        out, earlier, step = np.empty(self.n), np.zeros((self._slots, 0)), max(_UNITS, self._slots)
        for start in range(0, self.n, step)[:: -1 if backwards else 1]:
            stop = min(start + step, self.n)
            block = np.eye(earlier.shape[1] + stop - start, stop - start, -earlier.shape[1])
            state, outputs = np.hstack([earlier, np.zeros((self._slots, stop - start))]), np.empty_like(block)
            self._advance(start, stop, state, outputs, block, 0, backwards=backwards)
            out[start:stop] = (outputs**2).sum(axis=0)
            earlier = np.asarray(np.linalg.qr(state.T, mode="r")).T
        return out

    def _advance(
        self,
        start: int,
        stop: int,
        state: np.ndarray,
        out: np.ndarray,
        block: np.ndarray,
        column: int,
        *,
        backwards: bool,
    ) -> None:
        """Run steps start..stop-1 over a block of rows, whose columns from `column` on belong to these steps."""
        run = recursion_engine.sweep if HAS_COMPILER else _plain_sweep
        factors = np.empty((1 if self._constant else stop - start, len(self._factors)))  # A constant has one row.
        for number, factor in enumerate(self._factors):
            factors[:, number] = _at(factor, start, stop)
        ends, first, turn = [len(self.statements), self.output], start, 1
        if backwards:
            ends, first, turn, factors = ends[::-1], stop - 1, -1, np.ascontiguousarray(factors[::-1])
        layout, rows = self._layout, np.vstack([state, np.zeros(state.shape[1])])
        steps = layout.places(first, turn, *ends), first - start + column, turn, stop - start
        run(layout.starts, layout.terms[2], factors, *steps, backwards, block, out, rows)
        state[:] = rows[:-1]

    def _pieces(self) -> Iterator[tuple[int, int]]:
        step = max(1, _NUMBERS // len(self._factors))
        return ((start, min(start + step, self.n)) for start in range(0, self.n, step))

    @cached_property
    def _slots(self) -> int:
        return int(self._layout.rings[1].sum())

    @cached_property
    def _layout(self) -> Layout:
        count = len(self.statements)
        sizes = [1] * (count + 1)
        for s, terms in enumerate(self.statements):
            for state, lag in terms:  # A value stays until its last reader, which may come before the new value.
                sizes[state] = max(sizes[state], lag + (s > state))
        rings = np.array([np.cumsum([0, *sizes[:-1]]), sizes], dtype=np.int64)
        columns = {_name(factor): column for column, factor in enumerate(self._factors)}
        readings = [
            [(state % (count + 1), lag, columns[_name(factor)]) for (state, lag), factor in terms.items()]
            for terms in self.statements
        ]
        read = np.array([term for terms in readings for term in terms], dtype=np.int64).reshape(-1, 3)
        # The last target empties the slot of the next input.
        targets = np.array([*((s, 0) for s in range(count)), (count, sizes[count] - 1)], dtype=np.int64)
        return Layout(rings, targets.T.copy(), np.cumsum([0, *map(len, readings), 0]), read.T.copy())


class RecursiveMatrix(Matrix):
    """A matrix with a recursion of itself or of its inverse, as its structure states."""

    @cached_property
    def recursion(self) -> MatrixRecursion:
        """The recursion of C."""
        return self.inverse_recursion.inverse()

    @cached_property
    def inverse_recursion(self) -> MatrixRecursion:
        """The recursion of C^-1."""
        return self.recursion.inverse()

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows by one backward sweep, in O(n states) per row."""
        return self.left_multiply(np.eye(stop - start, self.n, start))

    def right_solve(self, block: np.ndarray) -> np.ndarray:
        """Return block times C^-1 by one backward sweep, in O(n states) per row."""
        return self.inverse_recursion.transposed(block)

    def left_multiply(self, block: np.ndarray) -> np.ndarray:
        """Return block times C by one backward sweep, in O(n states) per row."""
        return self.recursion.transposed(block)

    def column_norms_squared(self) -> np.ndarray:
        """Return the variances of z^T C for white noise z."""
        return self.recursion.column_norms_squared()

    def decoder_errors(self, workload: StateSpace) -> np.ndarray | None:
        """Return the variances of A C^-1 z, in O(n states^2), or in O(n^2 states) for many states."""
        return self.inverse_recursion.then(workload).variances()


def toeplitz(column: np.ndarray, n: int) -> MatrixRecursion:
    """Return the n x n Toeplitz matrix with a first column, shape (bands,), as sums with the oldest input first."""
    return MatrixRecursion(n, [{(X, d): float(column[d]) for d in range(len(column) - 1, -1, -1)}])


def delayed(values: np.ndarray, steps: int) -> Callable[[int, int], np.ndarray]:
    """Return a factor that is at each step the value `steps` steps before, and 0 before the first."""

    def factor(start: int, stop: int) -> np.ndarray:
        first = max(start, min(steps, stop))
        return np.concatenate([np.zeros(first - start), values[first - steps : stop - steps]])

    return factor


def _name(factor: Factor) -> object:
    """Return a key that tells factors apart: numbers by value, arrays and functions by identity."""
    return factor if isinstance(factor, float) else id(factor)


def _at(factor: Factor, start: int, stop: int) -> float | np.ndarray:
    if isinstance(factor, float):
        return factor
    return factor[start:stop] if isinstance(factor, np.ndarray) else factor(start, stop)


def _ratio(factor: Factor, divisor: Factor, *, sign: float = 1.0) -> Factor:
    if isinstance(factor, float) and isinstance(divisor, float):
        return sign * factor / divisor
    return lambda start, stop: np.asarray(sign * _at(factor, start, stop) / _at(divisor, start, stop))


def _plain_sweep(
    starts: np.ndarray,
    columns: np.ndarray,
    factors: np.ndarray,
    places: np.ndarray,
    first: int,
    turn: int,
    count: int,
    backwards: bool,
    block: np.ndarray,
    out: np.ndarray,
    state: np.ndarray,
) -> None:
    """Run the same steps as `sweep` of structures/recursion_engine.py, in numpy."""
    parts, now = [slice(*pair) for pair in zip(starts[:-1], starts[1:], strict=True)], places[0]
    for step in range(count):
        row, c = factors[step if len(factors) > 1 else 0], first + turn * step
        targets = now[len(columns) :]
        state[targets[-2]] += block[:, c]
        if backwards:
            for s in range(len(parts) - 1, -1, -1):
                sums, state[targets[s]] = state[targets[s]].copy(), 0.0
                state[now[parts[s]]] += np.multiply.outer(row[columns[parts[s]]], sums)
        else:
            for s, part in enumerate(parts):
                state[targets[s]] = row[columns[part]] @ state[now[part]]
        out[:, c] = state[targets[-1]]
        now += 1
        np.copyto(now, places[1], where=now == places[2])
