"""Programs: a workload A as statements on a few states, from which every form of A that a proof needs is made.

At every step the input is x, and each statement sets one state to a sum of factors times states (and x), in order; the
output is a row of A x. A program has three forms: a run over numbers of any kind, arrays for compiled loops, and, where
one state is enough, the two factors of s_i = k_i s_{i-1} + e_i x_i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

_ONE = object()
"""A factor of 1, which spares a product."""

X = -1
"""The number of the state that is the input."""
Coefficient = Fraction | list[Fraction]
"""One factor for all steps, or one for each step."""
Statement = tuple[int, dict[int, Coefficient]]
"""The state that a statement sets, and the factors of the states whose sum it becomes."""
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def pair(value: Fraction) -> tuple[float, float]:
    """Return a number as two doubles, within 2^-104 of itself."""
    high = float(value)
    upper, lower = high.as_integer_ratio()
    above, below = value.numerator, value.denominator
    return high, (above * lower - upper * below) / (below * lower)


def reciprocal_pairs(values: np.ndarray) -> np.ndarray:
    """Return the pairs of 1 / v for positive doubles v, shape (n, 2), as `pair` rounds them.

    With h the quotient of doubles, 1 - v h is a double. Halves of 26 bits give it without rounding, and its quotient by
    v is the rest.
    """
    fractions, exponents = np.frexp(values)
    high = 1.0 / fractions
    product = fractions * high
    upper, higher = ((part * 134217729.0) - (part * 134217729.0 - part) for part in (fractions, high))
    lower, rest = fractions - upper, high - higher
    lost = ((upper * higher - product) + upper * rest + lower * higher) + lower * rest
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(np.stack([high, ((1.0 - product) - lost) / fractions], axis=1), -exponents[:, None])


class Program(NamedTuple):
    """A workload as statements that run in order at each step, and the state that is read at its end."""

    statements: list[Statement]
    output: int

    @property
    def constant(self) -> bool:
        """Whether the factors are the same at every step, so that A is Toeplitz."""
        return not any(isinstance(factor, list) for _, terms in self.statements for factor in terms.values())

    def run(self, inputs: Iterable[Any], number: Callable[[Fraction], Any] = float) -> Iterator[Any]:
        """Run the statements at each step, and yield its output.

        Args:
            inputs: x of each step: numbers or arrays that can be added to each other.
            number: turns a factor into a number by which they can be multiplied from the right.
        """
        states: dict[int, Any] = {}
        statements = [
            (target, [(source, _numbers(factor, number)) for source, factor in terms.items()])
            for target, terms in self.statements
        ]
        for i, x in enumerate(inputs):
            states[X] = x
            for target, terms in statements:
                now = [(states[s], f[i] if isinstance(f, list) else f) for s, f in terms if s in states]
                parts = [state if factor is _ONE else state * factor for state, factor in now if factor is not None]
                states[target] = sum(parts[1:], parts[0]) if parts else x * number(Fraction(0))
            yield states[self.output]

    def steps(self, n: int) -> list[tuple[Fraction, Fraction]] | None:
        """Return k_i and e_i of s_i = k_i s_{i-1} + e_i x_i; None where A is no such recursion."""
        if self._remember() != {self.output}:
            return None
        return [self._step(0)] * n if self.constant else [self._step(i) for i in range(n)]

    def _remember(self) -> set[int]:
        """Return the states whose values a step reads from the step before."""
        states, fresh = set(), {X}
        for target, terms in self.statements:
            states |= {source for source, factor in terms.items() if factor != 0} - fresh
            fresh.add(target)
        return states

    def _step(self, i: int) -> tuple[Fraction, Fraction]:
        zero, one = Fraction(0), Fraction(1)
        held = {X: (zero, one), self.output: (one, zero)}
        for target, terms in self.statements:
            used = [(held[source], _at(factor, i)) for source, factor in terms.items() if factor != 0]
            held[target] = sum((k * f for (k, _), f in used), zero), sum((e * f for (_, e), f in used), zero)
        return held[self.output]

    def since_reference(self, n: int, tau: int) -> Program:
        """Return a program for the output less its value at the last multiple of tau before, 0 before the first.

        The difference is a state of its own: a difference of two long sums would lose most of its digits.
        """
        one = Fraction(1)
        if self.output == X:
            return Program([(0, {X: one})], 0).since_reference(n, tau)
        output, reference = self.output, len(self.statements)
        taken: Coefficient = Fraction(0)
        kept: Coefficient = one
        if tau < n:
            taken = [one if i > 0 and i % tau == 0 else Fraction(0) for i in range(n)]
            kept = [one - each for each in taken]
        statements: list[Statement] = [(reference, {reference: one, output: taken}), (output, {output: kept})]
        for target, terms in self.statements:
            moved = dict(terms)
            if output in terms:
                moved[reference] = terms[output]
            if target == output:
                moved[reference] = _less_one(moved.get(reference, Fraction(0)))
            statements.append((target, {source: factor for source, factor in moved.items() if factor != 0}))
        read = any(reference in terms for _, terms in statements[1:])
        return Program(statements if read else statements[1:], output)

    def arrays(self) -> Arrays:
        """Return targets, sources, their numbers, and the factors as pairs of doubles for one step or for each."""
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


def _numbers(factor: Coefficient, number: Callable[[Fraction], object]) -> Any:
    """Return the numbers of a factor, or of one for each step; None for 0, and `_ONE` for 1."""
    if isinstance(factor, list):
        return [_numbers(each, number) for each in factor]
    if factor == 1:
        return _ONE
    return number(factor) if factor else None


def _at(factor: Coefficient, i: int) -> Fraction:
    return factor[i] if isinstance(factor, list) else factor


def _less_one(factor: Coefficient) -> Coefficient:
    return [each - 1 for each in factor] if isinstance(factor, list) else factor - 1
