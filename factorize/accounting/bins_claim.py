"""The claim: a document that says (epsilon, delta) at sigma, whose test draws from a seed made of the document.

A claim may be found in any way. Its test cannot be chosen: the seed is the SHA-256 of the finished claim, so that
nothing that was searched before is a multiple test, and a false claim passes with probability 2^-127. Every bit of the
test is specified in docs/notes/star-1.md.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from factorize.accounting.gram_matrix import BinGram
from factorize.accounting.star_bound import StarEvaluator, log_gaussian, log_reverse
from factorize.accounting.star_sampler import CHUNK, BinCovariance, ForwardTest, Key, ReverseTest, bin_covariance
from factorize.encoding import canonical_json
from factorize.errors import InvalidParameter

PROTOCOL = "star-1"
LOG_THRESHOLD = 128 * math.log(2) + 1e-6
"""Of the log of the bet: a false direction passes with probability 2^-128."""
MOST_SAMPLES = 1 << 30
MOST_ATTEMPTS = 16

Direction = Literal["pq", "qp"]
_FIELDS = {
    "adjacency",
    "attempt",
    "beta_log2",
    "clip_norm",
    "delta",
    "divisor",
    "epsilon",
    "mechanism",
    "pq",
    "protocol",
    "qp",
    "sampling",
    "sigma",
    "unamplified",
}
_HOPELESS = -40.0  # of the log of a bet: it would take luck of e^-128 to pass from there


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What shows that delta holds in one direction.

    Attributes:
        rule: `bet` (samples), `star_bound` (pq), `closed_form` (qp) or `gaussian`.
        tilt: m of pq, eta of qp, where the rule has one; else None.
        stake: lambda of a bet.
        samples: of a bet, a multiple of 4096.
    """

    rule: str
    tilt: float | None = None
    stake: float | None = None
    samples: int | None = None

    def document(self, direction: Direction) -> dict[str, Any]:
        """Return the plain JSON form."""
        found: dict[str, Any] = {"rule": self.rule}
        if self.tilt is not None:
            found["m" if direction == "pq" else "eta"] = int(self.tilt) if direction == "pq" else self.tilt.hex()
        if self.stake is not None:
            found |= {"lambda": self.stake.hex(), "samples": self.samples}
        return found

    @classmethod
    def from_document(cls, direction: Direction, document: Mapping[str, Any]) -> Evidence:
        """Read the plain JSON form.

        Raises:
            InvalidParameter: a rule, a field or a number that the protocol does not know.
        """
        rule, name = document.get("rule"), "m" if direction == "pq" else "eta"
        fields = {"bet": {name, "lambda", "samples"}, "gaussian": set()}
        fields |= {"star_bound": {"m"}} if direction == "pq" else {"closed_form": set()}
        if not isinstance(rule, str) or rule not in fields or set(document) != fields[rule] | {"rule"}:
            raise _malformed(direction, f"is not a rule of {', '.join(sorted(fields))} with its own fields")
        tilt = None
        if name in document:
            tilt = _order(document["m"]) if direction == "pq" else _real("eta", document["eta"])
        if rule != "bet":
            return cls(rule=rule, tilt=tilt)
        samples = document["samples"]
        if not isinstance(samples, int) or not CHUNK <= samples <= MOST_SAMPLES or samples % CHUNK:
            raise _malformed("samples", f"is no multiple of {CHUNK} up to 2^30")
        return cls(rule=rule, tilt=tilt, stake=_real("lambda", document["lambda"]), samples=samples)


