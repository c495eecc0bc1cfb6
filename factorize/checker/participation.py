"""Participations from their documents, one class per kind: which patterns of steps are allowed.

The rest of the checker asks these; a kind that is not here is refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from factorize.errors import InvalidParticipation

Document = Mapping[str, Any]


class Allowed(NamedTuple):
    """Patterns of at most `most` steps, `separation` or more apart; exactly that far, in fixed order, if `periodic`."""

    separation: int
    most: int
    periodic: bool


class AllowedKind(ABC):
    """What is asked of the documents of one kind."""

    @abstractmethod
    def allowed(self, given: Document, n: int) -> Allowed | None:
        """Return the patterns among n steps, or None where its numbers do not fit n."""

    def endless(self, given: Document) -> Allowed | None:
        """Return the patterns where there is no last step, or None where nothing bounds them."""
        return None


class _Single(AllowedKind):
    def allowed(self, given: Document, n: int) -> Allowed:
        return Allowed(n, 1, False)

    def endless(self, given: Document) -> Allowed:
        return Allowed(1, 1, False)


class _FixedEpochs(AllowedKind):
    def allowed(self, given: Document, n: int) -> Allowed | None:
        epochs = given["epochs"]
        return Allowed(n // epochs, epochs, True) if epochs >= 1 and n % epochs == 0 else None


class _MinSep(AllowedKind):
    def allowed(self, given: Document, n: int) -> Allowed | None:
        apart, most = given["min_sep"], given.get("max_participations")
        if not 1 <= apart <= n or (most is not None and most < 1):
            return None
        fit = math.ceil(n / apart)
        return Allowed(apart, fit if most is None else min(fit, most), False)

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


def _known(participation: Document) -> AllowedKind | None:
    kind = participation["kind"]
    return KINDS.get(kind) if isinstance(kind, str) else None


def _text(participation: Document) -> str:
    return str(dict(participation))[:80]
