"""Claims of a file beside what is proved of them; and what is told where nothing is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds.evidence import LowerBound
from factorize.checker.file import FactorFile
from factorize.checker.losses.variances import WIDEST, width_of_losses
from factorize.checker.mechanism import Contradiction
from factorize.checker.report import (
    ADDED_NOISE,
    CLASS_BOUND,
    LOSS,
    LOWER_BOUND,
    MECHANISM,
    SENSITIVITY,
    Report,
    check_claim,
)
from factorize.checker.sensitivity import Bracket
from factorize.checker.utility import OUT_OF_REACH, Utility

TOLERANCE = 1e-9
"""Relative difference allowed to losses and bounds, which decide utility; the sensitivity is allowed none."""


def check_mechanism(report: Report, kind: str, rule: Callable[[], str]) -> None:
    """File whether C is of the mechanism that the spec names."""
    try:
        report.prove(rule(), of=MECHANISM)
    except Contradiction as reason:
        report.refute(f"C is not of the mechanism {kind} that the spec names: {reason}", of=MECHANISM)
    except NotEnclosed as reason:
        report.leave(f"the mechanism {kind}: {reason}", of=[MECHANISM])


def check_sensitivity(
    report: Report, claim: Mapping[str, Any], participation: Mapping[str, Any], bracket: Bracket
) -> None:
    """Compare the sensitivity that is claimed with its bracket."""
    value, kind = float.fromhex(claim["hex"]), claim["kind"]
    own, other = (
        ", ".join(f"{k}={v}" for k, v in dict(given).items()) for given in (participation, claim["participation"])
    )
    report.require(
        claim["participation"] == participation and kind in ("exact", "upper_bound"),
        f"the sensitivity is stated for the participation of the spec: {own}",
        f"the sensitivity is stated for {other}, not {own}",
        of=SENSITIVITY,
    )
    if value != claim["value"]:
        report.refute("the sensitivity's value and its hex form are two different numbers", of=SENSITIVITY)
    check_claim(report, bracket, value, kind=kind)


def check_losses(report: Report, file: FactorFile, utility: Utility, m: int) -> None:
    """Compare the losses of m rows that are claimed with their enclosures; a wide one refutes and never proves."""
    claims = file.manifest["certificate"]
    try:
        found = utility.losses()
    except OUT_OF_REACH as reason:
        report.leave(f"losses: {reason}", of=[LOSS])
        return
    sensitivity = float.fromhex(claims["sensitivity"]["hex"])
    variance = sensitivity * sensitivity
    enclosures = {
        "total_squared": _times(found.total, variance),
        "mean_squared": _times(found.total, variance / m),
        "rmse": _root(_times(found.total, variance / m)),
        "max_error": _root(_times(found.largest, variance)),
        "last_iterate": _root(_times(found.last, variance)),
        "objective": _times(found.objective, variance),
    }
    for name, (low, high) in enclosures.items():
        stated = claims["loss"][name]
        if not low * (1 - TOLERANCE) <= stated <= high * (1 + TOLERANCE):
            report.refute(f"loss.{name} is claimed as {stated!r}, and lies between {low!r} and {high!r}", of=LOSS)
    width = width_of_losses(enclosures.values())
    if width <= WIDEST:
        report.prove(f"every loss enclosed to relative {width:.2g} (claims may differ by {TOLERANCE:g})", of=LOSS)
    else:
        text = f"losses: C is too ill-conditioned, they are enclosed to relative {width:.2g} only, above {WIDEST:g}"
        report.leave(text, of=[LOSS])


def check_added_noise(report: Report, file: FactorFile, encoder: float | str | None) -> None:
    """The other form, A G + B Z, whose privacy rests on B: a claim of its own, beside B in the manifest.

    Args:
        report: receives the findings.
        file: the file.
        encoder: its sensitivity from above, or why there is none; None where no B is stored.
    """
    if encoder is None:
        report.prove(
            "adding noise, A (G + C^-1 Z), is the same as A C^-1 (C G + Z): its encoder is C, and the sensitivity "
            "above is its own"
        )
        report.leave("adding noise: the arithmetic with which a job makes C^-1 Z or rows of A C^-1 (no B is stored)")
        return
    claim = file.manifest["matrices"]["B"].get("encoder_sensitivity")
    if claim is None or isinstance(encoder, str):
        why = encoder if isinstance(encoder, str) else f"it is at most {encoder!r}"
        text = f"adding noise, A G + B Z, is not certified by this file: {why}"
        if claim is None:
            report.leave(text)
        else:
            report.refute(text, of=ADDED_NOISE)
        return
    value = float.fromhex(claim["hex"])
    report.require(
        value == claim["value"] and claim["kind"] == "upper_bound" and math.isfinite(value) and encoder <= value,
        f"adding noise, A G + B Z: B has full rank, and its encoder has sensitivity at most {encoder!r} (claimed "
        f"{value!r})",
        f"the sensitivity of A G + B Z is claimed as {value!r}, {claim['kind']}; proved is at most {encoder!r}",
        of=ADDED_NOISE,
    )


def _times(ends: tuple[float, float], factor: float) -> tuple[float, float]:
    """Multiply outwards, where products underflow too; 0 stays what it is."""
    low, high = ends[0] * factor * (1 - 2.0**-50), ends[1] * factor * (1 + 2.0**-50)
    return max(math.nextafter(low, -math.inf), 0.0), math.nextafter(high, math.inf) if ends[1] else 0.0


def _root(ends: tuple[float, float]) -> tuple[float, float]:
    return math.sqrt(ends[0]) * (1 - 2.0**-50), math.sqrt(ends[1]) * (1 + 2.0**-50)


def check_bound(report: Report, file: FactorFile, utility: Utility) -> None:
    """Compare the lower bound that is claimed with the one that the evidence proves."""
    claim = file.manifest["certificate"]["lower_bound"]
    if claim is None:
        report.leave("optimality: the file claims no lower bound")
    elif not file.dual:
        report.refute(f"the lower bound {claim['objective']!r} ({claim['rule']}) has no evidence", of=LOWER_BOUND)
    else:
        _compare(report, claim, utility.lower_bound, "strategy matrix", LOWER_BOUND)


def check_class_bound(report: Report, file: FactorFile, utility: Utility) -> None:
    """Compare the bound within the mechanism's class with the one that C proves, after that over all matrices."""
    claim, general = (file.manifest["certificate"].get(name) for name in ("class_lower_bound", "lower_bound"))
    if claim is None:
        return
    if general is not None and claim["objective"] <= general["objective"] and report.status(LOWER_BOUND) == "proved":
        text = f"the class_lower_bound {claim['objective']!r} is not above the lower bound over all matrices"
        report.prove(text, of=CLASS_BOUND)
    else:
        _compare(report, claim, utility.class_bound, "strategy matrix of the mechanism's class", CLASS_BOUND)


def _compare(report: Report, claim: Mapping[str, Any], road: Callable[[], LowerBound], members: str, of: str) -> None:
    """Compare a claimed bound over some matrices with the one that is proved."""
    stated, name = claim["objective"], "lower bound" if of == LOWER_BOUND else "class_lower_bound"
    try:
        below = road().objective
    except OUT_OF_REACH as reason:
        report.leave(f"the {name} {stated!r} ({claim['rule']}): {reason}", of=[of])
        return
    report.require(
        stated <= below * (1 + TOLERANCE),
        f"no {members} has an objective below {below!r} (claimed {stated!r}; claims may differ by {TOLERANCE:g})",
        f"the {name} {stated!r} is not supported: proved is {below!r}",
        of=of,
    )
