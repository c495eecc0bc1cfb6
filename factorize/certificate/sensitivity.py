"""A sensitivity that says what it is, and the one list of rules by which it is found (docs/sensitivity.md).

Everything is rounded outwards, and either exact (up to that rounding) or an upper bound, by a rule that has a name. A
rule serves the kinds of participation that it is proved for, and no other kind is taken for one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from factorize.certificate.gram_bounds import gram_blocks, two_stage
from factorize.errors import CertificateError, UnsupportedProblem
from factorize.numbers.pattern_sums import (
    attained_selection,
    best_periodic,
    best_separated,
)
from factorize.numbers.rounding import square_root_up
from factorize.numbers.wide import root_above
from factorize.participation import FixedEpochs, MinSep, Participation, Single
from factorize.structures.base import Bound, Matrix
from factorize.structures.endless import AnyStrategy, EndlessMatrix

Kind = Literal["exact", "upper_bound"]

_GRAM_BESIDE = 2048  # up to here Gram blocks, right to the last unit, are preferred to a structure's own sums
_WIDE_WORK = 1 << 27  # steps of a selection that are repeated in wide numbers, to be right to the last unit
_TWO_STAGE_BESIDE = 4096  # up to here a structure's own upper bound is compared with the two-stage one
SMALLEST = 1e-60
"""Sensitivities below are refused: squares of the entries they come from would underflow, and understate them."""


@dataclass(frozen=True)
class Sensitivity:
    """A sensitivity that says what it is.

    Attributes:
        value: never below the true sensitivity of the matrix whose bytes were read.
        kind: `exact` if `value` is the true value rounded up, at most one unit in the last place above it (for sums of
            Gram blocks: the absolute sum, which the plain sum attains within relative 1e-11); else `upper_bound`.
        rule: the formula used.
        participation: the pattern it holds for, in the contract's JSON form.
    """

    value: float
    kind: Kind
    rule: str
    participation: dict[str, Any]

    def __post_init__(self) -> None:
        """Refuse what is so small that double precision cannot have bounded it.

        Raises:
            CertificateError: the value is below 1e-60, infinite or NaN.
        """
        if not SMALLEST <= self.value < math.inf:
            raise CertificateError(
                f"a sensitivity of {self.value!r} is outside [{SMALLEST:g}, 1.8e308), where squares in doubles "
                "bound it; scale C, which changes no loss"
            )

    def document(self) -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {
            "value": self.value,
            "hex": self.value.hex(),
            "kind": self.kind,
            "rule": self.rule,
            "participation": self.participation,
        }


class Found(NamedTuple):
    """The answer of a rule: the value, whether it is exact, and the rule's name in certificates."""

    value: float
    exact: bool
    rule: str


def in_the_limit(matrix: EndlessMatrix, participation: Single | MinSep) -> Found | None:
    """Of falling coefficients, without end: the leading pattern in the limit (numbers/endless_limits.py)."""
    spread = participation.endless_spread()
    if spread is None:
        return None
    separation, most, _ = spread
    squared, once = matrix.squared_limit(separation, most)
    rule = "limit of column norms" if most == 1 else "monotone Toeplitz: limit of the leading pattern"
    return Found(root_above(squared), once, rule)


def single_columns(matrix: Matrix, _participation: Single) -> Found:
    """Largest column norm: exact for every sign and dimension."""
    return Found(root_above(matrix.largest_column()), True, "column norms")


def periodic_columns(matrix: Matrix, participation: FixedEpochs) -> Found | None:
    """Sums of the squared norms of columns one epoch apart, which are orthogonal if no band reaches that far."""
    if matrix.bandwidth() > participation.spread(matrix.n).separation:
        return None
    total = best_periodic(matrix.enclosed_column_norms(), participation.epochs)
    return Found(root_above(total), True, "banded: sums of column norms")


def separated_columns(matrix: Matrix, participation: MinSep) -> Found | None:
    """The best selection of columns so far apart that they are orthogonal."""
    separation, most, _ = participation.spread(matrix.n)
    if matrix.bandwidth() > separation:
        return None
    selected = best_separated(matrix.enclosed_column_norms(), separation, most)
    return Found(root_above(selected), True, "banded: best selection of columns")


def toeplitz_pattern(matrix: Matrix, participation: FixedEpochs | MinSep) -> Found | None:
    """Pattern {0, b, 2b, ...}: worst if the coefficients are non-negative and do not increase; None if not Toeplitz.

    Otherwise the non-increasing majorant max_{s >= t} |c_s| gives an upper bound, or up to n = 2048 what holds for
    any C, where that is lower. Source: KL24, Theorem 2.
    """
    separation, most, _ = participation.spread(matrix.n)
    pattern = matrix.falling_pattern(separation, most)
    if pattern is None:
        return None
    rule = "monotone Toeplitz: leading pattern" if pattern.falls else "non-increasing majorant of the Toeplitz column"
    found = Found(root_above(pattern.squared), pattern.falls, rule)
    if pattern.falls or matrix.n > _GRAM_BESIDE:
        return found
    patterns = participation.patterns(matrix.n)
    beside = two_stages(matrix, participation) if patterns is None else _of_patterns(matrix, patterns)
    return beside if beside.value < found.value else found


def own_of_fixed_order(matrix: Matrix, participation: FixedEpochs) -> Found | None:
    """The structure's own rule, for so many steps that Gram blocks are dear."""
    own = matrix.fixed_order_bound(participation.epochs) if matrix.n > _GRAM_BESIDE else None
    return None if own is None else _of_bound(own)


