"""Participation: who may take part when, and by which rule that makes a sensitivity of a strategy matrix.

Indices are steps 0..n-1. A contribution is a vector of norm at most 1 in each step that the example or user takes part
in; the sensitivity of C is the largest norm of C u over all allowed patterns and all such u.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from factorize.certificate.sensitivity import Sensitivity, gram_blocks, of_bound, of_endless, of_toeplitz, two_stage
from factorize.errors import InvalidParticipation, UnsupportedProblem
from factorize.numbers.pattern_sums import attained_selection, best_periodic, best_separated
from factorize.numbers.wide import root_above
from factorize.plain_data import Count, Frozen
from factorize.structures.base import Matrix
from factorize.structures.endless import EndlessMatrix

_GRAM_BESIDE = 2048  # up to here Gram blocks, right to the last unit, are preferred to a structure's own sums
_WIDE_WORK = 1 << 27  # steps of a selection that are repeated in wide numbers, to be right to the last unit
_TWO_STAGE_BESIDE = 4096  # up to here a structure's own upper bound is compared with the two-stage one


class Spread(NamedTuple):
    """How one user's steps lie apart.

    Attributes:
        separation: smallest number of steps from one to the next; n where there is only one.
        most: largest number of them.
        name: of the separation, for messages.
    """

    separation: int
    most: int
    name: str


class Participation(Frozen):
    """A kind of participation; each says itself how its steps lie apart, and nobody assumes it of an unknown one."""

    kind: str

    def spread(self, n: int) -> Spread:
        """Return how they lie within n steps.

        Raises:
            UnsupportedProblem: the kind does not say.
        """
        raise UnsupportedProblem(
            f"participation {self.kind!r} does not say how far apart and how many the steps of one user are; use "
            "single, fixed_epochs or min_sep"
        )


class Single(Participation):
    """Each example takes part in at most one step."""

    kind: Literal["single"] = "single"

    def canonical(self, n: int) -> Single:
        """Itself."""
        return self

    def without_end(self) -> Single:
        """Itself."""
        return self

    def spread(self, n: int) -> Spread:
        """One step, with no other to be apart from."""
        return Spread(n, 1, "n")

    def sensitivity(self, matrix: Matrix) -> Sensitivity:
        """Largest column norm: exact for every sign and dimension."""
        if isinstance(matrix, EndlessMatrix):
            return of_endless(matrix, 1, 1, self.document())
        return Sensitivity(root_above(matrix.largest_column()), "exact", "column norms", self.document())


class FixedEpochs(Participation):
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

    def spread(self, n: int) -> Spread:
        """One step in each epoch, always the same one."""
        return Spread(n // self.epochs, self.epochs, "n / epochs")

    def patterns(self, n: int) -> np.ndarray:
        """Return the patterns, shape (b, epochs): row j is {j, j + b, ...}."""
        return np.arange(n).reshape(self.epochs, n // self.epochs).T

    def sensitivity(self, matrix: Matrix) -> Sensitivity:
        """Leading pattern of a monotone Toeplitz matrix, sums of norms of a banded one, else absolute Gram sums.

        Reference: docs/sensitivity.md.
        """
        separation = matrix.n // self.epochs
        if matrix.bandwidth() <= separation:
            total = best_periodic(matrix.enclosed_column_norms(), self.epochs)
            return Sensitivity(root_above(total), "exact", "banded: sums of column norms", self.document())
        toeplitz = of_toeplitz(matrix, separation, self.epochs, self.document())
        if toeplitz is not None:
            return toeplitz
        own = matrix.fixed_order_bound(self.epochs) if matrix.n > _GRAM_BESIDE else None
        if own is not None:
            return of_bound(own, self.document())
        upper, lower = gram_blocks(matrix, self.patterns(matrix.n))
        exact = upper <= lower * (1 + 1e-11)
        rule = "Gram block sums" if exact else "absolute sums of the Gram blocks"
        return Sensitivity(root_above(upper), "exact" if exact else "upper_bound", rule, self.document())


class MinSep(Participation):
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

    def spread(self, n: int) -> Spread:
        """As many steps as fit, `min_sep` apart."""
        return Spread(self.min_sep, self.count(n), "min_sep")

    def count(self, n: int) -> int:
        """Return the largest number of participations that fits in n steps."""
        fit = math.ceil(n / self.min_sep)
        return fit if self.max_participations is None else min(fit, self.max_participations)

    def sensitivity(self, matrix: Matrix) -> Sensitivity:
        """Banded, monotone Toeplitz, Toeplitz majorant or two-stage bound, whichever hypothesis holds.

        Reference: docs/sensitivity.md.
        """
        if isinstance(matrix, EndlessMatrix) and self.max_participations is not None:
            return of_endless(matrix, self.min_sep, self.max_participations, self.document())
        most = self.count(matrix.n)
        if matrix.bandwidth() <= self.min_sep:
            selected = best_separated(matrix.enclosed_column_norms(), self.min_sep, most)
            return Sensitivity(root_above(selected), "exact", "banded: best selection of columns", self.document())
        toeplitz = of_toeplitz(matrix, self.min_sep, most, self.document())
        if toeplitz is not None:
            return toeplitz
        own = matrix.separated_bound(self.min_sep, most)
        if own is not None and own.exact and matrix.n**2 * most <= _WIDE_WORK:
            attained = attained_selection(matrix.dense(), self.min_sep, most)
            if attained is not None:
                return Sensitivity(root_above(attained), "exact", own.rule, self.document())
        if own is not None and (own.exact or matrix.n > _TWO_STAGE_BESIDE):
            return of_bound(own, self.document())
        total = two_stage(matrix, self.min_sep, most)
        if own is not None and own.squared <= total:
            return of_bound(own, self.document())
        return Sensitivity(root_above(total), "upper_bound", "two-stage Gram bound", self.document())


AnyParticipation = Annotated[Single | FixedEpochs | MinSep, Field(discriminator="kind")]
