"""Programs: a workload A as statements on a few states, from which each form that a proof needs of A is made.

At every step the input is x, and each statement sets one state to a sum of factors times states (and x), in order; the
output is a row of A x. Its forms: the rows of A in fixed-point intervals, arrays for compiled loops, and, where all
comes down to one state, the two factors of s_i = k_i s_{i-1} + e_i x_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.intervals import Dyadic, Interval, pair

_LOST_AT_MOST = 64
"""Binary places that widths of intervals may grow by before finer ones are taken."""
_LONGEST = 1 << 34
"""Entries times further binary places, above which they take too long."""

X = -1
"""The state that is the input."""
Coefficient = Fraction | list[Fraction]
"""A factor, or one for each step."""
Statement = tuple[int, dict[int, Coefficient]]
"""A state, and the factors of the states whose sum it becomes."""
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Program(NamedTuple):
    """A workload as statements.

    Attributes:
        statements: run in order at each step.
        output: the state that is read at the end of a step.
    """

    statements: list[Statement]
    output: int

    @property
    def constant(self) -> bool:
        """Whether the factors are those of every step, so that A is Toeplitz."""
        return not any(isinstance(factor, list) for _, terms in self.statements for factor in terms.values())

    @property
    def sums(self) -> bool:
        """Whether each output is the sum of all inputs so far, so that A is the triangle of ones."""
        return self.steps(1) == [(Fraction(1), Fraction(1))] and self.constant

    def rows(self, n: int, columns: int) -> Iterator[Interval]:
        """Run all columns at once, each with a unit impulse at its own step.

        Args:
            n: steps.
            columns: how many columns of A, from the first.

        Yields:
            The rows of A, shape (columns,).
        """
        held: dict[int, Interval] = {}
        finer = max(self.lost_places(n) - _LOST_AT_MOST, 0)
        if finer * n * columns > _LONGEST:
            finer = 0
        for i, impulse in enumerate(_impulses(n, columns)):
            held[X] = impulse.finer(finer)
            for target, terms in self.statements:
                held[target] = _sum(held, terms, i, columns)
            yield held[self.output].coarser(finer)

    def lost_places(self, n: int) -> int:
        """Return, about, how many binary places of intervals n steps lose.

        An interval does not know which errors cancel: each step multiplies widths by the magnitudes of the factors,
        which may grow where the states themselves do not, as those of a damped oscillation.
        """
        places = {state: k for k, state in enumerate(sorted({target for target, _ in self.statements}))}
        held, last = np.eye(len(places) + 1), len(places)
        for target, terms in self.statements:
            row = np.zeros(last + 1)
            for source, factor in terms.items():
                row[last] += 1
                if source in places:
                    row += held[places[source]] * _largest(factor)
            held[places[target]] = row
        return _binary_places_of_power(held, n)

    def steps(self, n: int) -> list[tuple[Fraction, Fraction]] | None:
        """Return k_i and e_i of s_i = k_i s_{i-1} + e_i x_i; None where A is no such recursion."""
        if self._remembered() != {self.output}:
            return None
        return [self._step(0)] * n if self.constant else [self._step(i) for i in range(n)]

    def _remembered(self) -> set[int]:
        """States of which a step reads what the one before it left."""
        found, fresh = set(), {X}
        for target, terms in self.statements:
            found |= {source for source, factor in terms.items() if factor != 0} - fresh
            fresh.add(target)
        return found

    def _step(self, i: int) -> tuple[Fraction, Fraction]:
        zero, one = Fraction(0), Fraction(1)
        held = {X: (zero, one), self.output: (one, zero)}
        for target, terms in self.statements:
            used = [(held[source], _at(factor, i)) for source, factor in terms.items() if factor != 0]
            held[target] = sum((k * f for (k, _), f in used), zero), sum((e * f for (_, e), f in used), zero)
        return held[self.output]

    def since_reference(self, n: int, tau: int) -> Program:
        """Return the output less what it was at the last multiple of tau before, 0 before the first."""
        difference, reference = len(self.statements), len(self.statements) + 1
        taken = [Fraction(int((i + 1) % tau == 0)) for i in range(n)]
        follow: dict[int, Coefficient] = {reference: [1 - each for each in taken], self.output: taken}
        last: Statement = (difference, {self.output: Fraction(1), reference: Fraction(-1)})
        return Program([*self.statements, last, (reference, follow)], difference)

    def fed(self, before: list[Statement], state: int) -> Program:
        """Return the same of another input: a state that statements make of x before all others."""
        moved = [
            (target, {state if source == X else source: factor for source, factor in terms.items()})
            for target, terms in self.statements
        ]
        return Program([*before, *moved], state if self.output == X else self.output)

    def arrays(self) -> Arrays:
        """Return targets, sources, their number, and the factors as pairs of doubles for one step or for each."""
        program = self.statements
        most = max((len(terms) for _, terms in program), default=1)
        varying = [len(factor) for _, terms in program for factor in terms.values() if isinstance(factor, list)]
        factors = np.zeros((max(varying, default=1), len(program), most, 2))
        sources = np.zeros((len(program), most), dtype=np.int64)
        for k, (_, terms) in enumerate(program):
            for s, (source, factor) in enumerate(terms.items()):
                sources[k, s] = source
                values = factor if isinstance(factor, list) else [factor]
                factors[:, k, s] = [pair(value) for value in values]
        targets = np.array([target for target, _ in program], dtype=np.int64)
        return targets, sources, np.array([len(terms) for _, terms in program], dtype=np.int64), factors


def _largest(factor: Coefficient) -> float:
    """The largest magnitude among factors."""
    return float(max(map(abs, factor)) if isinstance(factor, list) else abs(factor))


def _binary_places_of_power(step: np.ndarray, n: int) -> int:
    """Binary places before the point of the largest entry of a power, about; the power itself may overflow."""
    power, exponents = np.eye(len(step)), [0, 0]
    while n:
        if n & 1:
            power, exponents[0] = power @ step, exponents[0] + exponents[1]
        step, exponents[1], n = step @ step, 2 * exponents[1], n >> 1
        for k, array in enumerate((power, step)):
            places = int(np.frexp(array.max())[1])
            array *= 2.0**-places
            exponents[k] += places
    return int(np.frexp(power.max())[1]) + exponents[0]


def _impulses(n: int, columns: int) -> Iterator[Interval]:
    zeros = Interval.zeros(columns)
    for i in range(n):
        if i < columns:
            unit = np.zeros(columns, dtype=np.int64)
            unit[i] = 1
            yield Interval.of_integers(unit)
        else:
            yield zeros


def _sum(held: dict[int, Interval], terms: dict[int, Coefficient], i: int, columns: int) -> Interval:
    """A sum of states, of which those that nothing was put in yet are 0."""
    found: Interval | None = None
    for source, factor in terms.items():
        number = _at(factor, i)
        if number and source in held:
            term = _times(held[source], number)
            found = term if found is None else found.plus(term)
    return Interval.zeros(columns) if found is None else found


def _at(factor: Coefficient, i: int) -> Fraction:
    return factor[i] if isinstance(factor, list) else factor


def _times(interval: Interval, factor: Fraction) -> Interval:
    """A double is a multiple of a power of two, and cuts once; another rational number divides what it multiplied."""
    above, below = factor.numerator, factor.denominator
    if below & below - 1 == 0:
        return interval if factor == 1 else interval.times(Dyadic(above, 1 - below.bit_length()))
    return interval.times(Dyadic(above, 0)).over(below)
