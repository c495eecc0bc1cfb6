"""Who may take part when, and what that makes of a strategy matrix: its sensitivity.

Indices are steps 0..n-1. A contribution is a vector of norm at most 1 in each step that the example or user takes part
in; the sensitivity of C is the largest norm of C u over all allowed patterns and all such u. Everything returned here
is rounded outwards and says whether it is exact (up to that rounding) or only an upper bound, and by which rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from factorize.errors import InvalidParticipation
from factorize.matrix import Matrix
from factorize.model import Count, Frozen
from factorize.rounding import UNIT, square_root_up, sum_of_squares_up

Kind = Literal["exact", "upper_bound"]

_PATTERNS = 16  # at a time, in Gram blocks


@dataclass(frozen=True)
class Sensitivity:
    """A sensitivity that says what it is.

    Attributes:
        value: never below the true sensitivity of the matrix whose bytes were read.
        kind: `exact` if the true value is within rounding (relative 1e-11) of `value`, else `upper_bound`.
        rule: the formula used.
        participation: the pattern it holds for, in the contract's JSON form.
    """

    value: float
    kind: Kind
    rule: str
    participation: dict[str, Any]

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

    def sensitivity(self, matrix: Matrix) -> Sensitivity:
        """Largest column norm: exact for every sign and dimension (mathematics, C.2)."""
        value = square_root_up(_largest_column(matrix))
        return Sensitivity(value, "exact", "column norms", self.document())


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

    def patterns(self, n: int) -> np.ndarray:
        """Return the patterns, shape (b, epochs): row j is {j, j + b, ...}."""
        return np.arange(n).reshape(self.epochs, n // self.epochs).T

    def sensitivity(self, matrix: Matrix) -> Sensitivity:
        """Leading pattern of a monotone Toeplitz matrix, sums of norms of a banded one, else absolute Gram sums.

        Reference: mathematics C.3, C.5, C.7, C.8 (docs/notation.md, sources).
        """
        separation = matrix.n // self.epochs
        if matrix.bandwidth() <= separation:
            norms = matrix.column_norms_squared() * (1 + (matrix.n + 8) * UNIT)
            total = float(norms.reshape(self.epochs, separation).sum(axis=0).max()) * (1 + (self.epochs + 8) * UNIT)
            return Sensitivity(square_root_up(total), "exact", "banded: sums of column norms", self.document())
        leading = _leading_pattern(matrix, separation, self.epochs)
        if leading is not None:
            return Sensitivity(*leading, self.document())
        upper, lower = _gram_sums(matrix, self.patterns(matrix.n))
        exact = upper <= lower * (1 + 1e-11)
        rule = "Gram block sums" if exact else "absolute sums of the Gram blocks"
        return Sensitivity(square_root_up(upper), "exact" if exact else "upper_bound", rule, self.document())


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

    def count(self, n: int) -> int:
        """Return the largest number of participations that fits in n steps."""
        fit = math.ceil(n / self.min_sep)
        return fit if self.max_participations is None else min(fit, self.max_participations)

    def sensitivity(self, matrix: Matrix) -> Sensitivity:
        """Banded, monotone Toeplitz, Toeplitz majorant or two-stage bound, whichever hypothesis holds (C.6-C.8)."""
        most = self.count(matrix.n)
        if matrix.bandwidth() <= self.min_sep:
            norms = matrix.column_norms_squared() * (1 + (matrix.n + 8) * UNIT)
            total = best_selection(norms, self.min_sep, most) * (1 + (most + 8) * UNIT)
            return Sensitivity(square_root_up(total), "exact", "banded: best selection of columns", self.document())
        leading = _leading_pattern(matrix, self.min_sep, most)
        if leading is not None:
            return Sensitivity(*leading, self.document())
        total = _two_stage(matrix, self.min_sep, most)
        return Sensitivity(square_root_up(total), "upper_bound", "two-stage Gram bound", self.document())


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


def _largest_column(matrix: Matrix) -> float:
    """Squared norm of the largest column, rounded up; re-summed exactly for every column that may be the largest."""
    norms = matrix.column_norms_squared()
    ceiling = float(norms.max())
    column = matrix.coefficients()
    if column is not None:
        return sum_of_squares_up(column)
    if matrix.structure != "dense":
        return ceiling * (1 + (matrix.n + 16) * UNIT)
    close = np.flatnonzero(norms >= ceiling * (1 - 2 * (matrix.n + 8) * UNIT))
    whole = matrix.dense()
    return max(sum_of_squares_up(whole[j:, j]) for j in close)


def _leading_pattern(matrix: Matrix, separation: int, most: int) -> tuple[float, Kind, str] | None:
    """Pattern {0, b, 2b, ...} of a Toeplitz matrix: worst if its coefficients are non-negative and do not increase.

    Otherwise the non-increasing majorant max_{s >= t} |c_s| gives an upper bound. Source: KL24, Theorem 2.
    """
    column = matrix.coefficients()
    if column is None:
        return None
    majorant = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    monotone = bool((column == majorant).all())
    total = np.zeros(matrix.n)
    for i in range(most):
        total[i * separation :] += majorant[: matrix.n - i * separation]
    squared = sum_of_squares_up(total * (1 + (most + 2) * UNIT))
    rule = "monotone Toeplitz: leading pattern" if monotone else "non-increasing majorant of the Toeplitz column"
    return square_root_up(squared), "exact" if monotone else "upper_bound", rule


def _gram_sums(matrix: Matrix, patterns: np.ndarray) -> tuple[float, float]:
    """Largest absolute Gram block sum over the patterns, rounded up, and a lower bound on the true squared value.

    The lower bound is the larger of the all-ones sum (one contribution repeated) and the trace (the mean over random
    signs), so equality shows that the absolute sum is the true value.
    """
    whole = matrix.dense()
    n, count = matrix.n, patterns.shape[1]
    allowance = (n + count + 2) * UNIT
    upper = lower = 0.0
    for start in range(0, len(patterns), _PATTERNS):
        some = patterns[start : start + _PATTERNS]
        # Neighbouring patterns hold neighbouring columns: fetched together, they share cache lines.
        columns = np.ascontiguousarray(np.take(whole, some.T.ravel(), axis=1).T)
        columns = columns.reshape(count, len(some), n).transpose(1, 0, 2)
        grams = columns @ columns.transpose(0, 2, 1)
        rows = np.abs(columns).sum(axis=1)  # the sum of all entries of |C|^T |C| is that of their squares
        safe = np.abs(grams).sum(axis=(1, 2)) + allowance * np.einsum("ji,ji->j", rows, rows)
        upper = max(upper, float(safe.max()) * (1 + (count**2 + 8) * UNIT))
        lower = max(lower, float(grams.sum(axis=(1, 2)).max()), float(np.einsum("jss->j", grams).max()))
    return upper, lower


def _two_stage(matrix: Matrix, separation: int, most: int) -> float:
    """Bound for any C: best selection within each row of |X|, then of the row values (mathematics, C.6)."""
    whole = matrix.dense()
    magnitude = np.abs(whole)
    gram = np.abs(whole.T @ whole) + (matrix.n + 2) * UNIT * (magnitude.T @ magnitude)
    rows = np.array([best_selection(row, separation, most) for row in gram])
    return best_selection(rows, separation, most) * (1 + (2 * most + 16) * UNIT)
