"""The findings of the exact checker: each claim of a file proved, false or not looked at, and other observations."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from factorize.checker.arithmetic.near import square_root_down, square_root_up
from factorize.checker.sensitivity import ATTAINMENT_SHARE, Bracket
from factorize.encoding import in_one_line

_MAX_SIGNS = 16  # A longer pattern is cut in the report, so that its line stays readable.
NO_RULE = "this checker has no rule for it"
SENSITIVITY, LOSS, CONVERGED = "certificate.sensitivity", "certificate.loss", "certificate.converged"
LOWER_BOUND, CLASS_BOUND, GAP = "certificate.lower_bound", "certificate.class_lower_bound", "certificate.relative_gap"
MECHANISM, STRATEGY, DECODER, INVERSE = "spec.mechanism", "matrices.C", "matrices.B", "matrices.C_inv"
ADDED_NOISE = "matrices.B.encoder_sensitivity"


class Status(StrEnum):
    """What is known of a claim."""

    PROVED = "proved"
    FALSE = "false"
    NOT_LOOKED_AT = "not_looked_at"


@dataclass
class Report:
    """Findings, in the order in which they were made.

    Attributes:
        checked: sentences that are proved.
        failed: claims that do not hold, or that could not be supported.
        not_checked: statements on which this report says nothing.
        warnings: statements that are legal and often a mistake.
        sensitivity: bracket, rule and witness; empty before it is known.
        stated: names of the claims that the file makes.
        open: whether the report is on a run that has not ended.
        aside: text of the first line after its verdict.
        findings: the findings on each claim, by its name.
    """

    checked: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    sensitivity: dict[str, Any] = field(default_factory=dict)
    stated: tuple[str, ...] = ()
    open: bool = False
    aside: str = ""
    findings: dict[str, list[tuple[Status, str]]] = field(default_factory=dict)

    @property
    def supported(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def unseen(self) -> list[str]:
        """The claims that were not looked at."""
        return [name for name in self.stated if self.status(name) is Status.NOT_LOOKED_AT]

    @property
    def claims(self) -> list[dict[str, str]]:
        """All claims of the file as {claim, status, why}; each has a status."""
        return [{"claim": name, "status": self.status(name).value, "why": self._why(name)} for name in self.stated]

    def status(self, claim: str) -> Status:
        """Return the status of a claim: false if a part of it is false, proved if all parts met are proved."""
        statuses = {status for status, _ in self.findings.get(claim, [])}
        if Status.FALSE in statuses:
            return Status.FALSE
        return Status.PROVED if statuses == {Status.PROVED} else Status.NOT_LOOKED_AT

    def prove(self, text: str, *, of: str | None = None) -> None:
        """Report a statement as proved, of a claim or of the file."""
        self._file(self.checked, Status.PROVED, text, of)

    def refute(self, text: str, *, of: str | None = None) -> None:
        """Report a statement as false or not supported."""
        self._file(self.failed, Status.FALSE, text, of)

    def leave(self, text: str, *, of: Iterable[str] = ()) -> None:
        """Report claims as not looked at, with one sentence for all of those named that the file makes."""
        text = in_one_line(text)
        self.not_checked.append(text)
        for claim in of:
            self.findings.setdefault(claim, []).append((Status.NOT_LOOKED_AT, text))

    def record(self, text: str, *, claim: str) -> None:
        """Report a statement as a record, on which nothing rests, and not as a claim."""
        self.not_checked.append(in_one_line(text))
        self.stated = tuple(name for name in self.stated if name != claim)

    def require(self, holds: bool, proved: str, otherwise: str, *, of: str | None = None) -> None:
        """Report a statement as proved where it holds, and as false otherwise."""
        if holds:
            self.prove(proved, of=of)
        else:
            self.refute(otherwise, of=of)

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        sentences = {name: list(getattr(self, name)) for name in ("checked", "failed", "not_checked", "warnings")}
        return {"claims": self.claims, **sentences, "sensitivity": dict(self.sensitivity)}

    def _file(self, kept: list[str], status: Status, text: str, claim: str | None) -> None:
        text = in_one_line(text)
        kept.append(text)
        if claim is not None:
            self.findings.setdefault(claim, []).append((status, text))

    def _why(self, claim: str) -> str:
        decisive = [text for status, text in self.findings.get(claim, []) if status is self.status(claim)]
        return "; ".join(decisive) or (f"the check stopped before it: {self.failed[0]}" if self.failed else NO_RULE)


def stated_claims(manifest: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the claims that a manifest makes of its bytes.

    The solver, `warnings`, names of rules and `certificate.residual` are no claims: they are records, on which
    nothing rests.
    """
    certificate, matrices = manifest["certificate"], manifest["matrices"]
    claims = [MECHANISM, STRATEGY, SENSITIVITY, LOSS]
    claims += [f"matrices.{name}" for name in matrices if name != "C"]
    claims += [ADDED_NOISE] if "encoder_sensitivity" in matrices.get("B", {}) else []
    bounds = ((LOWER_BOUND, "lower_bound"), (CLASS_BOUND, "class_lower_bound"), (GAP, "relative_gap"))
    claims += [claim for claim, name in bounds if certificate.get(name) is not None]
    return tuple(claims + ([CONVERGED] if certificate["converged"] else []))


