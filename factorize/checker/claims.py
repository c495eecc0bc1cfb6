"""The claims of a file compared with what is proved, and what the report says where nothing is proved.

Bounds on the objective, the relative gap and `converged` are proved where the losses and the bound that they rest
on are. `converged` says that the tolerance was met within the mechanism's class. A gap to a bound over more matrices
proves that too, and a formula has nothing to converge to; other statements of a solver about its own class are records.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds.evidence import LowerBound
from factorize.checker.losses.variances import MAX_WIDTH, width_of_losses
from factorize.checker.mechanism import FORMULA_PARAMETERS, FORMULAS, Contradiction
from factorize.checker.report import (
    ADDED_NOISE,
    CLASS_BOUND,
    CONVERGED,
    GAP,
    LOSS,
    LOWER_BOUND,
    MECHANISM,
    SENSITIVITY,
    Report,
    Status,
    check_claim,
)
from factorize.checker.sensitivity import Bracket
from factorize.checker.strategy import FactorFile
from factorize.checker.utility import ROAD_FAILURES, Utility

TOLERANCE = 1e-9
"""The relative difference allowed to losses and bounds, which decide utility; the sensitivity is allowed none."""
_UNRESTRICTED = ("dense", "semidefinite")
"""The mechanisms whose class is all matrices."""


def check_mechanism(report: Report, kind: str, rule: Callable[[], str]) -> None:
    """Report whether C is a matrix of the mechanism that the spec names."""
    try:
        report.prove(rule(), of=MECHANISM)
    except Contradiction as reason:
        report.refute(f"C is not of the mechanism {kind} that the spec names: {reason}", of=MECHANISM)
    except NotEnclosed as reason:
        report.leave(f"the mechanism {kind}: {reason}", of=[MECHANISM])


def check_sensitivity(
    report: Report, claim: Mapping[str, Any], participation: Mapping[str, Any], bracket: Bracket
) -> None:
    """Compare the claimed sensitivity with its bracket; by the format it is one number of a known kind."""
    own = ", ".join(f"{k}={v}" for k, v in participation.items())
    report.prove(f"the sensitivity is stated for the participation of the spec: {own}", of=SENSITIVITY)
    check_claim(report, bracket, float.fromhex(claim["hex"]), kind=claim["kind"])


def check_losses(report: Report, file: FactorFile, utility: Utility, m: int) -> None:
    """Compare the claimed losses of m rows with their enclosures; a wide enclosure can refute and never proves."""
    claims = file.manifest["certificate"]
    try:
        losses = utility.losses
    except ROAD_FAILURES as reason:
        report.leave(f"losses: {reason}", of=[LOSS])
        return
    sensitivity = float.fromhex(claims["sensitivity"]["hex"])
    variance = sensitivity * sensitivity
    enclosures = {
        "total_squared": _times(losses.total, variance),
        "mean_squared": _times(losses.total, variance / m),
        "rmse": _root(_times(losses.total, variance / m)),
        "max_error": _root(_times(losses.largest, variance)),
        "last_iterate": _root(_times(losses.last, variance)),
        "objective": _times(losses.objective, variance),
    }
    for name, (low, high) in enclosures.items():
        stated = claims["loss"][name]
        if not low * (1 - TOLERANCE) <= stated <= high * (1 + TOLERANCE):
            report.refute(f"loss.{name} is claimed as {stated!r}, but lies between {low!r} and {high!r}", of=LOSS)
    width = width_of_losses(enclosures.values())
    if width <= MAX_WIDTH:
        report.prove(f"every loss enclosed to relative {width:.2g} (claims may differ by {TOLERANCE:g})", of=LOSS)
    else:
        text = f"losses: C is too ill-conditioned, they are enclosed to relative {width:.2g} only, above {MAX_WIDTH:g}"
        report.leave(text, of=[LOSS])


def check_added_noise(report: Report, file: FactorFile, encoder: float | str | None) -> None:
    """Check the claim beside B in the manifest on the other form, A G + B Z, whose privacy rests on B.

    `encoder` is an upper bound of its sensitivity, or the reason why there is none; None where no B is stored.
    """
    if encoder is None:
        report.prove(
            "adding noise, A (G + C^-1 Z), is the same as A C^-1 (C G + Z): its encoder is C, so the sensitivity "
            "above applies"
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
    """Multiply both ends outwards, also where products underflow; 0 stays 0."""
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
        _compare(report, claim, lambda: utility.lower_bound, LOWER_BOUND)


def check_class_bound(report: Report, file: FactorFile, utility: Utility) -> None:
    """Compare the bound within the mechanism's class with the one that C proves; call it after `check_bound`."""
    claim, general = (file.manifest["certificate"].get(name) for name in ("class_lower_bound", "lower_bound"))
    if claim is None:
        return
    if general is not None and claim["objective"] <= general["objective"] and report.status(LOWER_BOUND) == "proved":
        text = f"the class_lower_bound {claim['objective']!r} is not above the lower bound over all matrices"
        report.prove(text, of=CLASS_BOUND)
    else:
        _compare(report, claim, lambda: utility.class_bound, CLASS_BOUND)


