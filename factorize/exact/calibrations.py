"""Calibrations under balls-in-bins sampling: what a claim of the protocol star-1 says, and whether its C bears it out.

The claim is read by docs/notes/star-1.md and checked against the bytes of the factor file: the Gram matrix of the bins
from C, a lower bound that refutes at once, and then, for each direction, a closed form or the bet of the claim.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, NamedTuple

from factorize.errors import CorruptObject, FactorizeError, TooLarge
from factorize.exact import bets, star
from factorize.exact.bins import Gram, gram
from factorize.exact.enclosures import SLACK, Ends, context, decimal
from factorize.exact.file import read_factor_file
from factorize.exact.report import Report
from factorize.exact.strategy import Strategy

PROTOCOL = "star-1"
FRESH_CHUNKS = 4
"""Times as many samples as the claim names that a seed of the verifier's own may take: Ville's inequality allows it."""
MOST_NORMALS = 1 << 37
_KEYS = {
    *("adjacency", "attempt", "beta_log2", "clip_norm", "delta", "divisor", "epsilon", "mechanism", "pq", "protocol"),
    *("qp", "sampling", "sigma", "unamplified"),
}
_MECHANISM = {"bins", "epochs", "factors", "gram", "n"}
_RULES = {
    "pq": {"bet": {"rule", "lambda", "m", "samples"}, "star_bound": {"rule", "m"}, "gaussian": {"rule"}},
    "qp": {"bet": {"rule", "lambda", "eta", "samples"}, "closed_form": {"rule"}, "gaussian": {"rule"}},
}
_NAMES = {"pq": "its contributions taken out", "qp": "its contributions put in"}
_TOLERANCE = Decimal(10) ** -9  # of the stated epsilon without secrecy, which is a root


class Refused(Exception):
    """The claim is not one, or contradicts itself, its limits or the file."""


@dataclass
class CalibrationReport(Report):
    """A report with the numbers of the claim and what the checker found for them."""

    calibration: dict[str, Any] = field(default_factory=dict)


class Claim(NamedTuple):
    """A claim whose numbers are read; see docs/notes/star-1.md."""

    document: dict[str, Any]
    epsilon: float
    delta: float
    sigma: float
    scale: float
    n: int
    bins: int
    unamplified: float

    @property
    def canonical(self) -> bytes:
        """The bytes of which the seed is a digest."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return text.encode("ascii")

    def key(self, direction: str) -> tuple[int, int]:
        """Return the key of a direction's stream."""
        start = f"factorize {PROTOCOL} {direction}\n".encode("ascii")
        digest = hashlib.sha256(start + self.canonical).digest()
        return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


def check_calibration(data: bytes, document: Mapping[str, Any], *, fresh: bool = False) -> CalibrationReport:
    """Check a claim about the amplified privacy of a factor file, from its bytes.

    Args:
        data: the whole factor file.
        document: the claim, or what holds it under `claim`, with its digest under `claim_digest` or without.
        fresh: whether to draw with a seed of this run in place of the claim's.

    Returns:
        The report; `supported` says whether both directions were accepted.

    Raises:
        CorruptObject: the factor file's bytes disagree with their digests.
        TooLarge: C, bins or samples are beyond the limits of this checker.
    """
    report = CalibrationReport()
    file = read_factor_file(data)
    report.checked.append("every byte of the file belongs to a tensor or the manifest, and every digest agrees")
    try:
        claim = read_claim(document)
        _check_file(claim, file.manifest)
        entry = file.manifest["matrices"]["C"]
        strategy = Strategy(entry["structure"], file.matrices["C"], claim.n)
        _check(report, claim, strategy, fresh)
    except Refused as reason:
        report.failed.append(str(reason))
    except (TooLarge, CorruptObject):
        raise
    except FactorizeError as error:
        report.failed.append(str(error))
    return report


