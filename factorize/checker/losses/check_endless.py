"""Prefix sums without end: the limit of the sensitivity between two rationals, and losses that have to be infinite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from factorize.checker.convergence import is_formula
from factorize.checker.mechanism import Contradiction, belongs_endless
from factorize.checker.participation import allowed_endless
from factorize.checker.report import CONVERGED, LOSS, MECHANISM, SENSITIVITY, STRATEGY, Report, check_claim
from factorize.checker.sensitivity import Bracket
from factorize.checker.structures import ENDLESS_READINGS
from factorize.errors import CertificateError, CorruptObject, InvalidStrategy


def check_endless(
    report: Report, entry: Mapping[str, Any], parts: Mapping[str, np.ndarray], manifest: Mapping[str, Any]
) -> None:
    """Check the claims of a file whose workload has no last step.

    Args:
        report: receives the findings.
        entry: of C in the manifest.
        parts: tensors of C by suffix.
        manifest: the whole.

    Raises:
        CertificateError, CorruptObject, InvalidStrategy, InvalidParticipation: it is none, or claims what cannot be.
        TooLarge: the sensitivity cannot be enclosed at this size.
    """
    spec, claims = manifest["spec"], manifest["certificate"]
    if entry["shape"] != [None, None] or spec["workload"]["kind"] != "prefix":
        raise CertificateError(f"C is stated to have shape {entry['shape']}, and the spec asks for rows without end")
    claim = claims["sensitivity"]
    report.require(
        claim["participation"] == spec["participation"] and claim["kind"] in ("exact", "upper_bound"),
        "the sensitivity is stated for the participation of the spec",
        f"the sensitivity is stated for {claim['participation']}, not {spec['participation']}",
        of=SENSITIVITY,
    )
    value = float.fromhex(claim["hex"])
    if value != claim["value"]:
        report.refute("the sensitivity's value and its hex form are two different numbers", of=SENSITIVITY)
    check_claim(report, limit(entry["structure"], parts, spec["participation"]), value, kind=claim["kind"])
    report.require(
        all(loss is None for loss in claims["loss"].values()),
        "the losses are stated as infinite, which prefix sums without end have under every strategy",
        "a loss is stated as finite, and prefix sums without end have none",
        of=LOSS,
    )
    bounds = [claims["lower_bound"], claims.get("class_lower_bound"), claims["relative_gap"]]
    report.require(bounds == [None] * 3, "no bound is claimed", "a bound is claimed, and nothing supports one")
    report.prove("C is finite, with coefficients that fade and a positive diagonal", of=STRATEGY)
    formula = _check_mechanism(report, spec["mechanism"], entry["structure"], parts) and is_formula(spec["mechanism"])
    if formula:
        report.prove("converged: the mechanism is a formula, and has nothing to optimise", of=CONVERGED)
    else:
        report.record(f"converged rests on the word of the solver of {spec['mechanism']['kind']}", claim=CONVERGED)
    report.leave("the residual: there is no last row")
    report.leave("who solved it, with what and for how long: provenance is recorded, not proved")


def _check_mechanism(
    report: Report, mechanism: Mapping[str, Any], structure: str, parts: Mapping[str, np.ndarray]
) -> bool:
    try:
        report.prove(belongs_endless(mechanism, structure, parts), of=MECHANISM)
    except Contradiction as reason:
        report.refute(f"C is not of the mechanism {mechanism['kind']} that the spec names: {reason}", of=MECHANISM)
        return False
    return True


def limit(structure: str, parts: Mapping[str, np.ndarray], participation: Mapping[str, Any]) -> Bracket:
    """Return the limit of the squared sensitivity between two rationals.

    Raises:
        See `check_endless`.
    """
    separation, most, _ = allowed_endless(participation)
    if structure not in ENDLESS_READINGS:
        raise CorruptObject(f"this checker knows no structure {structure[:40]!r} without end")
    if not all(np.isfinite(part).all() for part in parts.values()):
        raise InvalidStrategy("C holds NaN or infinity")
    low, high = ENDLESS_READINGS[structure].read(dict(parts)).squared_sensitivity(separation, most)
    pattern = tuple(range(0, separation * most, separation))
    return Bracket(low, high, "the limit without end", pattern, (1,) * most)
