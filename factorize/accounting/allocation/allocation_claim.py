"""The claim about random allocation: the document of balls in bins under other names, without bets."""

from __future__ import annotations

import math
from typing import ClassVar

from factorize.accounting.allocation.allocation_law import AllocationLaw
from factorize.accounting.bins_claim import BinsClaim, Direction, Evidence
from factorize.accounting.claim_test import ClaimTest
from factorize.errors import InvalidParameter


class AllocationClaim(BinsClaim):
    """A claim of the protocol `allocation-1`; `gram` is the digest of the largest squared entry of C, a double."""

    sampling: ClassVar[str] = "random_allocation"
    protocol: ClassVar[str] = "allocation-1"
    rules: ClassVar[frozenset[str]] = frozenset({"moment", "gaussian"})


def examine_allocation(claim: BinsClaim, law: AllocationLaw) -> dict[Direction, ClaimTest]:
    """Test a claim in both directions, from the C that is to be used.

    Args:
        claim: what is said.
        law: made from the bytes of C, never taken from the maker.

    Raises:
        InvalidParameter: the law is of other epochs.
    """
    if (law.bins, law.n) != (claim.bins, claim.steps):
        raise InvalidParameter(
            f"the claim is about {claim.bins} bins in {claim.steps} steps and C has {law.bins} in {law.n}; test it "
            "with the C that it names",
            field="bins",
        )
    both: dict[Direction, Evidence] = {"pq": claim.pq, "qp": claim.qp}
    tests: dict[Direction, ClaimTest] = {}
    for direction, evidence in both.items():
        if evidence.rule == "gaussian":
            above = law.plain(claim.multiplier, claim.epsilon)
        else:
            above = law.log_bound(direction, evidence, claim.multiplier, claim.epsilon)
        gained = math.log(claim.delta) - above
        reason = "" if gained >= 0 else f"the bound of rule {evidence.rule} is above delta; use more noise"
        tests[direction] = ClaimTest(gained >= 0, evidence.rule, gained, 0, reason)
    return tests