def gram_of_patterns(matrix: Matrix, participation: FixedEpochs) -> Found:
    """Absolute sums of the Gram blocks of all patterns; exact where an allowed contribution attains them."""
    return _of_patterns(matrix, participation.patterns(matrix.n))


def _of_patterns(matrix: Matrix, patterns: np.ndarray) -> Found:
    upper, lower = gram_blocks(matrix, patterns)
    exact = upper <= lower * (1 + 1e-11)
    return Found(root_above(upper), exact, "Gram block sums" if exact else "absolute sums of the Gram blocks")


def own_of_separated(matrix: Matrix, participation: MinSep) -> Found | None:
    """The structure's own rule, summed again in wide numbers where that is cheap, or two stages if they bound lower."""
    separation, most, _ = participation.spread(matrix.n)
    own = matrix.separated_bound(separation, most)
    if own is None:
        return None
    if own.exact and matrix.n**2 * most <= _WIDE_WORK:
        attained = attained_selection(matrix.dense(), separation, most)
        if attained is not None:
            return Found(root_above(attained), True, own.rule)
    if own.exact or matrix.n > _TWO_STAGE_BESIDE:
        return _of_bound(own)
    total = two_stage(matrix, separation, most)
    return _of_bound(own) if own.squared <= total else _of_two_stages(total)


def two_stages(matrix: Matrix, participation: Participation) -> Found:
    """A bound for any C: the best selection in each row of |C^T C|, then of the rows."""
    separation, most, _ = participation.spread(matrix.n)
    return _of_two_stages(two_stage(matrix, separation, most))


def _of_two_stages(total: Fraction) -> Found:
    return Found(root_above(total), False, "two-stage Gram bound")


def _of_bound(bound: Bound) -> Found:
    return Found(square_root_up(bound.squared), bound.exact, bound.rule)


class Rule(NamedTuple):
    """One way to a sensitivity.

    Attributes:
        serves: kinds of participation that it is proved for.
        find: of a matrix and such a participation; None where the matrix does not meet the rule's hypothesis.
        endless: whether it is for a C without a last row, and not for the others.
    """

    serves: tuple[type[Participation], ...]
    find: Callable[[Any, Any], Found | None]
    endless: bool = False


RULES = (
    Rule((Single, MinSep), in_the_limit, endless=True),
    Rule((Single,), single_columns),
    Rule((FixedEpochs,), periodic_columns),
    Rule((MinSep,), separated_columns),
    Rule((FixedEpochs, MinSep), toeplitz_pattern),
    Rule((FixedEpochs,), own_of_fixed_order),
    Rule((FixedEpochs,), gram_of_patterns),
    Rule((MinSep,), own_of_separated),
    Rule((MinSep,), two_stages),
)
"""Asked in this order; the first answer holds."""


_KEPT: WeakKeyDictionary[AnyStrategy, Sensitivity] = WeakKeyDictionary()


def sensitivity_kept(matrix: AnyStrategy, participation: Participation) -> Sensitivity:
    """Return what `sensitivity_of` does, and keep it for the certificate of this object, which asks next.

    Args:
        matrix: C, which nothing changes any more.
        participation: see `sensitivity_of`.

    Raises:
        UnsupportedProblem, CertificateError: see `sensitivity_of`.
    """
    found = sensitivity_of(matrix, participation)
    _KEPT[matrix] = found
    return found


def keep_sensitivity(matrix: AnyStrategy, participation: Participation) -> None:
    """Have the sensitivity ready for the certificate of this object, unless it is.

    Args:
        matrix: C, which nothing changes any more.
        participation: see `sensitivity_of`.

    Raises:
        UnsupportedProblem, CertificateError: see `sensitivity_of`.
    """
    kept = _KEPT.get(matrix)
    if kept is None or kept.participation != participation.document():
        sensitivity_kept(matrix, participation)


def certified_sensitivity(matrix: AnyStrategy, participation: Participation) -> Sensitivity:
    """Return what `sensitivity_of` does: once what was kept for this object and participation, else anew.

    Raises:
        UnsupportedProblem, CertificateError: see `sensitivity_of`.
    """
    kept = _KEPT.pop(matrix, None)
    if kept is not None and kept.participation == participation.document():
        return kept
    return sensitivity_of(matrix, participation)


def sensitivity_of(matrix: AnyStrategy, participation: Participation) -> Sensitivity:
    """Return the sensitivity of a strategy matrix to those who take part so.

    Args:
        matrix: C.
        participation: of a kind that some rule serves; a class derived from such a kind is another kind.

    Raises:
        UnsupportedProblem: no rule is proved for this participation, or none for it without end.
        CertificateError: the numbers leave the range of double precision.
    """
    serving = [rule for rule in RULES if type(participation) in rule.serves]
    for rule in (rule for rule in serving if rule.endless == (matrix.side is None)):
        found = rule.find(matrix, participation)
        if found is not None:
            kind: Kind = "exact" if found.exact else "upper_bound"
            return Sensitivity(found.value, kind, found.rule, participation.document())
    if serving:
        matrix.finite()
    served = {kind.named() for rule in RULES for kind in rule.serves}
    raise UnsupportedProblem(
        f"no rule of sensitivity is proved for participation {participation.kind!r}; use "
        f"{', '.join(sorted(served))}, or add a rule to RULES",
        field="/participation/kind",
    )
