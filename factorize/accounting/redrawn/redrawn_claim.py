"""The claim about re-drawn bins: the document of balls in bins under another name, and bounds without samples alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from factorize.accounting.bins_claim import BinsClaim, Direction, Evidence
from factorize.accounting.claim_test import ClaimTest
from factorize.accounting.redrawn.redrawn_bound import RedrawnEvaluator, log_gaussian, log_reverse
from factorize.accounting.redrawn.redrawn_gram import RedrawnGram
from factorize.errors import InvalidParameter


class RedrawnClaim(BinsClaim):
    """A claim of the protocol `redrawn-1`; `gram` is the digest of the Gram matrix of all n columns of |C|."""

    protocol: ClassVar[str] = "redrawn-1"
    sampling: ClassVar[str] = "redrawn_bins"

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read the plain JSON form.

        Raises:
            InvalidParameter: another protocol, a bet, or a field that is missing, unknown or out of its range.
        """
        claim = super().from_document(document)
        if "bet" in (claim.pq.rule, claim.qp.rule):
            raise InvalidParameter(
                "the claim's evidence is a bet, and redrawn-1 has bounds without samples alone; ask its maker for one",
                field="pq",
            )
        return claim


def examine_redrawn(claim: RedrawnClaim, gram: RedrawnGram) -> dict[Direction, ClaimTest]:
    """Test a claim in both directions, from the Gram matrix of the C that is to be used.

    Args:
        claim: what is said.
        gram: recomputed from the bytes of C, never taken from the maker.

    Raises:
        InvalidParameter: the Gram matrix is of other epochs.
    """
    if (gram.bins, gram.n) != (claim.bins, claim.steps):
        raise InvalidParameter(
            f"the claim is about {claim.bins} bins in {claim.steps} steps and C has {gram.bins} in {gram.n}; test it "
            "with the C that it names",
            field="bins",
        )
    both: dict[Direction, Evidence] = {"pq": claim.pq, "qp": claim.qp}
    found: dict[Direction, ClaimTest] = {}
    for direction, evidence in both.items():
        gained = math.log(claim.delta) - _log_bound(claim, evidence, gram)
        reason = "" if gained >= 0 else f"the bound of rule {evidence.rule} is above delta; use more noise"
        found[direction] = ClaimTest(gained >= 0, evidence.rule, gained, 0, reason)
    return found


def _log_bound(claim: RedrawnClaim, evidence: Evidence, gram: RedrawnGram) -> float:
    if evidence.rule == "gaussian":
        return log_gaussian(gram, claim.multiplier, claim.epsilon)
    if evidence.rule == "closed_form":
        return log_reverse(gram, claim.multiplier, claim.epsilon)
    assert evidence.tilt is not None
    return RedrawnEvaluator(gram).log_weight(claim.multiplier, claim.epsilon, int(evidence.tilt))