def read_claim(document: Mapping[str, Any]) -> Claim:
    """Read a claim strictly: its keys are those of the page, its floats are in the form of `float.hex`.

    Raises:
        Refused: it is none.
    """
    given = dict(document)
    stated = None
    if "protocol" not in given and isinstance(given.get("claim"), Mapping):
        stated = given.get("claim_digest")
        given = dict(given["claim"])
    if given.get("protocol") != PROTOCOL:
        raise Refused(f"the protocol {str(given.get('protocol'))[:40]!r} is not {PROTOCOL!r}, the one known here")
    _check_keys(given, _KEYS, "the claim")
    mechanism = _part(given, "mechanism")
    _check_keys(mechanism, _MECHANISM, "mechanism")
    _check_keys(_part(given, "unamplified"), {"epsilon_at_delta"}, "unamplified")
    for direction, rules in _RULES.items():
        part = _part(given, direction)
        if part.get("rule") not in rules:
            raise Refused(f"{direction}.rule is {str(part.get('rule'))[:40]!r}; known are {sorted(rules)}")
        _check_keys(part, rules[part["rule"]], direction)
    _require(given["adjacency"] == "zero_out", f"the adjacency {str(given['adjacency'])[:40]!r} is not 'zero_out'")
    _require(given["sampling"] == "balls_in_bins", f"the sampling {str(given['sampling'])[:40]!r} is not balls_in_bins")
    _require(_integer(given, "beta_log2", -128, -128) == -128, "beta_log2 is -128")
    _integer(given, "attempt", 1, 16)
    clip, divisor = _real(given, "clip_norm"), _integer(given, "divisor", 1, 1 << 53)
    sigma, delta = _real(given, "sigma"), _real(given, "delta")
    _require(delta < 1, f"delta {delta!r} is not below 1")
    unit = Fraction(sigma) * divisor / Fraction(clip)
    found = Claim(
        given,
        _real(given, "epsilon", zero=True),
        delta,
        sigma,
        _down(unit),
        _integer(mechanism, "n", 1, 1 << 53),
        _integer(mechanism, "bins", 1, 1 << 53),
        _real(given["unamplified"], "epsilon_at_delta", zero=True),
    )
    digest = hashlib.sha256(found.canonical).hexdigest()
    if stated is not None and str(stated).removeprefix("sha256:") != digest:
        raise Refused(f"the claim hashes to sha256:{digest}, not to {str(stated)[:80]!r} as stated beside it")
    return found


def _check_keys(given: Mapping[str, Any], known: set[str], name: str) -> None:
    if set(given) != known:
        raise Refused(f"{name} has the keys {sorted(map(str, given))[:20]}; {PROTOCOL} has {sorted(known)}")


