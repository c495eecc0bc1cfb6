"""What the exact checker says of a file: what is proved, what fails, and what was not looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from factorize.exact.sensitivity import Bracket, square_root_down, square_root_up

_SHOWN = 16


@dataclass
class Report:
    """Findings, in the order in which they were made.

    Attributes:
        checked: sentences that are proved.
        failed: claims that do not hold, or that could not be supported.
        not_checked: what nobody should take from this report.
        warnings: what is legal and often a mistake.
        sensitivity: bracket, rule and witness; empty before it is known.
    """

    checked: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    sensitivity: dict[str, Any] = field(default_factory=dict)

    @property
    def supported(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    def require(self, holds: bool, proved: str, otherwise: str) -> None:
        """File a finding."""
        (self.checked if holds else self.failed).append(proved if holds else otherwise)

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dict(vars(self))


def describe_bracket(bracket: Bracket) -> dict[str, Any]:
    """Return a bracket as plain data: doubles rounded outwards, and the squares as integer times a power of two."""
    return {
        "kind": "exact" if bracket.exact else "bracket",
        "lower": square_root_down(bracket.lower),
        "upper": square_root_up(bracket.upper),
        "lower_squared": _power(bracket.lower),
        "upper_squared": _power(bracket.upper),
        "rule": bracket.rule,
        "pattern": list(bracket.pattern),
        "signs": list(bracket.signs),
    }


def _power(value: Fraction) -> dict[str, Any]:
    """A rational whose denominator is a power of two, as {integer: hex, exponent}."""
    return {"integer": hex(value.numerator), "exponent": -(value.denominator.bit_length() - 1)}


def check_claim(report: Report, bracket: Bracket, claim: float, *, n: int, kind: str | None) -> None:
    """Compare a claimed sensitivity with the bracket, squares of rationals against each other.

    Args:
        report: receives the findings.
        bracket: of the squared sensitivity.
        claim: the stated value.
        n: side of C; a claim in double precision allows for n roundings.
        kind: `exact` or `upper_bound` as stated; None where nothing is stated.
    """
    report.sensitivity = describe_bracket(bracket)
    if not (math.isfinite(claim) and claim > 0):
        report.failed.append(f"the claimed sensitivity {claim!r} is not a positive number")
        return
    squared = Fraction(claim) ** 2
    least = square_root_up(bracket.upper)
    report.sensitivity["claim"] = claim
    report.sensitivity["overstated_ulps"] = round((claim - least) / math.ulp(least)) if least else None
    if squared < bracket.lower:
        report.failed.append(
            f"the sensitivity is understated: claimed {claim!r}, and {_witness(bracket)} attains "
            f"{square_root_down(bracket.lower)!r}"
        )
        return
    report.require(
        squared >= bracket.upper,
        f"sensitivity {claim!r} is not below the true one ({_says(bracket)}; overstated by "
        f"{report.sensitivity['overstated_ulps']} units in the last place)",
        f"the sensitivity {claim!r} is not supported: {_says(bracket)}",
    )
    if kind == "exact":
        near = squared <= bracket.lower * (1 + Fraction(1, 2**32) + Fraction(n, 2**51))
        report.require(
            near,
            f"the sensitivity is exact: {_witness(bracket)} attains {square_root_down(bracket.lower)!r}",
            f"the sensitivity is claimed to be exact, and {_says(bracket)}",
        )
    elif not bracket.exact:
        report.not_checked.append(
            f"where between {square_root_down(bracket.lower)!r} ({_witness(bracket)}) and {least!r} the sensitivity is"
        )


def _says(bracket: Bracket) -> str:
    upper = square_root_up(bracket.upper)
    if bracket.exact:
        return f"it is {upper!r} by {bracket.rule}"
    return f"it is between {square_root_down(bracket.lower)!r} and {upper!r} by {bracket.rule}"


def _witness(bracket: Bracket) -> str:
    steps = bracket.pattern
    if len(steps) == 1:
        return f"column {steps[0]}"
    shown = ", ".join(str(sign * step) if step else "-0" * (sign == -1) or "0" for step, sign in _signed(bracket))
    more = f", ... {len(steps) - _SHOWN} more" if len(steps) > _SHOWN else ""
    return f"the pattern {{{shown}{more}}}" + (" (minus: opposite sign)" if -1 in bracket.signs else "")


def _signed(bracket: Bracket) -> list[tuple[int, int]]:
    return list(zip(bracket.pattern, bracket.signs, strict=True))[:_SHOWN]
