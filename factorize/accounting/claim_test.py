"""The test of a claim: bets against it on samples whose seed the claim itself is, and bounds that need none.

Under the hypothesis that delta is larger than claimed, the bet is a supermartingale that starts at 1: it reaches 2^128
with probability 2^-128 at most (Ville; Waudby-Smith and Ramdas 2024). docs/notes/bins-1.md has every step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from factorize.accounting.bins_claim import BinsClaim, Direction, Evidence
from factorize.accounting.gram_matrix import BinGram, bin_covariance
from factorize.accounting.shared.thinned_test import ThinnedTest
from factorize.accounting.star_bound import StarEvaluator, log_gaussian, log_reverse
from factorize.accounting.star_sampler import ForwardTest, Key, ReverseTest, SharedReverseTest, SharedTest
from factorize.errors import CertificateError, InvalidParameter
from factorize.numbers.blas_threads import one_blas_thread

LOG_THRESHOLD = 128 * math.log(2) + 1e-6
"""Of the log of the bet: a false direction passes with probability 2^-128."""

Sampler = ForwardTest | ReverseTest
_HOPELESS = -40.0  # of the log of a bet: it would take luck of e^-128 to pass from there


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
    found: dict[Direction, ClaimTest] = {}
    both: dict[Direction, Evidence] = {"pq": claim.pq, "qp": claim.qp}
    for direction, evidence in both.items():
        if evidence.sampled:
            found[direction] = _bet(claim, direction, evidence, gram, claim.key(direction, secret=secret))
        else:
            gained = math.log(claim.delta) - _log_bound(claim, evidence, gram)
            reason = "" if gained >= 0 else f"the bound of rule {evidence.rule} is above delta; use more noise"
            found[direction] = ClaimTest(gained >= 0, evidence.rule, gained, 0, reason)
    return found


def _log_bound(claim: BinsClaim, evidence: Evidence, gram: BinGram) -> float:
    if evidence.rule == "gaussian":
        return log_gaussian(gram.sensitivity, claim.multiplier, claim.epsilon)
    if evidence.rule == "closed_form":
        return log_reverse(gram, claim.multiplier, claim.epsilon)
    assert evidence.tilt is not None
    return StarEvaluator(gram).log_weight(claim.multiplier, claim.epsilon, int(evidence.tilt))


def _bet(claim: BinsClaim, direction: Direction, evidence: Evidence, gram: BinGram, key: Key) -> ClaimTest:
    assert evidence.stake is not None and evidence.samples is not None
    rule = evidence.rule
    try:
        test = _weights(claim, direction, evidence, gram)
        check_stake(evidence.stake, test.ceiling, claim.delta)
    except (InvalidParameter, CertificateError) as error:
        return ClaimTest(False, rule, 0.0, 0, str(error))
    total, drawn = 0.0, 0
    with one_blas_thread(gram.bins):  # chunks run side by side, and threads of BLAS in each would only wait
        for weights in chunks_of(test, key, evidence.samples // test.chunk):
            total += float(np.log1p(evidence.stake * (claim.delta - weights)).sum())
            drawn += test.chunk
            if total >= LOG_THRESHOLD:
                return ClaimTest(True, rule, total, drawn)
            if total < _HOPELESS:
                break
    reason = (
        f"the bet stands at e^{total:.1f} after {drawn} samples and needs e^{LOG_THRESHOLD:.1f}: delta={claim.delta!r} "
        "is not shown at this sigma; use more noise, or more samples"
    )
    return ClaimTest(False, rule, total, drawn, reason)


def _weights(claim: BinsClaim, direction: Direction, evidence: Evidence, gram: BinGram) -> Sampler:
    assert evidence.tilt is not None
    shared = evidence.shared
    covariance = bin_covariance(gram.gram, claim.multiplier, shared or 0.0)
    if direction == "qp":
        if shared is not None:
            return SharedReverseTest(covariance, shared, claim.epsilon, evidence.tilt)
        return ReverseTest(covariance, claim.epsilon, evidence.tilt)
    if shared is not None:
        made = ThinnedTest if evidence.rule == "thinned_bet" else SharedTest
        return made(covariance, shared, claim.epsilon, int(evidence.tilt))
    return ForwardTest(covariance, claim.epsilon, int(evidence.tilt))


def chunks_of(test: Sampler, key: Key, count: int) -> Iterator[np.ndarray]:
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
