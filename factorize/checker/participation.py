"""Participations from their documents, one function per kind, with the patterns of steps that each allows.

The rest of the checker uses this register; a kind that is not in it is refused.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from factorize.errors import InvalidParticipation

Document = Mapping[str, Any]


class Allowed(NamedTuple):
    """Patterns of at most `most` steps, `separation` or more apart; exactly that far, in fixed order, if `periodic`."""

    separation: int
    most: int
    periodic: bool


def _whole(document: Document, name: str) -> int | None:
    """Return a whole number of at least 1, or None where there is none; 1.0 and true are not accepted."""
    value = document.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidParticipation(f"{name} is {str(value)[:40]!r}; it must be a whole number of at least 1")
    return value


def _fixed_epochs(document: Document, n: int | None) -> Allowed | None:
    epochs = _whole(document, "epochs")
    return Allowed(n // epochs, epochs, True) if n is not None and epochs and n % epochs == 0 else None


def _min_sep(document: Document, n: int | None) -> Allowed | None:
    apart, most = (_whole(document, name) for name in ("min_sep", "max_participations"))
    if apart is None or (most is None if n is None else apart > n):
        return None
    fit = most if n is None else -(-n // apart)
    assert fit is not None
    return Allowed(apart, fit if most is None else min(fit, most), False)


KINDS: dict[str, tuple[Callable[[Document, int | None], Allowed | None], set[str]]] = {
    "single": (lambda _, n: Allowed(n or 1, 1, False), {"kind"}),
    "fixed_epochs": (_fixed_epochs, {"kind", "epochs"}),
    "min_sep": (_min_sep, {"kind", "min_sep", "max_participations"}),
}
"""The reader of each kind, and its keys. Without end n is None; the reader returns None where numbers do not fit."""


def allowed(participation: Document, n: int | None) -> Allowed:
    """Read a participation in n steps.

    Args:
        participation: its document.
        n: number of steps, None where there is no last step.

    Raises:
        InvalidParticipation: it is unknown, does not fit n, or does not bound how often an example takes part. A count
            below 1 is refused since it would allow no step, so that any sensitivity would be proved.
    """
    kind = participation["kind"]
    read, keys = KINDS.get(kind, (None, set[str]())) if isinstance(kind, str) else (None, set[str]())
    form = read(participation, n) if read and set(participation) <= keys else None
    if form is None:
        text = f"participation {str(dict(participation))[:80]}"
        if n is None:
            raise InvalidParticipation(f"{text} has no finite sensitivity if n is 'unbounded'")
        raise InvalidParticipation(f"{text} does not fit n={n}; this checker knows {', '.join(KINDS)}")
    return form


def pattern_sums(column: np.ndarray, form: Allowed) -> np.ndarray:
    """Return c_t + c_{t-b} + ... of at most `most` terms: sums of 1, 2, 4, ... terms put together, so none cancel."""
    total, terms = np.zeros_like(column), 0
    doubled, size = column.copy(), 1
    for bit in range(form.most.bit_length()):
        if form.most >> bit & 1:
            total[terms * form.separation :] += doubled[: max(len(column) - terms * form.separation, 0)]
            terms += size
        reach = size * form.separation
        if reach < len(column):
            doubled[reach:] = doubled[reach:] + doubled[:-reach]
        size *= 2
    return total
