"""The claim: a document that says (epsilon, delta) at sigma, whose test draws from a seed made of the document.

A claim may be found in any way. Its test cannot be chosen: the seed is the SHA-256 of the finished claim, so that
nothing that was searched before is a multiple test, and a false claim passes with probability 2^-127. The checker reads
and tests it (`factorize.checker.sampling`); docs/notes/bins-1.md specifies every bit.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

from factorize.checker.sampling.calibrations import CalibrationReport, check_claim
from factorize.checker.strategy import Strategy
from factorize.encoding import canonical_json
from factorize.format.bins_claims import PROTOCOL
from factorize.format.manifest import CertifiedFactors

Direction = Literal["pq", "qp"]


@dataclass(frozen=True, kw_only=True)
class ClaimEvidence:
    """The evidence that delta holds in one direction.

    Attributes:
        rule: `bet`, `boosted_bet`, `chain_bet` or `curved_bet` (samples), `star_bound` or `chain_bound` (pq),
            `closed_form` or `curved_bound` (qp), `loss_distribution`, `gaussian`.
        tilt: m of pq, eta of qp, where the rule has one; else None.
        stake: lambda of a bet.
        samples: number of samples of a bet, a multiple of 8192.
        shared: variance of the part that a bet integrates in closed form, or 0; None for b-min-sep.
        rate: q of the direction qp, for b-min-sep.
        reach: the largest |u_t| of a curved bound.
        boost: c of a boosted bet, by which each tuple's chance to be kept is multiplied.
    """

    rule: str
    tilt: float | None = None
    stake: float | None = None
    samples: int | None = None
    shared: float | None = 0.0
    rate: float | None = None
    reach: float | None = None
    boost: int | None = None

    def document(self, direction: Direction) -> dict[str, Any]:
        """Return the plain JSON form."""
        plain: dict[str, object] = {"rule": self.rule}
        if self.tilt is not None:
            plain |= {"m": int(self.tilt)} if direction == "pq" else {"eta": self.tilt.hex()}
        if self.stake is not None:
            plain |= {"lambda": self.stake.hex(), "samples": self.samples}
        plain |= {"shared": self.shared.hex()} if self.stake is not None and self.shared is not None else {}
        plain |= {"rate": self.rate.hex()} if self.rate is not None else {}
        plain |= {"reach": self.reach.hex()} if self.reach is not None else {}
        plain |= {"boost": self.boost} if self.boost is not None else {}
        return plain


@dataclass(frozen=True, kw_only=True)
class NoiseClaim:
    """A claim about a law of participation.

    Attributes:
        sampling: name of the law.
        factors: digest of the factorization, `sha256:` and 64 hexadecimal digits.
        steps: n.
        bins: b.
        epsilon: the epsilon of (epsilon, delta)-DP.
        delta: the delta of (epsilon, delta)-DP.
        sigma: standard deviation per entry of Z, for sums.
        clip_norm: bound on one contribution.
        pq: evidence for the data with the example against the data without it.
        qp: evidence for the other direction.
        attempt: number of claims that were tested for this question, this one included.
        unamplified_epsilon: epsilon of the Gaussian mechanism at delta, which holds even if the draws become known.
        probability: probability of a step, under b-min-sep.
    """

    sampling: str
    factors: str
    steps: int
    bins: int
    epsilon: float
    delta: float
    sigma: float
    clip_norm: float
    pq: ClaimEvidence
    qp: ClaimEvidence
    attempt: int
    unamplified_epsilon: float
    probability: float | None = None

    @property
    def sampled(self) -> bool:
        """Whether a bet supports one of the directions."""
        return any(part.samples for part in (self.pq, self.qp))

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form, floats as hexadecimal text."""
        mechanism = {"bins": self.bins, "epochs": -(-self.steps // self.bins), "factors": self.factors, "n": self.steps}
        chance = {} if self.probability is None else {"sampling_probability": self.probability.hex()}
        return {
            "adjacency": "zero_out",
            "attempt": self.attempt,
            "beta_log2": -128,
            "clip_norm": self.clip_norm.hex(),
            "delta": self.delta.hex(),
            "epsilon": self.epsilon.hex(),
            "mechanism": mechanism | chance,
            "pq": self.pq.document("pq"),
            "protocol": PROTOCOL,
            "qp": self.qp.document("qp"),
            "sampling": self.sampling,
            "sigma": self.sigma.hex(),
            "unamplified": {"epsilon_at_delta": self.unamplified_epsilon.hex()},
        }

    @cached_property
    def digest(self) -> str:
        """The digest of the canonical bytes, with `sha256:`."""
        return "sha256:" + hashlib.sha256(canonical_json(self.document())).hexdigest()

    def tested(self, factors: CertifiedFactors) -> CalibrationReport:
        """Return the checker's report on the claim, from the tensors of C."""
        strategy = partial(Strategy, factors.structure, factors.strategy_tensors(), factors.steps)
        return check_claim(factors.digest, strategy, self.document())


def prefixed(digest: str) -> str:
    """Return a digest with the prefix that names its kind."""
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"
