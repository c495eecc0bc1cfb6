"""The claim: a document that says (epsilon, delta) at sigma, whose test draws from a seed made of the document.

A claim may be found in any way. Its test cannot be chosen: the seed is the SHA-256 of the finished claim, so that
nothing that was searched before is a multiple test, and a false claim passes with probability 2^-127. Every bit of the
test is specified in docs/notes/bins-1.md.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from factorize.accounting.shared.shared_call import THINNED_CHUNK
from factorize.accounting.star_sampler import CHUNK, Key
from factorize.encoding import DIGEST, canonical_json
from factorize.errors import InvalidParameter

_NAME = re.compile(f"sha256:{DIGEST}")
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


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What shows that delta holds in one direction.

    Attributes:
        rule: `bet`, `shared_bet` (samples), `thinned_bet` (pq, samples), `star_bound` (pq), `closed_form` (qp),
            `moment` or `gaussian`.
        tilt: m of pq, eta of qp, where the rule has one; else None.
        stake: lambda of a bet.
        samples: of a bet, a multiple of 4096; of a thinned one the candidates, a multiple of 16384.
        shared: variance of the part that is integrated in closed form, of a `shared_bet` or `thinned_bet`.
    """

    rule: str
    tilt: float | None = None
    stake: float | None = None
    samples: int | None = None
    shared: float | None = None

    @property
    def sampled(self) -> bool:
        """Whether it is a bet."""
        return self.rule in ("bet", "shared_bet", "thinned_bet")

    def document(self, direction: Direction) -> dict[str, Any]:
        """Return the plain JSON form."""
        found: dict[str, Any] = {"rule": self.rule}
        if self.tilt is not None:
            found["m" if direction == "pq" else "eta"] = int(self.tilt) if direction == "pq" else self.tilt.hex()
        if self.stake is not None:
            found |= {"lambda": self.stake.hex(), "samples": self.samples}
        if self.shared is not None:
            found["shared"] = self.shared.hex()
        return found

    @classmethod
    def from_document(cls, direction: Direction, document: Mapping[str, Any], rules: frozenset[str]) -> Evidence:
        """Read the plain JSON form of a protocol with these rules.

        Raises:
            InvalidParameter: a rule, a field or a number that the protocol does not know.
        """
        rule, name = document.get("rule"), "m" if direction == "pq" else "eta"
        fields = {"bet": {name, "lambda", "samples"}, "gaussian": set(), "moment": {name}}
        fields["shared_bet"] = fields["bet"] | {"shared"}
        if direction == "pq":
            fields["thinned_bet"] = fields["shared_bet"]
        fields |= {"star_bound": {"m"}} if direction == "pq" else {"closed_form": set()}
        fields = {known: own for known, own in fields.items() if known in rules}
        if not isinstance(rule, str) or rule not in fields or set(document) != fields[rule] | {"rule"}:
            raise _malformed(direction, f"is not a rule of {', '.join(sorted(fields))} with its own fields")
        tilt = None
        if name in document:
            tilt = _order(document["m"]) if direction == "pq" else _real("eta", document["eta"])
        if "samples" not in fields[rule]:
            return cls(rule=rule, tilt=tilt)
        samples = document["samples"]
        chunk = THINNED_CHUNK if rule == "thinned_bet" else CHUNK
        if not isinstance(samples, int) or not chunk <= samples <= MOST_SAMPLES or samples % chunk:
            raise _malformed("samples", f"is no multiple of {chunk} up to 2^30")
        shared = _real("shared", document["shared"]) if "shared" in document else None
        return cls(rule=rule, tilt=tilt, stake=_real("lambda", document["lambda"]), samples=samples, shared=shared)


@dataclass(frozen=True, kw_only=True)
class BinsClaim:
    """A claim about balls in bins.

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
        sampling: the law of participation.
        protocol: that names the form of the document.
        rules: of evidence that the protocol knows.
    """

    sampling: ClassVar[str] = "balls_in_bins"
    protocol: ClassVar[str] = "bins-1"
    rules: ClassVar[frozenset[str]] = frozenset(
        {"bet", "shared_bet", "thinned_bet", "star_bound", "closed_form", "gaussian"}
    )

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
            "protocol": self.protocol,
            "qp": self.qp.document("qp"),
            "sampling": self.sampling,
            "sigma": self.sigma.hex(),
            "unamplified": {"epsilon_at_delta": self.unamplified_epsilon.hex()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read the plain JSON form.

        Raises:
            InvalidParameter: another protocol, or a field that is missing, unknown or out of its range.
        """
        protocol = document.get("protocol") if isinstance(document, Mapping) else None
        if protocol != cls.protocol:
            raise _malformed("protocol", f"is not {cls.protocol!r}, the one that is tested here")
        if set(document) != _FIELDS:
            raise _malformed(sorted(set(document) ^ _FIELDS)[0], "is missing or unknown")
        mechanism, plain = document["mechanism"], document["unamplified"]
        names = {"bins", "epochs", "factors", "gram", "n"}
        if not isinstance(mechanism, Mapping) or set(mechanism) != names:
            raise _malformed("mechanism", f"does not hold exactly {', '.join(sorted(names))}")
        if not isinstance(plain, Mapping) or set(plain) != {"epsilon_at_delta"}:
            raise _malformed("unamplified", "does not hold exactly epsilon_at_delta")
        fixed = {"adjacency": "zero_out", "beta_log2": -128, "sampling": cls.sampling}
        for name, value in fixed.items():
            if document[name] != value or isinstance(document[name], bool):
                raise _malformed(name, f"is {document[name]!r}, and this protocol has {value!r}")
        claim = cls(
            factors=_digest("factors", mechanism["factors"]),
            gram=_digest("gram", mechanism["gram"]),
            steps=_count("n", mechanism["n"]),
            bins=_count("bins", mechanism["bins"]),
            epsilon=_real("epsilon", document["epsilon"]),
            delta=_real("delta", document["delta"]),
            sigma=_real("sigma", document["sigma"]),
            clip_norm=_real("clip_norm", document["clip_norm"]),
            divisor=_count("divisor", document["divisor"]),
            pq=Evidence.from_document("pq", _mapping("pq", document["pq"]), cls.rules),
            qp=Evidence.from_document("qp", _mapping("qp", document["qp"]), cls.rules),
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
        start = f"factorize {self.protocol} {direction}\n".encode("ascii")
        seed = hashlib.sha256(start + self.canonical + secret).digest()
        return int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:16], "little")


def double_below(value: Fraction) -> float:
    """Return the largest double that is not above an exact positive value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)


def _malformed(field: str, reason: str) -> InvalidParameter:
    return InvalidParameter(f"the claim's {field} {reason}; ask its maker for a whole one", field=field)


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _malformed(name, "is no object")
    return value


def _digest(name: str, value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _malformed(name, "is no sha256: with 64 hexadecimal digits")
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
