"""Recursions of C^-1 and A as one list of statements, and enclosures of the variances that white noise gets by it.

Covariances are pairs of doubles with a proven bound, carried through single statements by compiled loops.
A statement x_a <- sum_k c_k x_k + y replaces row and column a of the covariance P. What it rounds is a matrix between
-d I and d I, which moves on as P does: the same statements on R, with d I added each time, bound all that was lost, in
the order of positive semidefinite matrices. R is in doubles; its own roundings stay below a quarter of the d I of their
statement, so that twice R covers them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.loops import kernel, part
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.spec.programs import Coefficient, Program, X, pair, reciprocal_pairs

Factor = Coefficient | float | np.ndarray | Callable[[int, int], np.ndarray]
"""One number for all steps, or one for each: rationals, doubles (n,), pairs (n, 2), or a function of first and stop."""
_GROWTH = "the recursion grows too much to be enclosed in doubled precision"
MIN_WORK, MAX_WORK = 1 << 24, 1 << 35
"""Limits of steps times states times terms, the unit of work: they take a tenth of a second, and five minutes."""
_FACTORS_AT_ONCE = 1 << 15  # The number of factors that are laid out together.


class Statement(NamedTuple):
    """The new value of a state: a sum of factors times states, each some steps back (0: its present value)."""

    target: int
    terms: Mapping[tuple[int, int], Factor]


class Recursion(NamedTuple):
    """The statements of every step, and the state that is read after them.

    White noise is added to the state `noise` where a step sets it first.
    """

    statements: list[Statement]
    reading: int = 0
    noise: int = 0

    def then(self, program: Program) -> Recursion:
        """Return the recursion followed by the statements of a program, whose input is the state that is read."""
        count = self._count

        def place(state: int) -> int:
            return self.reading if state == X else count + state

        after = [
            Statement(count + target, {(place(source), 0): factor for source, factor in terms.items()})
            for target, terms in program.statements
        ]
        return Recursion([*self.statements, *after], place(program.output), self.noise)

    def over(self, scale: np.ndarray) -> Recursion:
        """Return the recursion with what is read divided by a number of each step, in a state of its own."""
        divided = Statement(self._count, {(self.reading, 0): reciprocal_pairs(scale)})
        return Recursion([*self.statements, divided], self._count, self.noise)

    @property
    def _count(self) -> int:
        return 1 + max(statement.target for statement in self.statements)


def variances(n: int, recursion: Recursion, most: int = MAX_WORK, *, backwards: bool = False) -> np.ndarray:
    """Return ends of the variances of the output at each step, shape (2, n), with at most `most` units of work.

    With `backwards`, the last step runs first.

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
    at_once = n if constant else max(1, _FACTORS_AT_ONCE // len(factors))
    pieces = [(start, min(start + at_once, n)) for start in range(0, n, at_once)]
    for start, stop in reversed(pieces) if backwards else pieces:
        laid_out = np.zeros((1 if constant else stop - start, len(factors), 2))
        for column, factor in enumerate(factors):
            _write(laid_out[:, column], factor, start, stop)
        first, turn = (stop - 1, -1) if backwards else (start, 1)
        now = np.array([bases + turn * (first - lags) % lengths, bases, bases + lengths])
        laid_out = np.ascontiguousarray(laid_out[::turn])
        if not carry(starts, used, laid_out, now, first, turn, stop - start, noisy, *arrays):
            raise NotEnclosed(_GROWTH)
    if not np.isfinite(ends).all():
        raise NotEnclosed(_GROWTH)
    return ends


def negative(values: np.ndarray, lag: int = 0) -> Callable[[int, int], np.ndarray]:
    """Return a factor that is minus the value `lag` steps before, and 0 before the first."""

    def factor(start: int, stop: int) -> np.ndarray:
        first = max(start, min(lag, stop))
        return np.concatenate([np.zeros(first - start), -values[first - lag : stop - lag]])

    return factor


def _name(factor: Factor) -> object:
    """Return a key that tells factors apart: numbers by value, others by identity."""
    return factor if _is_constant(factor) else id(factor)


def _is_constant(factor: Factor) -> bool:
    return isinstance(factor, float | Fraction)


def _write(out: np.ndarray, factor: Factor, start: int, stop: int) -> None:
    """Write the factor of steps start..stop-1 as pairs of doubles."""
    if isinstance(factor, Fraction):
        out[:] = pair(factor)
    elif isinstance(factor, list):
        out[:] = [pair(value) for value in factor[start:stop]]
    elif isinstance(factor, float):
        out[:, 0] = factor
    else:
        values = factor(start, stop) if callable(factor) else factor[start:stop]
        out[:, : 1 if values.ndim == 1 else 2] = values.reshape(len(values), -1)


@part()
def _plus(ah, al, bh, bl):
    """Add, within 2^-100 (|a| + |b|)."""
    total = ah + bh
    back = total - ah
    rest = ((ah - (total - back)) + (bh - back)) + (al + bl)
    high = total + rest
    return high, rest - (high - total)


@part()
def _times(ah, al, bh, bl):
    """Multiply, within 2^-100 |a b|: halves of 26 bits are multiplied without rounding."""
    first = ah * bh
    moved = 134217729.0 * ah
    a_high = moved - (moved - ah)
    moved = 134217729.0 * bh
    b_high = moved - (moved - bh)
    a_low, b_low = ah - a_high, bh - b_high
    rest = ((a_high * b_high - first) + a_high * b_low + a_low * b_high) + a_low * b_low
    rest += ah * bl + al * bh
    high = first + rest
    return high, rest - (high - first)


@kernel()
def carry(starts, columns, factors, places, first, turn, steps, noisy, covariance, ends, work):
    """Write the variance of a state at each step from below and above, for white noise in one statement.

    The last values of a state are in a ring of slots; from step to step every place moves on by one slot and returns
    from the end of its ring to the beginning. Statement s sets the state at place number len(columns) + s to the sum
    over its terms t, from starts[s] to starts[s + 1]: the factor columns[t] times the state at place number t. A
    value of the same step is read as it is when the statement runs. The last place belongs to the state whose variance
    is written.

    Args:
        starts: shape (statements + 1,).
        columns: shape (terms,).
        factors: pairs, shape (steps, columns, 2), in the order in which they run, or (1, columns, 2) if they are the
            same at every step.
        places: the slot of each place at the first step, its ring's first slot and the slot after its ring; moved on
            in place.
        first: column of `ends` of the first step.
        turn: the difference to the next column, 1 or -1.
        steps: number of steps.
        noisy: the statement that adds noise of variance 1.
        covariance: P as pairs, and R, shape (3, slots, slots).
        ends: shape (2, n).
        work: scratch, shape (3, slots).

    Returns:
        Whether the variances are enclosed.
    """
    terms, m = len(columns), covariance.shape[2]
    for number in range(steps):
        row, i = number if len(factors) > 1 else 0, first + turn * number
        for s in range(len(starts) - 1):
            target, size, largest, widest = places[0, terms + s], 1.0, 1e-250, 0.0
            for c in range(m):
                work[0, c] = work[1, c] = work[2, c] = 0.0
                largest = covariance[0, c, c] if covariance[0, c, c] > largest else largest
                widest = covariance[2, c, c] if covariance[2, c, c] > widest else widest
            for t in range(starts[s], starts[s + 1]):
                factor, rest, source = factors[row, columns[t], 0], factors[row, columns[t], 1], places[0, t]
                size += abs(factor)
                for c in range(m):
                    th, tl = _times(factor, rest, covariance[0, source, c], covariance[1, source, c])
                    work[0, c], work[1, c] = _plus(work[0, c], work[1, c], th, tl)
                    work[2, c] += factor * covariance[2, source, c]
            dh, dl, moved = 1.0 if s == noisy else 0.0, 0.0, 0.0
            for t in range(starts[s], starts[s + 1]):
                factor, rest, source = factors[row, columns[t], 0], factors[row, columns[t], 1], places[0, t]
                th, tl = _times(factor, rest, work[0, source], work[1, source])
                dh, dl = _plus(dh, dl, th, tl)
                moved += factor * work[2, source]
            work[0, target], work[1, target], work[2, target] = dh, dl, moved
            # No entry of a covariance exceeds its largest diagonal entry; those here are off by at most 2 R.
            step = (m + 1) * (starts[s + 1] - starts[s] + 8) * size * size
            lost = step * 2.0**-96 * ((dh if dh > largest else largest) + 4.0 * widest)
            for plane in range(3):
                for c in range(m):
                    covariance[plane, target, c] = covariance[plane, c, target] = work[plane, c]
            for c in range(m):
                covariance[2, c, c] += lost
            quarter = step * 2.0**-51 * (moved if moved > widest else widest) < 0.25 * lost
            if not (size < 1e100 and largest < 1e200 and quarter):
                return False
        o = places[0, terms + len(starts) - 1]
        ends[0, i] = covariance[0, o, o] - 2.0 * covariance[2, o, o]
        ends[1, i] = covariance[0, o, o] + 2.0 * covariance[2, o, o]
        for t in range(places.shape[1]):
            places[0, t] += 1
            if places[0, t] == places[2, t]:
                places[0, t] = places[1, t]
    return True
