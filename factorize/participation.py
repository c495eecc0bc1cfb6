"""Participation: who may take part when, as plain data that knows no matrix and needs no package but numpy.

Indices are steps 0..n-1. A contribution is a vector of norm at most 1 in each step that the example or user takes part
in; the sensitivity of C is the largest norm of C u over all allowed patterns and all such u
(factorize/factors/sensitivity.py). A kind states the properties of its patterns, and nobody assumes any others.
Specs, files, training loops and clients all ask these classes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from factorize.errors import InvalidParameter, InvalidParticipation, UnsupportedProblem
from factorize.numbers.light_data import Document, LightData, Often, Steps

if TYPE_CHECKING:
    import numpy as np


class Spread(NamedTuple):
    """The distances of one user's steps; 0, separation, 2 separation and so on, `most` of them, is one of the patterns.

    Attributes:
        separation: smallest number of steps from one participation to the next; n where there is only one.
        most: largest number of participations.
        name: name of the separation in messages.
    """

    separation: int
    most: int
    name: str


def few_participations(n: int, separation: int, most: int) -> bool:
    """Return whether fewer than half as many are allowed as fit; steps far apart then overlap at the optimum."""
    return 2 * most * separation < n


class Participation(LightData):
    """A kind of participation, which states the properties of its patterns; nobody assumes others.

    Attributes:
        free: whether every choice of steps that `spread` allows is a pattern.
    """

    free = False

    def canonical(self, n: int) -> Participation:
        """Return the canonical form for n steps; raise InvalidParticipation where it does not fit."""
        return self

    def without_end(self) -> Participation:
        """Return the canonical form without a last step; raise InvalidParticipation where it needs a length."""
        raise InvalidParticipation(
            f"participation {self.kind!r} needs a number of steps, and n is 'unbounded'; give n, or use single or "
            "min_sep",
            field="/participation/kind",
        )

    def spread(self, n: int) -> Spread:
        """Return how one user's steps lie within n steps; raise UnsupportedProblem where the kind does not say."""
        raise UnsupportedProblem(
            f"participation {self.kind!r} does not define how many steps one user takes and how far apart they are; "
            "use single, fixed_epochs or min_sep"
        )

    def endless_spread(self) -> Spread | None:
        """Return how one user's steps lie where there is no last step, or None where nothing limits them."""
        return None

    def patterns(self, n: int) -> np.ndarray | None:
        """Return all patterns, shape (patterns, steps of one pattern), or None where they are not listed."""
        return None

    @property
    def passes(self) -> int | None:
        """The number of passes in which every step comes back at the same place; None where the order is not fixed."""
        return None

    def epoch(self, n: int) -> int | None:
        """Return the number of steps of a pass; None where the order is not fixed."""
        return None if self.passes is None else n // self.passes

    @property
    def single(self) -> bool:
        """Whether nobody takes part twice."""
        return self.passes == 1

    @property
    def periodic(self) -> bool:
        """Whether every step comes back at the same place of several passes."""
        return (self.passes or 1) > 1

    def violation(self, n: int, gaps: np.ndarray, most: int) -> str | None:
        """Return how an order of examples breaks the participation, or None where it does not.

        Args:
            n: steps of the factorization.
            gaps: distances between neighbouring steps of one example, shape (any,).
            most: the largest number of steps that one example is in.
        """
        return f"participation {self.kind!r} does not define which orders break it; use single, fixed_epochs or min_sep"


class Single(Participation):
    """Each example takes part in at most one step."""

    kind: Literal["single"] = "single"

    def without_end(self) -> Single:
        """Return the participation itself, which needs no length."""
        return self

    def spread(self, n: int) -> Spread:
        """Return a spread of one step, with no other to be apart from."""
        return Spread(n, 1, "n")

    def endless_spread(self) -> Spread:
        """Return a spread of one step."""
        return Spread(1, 1, "n")

    def patterns(self, n: int) -> np.ndarray:
        """Return a pattern for every step alone, shape (n, 1)."""
        import numpy as np

        return np.arange(n)[:, None]

    @property
    def passes(self) -> int:
        """The number of passes, which is one."""
        return 1

    def violation(self, n: int, gaps: np.ndarray, most: int) -> str | None:
        """Return the refusal of a second step, if there is one."""
        return f"one example is in {most} steps" if most > 1 else None


