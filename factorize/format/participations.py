"""Participations as plain documents, for readers that have no packages that parse specs.

One class per kind says what files, training loops and clients ask: whether a document is in canonical form, how often
one user may take part, and what in an order of examples breaks it. Of another kind nothing is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Document = Mapping[str, Any]


class PlainParticipation(ABC):
    """What is asked of the documents of one kind."""

    fields: frozenset[str]

    def canonical(self, given: Document, n: int | None) -> bool:
        """Whether a document is in canonical form for n steps, or for no last step: whole numbers that fit n."""
        rest = {name: value for name, value in given.items() if name != "kind"}
        whole = all(type(value) is int and value >= 1 for value in rest.values())
        return whole and set(rest) == self.fields and self.fits(given, n)

    @abstractmethod
    def fits(self, given: Document, n: int | None) -> bool:
        """Whether the numbers fit n steps, and a simpler participation does not say the same."""

    @abstractmethod
    def most(self, given: Document, n: int) -> int:
        """Return how often one user may take part in n steps, at most."""

    @abstractmethod
    def violation(self, given: Document, n: int, gaps: np.ndarray, most: int) -> str | None:
        """Return what breaks the participation, or None; see `violation`."""


class _Single(PlainParticipation):
    fields = frozenset()

    def fits(self, given: Document, n: int | None) -> bool:
        return True

    def most(self, given: Document, n: int) -> int:
        return 1

    def violation(self, given: Document, n: int, gaps: np.ndarray, most: int) -> str | None:
        return f"one example is in {most} steps" if most > 1 else None


class _FixedEpochs(PlainParticipation):
    fields = frozenset({"epochs"})

    def fits(self, given: Document, n: int | None) -> bool:
        return n is not None and given["epochs"] > 1 and n % given["epochs"] == 0

    def most(self, given: Document, n: int) -> int:
        return int(given["epochs"])

    def violation(self, given: Document, n: int, gaps: np.ndarray, most: int) -> str | None:
        separation = n // int(given["epochs"])
        wrong = gaps[gaps % separation != 0]
        return f"two steps of one example are {wrong[0]} apart, no multiple of {separation}" if len(wrong) else None


class _MinSep(PlainParticipation):
    fields = frozenset({"min_sep", "max_participations"})

    def fits(self, given: Document, n: int | None) -> bool:
        return given["max_participations"] >= 2 and (n is None or given["min_sep"] <= n)

    def most(self, given: Document, n: int) -> int:
        fit, most = -(-n // int(given["min_sep"])), given.get("max_participations")
        return fit if most is None else min(fit, int(most))

    def violation(self, given: Document, n: int, gaps: np.ndarray, most: int) -> str | None:
        closest, limit = int(gaps.min(initial=n)), int(given["min_sep"])
        if closest < limit:
            return f"two steps of one example are {closest} apart, below min_sep={limit}"
        allowed = given.get("max_participations") or n
        return f"one example is in {most} steps, above {allowed}" if most > allowed else None


PLAIN: dict[str, PlainParticipation] = {"single": _Single(), "fixed_epochs": _FixedEpochs(), "min_sep": _MinSep()}
"""By kind."""


def plain(given: Document) -> PlainParticipation | None:
    """Return what is known of the kind of a document, or None of an unknown kind."""
    kind = given.get("kind")
    return PLAIN.get(kind) if isinstance(kind, str) else None


def violation(given: Document, n: int, gaps: np.ndarray, most: int) -> str | None:
    """Return what breaks a participation, or None.

    Args:
        given: in the contract's JSON form.
        n: steps of the factorization.
        gaps: distances between neighbouring steps of one example, shape (any,).
        most: the most steps that one example is in.
    """
    known = plain(given)
    return "a participation of that kind is not known" if known is None else known.violation(given, n, gaps, most)
