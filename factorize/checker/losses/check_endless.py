"""Prefix sums without end: the limit of the sensitivity between two rationals, and losses that have to be infinite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from factorize.checker.claims import check_mechanism, check_sensitivity
from factorize.checker.convergence import check_convergence
from factorize.checker.mechanism import belongs_endless
from factorize.checker.report import LOSS, STRATEGY, Report
from factorize.checker.sensitivity import squared_limit
from factorize.errors import CertificateError


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
    bracket = squared_limit(entry["structure"], parts, spec["participation"])
    check_sensitivity(report, claims["sensitivity"], spec["participation"], bracket)
    report.require(
        all(loss is None for loss in claims["loss"].values()),
        "the losses are stated as infinite, which prefix sums without end have under every strategy",
        "a loss is stated as finite, and prefix sums without end have none",
        of=LOSS,
    )
    if [claims["lower_bound"], claims.get("class_lower_bound"), claims["relative_gap"]] != [None] * 3:
        raise CertificateError("a bound is claimed, and nothing supports one")
    report.prove("no bound is claimed")
    report.prove("C is finite, with coefficients that fade and a positive diagonal", of=STRATEGY)
    mechanism = spec["mechanism"]
    check_mechanism(report, mechanism["kind"], lambda: belongs_endless(mechanism, entry["structure"], parts))
    check_convergence(report, spec, claims)
    report.leave("the residual: there is no last row")
    report.leave("who solved it, with what and for how long: provenance is recorded, not proved")