def _part(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(given[name], Mapping):
        raise Refused(f"{name} is not a JSON object")
    return dict(given[name])


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Refused(otherwise)


def _real(given: Mapping[str, Any], name: str, *, zero: bool = False) -> float:
    """A finite positive double (or zero) in the form of `float.hex`, which is the only spelling."""
    text = given[name]
    try:
        value = float.fromhex(text)
    except (TypeError, ValueError, OverflowError):
        raise Refused(f"{name} is {str(text)[:40]!r}, no double in the form of float.hex") from None
    if value.hex() != text or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise Refused(f"{name} is {text[:40]!r}; it is a positive finite double in the form of float.hex")
    return value


def _integer(given: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refused(f"{name} is {str(value)[:40]}; it is an integer from {least} to {most}")
    return value


def _down(value: Fraction) -> float:
    try:
        found = float(value)
    except OverflowError:
        raise Refused("sigma * divisor / clip_norm is beyond the range of doubles") from None
    return math.nextafter(found, 0.0) if Fraction(found) > value else found


def _check_file(claim: Claim, manifest: Mapping[str, Any]) -> None:
    mechanism = claim.document["mechanism"]
    for name in ("factors", "gram"):
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", str(mechanism[name])):
            raise Refused(f"mechanism.{name} is {str(mechanism[name])[:80]!r}, not sha256: and 64 hexadecimal digits")
    own = "sha256:" + str(manifest["digest"]).removeprefix("sha256:")
    _require(mechanism["factors"] == own, f"the claim is about {mechanism['factors']}, and the file is {own}")
    n = manifest["matrices"]["C"]["shape"][1]
    _require(claim.n == n, f"the claim is about n={claim.n} steps, and C has {n}")
    epochs = -(-claim.n // claim.bins)
    stated = mechanism["epochs"]
    _require(stated == epochs, f"{claim.bins} bins of n={claim.n} steps make {epochs} epochs; the claim says {stated}")


def _check(report: CalibrationReport, claim: Claim, strategy: Strategy, fresh: bool) -> None:
    found = gram(strategy, claim.bins)
    report.checked.append(
        f"column sums of |C| over {claim.bins} bins, and their Gram matrix, rounded up from the bytes of C"
    )
    document = report.calibration
    document |= {"epsilon": claim.epsilon, "delta": claim.delta, "sigma": claim.sigma, "bins": claim.bins}
    document |= {"claim_digest": "sha256:" + hashlib.sha256(claim.canonical).hexdigest()}
    document |= {"seed": "fresh" if fresh else "claim"}
    _check_unamplified(report, claim, found)
    least = star.least_delta(found, claim.scale, claim.epsilon)
    document["least_delta"] = float(least)
    with localcontext(context()):
        refuted = least > decimal(claim.delta)
    if refuted:
        report.failed.append(
            f"delta {claim.delta!r} is below {float(least):.6g}, which bins taken one at a time show (theorem 8)"
        )
        return
    bound = star.star(star.covariance(found, claim.scale), claim.epsilon)
    with localcontext(context()):
        document["star_bound"] = {"m": bound.order, "delta": float(min(bound.logarithm.exp(), Decimal(1)))}
    sampled = [_check_direction(report, claim, found, direction, fresh) for direction in ("pq", "qp")]
    if report.supported:
        document["accepted"] = _accepted(any(sampled))
        report.checked.append(document["accepted"])
    _state_assumptions(report, any(sampled))


def _accepted(sampled: bool) -> str:
    if sampled:
        return "accepted: false with probability at most 2^-127 over the seed"
    return "accepted: both directions are proved by closed forms, without samples"


def _check_unamplified(report: CalibrationReport, claim: Claim, found: Gram) -> None:
    """The epsilon that holds where the bins are known: a Gaussian mechanism with the largest norm of a class."""
    stated = claim.unamplified
    with localcontext(context()):
        delta = _gaussian(claim, found, decimal(stated) * (1 + _TOLERANCE) + _TOLERANCE)
        holds = delta <= decimal(claim.delta) * (1 + _TOLERANCE)
    report.require(
        holds,
        f"if the bins become known, epsilon is at most {stated:.6g} at this delta",
        f"without secrecy epsilon is claimed to be {stated:.6g} at delta {claim.delta!r}; there delta is {delta:.4g}",
    )


def _gaussian(claim: Claim, found: Gram, epsilon: Decimal) -> Decimal:
    """Return delta of the Gaussian mechanism with the largest norm of a class, rounded up."""
    with localcontext(context()):
        norm = decimal(float(found.high.diagonal().max())).sqrt() / decimal(claim.scale) * (1 + SLACK)
        return star.gaussian_delta(Ends(epsilon, epsilon), Ends(norm, norm)).high


def _check_direction(report: CalibrationReport, claim: Claim, found: Gram, direction: str, fresh: bool) -> bool:
    """Check one direction; whether it was sampled."""
    part = claim.document[direction]
    if part["rule"] == "bet":
        return _check_bet(report, claim, found, direction, fresh)
    with localcontext(context()):
        if part["rule"] == "closed_form":
            above, rule = star.addition(found, claim.scale, claim.epsilon).high, "the closed form of theorem 7"
        elif part["rule"] == "gaussian":
            above, rule = (
                _gaussian(claim, found, decimal(claim.epsilon)),
                "the Gaussian mechanism without amplification",
            )
        else:
            kernel = star.covariance(found, claim.scale)
            order = _integer(part, "m", 2, star.MOST_ORDER)
            above, rule = star.log_ceiling(kernel, order, claim.epsilon).exp(), f"the star bound with m={order}"
        holds = above <= decimal(claim.delta)
    report.calibration[direction] = {"rule": part["rule"], "delta": float(above)}
    report.require(
        holds,
        f"delta with {_NAMES[direction]} is at most {_shown(above)} by {rule}",
        f"delta {claim.delta!r} with {_NAMES[direction]} is not proved: {rule} gives {_shown(above)}",
    )
    return False


def _shown(value: Decimal) -> str:
    return f"{float(value):.6g}" if value < Decimal(10) ** 300 else f"10^{value.log10():.0f}"


def _check_bet(report: CalibrationReport, claim: Claim, found: Gram, direction: str, fresh: bool) -> bool:
    part = claim.document[direction]
    rate, samples = _real(part, "lambda"), _integer(part, "samples", bets.CHUNK, 1 << 30)
    _require(samples % bets.CHUNK == 0, f"{direction}.samples is {samples}, no multiple of {bets.CHUNK}")
    if samples * claim.bins > MOST_NORMALS:
        raise TooLarge(f"{samples} samples over {claim.bins} bins are above {MOST_NORMALS} normals, the limit here")
    weights = _weights(claim, found, direction, part)
    with localcontext(context()):
        delta = decimal(claim.delta)
        if weights.bound <= delta:
            report.checked.append(
                f"delta with {_NAMES[direction]} is at most {_shown(weights.bound)}: no bet is needed"
            )
            return False
        _require(
            decimal(rate) * (weights.bound - delta) < 1,
            f"{direction}.lambda {rate!r} is not below {float(1 / (weights.bound - delta)):.6g}, so the bet could lose "
            "more than there is",
        )
    key = _fresh_key() if fresh else claim.key(direction)
    chunks = samples // bets.CHUNK * (FRESH_CHUNKS if fresh else 1)
    outcome = bets.bet(weights, claim.delta, rate, key, chunks)
    with localcontext(context()):
        ratio = float(weights.bound / delta)
    report.calibration[direction] = {
        "rule": "bet",
        "samples": outcome.samples,
        "log_wealth": outcome.log_wealth,
        "needed": bets.NEEDED,
        "estimate": outcome.mean,
        "weight_bound_over_delta": ratio,
    }
    told = f"{outcome.log_wealth:.4g} nats from {outcome.samples} samples whose mean is {outcome.mean:.6g}"
    report.require(
        outcome.accepted,
        f"delta with {_NAMES[direction]}: the bet was won, {told}; {bets.NEEDED:.4g} were needed",
        f"delta {claim.delta!r} with {_NAMES[direction]} is not accepted: {told}; {bets.NEEDED:.4g} are needed",
    )
    return True


def _weights(claim: Claim, found: Gram, direction: str, part: Mapping[str, Any]) -> bets.Weights:
    given = bets.covariance(found.high, claim.scale)
    if direction == "pq":
        return bets.removal(given, claim.epsilon, _integer(part, "m", 2, star.MOST_ORDER))
    eta = _real(part, "eta")
    _require(eta <= star.MOST_ORDER, f"qp.eta {eta!r} is above {star.MOST_ORDER}")
    return bets.addition(given, claim.epsilon, eta)


def _fresh_key() -> tuple[int, int]:
    return secrets.randbits(64), secrets.randbits(64)


def _state_assumptions(report: CalibrationReport, sampled: bool) -> None:
    left, bins = report.not_checked, report.calibration["bins"]
    left.append(
        f"the sampling itself: every example draws one of {bins} bins, uniformly, independently and in secret, and "
        "keeps it; the divisor is public, and neither batch sizes nor logs show the bins"
    )
    left.append("the noise of the job: independent normals with the standard deviation sigma")
    if sampled:
        left.append("assumed: Philox acts as a random function of its key, and the drawn normals have the ideal law")
        if report.calibration["seed"] == "claim":
            left.append("assumed: SHA-256 acts as a random function of the claim; --seed fresh does without")
    left.append("the certificate of the file: `factorize verify FILE --exact` checks it")