def describe_bracket(bracket: Bracket) -> dict[str, object]:
    """Return a bracket as plain data, doubles rounded outwards."""
    return {
        "kind": "exact" if bracket.exact else "bracket",
        "lower": square_root_down(bracket.lower),
        "upper": square_root_up(bracket.upper),
        "rule": bracket.rule,
        "off": bracket.off,
        "pattern": list(bracket.pattern),
        "signs": list(bracket.signs),
    }


def check_claim(report: Report, bracket: Bracket, claim: float, *, kind: str | None) -> None:
    """Compare a claimed sensitivity with the bracket, both squared as rationals.

    `kind` is the stated kind, `exact` or `upper_bound`, or None where none is stated.
    """
    report.sensitivity = describe_bracket(bracket)
    if not (math.isfinite(claim) and claim > 0):
        report.refute(f"the claimed sensitivity {claim!r} is not a positive number", of=SENSITIVITY)
        return
    squared = Fraction(claim) ** 2
    report.sensitivity["claim"] = claim
    if squared < bracket.lower:
        report.refute(
            f"the sensitivity is understated: the claim is {claim!r}, but {_witness(bracket)} attains "
            f"{square_root_down(bracket.lower)!r}",
            of=SENSITIVITY,
        )
        return
    report.require(
        squared >= bracket.upper,
        f"sensitivity {claim!r} is not below the true one ({_says(bracket)})",
        f"the sensitivity {claim!r} is not supported: {_says(bracket)}",
        of=SENSITIVITY,
    )
    if kind == "exact":
        report.require(
            squared <= bracket.lower * (1 + ATTAINMENT_SHARE),
            f"the sensitivity is exact within 1e-9: {_witness(bracket)} attains {square_root_down(bracket.lower)!r}",
            f"the sensitivity is claimed to be exact, but {_says(bracket)}",
            of=SENSITIVITY,
        )
    elif not bracket.exact:
        low, high = square_root_down(bracket.lower), square_root_up(bracket.upper)
        report.leave(f"where the sensitivity lies between {low!r} ({_witness(bracket)}) and {high!r}")


def _says(bracket: Bracket) -> str:
    upper = square_root_up(bracket.upper)
    if bracket.exact:
        return f"it is {upper!r} within 1e-9 by {bracket.rule}"
    return f"it is between {square_root_down(bracket.lower)!r} and {upper!r} by {bracket.rule}"


def _witness(bracket: Bracket) -> str:
    steps = bracket.pattern
    if len(steps) == 1:
        return f"column {steps[0]}"
    signed = list(zip(steps, bracket.signs, strict=True))[:_MAX_SIGNS]
    shown = ", ".join(f"{'-' if sign < 0 else ''}{step}" for step, sign in signed)
    more = f", ... {len(steps) - _MAX_SIGNS} more" if len(steps) > _MAX_SIGNS else ""
    return f"the pattern {{{shown}{more}}}" + (" (minus: opposite sign)" if -1 in bracket.signs else "")
