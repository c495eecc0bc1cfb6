"""Participations from their documents, one class per kind: which patterns of steps are allowed, and what is canonical.

The rest of the checker asks these; a kind that is not here is refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from factorize.errors import CorruptObject, InvalidParticipation

Document = Mapping[str, Any]


class Allowed(NamedTuple):
    """Patterns of at most `most` steps, `separation` or more apart; exactly that far, in fixed order, if `periodic`."""

    separation: int
    most: int
    periodic: bool


class AllowedKind(ABC):
    """What is asked of the documents of one kind.

    Attributes:
        numbers: names of its whole numbers, in the canonical form.
    """

    numbers: frozenset[str] = frozenset()

    @abstractmethod
    def allowed(self, given: Document, n: int) -> Allowed | None:
        """Return the patterns among n steps, or None where its numbers do not fit n."""

    @abstractmethod
    def canonical(self, given: Document, n: int | None) -> bool:
        """Whether numbers that are at least 1 fit n steps, or no last step, and no simpler kind says the same."""

    def endless(self, given: Document) -> Allowed | None:
        """Return the patterns where there is no last step, or None where nothing bounds them."""
        return None


class _Single(AllowedKind):
    def allowed(self, given: Document, n: int) -> Allowed:
        return Allowed(n, 1, False)

    def canonical(self, given: Document, n: int | None) -> bool:
        return True

    def endless(self, given: Document) -> Allowed:
        return Allowed(1, 1, False)


class _FixedEpochs(AllowedKind):
    numbers = frozenset({"epochs"})

    def allowed(self, given: Document, n: int) -> Allowed | None:
        epochs = given["epochs"]
        return Allowed(n // epochs, epochs, True) if epochs >= 1 and n % epochs == 0 else None

    def canonical(self, given: Document, n: int | None) -> bool:
        return n is not None and given["epochs"] > 1 and n % given["epochs"] == 0


class _MinSep(AllowedKind):
    numbers = frozenset({"min_sep", "max_participations"})

    def allowed(self, given: Document, n: int) -> Allowed | None:
        apart, most = given["min_sep"], given.get("max_participations")
        if not 1 <= apart <= n or (most is not None and most < 1):
            return None
        fit = math.ceil(n / apart)
        return Allowed(apart, fit if most is None else min(fit, most), False)

    def canonical(self, given: Document, n: int | None) -> bool:
        return given["max_participations"] > 1 and (n is None or given["min_sep"] <= n)

    def endless(self, given: Document) -> Allowed | None:
        apart, most = given["min_sep"], given.get("max_participations")
        return None if most is None or most < 1 or apart < 1 else Allowed(int(apart), int(most), False)


KINDS: dict[str, AllowedKind] = {"single": _Single(), "fixed_epochs": _FixedEpochs(), "min_sep": _MinSep()}
"""Every kind that this checker knows."""


def allowed(participation: Document, n: int) -> Allowed:
    """Read a participation in n steps.

    Raises:
        InvalidParticipation: unknown, or it does not fit n. A count below 1 would allow no step, and C any sensitivity.
    """
    known = _known(participation)
    found = known.allowed(participation, n) if known else None
    if found is None:
        raise InvalidParticipation(
            f"participation {_text(participation)} does not fit n={n}; this checker knows {', '.join(KINDS)}"
        )
    return found


def allowed_endless(participation: Document) -> Allowed:
    """Read a participation where there is no last step.

    Raises:
        InvalidParticipation: unknown, or nothing bounds how often one takes part.
    """
    known = _known(participation)
    found = known.endless(participation) if known else None
    if found is None:
        raise InvalidParticipation(f"participation {_text(participation)} has no finite sensitivity without end")
    return found


def check_canonical(participation: Document, n: int | None) -> None:
    """Refuse what is not written as a spec's canonical form has it, for n steps or for no last step.

    Raises:
        CorruptObject: it is not, or of an unknown kind.
    """
    numbers = {name: value for name, value in participation.items() if name != "kind"}
    known = _known(participation)
    whole = all(type(number) is int and number >= 1 for number in numbers.values())
    if known is None or not whole or set(numbers) != known.numbers or not known.canonical(participation, n):
        raise CorruptObject(f"{_text(participation)} is no participation of the {n} steps of the spec")


def _known(participation: Document) -> AllowedKind | None:
    kind = participation["kind"]
    return KINDS.get(kind) if isinstance(kind, str) else None


def _text(participation: Document) -> str:
    return str(dict(participation))[:80]
