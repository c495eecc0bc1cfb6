"""Squared sensitivity between two rationals, for every participation, with a pattern that attains the lower one.

Upper ends: largest column; sums over columns that cannot overlap; the leading pattern of a Toeplitz matrix whose
coefficients are non-negative and do not increase; absolute sums of Gram entries; the two-stage selection over them.
Each hypothesis is checked on the bytes. The lower end is the squared norm of C u for one allowed pattern and signs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from factorize.errors import TooLarge
from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.participation import Allowed, allowed
from factorize.exact.strategy import LARGEST_WHOLE, Strategy

TWO_STAGE, NODES = "two-stage Gram bound", "best selection over the nodes of trees"
MOST_STEPS = 200_000_000
"""Steps of a selection in Python integers that are tried: about a minute."""
_LARGEST_PATTERN = 512
_FLIPS = 4  # of signs, for each step of a pattern
_GRAM_ENTRIES = 1 << 19  # of C^T C, at one time


class Bracket(NamedTuple):
    """lower <= sensitivity^2 <= upper.

    Attributes:
        lower: squared norm of C u for the pattern and its signs.
        upper: by `rule`.
        rule: which bound the upper end is.
        pattern: steps, increasing.
        signs: +1 or -1 per step.
    """

    lower: Fraction
    upper: Fraction
    rule: str
    pattern: tuple[int, ...]
    signs: tuple[int, ...]

    @property
    def exact(self) -> bool:
        """Whether both ends agree but for what enclosures cut away (relative 2^-80)."""
        return self.upper - self.lower <= self.upper / 2**80


def squared_sensitivity(strategy: Strategy, participation: Mapping[str, Any]) -> Bracket:
    """Return the tightest bracket that the rules give.

    Raises:
        InvalidParticipation: see `allowed`.
        TooLarge: no rule that can be evaluated exactly applies at this size.
    """
    form = allowed(participation, strategy.n)
    if form.most == 1:
        return _largest_column(strategy)
    if strategy.bandwidth <= form.separation:
        return _without_overlap(strategy, form)
    column = strategy.toeplitz
    if column is not None:
        leading = _leading(column, form)
        if strategy.monotone:
            return leading
        if strategy.reading.by_majorant:
            majorant = _majorant(column, form, leading)
            if majorant.exact or not _fits(strategy, form):
                return majorant
    if not _fits(strategy, form):
        if column is None:
            raise TooLarge(f"no exact rule for overlapping columns reaches n={strategy.n} (n={LARGEST_WHOLE} at least)")
        return _majorant(column, form, leading)
    found = _periodic(strategy, form) if form.periodic else _two_stage(strategy, form)
    if column is not None:
        other = _majorant(column, form, leading)
        best = max((found, other), key=lambda bracket: bracket.lower)
        least = min((found, other), key=lambda bracket: bracket.upper)
        found = Bracket(best.lower, least.upper, least.rule, best.pattern, best.signs)
    return found


def _fits(strategy: Strategy, form: Allowed) -> bool:
    """Whether Gram entries are affordable: all of them, or those of the patterns of a stored matrix."""
    return strategy.n <= LARGEST_WHOLE or (form.periodic and strategy.reading.affords_patterns(form.most))


def _bracket(numbers: Numbers, units: int, rule: str, pattern: tuple[int, ...], *, terms: int = 1) -> Bracket:
    slack = terms * numbers.radius
    low, high = numbers.fraction(max(units - slack, 0)), numbers.fraction(units + slack)
    return Bracket(low, high, rule, pattern, (1,) * len(pattern))


def _largest_column(strategy: Strategy) -> Bracket:
    norms = strategy.column_norms
    worst = int(np.argmax(norms.values))
    found = _bracket(norms, norms.values[worst], "column norms", (worst,))
    if strategy.scale is None or not strategy.reading.unit_diagonal:
        return found
    # The last column is its factor alone, without the radius of the others: a sensitivity of exactly 1, if it is that.
    last = Fraction(float(strategy.scale[-1])) ** 2
    others = norms.fraction(max(norms.values[:-1], default=0) + norms.radius)
    return found._replace(upper=others) if last < others else Bracket(last, last, found.rule, (strategy.n - 1,), (1,))


def _without_overlap(strategy: Strategy, form: Allowed) -> Bracket:
    """Columns at least `bands` apart are orthogonal, so squared norms add up, for every sign and dimension."""
    norms = strategy.column_norms
    if form.periodic:
        sums = norms.values.reshape(form.most, form.separation).sum(axis=0)
        worst = int(np.argmax(sums))
        pattern = tuple(range(worst, strategy.n, form.separation))
        return _bracket(norms, sums[worst], "banded: sums of column norms", pattern, terms=form.most)
    total, pattern = best_selection(norms.values, form)
    return _bracket(norms, total, "banded: best selection of columns", pattern, terms=form.most)


def best_selection(values: np.ndarray, form: Allowed) -> tuple[int, tuple[int, ...]]:
    """Return the largest sum of at most `most` values whose positions are `separation` apart, and the positions.

    Args:
        values: non-negative Python integers, shape (n,).
        form: separation and count.

    Raises:
        TooLarge: more steps than are tried.
    """
    n, b = len(values), form.separation
    if form.most == math.ceil(n / b):
        best = _unlimited(values.tolist(), b)
        return int(best[0]), _follow([best] * form.most, b)
    _affordable(n * form.most)
    levels: list[Any] = [np.full(n + b, 0, dtype=object)]
    for _ in range(form.most):
        level = np.full(n + b, 0, dtype=object)
        level[:n] = np.maximum.accumulate((values + levels[-1][b:])[::-1])[::-1]
        levels.append(level)
    return int(levels[-1][0]), _follow(levels[:0:-1], b)


def _unlimited(values: Sequence[int], b: int) -> list[int]:
    """Best sums from each place on, and b zeros after the last."""
    best = [0] * (len(values) + b)
    for i in range(len(values) - 1, -1, -1):
        best[i] = max(best[i + 1], values[i] + best[i + b])
    return best


def _best_sums(rows: np.ndarray, form: Allowed) -> list[int]:
    """The largest sum of a selection within each row."""
    (count, n), b = rows.shape, form.separation
    if form.most == math.ceil(n / b):
        return [_unlimited(row, b)[0] for row in rows.tolist()]
    best = np.full((count, n + b), 0, dtype=object)
    for _ in range(form.most):
        best[:, :n] = np.maximum.accumulate((rows + best[:, b:])[:, ::-1], axis=1)[:, ::-1]
    return list(best[:, 0])


def _follow(levels: list[Any], b: int) -> tuple[int, ...]:
    """Read the chosen positions off the tables: the last place at which the table still has its value is chosen.

    A table ends with b zeros, where nothing is left to be chosen.
    """
    chosen, start = [], 0
    for level in levels:
        if level[start] == 0:
            break
        at = start
        while level[at + 1] == level[start]:
            at += 1
        chosen.append(at)
        start = at + b
    return tuple(chosen)


def _affordable(steps: int) -> None:
    if steps > MOST_STEPS:
        raise TooLarge(f"a selection of {steps} steps in exact integers is above {MOST_STEPS}, the limit")


def _leading(column: Numbers, form: Allowed) -> Bracket:
    """The pattern {0, b, 2b, ...} with equal signs; the worst one for monotone coefficients (KL24, Theorem 2)."""
    n, b, k = len(column.values), form.separation, form.most
    sums = column.values.copy()
    sums[k * b :] -= column.values[: max(n - k * b, 0)]
    for start in range(b, n, b):
        stop = min(start + b, n)
        sums[start:stop] += sums[start - b : stop - b]
    lost = k * column.radius
    units = Numbers(sums, 2 * column.exponent, lost * (2 * int(abs(sums).sum()) + n * lost))
    pattern = tuple(range(0, k * b, b))
    return _bracket(units, int((sums**2).sum()), "monotone Toeplitz: leading pattern", pattern)


def _majorant(column: Numbers, form: Allowed, leading: Bracket) -> Bracket:
    """The leading pattern of max_{s >= t} |c_s|, which no pattern of C exceeds; below, that of C or its column 0."""
    larger = np.maximum.accumulate(abs(column.values)[::-1])[::-1]
    first = _leading(column, form._replace(separation=len(column.values), most=1))
    lower = max((leading, first), key=lambda bracket: bracket.lower)
    upper = _leading(column._replace(values=larger), form).upper
    return lower._replace(upper=upper, rule="non-increasing majorant of the Toeplitz column")


def _periodic(strategy: Strategy, form: Allowed) -> Bracket:
    """Absolute sums of the Gram blocks; an upper end for vectors of every dimension, exact where signs can balance."""
    patterns = np.arange(strategy.n).reshape(form.most, form.separation).T
    largest = strategy.largest_patterns(form.most)
    if largest is not None:
        found = _of_patterns(strategy, patterns[largest.chosen])
        if largest.others <= found.lower:  # else other patterns may tell more of the lower end
            return found
    return _of_patterns(strategy, patterns)


def _of_patterns(strategy: Strategy, patterns: np.ndarray) -> Bracket:
    """The largest absolute sum of the Gram matrices of some patterns, and what signs attain."""
    grams = strategy.grams(patterns)
    sums = [gram.fraction(int(abs(gram.values).sum()) + gram.radius * patterns.shape[1] ** 2) for gram in grams]
    lower: Bracket | None = None
    for j in sorted(range(len(patterns)), key=sums.__getitem__, reverse=True):
        if lower is not None and sums[j] <= lower.lower:
            break  # no signs of the patterns that are left attain more
        found = _signed(grams[j], tuple(patterns[j].tolist()))
        lower = found if lower is None or found.lower > lower.lower else lower
    assert lower is not None
    return lower._replace(upper=max(sums), rule="absolute sums of the Gram blocks")


def _signed(gram: Numbers, pattern: tuple[int, ...]) -> Bracket:
    """Signs that make u^T X u large: the better of all ones and the signs of the first row, then one flip at a time."""
    found = []
    rows = gram.values
    for start in (np.ones(len(pattern), dtype=int), np.where(rows[0] < 0, -1, 1)):
        u = start.astype(object)
        reach = rows @ u
        for _ in range(_FLIPS * len(pattern)):
            gains = [int(rows[i, i]) - int(u[i] * reach[i]) for i in range(len(u))]
            i = max(range(len(u)), key=gains.__getitem__)
            if gains[i] <= 0:
                break
            reach = reach - 2 * u[i] * rows[:, i]
            u[i] = -u[i]
        units = int(u @ reach) - gram.radius * len(u) ** 2
        value = gram.fraction(max(units, 0))
        found.append(Bracket(value, value, "", pattern, tuple(int(s) for s in u)))
    return max(found, key=lambda bracket: bracket.lower)


def _two_stage(strategy: Strategy, form: Allowed) -> Bracket:
    """Best selection within each row of |X|, then of the rows' values; never below the truth (docs/sensitivity.md)."""
    n, b = strategy.n, form.separation
    _affordable(n * n * form.most)
    told = strategy.deciding_rows(b, form.most)
    deciding = np.arange(n) if told is None else told
    rows = np.full(n, 0, dtype=object)  # others are in no best selection, and count as 0
    step = _GRAM_ENTRIES // n + 1
    radius = exponent = 0
    for start in range(0, len(deciding), step):
        some = deciding[start : start + step]
        gram = strategy.gram_rows(some)
        radius, exponent = max(radius, gram.radius), gram.exponent
        rows[some] = _best_sums(abs(gram.values), form)
    total, chosen = best_selection(rows, form)
    gram = Numbers(rows, exponent, radius)
    upper = gram.fraction(total + radius * form.most**2)
    candidates = {chosen, tuple(range(0, n, b))[: form.most], best_selection(strategy.column_norms.values, form)[1]}
    known = strategy.selection(b, form.most)
    if known is not None:
        candidates.add(known.pattern)
    found = [_signed(strategy.gram(np.array(p)), p) for p in sorted(candidates) if len(p) <= _LARGEST_PATTERN]
    lower = max(found, key=lambda bracket: bracket.lower, default=_largest_column(strategy))
    if known is not None and known.upper < upper:
        return lower._replace(upper=known.upper, rule=NODES)
    return lower._replace(upper=upper, rule=TWO_STAGE)


def square_root_up(value: Fraction) -> float:
    """Return the smallest double whose square is at least `value`."""
    if value <= 0:
        return 0.0
    half = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    guess = math.ldexp(math.sqrt(float(value / Fraction(4) ** half)), half)
    while Fraction(guess) ** 2 >= value:
        guess = math.nextafter(guess, 0.0)
    while Fraction(guess) ** 2 < value:
        guess = math.nextafter(guess, math.inf)
    return guess


def square_root_down(value: Fraction) -> float:
    """Return the largest double whose square is at most `value`."""
    up = square_root_up(value)
    return up if Fraction(up) ** 2 == value else math.nextafter(up, 0.0)
