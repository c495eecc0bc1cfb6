"""The claims that rest on others: bounds beside the objective, the relative gap, and `converged`.

They are proved where the losses and the bound that they rest on are. `converged` says that the tolerance was met within
the mechanism's class. A gap to a bound over more matrices than the class proves that too, and a formula has nothing to
converge to; whatever else a solver says of its own class rests on its word, and is a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from factorize.checker.claims import TOLERANCE
from factorize.checker.mechanism import FORMULAS, GIVEN
from factorize.checker.report import CLASS_BOUND, CONVERGED, GAP, LOSS, LOWER_BOUND, MECHANISM, Report, Status

_UNRESTRICTED = ("dense", "semidefinite")


def check_convergence(report: Report, spec: Mapping[str, Any], claims: Mapping[str, Any]) -> None:
    """File what is known of the gap and of `converged`, after losses, bounds and mechanism.

    Args:
        report: has their findings, and receives these.
        spec: canonical spec.
        claims: the certificate.
    """
    gaps = {name: _gap(report, claims, name) for name in ("lower_bound", "class_lower_bound")}
    _check_gap(report, claims, gaps["lower_bound"])
    if claims["converged"]:
        _check_converged(report, spec, claims, gaps)


def _gap(report: Report, claims: Mapping[str, Any], name: str) -> float | None:
    """The gap to a bound; and a bound is below the objective, which something attains."""
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
    """File a claim as proved where the losses and a bound are."""
    missing = [name for name in (LOSS, bound) if report.status(name) is not Status.PROVED]
    if missing:
        report.leave(f"{text}, as far as {' and '.join(missing)} can be taken, which is not proved here", of=[claim])
    else:
        report.prove(text, of=claim)


def _check_converged(
    report: Report, spec: Mapping[str, Any], claims: Mapping[str, Any], gaps: Mapping[str, float | None]
) -> None:
    kind, tolerance = spec["mechanism"]["kind"], spec["tolerance"]
    own = spec.get("optimize_for") in (None, spec["workload"])  # an objective of its own, which the gap is about
    for name, bound in (("class_lower_bound", CLASS_BOUND), ("lower_bound", LOWER_BOUND)):
        gap = gaps[name]
        if gap is not None and gap <= tolerance and not (name == "class_lower_bound" and kind in _UNRESTRICTED):
            _resting(report, f"converged: the gap {gap!r} is within the tolerance {tolerance!r}", CONVERGED, bound)
            return
    judged = gaps["class_lower_bound"] if kind == "banded" else gaps["lower_bound"]
    if own and (kind in _UNRESTRICTED or (kind == "banded" and claims.get("class_lower_bound") is not None)):
        report.refute(
            f"the file claims to have converged, and its gap {judged!r} is not within the tolerance {tolerance!r}",
            of=CONVERGED,
        )
    elif _is_formula(spec["mechanism"]) and report.status(MECHANISM) is Status.PROVED:
        report.prove(f"converged: {kind} is a formula, and has nothing to optimise", of=CONVERGED)
    else:
        report.record(f"converged rests on the word of the solver of {kind} on its own class", claim=CONVERGED)


def _is_formula(mechanism: Mapping[str, Any]) -> bool:
    """Return whether a mechanism has no free parameter, and no choice of a normalisation."""
    parameter = GIVEN.get(mechanism["kind"])
    given = parameter is not None and not isinstance(mechanism.get(parameter), str)
    return (mechanism["kind"] in FORMULAS or given) and mechanism.get("normalization", "none") != "auto"
