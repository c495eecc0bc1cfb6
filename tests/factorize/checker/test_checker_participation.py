"""Participations as the exact checker reads them: which patterns of steps are allowed, and what is refused."""

from __future__ import annotations

import pytest

from factorize.checker.participation import allowed
from factorize.errors import InvalidParticipation

EPOCHS, APART = {"kind": "fixed_epochs"}, {"kind": "min_sep"}
OTHER = {"kind": "poisson", "epochs": 1, "more": "x" * 99}


def test_patterns_that_are_not() -> None:
    """A count below 1 would allow no step, and C any sensitivity."""
    for given, n in [
        *((EPOCHS | {"epochs": count}, 12) for count in (0, -1, 5, 13)),
        *((APART | {"min_sep": apart}, 12) for apart in (0, 13)),
        *((APART | {"min_sep": apart, "max_participations": most}, 12) for apart, most in ((3, 0), (13, 2))),
        (OTHER, 12),
        *(
            (APART | {"min_sep": apart, "max_participations": most}, None)
            for apart, most in ((3, None), (3, 0), (0, 3))
        ),
        *((given, None) for given in (EPOCHS | {"epochs": 2}, APART | {"min_sep": 3}, OTHER)),
    ]:
        with pytest.raises(InvalidParticipation) as reason:
            allowed(given, n)
        if any(type(count) is int and count < 1 for count in given.values()):
            assert str(reason.value).endswith("it must be a whole number of at least 1")
            continue
        fits = "does not fit n=12; this checker knows single, fixed_epochs, min_sep"
        assert str(reason.value) == f"participation {str(given)[:80]} " + (
            fits if n else "has no finite sensitivity if n is 'unbounded'"
        )
