"""Brackets of the squared sensitivity, for every participation, with a pattern that attains the lower end.

docs/sensitivity.md has the rules of the upper ends; each hypothesis is checked on the bytes. The lower end is the
squared norm of C u for one allowed pattern and signs. Both are computed in doubles, with a bound of their error.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.checker.arithmetic.machine import check_products
from factorize.checker.arithmetic.near import UNDERFLOW, Near, share, square_root_up
from factorize.checker.longest_path import BOUNDED_PATH, largest_sum
from factorize.checker.participation import Allowed, allowed, pattern_sums
from factorize.checker.strategy import Strategy
from factorize.checker.structures import LIMITS
from factorize.errors import CertificateError, TooLarge
from factorize.format.tensors import check_strategy_tensors

TWO_STAGE = "two-stage Gram bound"
BOUNDS = (TWO_STAGE, BOUNDED_PATH)
"""Rules under which a longer search may find less."""
MAX_PATH_WORK = 1 << 29
"""The most sums over a step, the one before and the one after that a longest path may take: a second or two."""
MAX_N_GRAM = 16_384
"""The largest n for which C^T C is formed."""
MAX_N_WHOLE = 2048
"""The largest n at which a Toeplitz C is judged by the general rules, too, unless its majorant is attained."""
ATTAINMENT_SHARE = Fraction(1, 500_000_000)
"""The share of a squared sensitivity within which an end counts as attained: 1e-9 of the sensitivity."""
_ENTRIES_AT_ONCE = 1 << 24  # The entries of columns that are held together.


class Bracket(NamedTuple):
    """Two ends, lower <= sensitivity^2 <= upper.

    Attributes:
        lower: a lower bound of the squared norm of C u for the pattern and its signs.
        upper: the upper end, by `rule`.
        rule: name of the bound that gives the upper end.
        pattern: steps, increasing.
        signs: +1 or -1 per step.
        off: share by which another evaluation of the rule may differ.
    """

    lower: Fraction
    upper: Fraction
    rule: str
    pattern: tuple[int, ...]
    signs: tuple[int, ...]
    off: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether the pattern attains the stated sensitivity within 1e-9."""
        return Fraction(self.stated) ** 2 <= self.lower * (1 + ATTAINMENT_SHARE)

    @property
    def stated(self) -> float:
        """The sensitivity to state, large enough for the rule with sums in any order."""
        off = Fraction(self.off)
        return square_root_up(self.upper * (1 + 2 * off + 4 * off**2))


def bracket_sensitivity(strategy: Strategy, participation: Mapping[str, object]) -> Bracket:
    """Return the tightest bracket that the rules give.

    Raises:
        InvalidParticipation: see `allowed`.
        TooLarge: no rule can be evaluated at this size.
        CertificateError: squares of entries leave the range of doubles.
        NotEnclosed: rounding loses too much, or this machine's arithmetic cannot be relied on.
    """
    form = allowed(participation, strategy.n)
    with np.errstate(all="ignore"):
        if form.most == 1:
            return _largest_column(strategy)
        if strategy.bandwidth <= form.separation:
            return _without_overlap(strategy, form)
        column = strategy.reading.near_series if strategy.scale is None else None
        brackets = [] if column is None else [_majorant(column, form)]
        if column is None or (strategy.n <= MAX_N_WHOLE and not brackets[0].exact):
            check_products()
            if strategy.n > MAX_N_GRAM:
                raise TooLarge(
                    f"Gram matrices of columns that overlap are formed up to n={MAX_N_GRAM}, and this C has "
                    f"n={strategy.n}; use fewer steps, or a C with fewer bands than steps between two participations"
                )
            brackets.append(_periodic(strategy, form) if form.periodic else _two_stage(strategy, form))
    best = max(brackets, key=lambda bracket: bracket.lower)
    return min(brackets, key=lambda bracket: bracket.upper)._replace(
        lower=best.lower, pattern=best.pattern, signs=best.signs
    )


