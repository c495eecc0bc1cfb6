"""Participations as plain documents: what is canonical, how often one user may take part, what breaks them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from factorize.errors import InvalidParticipation
from factorize.participation import is_canonical, read_participation

SINGLE = {"kind": "single"}
EPOCHS = {"kind": "fixed_epochs", "epochs": 3}
SEPARATED = {"kind": "min_sep", "min_sep": 4, "max_participations": 2}


@pytest.mark.parametrize("given", [{}, {"kind": "x"}, {"kind": None}, {"kind": ["single"]}])
def test_kinds_that_are_not_known(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidParticipation, match="use one of single, fixed_epochs, min_sep"):
        read_participation(given)
    assert not is_canonical(given, 4)


@pytest.mark.parametrize(
    ("given", "n", "fits"),
    [
        (SINGLE, 1, True),
        (SINGLE, None, True),
        ({**SINGLE, "epochs": 1}, 4, False),
        (EPOCHS, 12, True),
        (EPOCHS, 13, False),
        (EPOCHS, None, False),
        ({**EPOCHS, "epochs": 2}, 2, True),
        ({**EPOCHS, "epochs": 1}, 4, False),
        ({**EPOCHS, "epochs": 0}, 4, False),
        ({**EPOCHS, "epochs": -3}, 12, False),
        ({**EPOCHS, "epochs": 3.0}, 12, False),
        ({**EPOCHS, "epochs": True}, 12, False),
        ({**EPOCHS, "epochs": "3"}, 12, False),
        ({**EPOCHS, "min_sep": 4}, 12, False),
        ({"kind": "fixed_epochs"}, 12, False),
        (SEPARATED, 8, True),
        (SEPARATED, 5, True),
        (SEPARATED, 4, False),
        (SEPARATED, 3, False),
        (SEPARATED, None, True),
        ({**SEPARATED, "min_sep": 1}, 8, True),
        ({**SEPARATED, "min_sep": 0}, 8, False),
        ({**SEPARATED, "max_participations": 1}, 8, False),
        ({**SEPARATED, "max_participations": None}, 8, False),
        ({"kind": "min_sep", "min_sep": 4}, 8, False),
    ],
)
def test_canonical_forms(given: dict[str, Any], n: int | None, fits: bool) -> None:
    assert is_canonical(given, n) is fits


@pytest.mark.parametrize(
    ("given", "gaps", "most", "said"),
    [
        (SINGLE, [3], 2, "one example is in 2 steps"),
        (EPOCHS, [8, 3, 5], 3, "two steps of one example are 3 apart, not a multiple of 4"),
        (SEPARATED, [5, 3], 2, "two steps of one example are 3 apart, below min_sep=4"),
        (SEPARATED, [4, 4], 3, "one example is in 3 steps, above 2"),
        ({**SEPARATED, "max_participations": None}, [4], 12, None),
        ({**SEPARATED, "max_participations": None}, [4], 13, "one example is in 13 steps, above 12"),
        ({**SEPARATED, "min_sep": 13}, [], 1, "two steps of one example are 12 apart, below min_sep=13"),
    ],
)
def test_what_breaks_them_in_words(given: dict[str, Any], gaps: list[int], most: int, said: str | None) -> None:
    """What is allowed stands in test_auditor.py, against a count by hand."""
    assert read_participation(given).violation(12, np.array(gaps, dtype=np.int64), most) == said