def _compare(report: Report, claim: Mapping[str, Any], road: Callable[[], LowerBound], of: str) -> None:
    """Compare a claimed bound over some matrices with the one that is proved."""
    stated, name = claim["objective"], "lower bound" if of == LOWER_BOUND else "class_lower_bound"
    try:
        bound = road()
    except ROAD_FAILURES as reason:
        report.leave(f"the {name} {stated!r} ({claim['rule']}): {reason}", of=[of])
        return
    below = bound.objective
    report.require(
        stated <= below * (1 + TOLERANCE),
        f"no strategy matrix has an objective below {below!r}, by the {bound.rule} (claimed {stated!r}; claims may "
        f"differ by {TOLERANCE:g})",
        f"the {name} {stated!r} is not supported: proved is {below!r}",
        of=of,
    )


def check_convergence(report: Report, spec: Mapping[str, object], claims: Mapping[str, object]) -> None:
    """Report what is known of the gap and of `converged`, after losses, bounds and mechanism."""
    gaps = {name: _gap(report, claims, name) for name in ("lower_bound", "class_lower_bound")}
    _check_gap(report, claims, gaps["lower_bound"])
    if claims["converged"]:
        _check_converged(report, spec, claims, gaps)


def _gap(report: Report, claims: Mapping[str, Any], name: str) -> float | None:
    """Return the gap to a bound, and refute a bound above the objective, since C attains the objective."""
    bound, attained = claims.get(name), claims["loss"]["objective"]
    if bound is None:
        return None
    if not 0 < bound["objective"] <= attained * (1 + TOLERANCE):
        text = f"the {name} {bound['objective']!r} is above the objective, which attains less"
        report.refute(text, of=f"certificate.{name}")
    return attained / bound["objective"] - 1 if bound["objective"] > 0 else None


def _check_gap(report: Report, claims: Mapping[str, Any], gap: float | None) -> None:
    stated = claims["relative_gap"]
    if (stated is None) != (gap is None) or (gap is not None and not abs(gap - stated) <= TOLERANCE):
        report.refute(f"the relative gap is claimed as {stated!r}; losses and lower bound say {gap!r}", of=GAP)
    elif stated is not None:
        _resting(report, f"the relative gap {stated!r} is that of the losses and the lower bound", GAP, LOWER_BOUND)


def _resting(report: Report, text: str, claim: str, bound: str) -> None:
    """Report a claim as proved where the losses and a bound are."""
    missing = [name for name in (LOSS, bound) if report.status(name) is not Status.PROVED]
    if missing:
        report.leave(f"{text}, if {' and '.join(missing)} are right, which is not proved here", of=[claim])
    else:
        report.prove(text, of=claim)


def _check_converged(
    report: Report, spec: Mapping[str, Any], claims: Mapping[str, Any], gaps: Mapping[str, float | None]
) -> None:
    kind, tolerance = spec["mechanism"]["kind"], spec["tolerance"]
    own = spec.get("optimize_for") in (None, spec["workload"])  # Otherwise the gap is about another objective.
    for name, bound in (("class_lower_bound", CLASS_BOUND), ("lower_bound", LOWER_BOUND)):
        gap = gaps[name]
        if gap is not None and gap <= tolerance and not (name == "class_lower_bound" and kind in _UNRESTRICTED):
            _resting(report, f"converged: the gap {gap!r} is within the tolerance {tolerance!r}", CONVERGED, bound)
            return
    judged = gaps["class_lower_bound"] if kind == "banded" else gaps["lower_bound"]
    if own and (kind in _UNRESTRICTED or (kind == "banded" and claims.get("class_lower_bound") is not None)):
        report.refute(
            f"the file claims to have converged, but its gap {judged!r} is not within the tolerance {tolerance!r}",
            of=CONVERGED,
        )
    elif _is_formula(spec["mechanism"]) and report.status(MECHANISM) is Status.PROVED:
        report.prove(f"converged: {kind} is a formula, and has nothing to optimise", of=CONVERGED)
    else:
        report.record(f"converged: the solver of {kind} states this for its own class", claim=CONVERGED)


def _is_formula(mechanism: Mapping[str, Any]) -> bool:
    """Return whether a mechanism has no free parameter, and no choice of a normalisation."""
    parameter = FORMULA_PARAMETERS.get(mechanism["kind"])
    numeric = parameter is not None and not isinstance(mechanism.get(parameter), str)
    return (mechanism["kind"] in FORMULAS or numeric) and mechanism.get("normalization", "none") != "auto"