def bracket_limit(structure: str, parts: Mapping[str, np.ndarray], participation: Mapping[str, object]) -> Bracket:
    """Return the limit of the squared sensitivity of rows without end, between two rationals.

    Raises:
        CorruptObject, InvalidStrategy: the tensors make no such C.
        InvalidParticipation: nothing bounds how often an example takes part.
        TooLarge: the limit takes too many coefficients.
    """
    separation, most, _ = allowed(participation, None)
    check_strategy_tensors(structure, parts, None)
    low, high = LIMITS[structure](parts, separation, most)
    pattern = tuple(range(0, separation * most, separation))
    rule = "limit of column norms" if most == 1 else "monotone Toeplitz: limit of the leading pattern"
    return Bracket(low, high, rule, pattern, (1,) * most)


def _ends(value: float, off: float) -> tuple[Fraction, Fraction]:
    """Return both ends of a non-negative number; raise CertificateError where it is not finite."""
    if not math.isfinite(value):
        raise CertificateError("the sensitivity overflows double precision; scale C down")
    if not off:
        return Fraction(value), Fraction(value)
    low, high = (Fraction(value) * (1 + sign * Fraction(off)) + sign * UNDERFLOW for sign in (-1, 1))
    return max(low, Fraction(0)), high


def _attained_by_all(total: float, off: float, rule: str, pattern: tuple[int, ...]) -> Bracket:
    """Return the bracket of a rule that its pattern attains with equal signs."""
    return Bracket(*_ends(total, off), rule, pattern, (1,) * len(pattern), off)


def _largest_column(strategy: Strategy) -> Bracket:
    norms = strategy.column_norms
    worst = int(np.argmax(norms.values))
    return _attained_by_all(float(norms.values[worst]), norms.off, "column norms", (worst,))


def _without_overlap(strategy: Strategy, form: Allowed) -> Bracket:
    """Add up squared norms: columns `bands` or more apart are orthogonal, for every sign and dimension."""
    norms = strategy.column_norms
    off = share(norms.off, roundings=form.most) if norms.off else 0.0  # Sums of ones are whole numbers.
    if form.periodic:
        sums = norms.values.reshape(form.most, form.separation).sum(axis=0)
        worst = int(np.argmax(sums))
        pattern = tuple(range(worst, strategy.n, form.separation))
        return _attained_by_all(float(sums[worst]), off, "banded: sums of column norms", pattern)
    total, pattern = best_selection(norms.values, form)
    return _attained_by_all(total, off, "banded: best selection of columns", pattern)


def best_selection(values: np.ndarray, form: Allowed) -> tuple[float, tuple[int, ...]]:
    """Return the largest sum of at most `most` non-negative values, `separation` or more apart, and their places."""
    rises: list[np.ndarray] = []
    total = float(_best_sums(values, form, rises))
    chosen, start = [], 0
    for taken in rises[::-1] if len(rises) > 1 else rises * form.most:
        places = np.flatnonzero(np.unpackbits(taken, count=len(values))[start:])
        if not len(places):
            break
        chosen.append(start + int(places[0]))
        start = chosen[-1] + form.separation
    return total, tuple(chosen)


def _best_sums(values: np.ndarray, form: Allowed, rises: list[np.ndarray] | None = None) -> np.ndarray:
    """Return the largest sums of selections along the first axis, each within `most` roundings.

    `rises` receives a table of bits for each count, or one for all if any number of steps that fits is allowed: a bit
    says whether the best sum from a step on is above that from the next step on.
    """
    n, b = len(values), form.separation
    best = np.zeros((n + b, *values.shape[1:]))
    limited = form.most < math.ceil(n / b)
    for _ in range(form.most if limited else 1):
        if limited:
            best[:n] = np.maximum.accumulate((values + best[b:])[::-1], axis=0)[::-1]
        else:
            for stop in range(n, 0, -b):
                start = max(stop - b, 0)
                some = values[start:stop] + best[start + b : stop + b]
                some[-1] = np.maximum(some[-1], best[stop])
                best[start:stop] = np.maximum.accumulate(some[::-1], axis=0)[::-1]
        if rises is not None:
            rises.append(np.packbits(best[:n] > best[1 : n + 1]))
    return np.asarray(best[0])


