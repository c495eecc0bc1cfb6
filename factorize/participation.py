"""Who may take part when, and what that makes of a strategy matrix: its sensitivity.

Indices are steps 0..n-1. A contribution is a vector of norm at most 1 in each step that the example or user takes part
in; the sensitivity of C is the largest norm of C u over all allowed patterns and all such u. Everything returned here
is rounded outwards and says whether it is exact (up to that rounding) or only an upper bound, and by which rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from factorize.errors import CertificateError, InvalidParticipation
from factorize.model import Count, Frozen
from factorize.numbers.rounding import UNIT, square_root_up
from factorize.numbers.wide import check_finite, of_doubles, root_above
from factorize.structures.computed_toeplitz import ComputedToeplitz
from factorize.structures.endless import EndlessMatrix
from factorize.structures.matrix import Bound, Matrix
from factorize.structures.wide_norms import column_norms, entries, largest_column
from factorize.structures.wide_patterns import (
    around_products,
    attained_selection,
    best_periodic,
    best_separated,
    gram_sums,
    leading_pattern,
)

Kind = Literal["exact", "upper_bound"]

_PATTERNS = 16  # at a time, in Gram blocks
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


class Single(Frozen):
    """Each example takes part in at most one step."""

    kind: Literal["single"] = "single"

    def canonical(self, n: int) -> Single:
        """Itself."""
        return self

    def without_end(self) -> Single:
        """Itself."""
        return self

    def sensitivity(self, matrix: Matrix) -> Sensitivity:
        """Largest column norm: exact for every sign and dimension."""
        if isinstance(matrix, EndlessMatrix):
            return _limit(matrix, 1, 1, self.document())
        return Sensitivity(root_above(largest_column(matrix)), "exact", "column norms", self.document())


class FixedEpochs(Frozen):
    """Fixed order, `epochs` passes: step j of each epoch sees the same examples; n = epochs x b exactly."""

    kind: Literal["fixed_epochs"]
    epochs: Count

    def canonical(self, n: int) -> Single | FixedEpochs:
        """Check that the epochs divide n; one epoch is single participation."""
        if n % self.epochs:
            raise InvalidParticipation(
                f"n={n} is not a multiple of epochs={self.epochs}; use n={n - n % self.epochs or self.epochs} "
                "(drop or pad the last batches) or min_sep",
                field="/participation/epochs",
            )
        return Single() if self.epochs == 1 else self

    def without_end(self) -> Single:
        """One epoch is single participation; several have a length."""
        if self.epochs > 1:
            raise InvalidParticipation(
                f"epochs={self.epochs} of an unbounded n have no length; use min_sep with max_participations",
                field="/participation/kind",
            )
        return Single()

    def patterns(self, n: int) -> np.ndarray:
        """Return the patterns, shape (b, epochs): row j is {j, j + b, ...}."""
        return np.arange(n).reshape(self.epochs, n // self.epochs).T

    def sensitivity(self, matrix: Matrix) -> Sensitivity:
        """Leading pattern of a monotone Toeplitz matrix, sums of norms of a banded one, else absolute Gram sums.

        Reference: docs/sensitivity.md.
        """
        separation = matrix.n // self.epochs
        if matrix.bandwidth() <= separation:
            total = best_periodic(column_norms(matrix), self.epochs)
            return Sensitivity(root_above(total), "exact", "banded: sums of column norms", self.document())
        leading = _leading_pattern(matrix, separation, self.epochs)
        if leading is not None:
            return Sensitivity(*leading, self.document())
        own = matrix.fixed_order_bound(self.epochs) if matrix.n > _GRAM_BESIDE else None
        if own is not None:
            return _of_bound(own, self.document())
        upper, lower = _gram_sums(matrix, self.patterns(matrix.n))
        exact = upper <= lower * (1 + 1e-11)
        rule = "Gram block sums" if exact else "absolute sums of the Gram blocks"
        return Sensitivity(root_above(upper), "exact" if exact else "upper_bound", rule, self.document())


class MinSep(Frozen):
    """Any steps at least `min_sep` apart (inclusive), at most `max_participations` of them."""

    kind: Literal["min_sep"]
    min_sep: Count
    max_participations: Annotated[int, Field(ge=1)] | None = None

    def canonical(self, n: int) -> Single | MinSep:
        """Write out the number of participations; one is single participation."""
        if self.min_sep > n:
            raise InvalidParticipation(
                f"min_sep={self.min_sep} exceeds n={n}, so nobody could take part twice; use 'single'",
                field="/participation/min_sep",
            )
        most = math.ceil(n / self.min_sep) if self.max_participations is None else self.max_participations
        return Single() if most == 1 else MinSep(kind="min_sep", min_sep=self.min_sep, max_participations=most)

    def without_end(self) -> Single | MinSep:
        """Check that the participations are finitely many; one is single participation.

        Raises:
            InvalidParticipation: their number is not given, so that no sensitivity is finite.
        """
        if self.max_participations is None:
            raise InvalidParticipation(
                "an unbounded n has no limit of participations, and no finite sensitivity; give max_participations",
                field="/participation/max_participations",
            )
        return Single() if self.max_participations == 1 else self

    def count(self, n: int) -> int:
        """Return the largest number of participations that fits in n steps."""
        fit = math.ceil(n / self.min_sep)
        return fit if self.max_participations is None else min(fit, self.max_participations)

    def sensitivity(self, matrix: Matrix) -> Sensitivity:
        """Banded, monotone Toeplitz, Toeplitz majorant or two-stage bound, whichever hypothesis holds.

        Reference: docs/sensitivity.md.
        """
        if isinstance(matrix, EndlessMatrix) and self.max_participations is not None:
            return _limit(matrix, self.min_sep, self.max_participations, self.document())
        most = self.count(matrix.n)
        if matrix.bandwidth() <= self.min_sep:
            selected = best_separated(column_norms(matrix), self.min_sep, most)
            return Sensitivity(root_above(selected), "exact", "banded: best selection of columns", self.document())
        leading = _leading_pattern(matrix, self.min_sep, most)
        if leading is not None:
            return Sensitivity(*leading, self.document())
        own = matrix.separated_bound(self.min_sep, most)
        if own is not None and own.exact and matrix.n**2 * most <= _WIDE_WORK:
            attained = attained_selection(matrix.dense(), self.min_sep, most)
            if attained is not None:
                return Sensitivity(root_above(attained), "exact", own.rule, self.document())
        if own is not None and (own.exact or matrix.n > _TWO_STAGE_BESIDE):
            return _of_bound(own, self.document())
        total = _two_stage(matrix, self.min_sep, most)
        if own is not None and own.squared <= total:
            return _of_bound(own, self.document())
        return Sensitivity(root_above(_above(total, 0)), "upper_bound", "two-stage Gram bound", self.document())


AnyParticipation = Annotated[Single | FixedEpochs | MinSep, Field(discriminator="kind")]


def best_selection(values: np.ndarray, separation: int, most: int) -> float:
    """Return the largest sum of at most `most` non-negative values whose positions are `separation` or more apart.

    Dynamic programme over suffixes: f_k[i] = max over i' >= i of values[i'] + f_{k-1}[i' + separation].

    Args:
        values: shape (n,), non-negative.
        separation: smallest distance of two chosen positions.
        most: largest number of positions.
    """
    n = len(values)
    best = np.zeros(n + separation)
    for _ in range(min(most, math.ceil(n / separation))):
        chosen = values + best[separation : separation + n]
        best[:n] = np.maximum.accumulate(chosen[::-1])[::-1]
    return float(best[0])


def _limit(matrix: EndlessMatrix, separation: int, most: int, participation: dict[str, Any]) -> Sensitivity:
    """Of falling coefficients, without end: the leading pattern in the limit (structures/endless_limits.py)."""
    squared, once = matrix.squared_limit(separation, most)
    rule = "limit of column norms" if most == 1 else "monotone Toeplitz: limit of the leading pattern"
    return Sensitivity(root_above(squared), "exact" if once else "upper_bound", rule, participation)


def _of_bound(bound: Bound, participation: dict[str, Any]) -> Sensitivity:
    kind: Kind = "exact" if bound.exact else "upper_bound"
    return Sensitivity(square_root_up(bound.squared), kind, bound.rule, participation)


def _above(value: float, roundings: int) -> Fraction:
    """Allow for roundings in units of 2^-52."""
    if not math.isfinite(value):
        raise CertificateError("the sensitivity overflows double precision; scale C down")
    return Fraction(float(value)) * (1 + Fraction(roundings, 2**52))


def _leading_pattern(matrix: Matrix, separation: int, most: int) -> tuple[float, Kind, str] | None:
    """Pattern {0, b, 2b, ...} of a Toeplitz matrix: worst if its coefficients are non-negative and do not increase.

    Otherwise the non-increasing majorant max_{s >= t} |c_s| gives an upper bound. Source: KL24, Theorem 2.
    """
    if isinstance(matrix, ComputedToeplitz):
        monotone, squared = matrix.falls, matrix.leading_pattern(separation, most)
    else:
        column = matrix.coefficients()
        if column is None:
            return None
        majorant = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
        monotone = bool((column == majorant).all())
        squared = leading_pattern(of_doubles(majorant), separation, most)
    rule = "monotone Toeplitz: leading pattern" if monotone else "non-increasing majorant of the Toeplitz column"
    return root_above(squared), "exact" if monotone else "upper_bound", rule


@np.errstate(over="ignore", invalid="ignore")
def _gram_sums(matrix: Matrix, patterns: np.ndarray) -> tuple[Fraction, float]:
    """Largest absolute Gram block sum over the patterns, rounded up, and a lower bound on the true squared value.

    The lower bound is the largest of the all-ones sum (one contribution repeated), that with the signs of a pattern's
    first row (one contribution and its negative) and the trace (the mean over random signs), so equality shows that the
    absolute sum is the true value. What may be the largest is summed again, wide.
    """
    enclosed = entries(matrix)
    whole, left_out = enclosed.high, float((np.abs(enclosed.low) + enclosed.error).max()) * patterns.shape[1]
    n, count = matrix.n, patterns.shape[1]
    allowance = (n + count**2 + 2) * UNIT
    above, below, lower = [], [], 0.0
    for start in range(0, len(patterns), _PATTERNS):
        some = patterns[start : start + _PATTERNS]
        # Neighbouring patterns hold neighbouring columns: fetched together, they share cache lines.
        columns = np.ascontiguousarray(np.take(whole, some.T.ravel(), axis=1).T)
        columns = columns.reshape(count, len(some), n).transpose(1, 0, 2)
        grams = columns @ columns.transpose(0, 2, 1)
        rows = np.abs(columns).sum(axis=1)  # the sum of all entries of |C|^T |C| is that of their squares
        sums, slack = np.abs(grams).sum(axis=(1, 2)), 2 * allowance * np.einsum("ji,ji->j", rows, rows)
        slack = slack + 2 * left_out * (rows.sum(axis=1) + n * left_out)
        above.append(sums + slack)
        below.append(sums - slack)
        signs = np.where(grams[:, 0] < 0, -1.0, 1.0)
        attained = (grams.sum(axis=(1, 2)), np.einsum("js,jst,jt->j", signs, grams, signs), np.einsum("jss->j", grams))
        lower = max(lower, *(float(totals.max()) for totals in attained))
    least = np.concatenate(below).max()
    candidates = np.flatnonzero(np.concatenate(above) >= least)
    if not len(candidates):
        raise CertificateError("the sensitivity overflows double precision; scale C down")
    return max(gram_sums(enclosed.take(slice(None), patterns[j])) for j in candidates), lower


@np.errstate(over="ignore", invalid="ignore")
def _two_stage(matrix: Matrix, separation: int, most: int) -> float:
    """Bound for any C: best selection within each row of |X|, then of the row values (docs/sensitivity.md)."""
    from factorize.structures.wide_recurrences import selected_sums

    enclosed = entries(matrix)
    whole, left_out = enclosed.high, np.abs(enclosed.low) + enclosed.error
    signed = bool((whole < 0).any())
    magnitude, gram = np.abs(whole) if signed else whole, whole.T @ whole
    gram = np.abs(gram, out=gram)
    gram += (matrix.n + 2) * UNIT * (magnitude.T @ magnitude if signed else gram)
    if left_out.any():  # what the doubles of computed entries are not
        gram += around_products(magnitude, left_out)
    rows = np.empty(matrix.n)
    selected_sums(check_finite(gram), separation, most, rows)
    return best_selection(rows, separation, most) * (1 + (2 * most + 16) * UNIT)
