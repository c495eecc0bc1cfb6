"""Pairs of moments: the bounds of the theorem from brackets by hand, and what is said of a statement at their ends."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from factorize.errors import CertificateError
from factorize.exact import moment_pairs
from factorize.exact.sensitivity import Bracket

SINGLE, EPOCHS = {"kind": "single"}, {"kind": "fixed_epochs", "epochs": 2}


def bracket(low: float, high: float, pattern: tuple[int, ...] = (0, 3), signs: tuple[int, ...] = (1, 1)) -> Bracket:
    return Bracket(lower=Fraction(low), upper=Fraction(high), rule="by hand", pattern=pattern, signs=signs)


def test_one_vector_attains_both_where_pattern_and_signs_agree() -> None:
    two, weight = bracket(5, 6), Fraction(2)
    for one, together in (
        (bracket(3, 4), True),
        (bracket(3, 4, pattern=(0, 2)), False),
        (bracket(3, 4, signs=(1, -1)), False),
        (bracket(3, 4, signs=(-1, -1)), False),
    ):
        low, high, why = moment_pairs._pair(one, two, weight, EPOCHS, "zero_out")
        assert (low, high) == (3 + 10 if together else 3, 4 + 12)
        assert why.startswith("one unit vector" if together else "a sum")
    assert moment_pairs._pair(two, bracket(3, 4, signs=(1, -1)), weight, EPOCHS, "zero_out")[0] == 5


def test_a_replaced_contribution() -> None:
    """With a and 2 b = 2 weight |C2|^2: above 2 b the first alone; up to 2 b the largest of a t + b (2 t - t^2 / 2)."""
    two, weight = bracket(1, 2), Fraction(3)  # twice the most is 12
    for one, high, why in (
        (bracket(12, 13), Fraction(13), "opposite"),
        (bracket(11.5, 13), Fraction(13 + 6), "a sum"),
        (bracket(7, 8), Fraction((8 + 12) ** 2, 48), "the largest"),
        (bracket(11, 12), Fraction((12 + 12) ** 2, 48), "the largest"),
    ):
        low, found, said = moment_pairs._pair(one, two, weight, SINGLE, "replace_one")
        assert low == one.lower and found == high and said.startswith(why)
    assert moment_pairs._pair(bracket(12, 13), two, weight, EPOCHS, "replace_one")[:2] == (12, 19)
    with pytest.raises(CertificateError, match="not known here"):
        moment_pairs._pair(two, two, weight, SINGLE, "add_remove")


def stated(
    monkeypatch: pytest.MonkeyPatch, lower: Fraction, upper: Fraction, **changed: Any
) -> moment_pairs.CheckedMoments:
    file = SimpleNamespace(manifest={"digest": "d"})
    monkeypatch.setattr(moment_pairs, "read_factor_file", lambda _: file)
    monkeypatch.setattr(moment_pairs, "_bracket", lambda *_: None)
    monkeypatch.setattr(moment_pairs, "_pair", lambda *_: (lower, upper, "by hand"))
    statement = {
        **{"digests": ["d", "d"], "participation": SINGLE, "weight": 1.0, "adjacency": "zero_out"},
        **{"sensitivity": 2.0, "sensitivity_kind": "exact", **changed},
    }
    return moment_pairs.check_moments(b"", b"", statement)


def test_what_is_stated_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It covers the upper end, and is exact where the lower end times 1 + 2^-40 reaches its square."""
    least, unit = Fraction(4) / (1 + Fraction(1, 2**40)), Fraction(1, 2**80)
    assert stated(monkeypatch, least, Fraction(4)).supported
    assert not stated(monkeypatch, least, Fraction(4) + unit).supported
    assert not stated(monkeypatch, least - unit, Fraction(4)).supported
    assert stated(monkeypatch, least - unit, Fraction(4), sensitivity_kind="upper_bound").supported
    assert not stated(monkeypatch, least, Fraction(4) + unit, sensitivity_kind="upper_bound").supported
    for weight in (0.0, -1.0):
        with pytest.raises(CertificateError, match="not positive"):
            stated(monkeypatch, least, Fraction(4), weight=weight)
    with pytest.raises(CertificateError, match="these files are"):
        stated(monkeypatch, least, Fraction(4), digests=["d", "e"])
