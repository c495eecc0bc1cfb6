"""The picture of a comparison has a colour for every sampling that a row may count on."""

from __future__ import annotations

from factorize.accounting.schemes import SAMPLINGS
from factorize.api.pictures.views import COLOURS


def test_every_sampling_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == set(SAMPLINGS) and len(set(COLOURS.values())) == len(SAMPLINGS)
