"""Claims about random batches, read strictly: with the keys and spellings of docs/notes/bins-1.md."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

from factorize.encoding import canonical_json, json_digest
from factorize.format.certificates import check_fields

PROTOCOL = "bins-1"
_BET = {"rule", "lambda", "samples", "shared"}
_PLAIN = {"loss_distribution": {"rule"}, "gaussian": {"rule"}}
SAMPLINGS = {
    "balls_in_bins": {
        "pq": {"bet": {*_BET, "m"}, "star_bound": {"rule", "m"}, "gaussian": {"rule"}},
        "qp": {"bet": {*_BET, "eta"}, "closed_form": {"rule"}, "gaussian": {"rule"}},
    },
    "random_allocation": {"pq": _PLAIN, "qp": _PLAIN},
}
"""Laws of sampling: by direction the rules of evidence that each has, and their keys."""
LARGEST_EPSILON = 1e6
"""Of a claim: beyond, nothing is private, and exp(epsilon) is of no use."""
SCALES = 1e-30, 1e30
"""Of a clip norm and of sigma: noise in single precision is neither zero nor infinite there."""
_KEYS = {
    *("adjacency", "attempt", "beta_log2", "clip_norm", "delta", "epsilon", "mechanism", "pq", "protocol", "qp"),
    *("sampling", "sigma", "unamplified"),
}
_MECHANISM = {"bins", "epochs", "factors", "n"}


class ClaimRefused(Exception):
    """The claim is not one, or contradicts itself, its limits or the file."""


class Claim(NamedTuple):
    """A claim whose numbers are read; see docs/notes/bins-1.md."""

    document: dict[str, Any]
    epsilon: float
    delta: float
    sigma: float
    clip_norm: float
    n: int
    bins: int
    unamplified: float

    @property
    def canonical(self) -> bytes:
        """The bytes of which the seed is a digest."""
        return canonical_json(self.document)

    def key(self, direction: str) -> tuple[int, int]:
        """Return the key of a direction's stream."""
        start = f"factorize {self.document['protocol']} {direction}\n".encode("ascii")
        digest = hashlib.sha256(start + self.canonical).digest()
        return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


def read_claim(document: Mapping[str, Any]) -> Claim:
    """Read a claim, or what wraps one; raise ClaimRefused unless it has the page's keys, and floats as `float.hex`."""
    held = document.get("claim")
    inner = held if "protocol" not in document and isinstance(held, Mapping) else None
    stated = document.get("claim_digest") if inner is not None else None
    fields = dict(document if inner is None else inner)
    protocol = fields.get("protocol")
    require(protocol == PROTOCOL, f"the protocol {str(protocol)[:40]!r} is not {PROTOCOL}, the one that is known here")
    check_keys("the claim", fields, _KEYS)
    mechanism = check_keys("mechanism", fields["mechanism"], _MECHANISM)
    check_keys("unamplified", fields["unamplified"], {"epsilon_at_delta"})
    sampling = fields["sampling"]
    known = SAMPLINGS.get(sampling) if isinstance(sampling, str) else None
    if known is None:
        raise ClaimRefused(f"the sampling {str(sampling)[:40]!r} is none of {', '.join(SAMPLINGS)}")
    for direction, rules in known.items():
        rule = fields[direction].get("rule") if isinstance(fields[direction], dict) else None
        if not isinstance(rule, str) or rule not in rules:
            raise ClaimRefused(f"{direction}.rule is {str(rule)[:40]!r}; {sampling} has {sorted(rules)}")
        check_keys(direction, fields[direction], rules[rule])
    require(
        fields["adjacency"] == "zero_out",
        f"the adjacency {str(fields['adjacency'])[:40]!r} is not 'zero_out'",
    )
    integer(fields, "beta_log2", -128, -128)
    integer(fields, "attempt", 1, 16)
    clip, sigma, delta = real(fields, "clip_norm"), real(fields, "sigma"), real(fields, "delta")
    for name, value in (("clip_norm", clip), ("sigma", sigma)):
        low, high = SCALES
        require(low <= value <= high, f"{name} {value!r} is outside [{low:g}, {high:g}], where jobs draw noise")
    n, bins = integer(mechanism, "n", 1, 1 << 53), integer(mechanism, "bins", 1, 1 << 53)
    require(bins <= n, f"{bins} bins are more than n={n} steps, so that some examples would never be seen")
    integer(mechanism, "epochs", 1, 1 << 53)
    require(delta < 1, f"delta {delta!r} is not below 1")
    epsilons = (
        real(fields, "epsilon", zero=True),
        real(fields["unamplified"], "epsilon_at_delta", zero=True),
    )
    require(max(epsilons) <= LARGEST_EPSILON, f"an epsilon of {max(epsilons):g} is above {LARGEST_EPSILON:g}")
    claim = Claim(fields, epsilons[0], delta, sigma, clip, n, bins, epsilons[1])
    try:
        digest = json_digest(fields)
    except (TypeError, ValueError):
        raise ClaimRefused("the claim holds something that JSON does not") from None
    if stated is not None and str(stated).removeprefix("sha256:") != digest:
        raise ClaimRefused(f"the claim hashes to sha256:{digest}, not to {str(stated)[:80]!r} as stated beside it")
    if inner is not None:
        _check_beside(claim, document)
    return claim


