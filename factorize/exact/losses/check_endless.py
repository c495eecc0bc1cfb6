"""Prefix sums without end: the limit of the sensitivity between two rationals, and losses that have to be infinite.

The pattern 0, b, .., (K-1) b is followed to its last step t0 = (K-1) b, where the sum of its columns is y_t = c_t +
y_{t-b}; after it, y_{t0+1+m} = sum_j e_j theta_j^m with e_j = omega_j sum_{l < K} theta_j^{lb}, whose squares sum to
sum_jk e_j e_k / (1 - theta_j theta_k).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from factorize.errors import CertificateError, CorruptObject, InvalidParticipation, InvalidStrategy, TooLarge
from factorize.exact.convergence import is_formula
from factorize.exact.mechanism import Contradiction, belongs_endless
from factorize.exact.report import CONVERGED, LOSS, MECHANISM, SENSITIVITY, STRATEGY, Report, check_claim
from factorize.exact.sensitivity import Bracket
from factorize.exact.structures import blt

LARGEST_HEAD = 1 << 20
"""Steps until the last participation that are followed one by one."""
_UNIT = 1 << 256
_ROOT_UNIT = 1 << 1200  # the smallest nu is 2^-1074, and its root is taken


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
    check_claim(report, limit(entry["structure"], parts, spec["participation"]), value, n=1, kind=claim["kind"])
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
    text = "residual and convergence: there is no last row, and no loss to converge to"
    report.leave(text, of=[] if formula else [CONVERGED])
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
    separation, most = _pattern(participation)
    if not all(np.isfinite(part).all() for part in parts.values()):
        raise InvalidStrategy("C holds NaN or infinity")
    if structure == "nu_toeplitz":
        return _damped(parts, most)
    if structure != "blt":
        raise CorruptObject(f"this checker knows no structure {structure[:40]!r} without end")
    decays = blt.read(dict(parts))
    if not decays.nonnegative or (decays.decay >= 1).any():
        raise InvalidStrategy("without end, decays lie in [0, 1) and scales are not negative, or there is no limit")
    if most > 1 and not decays.monotone:
        raise TooLarge("no exact rule reaches a strategy without end whose coefficients rise")
    low, high = _head(decays, separation, most)
    tail = _tail(decays, separation, most)
    pattern = tuple(range(0, separation * most, separation))
    return Bracket(low + tail[0], high + tail[1], "the limit without end", pattern, (1,) * most)


def _pattern(participation: Mapping[str, Any]) -> tuple[int, int]:
    kind, most = participation["kind"], participation.get("max_participations")
    if kind == "single":
        return 1, 1
    if kind != "min_sep" or most is None or most < 1 or participation["min_sep"] < 1:
        raise InvalidParticipation(
            f"participation {str(dict(participation))[:80]} has no finite sensitivity without end"
        )
    return int(participation["min_sep"]), int(most)


def _head(decays: blt.Decays, separation: int, most: int) -> tuple[Fraction, Fraction]:
    """Enclose the sum of y_t^2 up to the step of the last participation."""
    last = separation * (most - 1)
    if last >= LARGEST_HEAD:
        raise TooLarge(
            f"{most} participations {separation} apart reach beyond the {LARGEST_HEAD} steps that are followed"
        )
    column = blt.series(decays, last + 1)
    sums = column.values.tolist()
    for t in range(separation, last + 1):
        sums[t] += sums[t - separation]
    slack = most * column.radius
    low, high = (sum(max(value + change, 0) ** 2 for value in sums) for change in (-slack, slack))
    return column.fraction(1) ** 2 * low, column.fraction(1) ** 2 * high


def _tail(decays: blt.Decays, separation: int, most: int) -> tuple[Fraction, Fraction]:
    thetas, omegas = ([Fraction(value) for value in part.tolist()] for part in decays)
    sums = [_geometric(theta, separation, most) for theta in thetas]
    ends = []
    for end in (0, 1):
        weights = [omega * bounds[end] for omega, bounds in zip(omegas, sums, strict=True)]
        pairs = [
            (a * b, s * t) for a, s in zip(weights, thetas, strict=True) for b, t in zip(weights, thetas, strict=True)
        ]
        ends.append(sum((product / (1 - ratio) for product, ratio in pairs), Fraction(0)))
    return ends[0], ends[1]


def _geometric(theta: Fraction, separation: int, most: int) -> tuple[Fraction, Fraction]:
    """Enclose sum_{l < K} theta^{lb}, with powers cut to 256 places below and above."""
    if most == 1:
        return Fraction(1), Fraction(1)
    ends = []
    for up in (0, 1):
        step = _UNIT
        for _ in range(separation):
            step = step * theta.numerator // theta.denominator + up
        power, total = _UNIT, 0
        for _ in range(most):
            total += power
            power = power * step // _UNIT + up
        ends.append(Fraction(total, _UNIT))
    return ends[0], ends[1]


def _damped(parts: Mapping[str, np.ndarray], most: int) -> Bracket:
    """One column of (1 - (1 - nu) x)^(-1/2): 1 / agm(1, sqrt(nu (2 - nu))), both means cut down, or both up."""
    if set(parts) != {"nu"} or parts["nu"].shape != (1,) or not 0 < parts["nu"][0] < 1:
        raise InvalidStrategy("nu is not one number in (0, 1), where columns without end have a finite norm")
    if most > 1:
        raise TooLarge("no exact rule reaches several participations of nu_toeplitz without end")
    nu = Fraction(float(parts["nu"][0]))
    means = []
    for up in (0, 1):
        square = nu * (2 - nu) * _ROOT_UNIT**2
        a, g = _ROOT_UNIT, math.isqrt(math.floor(square)) + up
        while abs(a - g) > 4:
            a, g = (a + g + up) // 2, math.isqrt(a * g) + up
        means.append(max(a, g) if up else min(a, g))
    return Bracket(Fraction(_ROOT_UNIT, means[1]), Fraction(_ROOT_UNIT, means[0]), "the limit without end", (0,), (1,))
