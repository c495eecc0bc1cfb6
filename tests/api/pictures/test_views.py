"""Pictures of several results: what they show is right, and each can be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from specs import solved

from factorize.api.pictures.views import COLOURS, VIEWS, last_step, picture, spectrum
from factorize.errors import InvalidParameter
from factorize.factors.factorization import Factorization
from factorize.samplings import SAMPLINGS


@pytest.fixture(scope="module")
def results() -> list[Factorization]:
    return [solved(64, {"kind": "nu_toeplitz", "nu": 0.1}), solved(64, {"kind": "buffered_linear", "buffers": 3})]


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_drawn(view: str, results: list[Factorization], tmp_path: Any) -> None:
    shown = results[:1] if view == "overview" else results
    path = tmp_path / "picture.png"
    picture(view, shown, ["B", "C"]).savefig(path, dpi=60)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_every_sampling_has_a_colour_of_its_own_in_a_comparison() -> None:
    assert set(COLOURS) == set(SAMPLINGS) and len(set(COLOURS.values())) == len(SAMPLINGS)


def test_coefficients_are_the_last_row_of_the_noising_matrix() -> None:
    taps = last_step(solved(8, {"kind": "nu_toeplitz", "nu": 0.1}))
    np.testing.assert_allclose(taps[:4], [1.0, -0.45, -0.10125, -0.0455625], rtol=1e-14)


def test_the_spectrum_of_a_difference_is_known() -> None:
    frequencies, power = spectrum(np.array([1.0, -1.0]))
    np.testing.assert_allclose(power, 4 * np.sin(frequencies / 2) ** 2, rtol=1e-9)
    assert 0 < frequencies[0] < 1e-3 and frequencies[-1] == pytest.approx(np.pi)


def test_redraws_are_a_line_of_their_own_in_the_view_of_memory() -> None:
    """A spec that does not name them has those of all epochs."""
    mechanism, epochs = {"kind": "buffered_linear", "buffers": 1}, {"kind": "fixed_epochs", "epochs": 2}
    both = [solved(8, one, epochs, tolerance=0.1) for one in (mechanism, {**mechanism, "redraws": 0})]
    labels = picture("memory", both, ["C"]).axes[0].get_legend_handles_labels()[1]
    assert labels == ["buffered_linear with redraws", "buffered_linear"]


def test_what_cannot_be_drawn_is_refused(results: list[Factorization]) -> None:
    with pytest.raises(InvalidParameter, match="overview, matrices"):
        picture("colours", results, ["C"])
    with pytest.raises(InvalidParameter, match="shows 1 to 1 factorizations, not 2"):
        picture("overview", results, ["C"])
    unbounded = solved(64, "square_root", {"kind": "min_sep", "min_sep": 4}, "max")
    assert unbounded.certificate.relative_gap is None
    with pytest.raises(InvalidParameter, match="no certified lower bound"):
        picture("memory", [unbounded], ["C"])