class FixedEpochs(Participation):
    """Fixed order, `epochs` passes: step j of each epoch sees the same examples; n = epochs x b exactly."""

    kind: Literal["fixed_epochs"]
    epochs: Steps

    def canonical(self, n: int) -> Single | FixedEpochs:
        """Return the same epochs, after a check that they divide n; one epoch is single participation."""
        if n % self.epochs:
            raise InvalidParticipation(
                f"n={n} is not a multiple of epochs={self.epochs}; use n={n - n % self.epochs or self.epochs} "
                "(drop or pad the last batches) or min_sep",
                field="/participation/epochs",
            )
        return Single() if self.epochs == 1 else self

    def without_end(self) -> Single:
        """Return single participation for one epoch; refuse several epochs, which have a length."""
        if self.epochs > 1:
            raise InvalidParticipation(
                f"epochs={self.epochs} needs a number of steps, and n is 'unbounded'; give n, or use min_sep with "
                "max_participations",
                field="/participation/kind",
            )
        return Single()

    def spread(self, n: int) -> Spread:
        """Return a spread of one step in each epoch, always the same one."""
        return Spread(n // self.epochs, self.epochs, "n / epochs")

    def patterns(self, n: int) -> np.ndarray:
        """Return the patterns, shape (b, epochs): row j is {j, j + b, ...}."""
        import numpy as np

        return np.arange(n).reshape(self.epochs, n // self.epochs).T

    @property
    def passes(self) -> int:
        """The number of epochs."""
        return self.epochs

    def violation(self, n: int, gaps: np.ndarray, most: int) -> str | None:
        """Return the refusal of two steps that are not whole epochs apart, if there are such."""
        separation = n // self.epochs
        wrong = gaps[gaps % separation != 0]
        return f"two steps of one example are {wrong[0]} apart, not a multiple of {separation}" if len(wrong) else None


class MinSep(Participation):
    """Any steps at least `min_sep` apart (inclusive), at most `max_participations` of them."""

    kind: Literal["min_sep"]
    min_sep: Steps
    max_participations: Often | None = None
    free = True

    def canonical(self, n: int) -> Single | MinSep:
        """Return the form that states the number of participations, or all that fit; one is single participation."""
        if self.min_sep > n:
            raise InvalidParticipation(
                f"min_sep={self.min_sep} exceeds n={n}, so nobody could take part twice; use 'single'",
                field="/participation/min_sep",
            )
        most = self.spread(n).most
        return Single() if most == 1 else MinSep(kind="min_sep", min_sep=self.min_sep, max_participations=most)

    def without_end(self) -> Single | MinSep:
        """Return the same, after a check that the participations are finitely many; one is single participation."""
        if self.max_participations is None:
            raise InvalidParticipation(
                "n is 'unbounded' and nothing limits the participations, so the sensitivity is infinite; give "
                "max_participations",
                field="/participation/max_participations",
            )
        return Single() if self.max_participations == 1 else self

    def spread(self, n: int) -> Spread:
        """Return a spread of as many steps as fit, `min_sep` apart."""
        fit = math.ceil(n / self.min_sep)
        most = fit if self.max_participations is None else min(fit, self.max_participations)
        return Spread(self.min_sep, most, "min_sep")

    def endless_spread(self) -> Spread | None:
        """Return a spread of as many steps as are given, or None where their number is not limited."""
        most = self.max_participations
        return None if most is None else Spread(self.min_sep, most, "min_sep")

    def violation(self, n: int, gaps: np.ndarray, most: int) -> str | None:
        """Return the refusal of two steps that are too close, or of too many of them, if there are such."""
        closest = int(gaps.min(initial=n))
        if closest < self.min_sep:
            return f"two steps of one example are {closest} apart, below min_sep={self.min_sep}"
        allowed = self.max_participations or n
        return f"one example is in {most} steps, above {allowed}" if most > allowed else None


AnyParticipation = Single | FixedEpochs | MinSep
"""All kinds of participation; the register below and the spec's union follow from this."""

KINDS: dict[str, type[AnyParticipation]] = {kind.named(): kind for kind in get_args(AnyParticipation)}
"""The register of all kinds of participation, by the contract's name."""


def read_participation(given: Document) -> AnyParticipation:
    """Return the participation that a document describes; raise InvalidParticipation where it describes none."""
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidParticipation(
            f"participation {str(dict(given))[:80]} has an unknown kind; use one of {', '.join(KINDS)}",
            field="/participation/kind",
        )
    try:
        return KINDS[kind].read(given)
    except InvalidParameter as reason:
        raise InvalidParticipation(str(reason), field="/participation") from None


def example_indices(values: object, *, field: str) -> np.ndarray:
    """Return the indices of a step's examples, shape (examples,).

    An index below 0 would be a second name of an example, which no count of its steps would see; an index of 2^63 or
    more would become one below 0.

    Raises:
        InvalidParameter: an index is no integer, below 0, or 2^63 or more.
    """
    import numpy as np

    array = np.asarray(values)
    whole = array.dtype.kind in "iu" and not np.ma.is_masked(values)
    if array.size and (not whole or array.min() < 0 or int(array.max()) >= 1 << 63):
        raise InvalidParameter(
            "indices of examples must be integers from 0 to 2^63 - 1; give positions in the data", field=field
        )
    return array.reshape(-1).astype(np.int64)


def is_canonical(given: dict[str, object], n: int | None) -> bool:
    """Return whether a document is a participation in its canonical form, for n steps or for no last step."""
    try:
        participation = read_participation(given)
        canonical = participation.without_end() if n is None else participation.canonical(n)
    except InvalidParticipation:
        return False
    return canonical.document() == dict(given)
