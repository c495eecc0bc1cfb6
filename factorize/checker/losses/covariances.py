"""Recursions of C^-1 and A as one list of statements, and the variances of what it makes of white noise, enclosed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.losses.variance_kernels import carry
from factorize.checker.spec.programs import Coefficient, Program, X, pair

Factor = Coefficient | float | np.ndarray | Callable[[int, int], np.ndarray]
"""A number for all steps; one for each: rationals, doubles (n,) or pairs (n, 2); or what returns doubles of steps."""
_GROWS = "the recursion grows too much to be enclosed in doubled precision"
LEAST_WORK, LARGEST_WORK = 1 << 24, 1 << 35
"""Steps times states times terms: a tenth of a second, and five minutes."""
_NUMBERS = 1 << 15  # factors that are laid out at one time


class Statement(NamedTuple):
    """What a state becomes: a sum of states, each some steps back (0: as it now stands), with factors."""

    target: int
    terms: Mapping[tuple[int, int], Factor]


class Recursion(NamedTuple):
    """Statements of every step, and the state that is read after them.

    White noise is added to the state `noise` where a step sets it first.
    """

    statements: list[Statement]
    reading: int = 0
    noise: int = 0

    def then(self, program: Program) -> Recursion:
        """Return the same with the statements of a program of state 0 after them."""
        count = 1 + max(statement.target for statement in self.statements)

        def place(state: int) -> int:
            return 0 if state == X else count + state

        after = [
            Statement(count + target, {(place(source), 0): factor for source, factor in terms.items()})
            for target, terms in program.statements
        ]
        return Recursion([*self.statements, *after], place(program.output), self.noise)


def variances(n: int, recursion: Recursion, most: int = LARGEST_WORK, *, backwards: bool = False) -> np.ndarray:
    """Return ends of the variances of what is read at each step, shape (2, n), with so many units of work at most.

    Backwards, the last step is run first.

    Raises:
        NotEnclosed: the recursion grows so much that doubled precision does not enclose it, or it would take too long.
    """
    statements, reading, noise = recursion
    factors = list({_name(factor): factor for _, terms in statements for factor in terms.values()}.values())
    columns = {_name(factor): column for column, factor in enumerate(factors)}
    sizes = [1] * (1 + max(target for target, _ in statements))
    for _, terms in statements:
        for source, lag in terms:
            sizes[source] = max(sizes[source], lag)
    triples = [
        (source, lag, columns[_name(factor)]) for _, terms in statements for (source, lag), factor in terms.items()
    ]
    if n * sum(sizes) * (len(triples) + len(statements)) > most:
        raise NotEnclosed(f"a recursion of {sum(sizes)} states is followed for {most} units of work, not for n={n}")
    starts = np.cumsum([0, *(len(terms) for _, terms in statements)])
    places = [*((source, lag) for source, lag, _ in triples), *((target, 0) for target, _ in statements), (reading, 0)]
    states, lags = np.array(places, dtype=np.int64).T
    lengths, used = np.array(sizes)[states], np.array([column for *_, column in triples], dtype=np.int64)
    bases = np.cumsum([0, *sizes[:-1]])[states]
    noisy = next(k for k, statement in enumerate(statements) if statement.target == noise)
    slots, ends = sum(sizes), np.empty((2, n))
    arrays = np.zeros((3, slots, slots)), ends, np.empty((3, slots))
    constant = all(map(_is_constant, factors))
    at_once = n if constant else max(1, _NUMBERS // len(factors))
    pieces = [(start, min(start + at_once, n)) for start in range(0, n, at_once)]
    for start, stop in reversed(pieces) if backwards else pieces:
        laid_out = np.zeros((1 if constant else stop - start, len(factors), 2))
        for column, factor in enumerate(factors):
            _write(laid_out[:, column], factor, start, stop)
        first, turn = (stop - 1, -1) if backwards else (start, 1)
        now = np.array([bases + turn * (first - lags) % lengths, bases, bases + lengths])
        laid_out = np.ascontiguousarray(laid_out[::turn])
        if not carry(starts, used, laid_out, now, first, turn, stop - start, noisy, *arrays):
            raise NotEnclosed(_GROWS)
    if not np.isfinite(ends).all():
        raise NotEnclosed(_GROWS)
    return ends


def negative(values: np.ndarray, lag: int = 0) -> Callable[[int, int], np.ndarray]:
    """Return a factor that is minus the value some steps before, and 0 before the first."""

    def factor(start: int, stop: int) -> np.ndarray:
        first = max(start, min(lag, stop))
        return np.concatenate([np.zeros(first - start), -values[first - lag : stop - lag]])

    return factor


def _name(factor: Factor) -> object:
    """What tells factors apart: numbers by value, the others by which they are."""
    return factor if _is_constant(factor) else id(factor)


def _is_constant(factor: Factor) -> bool:
    return isinstance(factor, float | Fraction)


def _write(out: np.ndarray, factor: Factor, start: int, stop: int) -> None:
    """Write a factor of steps as pairs of doubles."""
    if isinstance(factor, Fraction):
        out[:] = pair(factor)
    elif isinstance(factor, list):
        out[:] = [pair(value) for value in factor[start:stop]]
    elif isinstance(factor, float):
        out[:, 0] = factor
    else:
        values = factor(start, stop) if callable(factor) else factor[start:stop]
        out[:, : 1 if values.ndim == 1 else 2] = values.reshape(len(values), -1)
