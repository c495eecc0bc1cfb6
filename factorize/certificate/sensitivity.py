"""A sensitivity that says what it is, and the rules by which one is found (docs/sensitivity.md).

Everything is rounded outwards, and either exact (up to that rounding) or an upper bound, by a rule that has a name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from factorize.errors import CertificateError
from factorize.numbers.pattern_sums import around_products, gram_sums, leading_pattern
from factorize.numbers.rounding import UNIT, square_root_up
from factorize.numbers.wide import check_finite, of_doubles, root_above
from factorize.structures.base import Bound, Matrix
from factorize.structures.endless import EndlessMatrix
from factorize.structures.inverse_banded_toeplitz import ComputedToeplitz

Kind = Literal["exact", "upper_bound"]

_PATTERNS = 16  # at a time, in Gram blocks
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


def of_endless(matrix: EndlessMatrix, separation: int, most: int, participation: dict[str, Any]) -> Sensitivity:
    """Of falling coefficients, without end: the leading pattern in the limit (structures/endless_limits.py)."""
    squared, once = matrix.squared_limit(separation, most)
    rule = "limit of column norms" if most == 1 else "monotone Toeplitz: limit of the leading pattern"
    return Sensitivity(root_above(squared), "exact" if once else "upper_bound", rule, participation)


def of_bound(bound: Bound, participation: dict[str, Any]) -> Sensitivity:
    """By a structure's own rule."""
    kind: Kind = "exact" if bound.exact else "upper_bound"
    return Sensitivity(square_root_up(bound.squared), kind, bound.rule, participation)


def of_toeplitz(matrix: Matrix, separation: int, most: int, participation: dict[str, Any]) -> Sensitivity | None:
    """Pattern {0, b, 2b, ...}: worst if the coefficients are non-negative and do not increase; None if not Toeplitz.

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
    return Sensitivity(root_above(squared), "exact" if monotone else "upper_bound", rule, participation)


@np.errstate(over="ignore", invalid="ignore")
def gram_blocks(matrix: Matrix, patterns: np.ndarray) -> tuple[Fraction, float]:
    """Largest absolute Gram block sum over the patterns, rounded up, and a lower bound on the true squared value.

    The lower bound is the largest of the all-ones sum (one contribution repeated), that with the signs of a pattern's
    first row (one contribution and its negative) and the trace (the mean over random signs), so equality shows that the
    absolute sum is the true value. What may be the largest is summed again, wide.
    """
    enclosed = matrix.enclosed_entries()
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
def two_stage(matrix: Matrix, separation: int, most: int) -> Fraction:
    """Bound on the square for any C: best selection within each row of |X|, then of the row values."""
    from factorize.numbers.wide_kernels import selected_sums

    enclosed = matrix.enclosed_entries()
    whole, left_out = enclosed.high, np.abs(enclosed.low) + enclosed.error
    signed = bool((whole < 0).any())
    magnitude, gram = np.abs(whole) if signed else whole, whole.T @ whole
    gram = np.abs(gram, out=gram)
    gram += (matrix.n + 2) * UNIT * (magnitude.T @ magnitude if signed else gram)
    if left_out.any():  # what the doubles of computed entries are not
        gram += around_products(magnitude, left_out)
    rows = np.empty(matrix.n)
    selected_sums(check_finite(gram), separation, most, rows)
    total = best_selection(rows, separation, most) * (1 + (2 * most + 16) * UNIT)
    if not math.isfinite(total):
        raise CertificateError("the sensitivity overflows double precision; scale C down")
    return Fraction(total)