def _majorant(column: Near, form: Allowed) -> Bracket:
    """Bound C by the pattern {0, b, 2b, ...} of max_{s >= t} |c_s|, which no pattern exceeds (KL24, Theorem 2).

    The lower end is the same pattern of C, or its column 0.
    """
    size = np.abs(column.values)
    majorant = np.maximum.accumulate(size[::-1])[::-1]
    off = share(2 * column.off, roundings=4 * form.most.bit_length() + 8)
    upper = _ends(_squares(pattern_sums(majorant, form)), off)[1]
    whole, alone = _squares(pattern_sums(column.values, form)), _squares(size)
    if (column.values < 0).any():  # Terms cancel.
        lost = off * math.sqrt(_squares(pattern_sums(size, form)))
        whole = max(math.sqrt(whole) - lost, 0.0) ** 2
    pattern = tuple(range(0, form.most * form.separation, form.separation)) if whole >= alone else (0,)
    lower = _ends(max(whole, alone), off)[0]
    falls = bool((column.values == majorant).all())
    rule = "monotone Toeplitz: leading pattern" if falls else "non-increasing majorant of the Toeplitz column"
    return Bracket(lower, upper, rule, pattern, (1,) * len(pattern), off)


def _squares(column: np.ndarray) -> float:
    """Return the sum of squares, where each square and the sum are rounded once."""
    return math.fsum((column**2).tolist()) if np.isfinite(column).all() else math.inf