@dataclass(frozen=True, kw_only=True)
class BinsClaim:
    """A claim of the protocol `star-1`.

    Attributes:
        factors: digest of the factorization, `sha256:` and 64 hexadecimal digits.
        gram: digest of the Gram matrix that was used.
        steps: n.
        bins: b.
        epsilon: of (epsilon, delta)-DP.
        delta: of (epsilon, delta)-DP.
        sigma: standard deviation per entry of Z.
        clip_norm: bound on one contribution.
        divisor: public, of means; 1 for sums.
        pq: evidence for the data with the example against those without.
        qp: evidence for the other direction.
        attempt: how many claims were tested for this question, this one included.
        unamplified_epsilon: that of the Gaussian mechanism at delta: what holds if the bins are not secret.
    """

    factors: str
    gram: str
    steps: int
    bins: int
    epsilon: float
    delta: float
    sigma: float
    clip_norm: float
    divisor: int
    pq: Evidence
    qp: Evidence
    attempt: int
    unamplified_epsilon: float

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form, floats as hexadecimal text."""
        return {
            "adjacency": "zero_out",
            "attempt": self.attempt,
            "beta_log2": -128,
            "clip_norm": self.clip_norm.hex(),
            "delta": self.delta.hex(),
            "divisor": self.divisor,
            "epsilon": self.epsilon.hex(),
            "mechanism": {
                "bins": self.bins,
                "epochs": -(-self.steps // self.bins),
                "factors": self.factors,
                "gram": self.gram,
                "n": self.steps,
            },
            "pq": self.pq.document("pq"),
            "protocol": PROTOCOL,
            "qp": self.qp.document("qp"),
            "sampling": "balls_in_bins",
            "sigma": self.sigma.hex(),
            "unamplified": {"epsilon_at_delta": self.unamplified_epsilon.hex()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> BinsClaim:
        """Read the plain JSON form.

        Raises:
            InvalidParameter: another protocol, or a field that is missing, unknown or out of its range.
        """
        if not isinstance(document, Mapping) or document.get("protocol") != PROTOCOL:
            raise _malformed("protocol", f"is not {PROTOCOL!r}, the only one that this release tests")
        if set(document) != _FIELDS:
            raise _malformed(sorted(set(document) ^ _FIELDS)[0], "is missing or unknown")
        mechanism, plain = document["mechanism"], document["unamplified"]
        names = {"bins", "epochs", "factors", "gram", "n"}
        if not isinstance(mechanism, Mapping) or set(mechanism) != names:
            raise _malformed("mechanism", f"does not hold exactly {', '.join(sorted(names))}")
        if not isinstance(plain, Mapping) or set(plain) != {"epsilon_at_delta"}:
            raise _malformed("unamplified", "does not hold exactly epsilon_at_delta")
        fixed = {"adjacency": "zero_out", "beta_log2": -128, "sampling": "balls_in_bins"}
        for name, value in fixed.items():
            if document[name] != value or isinstance(document[name], bool):
                raise _malformed(name, f"is {document[name]!r}, and this protocol has {value!r}")
        claim = cls(
            factors=str(mechanism["factors"]),
            gram=str(mechanism["gram"]),
            steps=_count("n", mechanism["n"]),
            bins=_count("bins", mechanism["bins"]),
            epsilon=_real("epsilon", document["epsilon"]),
            delta=_real("delta", document["delta"]),
            sigma=_real("sigma", document["sigma"]),
            clip_norm=_real("clip_norm", document["clip_norm"]),
            divisor=_count("divisor", document["divisor"]),
            pq=Evidence.from_document("pq", _mapping("pq", document["pq"])),
            qp=Evidence.from_document("qp", _mapping("qp", document["qp"])),
            attempt=_count("attempt", document["attempt"]),
            unamplified_epsilon=_real("epsilon_at_delta", plain["epsilon_at_delta"], zero=True),
        )
        if claim.delta >= 1 or claim.attempt > MOST_ATTEMPTS or claim.bins > claim.steps:
            raise _malformed("delta, attempt or bins", f"is outside (0, 1), 1 to {MOST_ATTEMPTS} or 1 to n")
        if canonical_json(claim.document()) != canonical_json(dict(document)):
            raise _malformed("a number", "is not written in its one canonical form")
        return claim

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that the seed is made of."""
        return canonical_json(self.document())

    @cached_property
    def digest(self) -> str:
        """`sha256:` of the canonical bytes."""
        return "sha256:" + hashlib.sha256(self.canonical).hexdigest()

    @cached_property
    def multiplier(self) -> float:
        """S = sigma * divisor / clip_norm, rounded down."""
        return double_below(Fraction(self.sigma) * self.divisor / Fraction(self.clip_norm))

    def key(self, direction: Direction, *, secret: bytes = b"") -> Key:
        """Return the Philox key of a direction's test; `secret` makes it the verifier's own."""
        seed = hashlib.sha256(b"factorize star-1 " + direction.encode() + b"\n" + self.canonical + secret).digest()
        return int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:16], "little")


class ClaimTest(NamedTuple):
    """How one direction went.

    Attributes:
        accepted: whether the evidence holds.
        rule: the kind of evidence.
        log_value: of the bet, to be at least 128 ln 2; for other rules log(delta / bound).
        samples: drawn until it was accepted or refused.
        reason: why it was refused, with the way out; empty where it was accepted.
    """

    accepted: bool
    rule: str
    log_value: float
    samples: int
    reason: str = ""


