"""What the exact checker says of a claimed sensitivity, sentence by sentence."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from factorize.checker.report import NO_RULE, Report, check_claim
from factorize.checker.sensitivity import Bracket


def column(lower: Fraction | int = 1, upper: Fraction | int = 1) -> Bracket:
    return Bracket(Fraction(lower), Fraction(upper), "column norms", (3,), (1,))


def said(bracket: Bracket, claim: float, kind: str | None) -> Report:
    report = Report()
    check_claim(report, bracket, claim, kind=kind)
    return report


def test_an_exact_claim_that_is_true() -> None:
    report = said(column(), 1.0, "exact")
    assert report.checked == [
        "sensitivity 1.0 is not below the true one (it is 1.0 within 1e-9 by column norms)",
        "the sensitivity is exact within 1e-9: column 3 attains 1.0",
    ]
    assert report.supported and not report.not_checked
    assert (report.sensitivity["pattern"], report.sensitivity["signs"], report.sensitivity["off"]) == ([3], [1], 0.0)


@pytest.mark.parametrize("claim", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_claims_that_are_no_positive_numbers(claim: float) -> None:
    report = said(column(), claim, "exact")
    assert report.failed == [f"the claimed sensitivity {claim!r} is not a positive number"] and not report.checked


def test_a_claim_between_the_ends() -> None:
    report = said(column(1, 4), 1.0, "upper_bound")
    assert report.failed == ["the sensitivity 1.0 is not supported: it is between 1.0 and 2.0 by column norms"]
    assert report.not_checked == ["where the sensitivity lies between 1.0 (column 3) and 2.0"]
    assert said(column(1, 4), math.nextafter(2.0, 0.0), None).failed and said(column(1, 4), 2.0, None).supported


def test_exact_claims_are_attained_within_a_billionth() -> None:
    """By 2e-9 of the square; an upper bound beyond is not exact."""
    claim = 1.25
    least = Fraction(claim) ** 2 / (1 + Fraction(2, 10**9))
    assert said(column(least, least), claim, "exact").supported
    beyond = least * (1 - Fraction(1, 2**80))
    failed = said(column(beyond, beyond), claim, "exact").failed
    assert len(failed) == 1 and failed[0].startswith("the sensitivity is claimed to be exact, but it is 1.2")
    assert said(column(beyond, beyond), claim, "upper_bound").supported


def test_every_claim_has_one_status() -> None:
    """False if a part is, proved if all parts that were met are, and not looked at where nobody came by."""
    report = Report(stated=("a", "b", "c", "d"))
    report.prove("holds", of="a")
    report.prove("holds too", of="a")
    report.prove("holds", of="b")
    report.leave("a part is out of reach", of=["b", "unstated"])
    report.require(False, "holds", "does not hold", of="c")
    report.prove("holds", of="c")
    assert report.claims == [
        {"claim": "a", "status": "proved", "why": "holds; holds too"},
        {"claim": "b", "status": "not_looked_at", "why": "a part is out of reach"},
        {"claim": "c", "status": "false", "why": "does not hold"},
        {"claim": "d", "status": "not_looked_at", "why": "the check stopped before it: does not hold"},
    ]
    assert report.unseen == ["b", "d"] and not report.supported
    assert Report(stated=("d",)).claims[0]["why"] == NO_RULE
