"""Participations as the exact checker reads them: which patterns of steps are allowed, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from factorize.checker.participation import allowed
from factorize.errors import InvalidParticipation

MISSING = object()


def epochs(number: Any) -> dict[str, Any]:
    return {"kind": "fixed_epochs", "epochs": number}


def min_sep(apart: Any, most: Any = MISSING) -> dict[str, Any]:
    return {"kind": "min_sep", "min_sep": apart} | ({} if most is MISSING else {"max_participations": most})


def test_patterns_that_are_not() -> None:
    """A count below 1 would allow no step, and C any sensitivity."""
    other = {"kind": "poisson", "epochs": 1, "more": "x" * 99}
    for given in (
        epochs(0),
        epochs(-1),
        epochs(5),
        epochs(13),
        min_sep(0),
        min_sep(13),
        min_sep(3, 0),
        min_sep(13, 2),
        other,
    ):
        with pytest.raises(InvalidParticipation) as reason:
            allowed(given, 12)
        known = "this checker knows single, fixed_epochs, min_sep"
        assert str(reason.value) == f"participation {str(given)[:80]} does not fit n=12; {known}"
    for given in (epochs(2), min_sep(3), min_sep(3, None), min_sep(3, 0), min_sep(0, 3), other):
        with pytest.raises(InvalidParticipation) as reason:
            allowed(given, None)
        assert str(reason.value) == f"participation {str(given)[:80]} has no finite sensitivity without end"