def examine(claim: BinsClaim, gram: BinGram, *, secret: bytes = b"") -> dict[Direction, ClaimTest]:
    """Test a claim in both directions, from the Gram matrix of the C that is to be used.

    Args:
        claim: what is said.
        gram: recomputed from the bytes of C, never taken from the maker.
        secret: of a verifier who trusts no hash: random bytes of its own, in place of the derived seed.

    Raises:
        InvalidParameter: the Gram matrix is of other bins.
    """
    if (gram.bins, gram.steps) != (claim.bins, claim.steps):
        raise InvalidParameter(
            f"the claim is about {claim.bins} bins in {claim.steps} steps and C has {gram.bins} in {gram.steps}; test "
            "it with the C that it names",
            field="bins",
        )
    covariance = bin_covariance(gram.gram, claim.multiplier) if "bet" in (claim.pq.rule, claim.qp.rule) else None
    found: dict[Direction, ClaimTest] = {}
    both: dict[Direction, Evidence] = {"pq": claim.pq, "qp": claim.qp}
    for direction, evidence in both.items():
        if evidence.rule == "bet":
            assert covariance is not None
            found[direction] = _bet(claim, direction, evidence, covariance, claim.key(direction, secret=secret))
        else:
            gained = math.log(claim.delta) - _log_bound(claim, evidence, gram)
            reason = "" if gained >= 0 else f"the bound of rule {evidence.rule} is above delta; use more noise"
            found[direction] = ClaimTest(gained >= 0, evidence.rule, gained, 0, reason)
    return found


def _log_bound(claim: BinsClaim, evidence: Evidence, gram: BinGram) -> float:
    if evidence.rule == "gaussian":
        return log_gaussian(gram, claim.multiplier, claim.epsilon)
    if evidence.rule == "closed_form":
        return log_reverse(gram, claim.multiplier, claim.epsilon)
    assert evidence.tilt is not None
    return StarEvaluator(gram).log_weight(claim.multiplier, claim.epsilon, int(evidence.tilt))


def _bet(claim: BinsClaim, direction: Direction, evidence: Evidence, covariance: BinCovariance, key: Key) -> ClaimTest:
    assert evidence.tilt is not None and evidence.stake is not None and evidence.samples is not None
    try:
        test = _weights(claim, direction, evidence.tilt, covariance)
        check_stake(evidence.stake, test.ceiling, claim.delta)
    except InvalidParameter as error:
        return ClaimTest(False, "bet", 0.0, 0, str(error))
    total, drawn = 0.0, 0
    for weights in chunks_of(test, key, evidence.samples // CHUNK):
        total += float(np.log1p(evidence.stake * (claim.delta - weights)).sum())
        drawn += CHUNK
        if total >= LOG_THRESHOLD:
            return ClaimTest(True, "bet", total, drawn)
        if total < _HOPELESS:
            break
    reason = (
        f"the bet stands at e^{total:.1f} after {drawn} samples and needs e^{LOG_THRESHOLD:.1f}: delta={claim.delta!r} "
        "is not shown at this sigma; use more noise, or more samples"
    )
    return ClaimTest(False, "bet", total, drawn, reason)


def _weights(
    claim: BinsClaim, direction: Direction, tilt: float, covariance: BinCovariance
) -> ForwardTest | ReverseTest:
    if direction == "pq":
        return ForwardTest(covariance, claim.epsilon, int(tilt))
    return ReverseTest(covariance, claim.epsilon, tilt)


def chunks_of(test: ForwardTest | ReverseTest, key: Key, count: int) -> Iterator[np.ndarray]:
    """Yield the weights of the chunks in order; as many at a time as there are processors."""
    workers = min(count, os.cpu_count() or 1, 8)
    with ThreadPoolExecutor(workers) as pool:
        for first in range(0, count, workers):
            several = range(first, min(first + workers, count))
            yield from list(pool.map(lambda chunk: test.weights(key, chunk), several))


def check_stake(stake: float, ceiling: float, delta: float) -> None:
    """Refuse a bet that could lose more than it has.

    Raises:
        InvalidParameter: lambda (W - delta) is not below 1.
    """
    if not stake * (ceiling - delta) < 1:
        raise InvalidParameter(
            f"lambda={stake!r} times W - delta = {ceiling - delta!r} is not below 1: the bet could lose more than it "
            "has, and its gains would prove nothing; ask the maker for a smaller lambda",
            field="lambda",
        )


def double_below(value: Fraction) -> float:
    """Return the largest double that is not above an exact positive value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)


def _malformed(field: str, reason: str) -> InvalidParameter:
    return InvalidParameter(f"the claim's {field} {reason}; ask its maker for one of {PROTOCOL}", field=field)


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _malformed(name, "is no object")
    return value


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _malformed(name, "is no integer >= 1")
    return value


def _order(value: object) -> float:
    order = _count("m", value)
    if not 2 <= order <= 4096:
        raise _malformed("m", "is outside 2 to 4096")
    return float(order)


def _real(name: str, value: object, *, zero: bool = False) -> float:
    try:
        number = float.fromhex(value) if isinstance(value, str) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise _malformed(name, "is no positive number in hexadecimal form")
    return number
