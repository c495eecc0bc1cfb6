"""Claims about random batches, read strictly with the keys and spellings of docs/notes/bins-1.md."""

import hashlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from factorize.encoding import canonical_json, json_digest
from factorize.format.quantities import ClaimRefused, check_keys, integer, number, real, require

PROTOCOL = "bins-1"
MAX_MIN_SEP_STEPS = 16_384
"""The largest n of a claim about b-min-sep sampling."""
MAX_STAR_STEPS = 2048
"""The largest n of a star of it, whose tables of n^2 numbers take 100 MiB in all."""
MAX_CHAIN_ORDER = 256
"""The largest order m of a chain, whose bounds take O(n m^2)."""
MAX_BOOST = 1024
"""The largest factor of the chance to keep a tuple: with more, hardly a tuple would be thrown away."""
_BET = {"rule", "lambda", "samples", "shared"}
_RULES_WITHOUT_BETS = {"loss_distribution": {"rule"}, "gaussian": {"rule"}}
SAMPLINGS = {
    "balls_in_bins": {
        "pq": {"bet": {*_BET, "m"}, "star_bound": {"rule", "m"}, "gaussian": {"rule"}},
        "qp": {"bet": {*_BET, "eta"}, "closed_form": {"rule"}, "gaussian": {"rule"}},
    },
    "random_allocation": {"pq": _RULES_WITHOUT_BETS, "qp": _RULES_WITHOUT_BETS},
    "b_min_sep": {
        "pq": {
            "bet": {"rule", "lambda", "samples", "m"},
            "boosted_bet": {"rule", "lambda", "samples", "m", "boost"},
            "chain_bet": {"rule", "lambda", "samples", "m"},
            "star_bound": {"rule", "m"},
            "chain_bound": {"rule", "m"},
            "gaussian": {"rule"},
        },
        "qp": {
            "bet": {"rule", "lambda", "samples", "eta", "rate"},
            "curved_bet": {"rule", "lambda", "samples", "eta", "rate", "reach"},
            "closed_form": {"rule", "rate"},
            "curved_bound": {"rule", "eta", "rate", "reach"},
            "gaussian": {"rule"},
        },
    },
}
"""The rules of evidence for each law of sampling by direction, with the keys of each rule."""
_KEYS = {
    *("adjacency", "attempt", "beta_log2", "clip_norm", "delta", "epsilon", "mechanism", "pq", "protocol", "qp"),
    *("sampling", "sigma", "unamplified"),
}
_MECHANISM = {"bins", "epochs", "factors", "n"}


class Claim(NamedTuple):
    """A claim with its numbers; see docs/notes/bins-1.md."""

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
        """The bytes whose digest is the seed."""
        return canonical_json(self.document)

    def key(self, direction: str) -> tuple[int, int]:
        """Return the key of a direction's stream."""
        start = f"factorize {self.document['protocol']} {direction}\n".encode("ascii")
        digest = hashlib.sha256(start + self.canonical).digest()
        return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


def read_claim(document: Mapping[str, object]) -> Claim:
    """Read a claim, or an object around it; raise ClaimRefused unless it has the page's keys, and floats as hex."""
    held = document.get("claim")
    inner = held if "protocol" not in document and isinstance(held, Mapping) else None
    fields = dict(document if inner is None else inner)
    protocol = fields.get("protocol")
    require(
        protocol == PROTOCOL,
        f"the protocol {str(protocol)[:40]!r} is not {PROTOCOL}, the only one that this release knows",
    )
    check_keys("the claim", fields, _KEYS)
    drawn = {"sampling_probability"} if fields["sampling"] == "b_min_sep" else set()
    mechanism = check_keys("mechanism", fields["mechanism"], _MECHANISM | drawn)
    check_keys("unamplified", fields["unamplified"], {"epsilon_at_delta"})
    sampling = fields["sampling"]
    known = SAMPLINGS.get(sampling) if isinstance(sampling, str) else None
    if known is None:
        raise ClaimRefused(f"the sampling {str(sampling)[:40]!r} is not one of {', '.join(SAMPLINGS)}")
    for direction, rules in known.items():
        rule = fields[direction].get("rule") if isinstance(fields[direction], dict) else None
        if not isinstance(rule, str) or rule not in rules:
            raise ClaimRefused(
                f"{direction}.rule is {str(rule)[:40]!r}; {sampling} has {sorted(rules)} in this release"
            )
        check_keys(direction, fields[direction], rules[rule])
    require(fields["adjacency"] == "zero_out", f"the adjacency {str(fields['adjacency'])[:40]!r} is not 'zero_out'")
    integer(fields, "beta_log2", -128, -128)
    integer(fields, "attempt", 1, 16)
    clip, sigma, delta = (real(fields, name) for name in ("clip_norm", "sigma", "delta"))
    n, bins = integer(mechanism, "n"), integer(mechanism, "bins")
    require(bins <= n, f"{bins} bins are more than n={n} steps, so that some examples would never be seen")
    integer(mechanism, "epochs")
    epsilons = real(fields, "epsilon"), real(fields["unamplified"], "epsilon_at_delta")
    claim = Claim(fields, epsilons[0], delta, sigma, clip, n, bins, epsilons[1])
    try:
        digest = json_digest(fields)
    except (TypeError, ValueError):
        raise ClaimRefused("the claim contains a value that JSON cannot express") from None
    if inner is not None:
        stated = str(document.get("claim_digest", digest))
        otherwise = f"the claim hashes to sha256:{digest}, not to {stated[:80]!r} as stated beside it"
        require(stated.removeprefix("sha256:") == digest, otherwise)
        _check_beside(claim, document)
    return claim


def _check_beside(claim: Claim, calibration: Mapping[str, object]) -> None:
    """Refuse a calibration whose own fields, which a job may read, differ from its claim."""
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
    probability = claim.document["mechanism"].get("sampling_probability")
    own |= {} if probability is None else {"sampling_probability": float.fromhex(probability)}
    for name, value in own.items():
        if name in calibration and not _same(calibration[name], value):
            raise ClaimRefused(f"the calibration states {name} {str(calibration[name])[:40]}, but its claim {value}")
    check_means(calibration, "sigma_of_means", Fraction(claim.sigma))


def check_means(given: Mapping[str, object], name: str, sums: Fraction) -> None:
    """Raise ClaimRefused for means without a divisor, or with less noise than sums have over the divisor."""
    if given.get("divisor") is None:
        require(given.get(name) is None, f"{name} is stated, but no divisor")
    else:
        divisor, means = integer(given, "divisor"), given.get(name)
        enough = isinstance(means, float) and number(given, name) * divisor >= sums
        require(enough, f"{name} is {str(means)[:40]}, below {float(sums)!r} over the divisor {divisor}")


def _same(stated: object, value: object) -> bool:
    """Return whether a number is that of the claim, in value and type; only an integer may stand for a real."""
    kinds = (int, float) if isinstance(value, float) else (type(value),)
    return type(stated) in kinds and stated == value