def _check_beside(claim: Claim, calibration: Mapping[str, Any]) -> None:
    """What a calibration states beside its claim, and a job may read there, has to be what the claim says."""
    own = {
        "sigma_of_sums": claim.sigma,
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "bins": claim.bins,
        "epochs": claim.document["mechanism"]["epochs"],
        "sampling": claim.document["sampling"],
        "clip_norm": claim.clip_norm,
        "adjacency": claim.document["adjacency"],
        "epsilon_without_secrecy": claim.unamplified,
    }
    for name, value in own.items():
        if name in calibration and not _same(calibration[name], value):
            raise ClaimRefused(f"the calibration states {name} {str(calibration[name])[:40]}, and its claim {value}")
    check_means(calibration, "sigma_of_means", Fraction(claim.sigma))


def check_means(given: Mapping[str, Any], name: str, sums: Fraction) -> None:
    """Raise ClaimRefused where means are stated without a divisor, or with less noise than that of sums over it."""
    if given.get("divisor") is None:
        require(given.get(name) is None, f"{name} is stated and no divisor")
    else:
        divisor, means = integer(given, "divisor", 1, 1 << 53), given.get(name)
        enough = isinstance(means, float) and positive(given, name) * divisor >= sums
        require(enough, f"{name} is {str(means)[:40]}, below {float(sums)!r} over the divisor {divisor}")


def _same(stated: object, value: object) -> bool:
    """Whether a number is that of the claim, of its type: an integer may stand for a real, and nothing else does."""
    kinds = (int, float) if isinstance(value, float) else (type(value),)
    return type(stated) in kinds and stated == value


check_keys = partial(check_fields, refusal=ClaimRefused)
"""Returns an object that has these fields, and no other; raises ClaimRefused."""


def require(holds: bool, otherwise: str) -> None:
    """Raise ClaimRefused unless something holds."""
    if not holds:
        raise ClaimRefused(otherwise)


def real(given: Mapping[str, Any], name: str, *, zero: bool = False) -> float:
    """Return a finite positive double (or zero) in the form of `float.hex`, or raise ClaimRefused."""
    text = given[name]
    try:
        value = float.fromhex(text)
    except (TypeError, ValueError, OverflowError):
        raise ClaimRefused(f"{name} is {str(text)[:40]!r}, no double in the form of float.hex") from None
    if value.hex() != text or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ClaimRefused(f"{name} is {text[:40]!r}; it is a positive finite double in the form of float.hex")
    return value


def number(given: Mapping[str, Any], name: str) -> Fraction:
    """Return a finite number that is not negative, or raise ClaimRefused."""
    value: Any = given.get(name)
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    require(fits, f"{name} is {str(value)[:40]}; it is a finite number, not below 0")
    return Fraction(value)


def positive(given: Mapping[str, Any], name: str) -> Fraction:
    """Return a finite number above 0, or raise ClaimRefused."""
    value = number(given, name)
    require(value > 0, f"{name} is 0; it is above")
    return value


def integer(given: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Return an integer from `least` to `most`, or raise ClaimRefused."""
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ClaimRefused(f"{name} is {str(value)[:40]}; it is an integer from {least} to {most}")
    return value