def _periodic(strategy: Strategy, form: Allowed) -> Bracket:
    """Bound C by absolute sums of the Gram blocks, for vectors of every dimension; exact where signs can balance."""
    n, k, b = strategy.n, form.most, form.separation
    above, near, loose = np.empty(b), np.empty(b), np.empty(b)
    step = max(_ENTRIES_AT_ONCE // (n * k), 1)
    for start in range(0, b, step):
        offsets = np.arange(start, min(start + step, b))
        block = strategy.near_columns((np.arange(k)[:, None] * b + offsets).ravel())
        columns = np.ascontiguousarray(block.values.reshape(n, k, len(offsets)).transpose(2, 1, 0))
        grams = columns @ columns.transpose(0, 2, 1)
        sizes = np.abs(columns).sum(axis=1)  # Their squares add up to the sum of |C_p|^T |C_p|.
        lost = share(roundings=n + 4 * k + 8) * np.einsum("pi,pi->p", sizes, sizes)
        sums = np.abs(grams).sum(axis=2).sum(axis=1)
        far = block.far.reshape(k, -1).sum(axis=0)
        above[offsets] = (np.sqrt(sums + lost) + far) ** 2
        signs = np.where(grams[:, 0] < 0, -1.0, 1.0)
        near[offsets] = np.maximum(grams.sum(axis=(1, 2)), np.einsum("ps,pst,pt->p", signs, grams, signs))
        loose[offsets] = lost + (2 * np.sqrt(sums + lost) + far) * far
    pattern = np.arange(k) * b + int(np.argmax(near))
    lower, signs_of = _attain(strategy, pattern)
    upper = _ends(float(above.max()), share(roundings=8))[1]
    off = share(2 * float(loose.max()) / max(float(above.max()), 1e-300), roundings=8)
    bracket = Bracket(lower, upper, "absolute sums of the Gram blocks", tuple(pattern.tolist()), signs_of, off)
    return bracket._replace(rule="Gram block sums") if bracket.exact else bracket


def _attain(strategy: Strategy, pattern: np.ndarray) -> tuple[Fraction, tuple[int, ...]]:
    """Return a lower bound of |C u|^2, for equal signs, or the signs of X with the first step or the step before."""
    columns, far = strategy.near_columns(pattern)
    sizes, ends, gram = np.abs(columns).sum(axis=1), [], np.where(columns.T @ columns < 0, -1.0, 1.0)
    for signs in (np.ones(len(pattern)), gram[0], np.cumprod(np.append(1.0, np.diagonal(gram, 1)))):
        norm = float(np.sqrt(((columns @ signs) ** 2).sum()))
        lost = share(roundings=len(sizes) + len(pattern) + 8) * float(np.sqrt((sizes**2).sum())) + float(far.sum())
        ends.append((_ends(max(norm - lost, 0.0) ** 2, share(roundings=8))[0], tuple(int(s) for s in signs)))
    return max(ends)


def _two_stage(strategy: Strategy, form: Allowed) -> Bracket:
    """Bound C by the best selection within each row of |X|, then of the rows' values (docs/sensitivity.md).

    Where only neighbours in a pattern overlap, or patterns are few, the bound is the largest sum of |X| over a pattern;
    where fewer steps are allowed than fit, the largest with bounds of the overlaps further on.
    """
    n = strategy.n
    values, far = strategy.near_columns(np.arange(n))
    lengths = np.sqrt(np.einsum("ij,ij->j", values, values)) + far
    overlaps = (form.most if far.any() else min(form.most, -(-strategy.bandwidth // form.separation))) - 1
    reach = n * form.most if overlaps > 2 or form.most < math.ceil(n / form.separation) else form.separation
    paths = n * reach * (1 if overlaps < 2 else min(reach, n) / 3) <= MAX_PATH_WORK and n * n <= _ENTRIES_AT_ONCE
    rule, total, chosen = TWO_STAGE, math.inf, tuple[int, ...]()
    rows, step = np.empty(n), max(_ENTRIES_AT_ONCE // n, 1)
    for start in range(0, n, step):
        some = slice(start, min(start + step, n))
        gram = np.abs(values.T @ values[:, some])
        gram += np.multiply.outer(far, lengths[some]) + np.multiply.outer(lengths, far[some])
        if paths:
            rule, total, chosen = largest_sum(gram, form, min(overlaps, 2))
        if not paths or rule == BOUNDED_PATH:
            rows[some] = _best_sums(gram, form)
    if rule in (TWO_STAGE, BOUNDED_PATH):
        by_rows, selected = best_selection(rows, form)
        if by_rows < total:
            rule, total, chosen = TWO_STAGE, by_rows, selected
    # |X| is off by n u |C|^T |C|, whose sum over a pattern is at most k times the sum of the squared norms. That of any
    # k^2 entries is at most k^2 times the largest of these.
    terms = form.most ** (2 if rule == BOUNDED_PATH else 1) if strategy.reading.signed or far.any() else 1
    off = share(roundings=(n + 8) * terms + 4 * form.most + 8)
    longest = best_selection(strategy.column_norms.values, form)[1]
    candidates = sorted({chosen, tuple(range(0, n, form.separation)[: form.most]), longest} - {()})
    lower, signs, pattern = max((*_attain(strategy, np.array(p)), p) for p in candidates)
    return Bracket(lower, _ends(total, off)[1], rule, pattern, signs, off)


def exactly(strategy: Strategy, participation: Mapping[str, object], bracket: Bracket, claim: float) -> Bracket:
    """Return a bracket that decides a claim, by integers of the columns that may exceed it; unchanged if none may.

    It decides for stored entries without factors alone, under single participation or fixed epochs.
    """
    form, squared = allowed(participation, strategy.n), Fraction(claim) ** 2
    array = strategy.doubles if form.periodic or form.most == 1 else None
    if array is None or not bracket.lower <= squared < bracket.upper:
        return bracket
    norms, lower, upper = strategy.column_norms, bracket.lower, Fraction(0)
    for pattern in np.arange(strategy.n).reshape(form.most, -1).T:
        # The sum of all products is at most k times the sum of the squared norms.
        high = form.most * _ends(math.fsum(norms.values[pattern]), share(norms.off, roundings=2))[1]
        if high > squared:
            integers, unit = _integers(array[:, pattern])
            gram = integers.T @ integers
            high = unit**2 * int(abs(gram).sum())
            lower = max(lower, unit**2 * int(gram.sum()))
        upper = max(upper, high)
    return bracket._replace(lower=lower, upper=upper)


def _integers(array: np.ndarray) -> tuple[np.ndarray, Fraction]:
    """Return doubles as Python integers, and the power of two that is their unit."""
    fractions, exponents = np.frexp(array)
    places = int(exponents.min()) - 53
    shifts = (exponents - 53 - places).astype(object)
    return np.ldexp(fractions, 53).astype(np.int64).astype(object) << shifts, Fraction(2) ** places
