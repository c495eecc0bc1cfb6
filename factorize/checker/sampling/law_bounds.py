"""Bounds of a claim by its law of sampling: what deterministic evidence, and the epsilon without secrecy, rest on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import Any

from flint import arb

from factorize.checker.sampling import allocation, bets, star
from factorize.checker.sampling.bins import gram
from factorize.checker.sampling.star_claim import Claim, ClaimRefused, integer, real, require
from factorize.checker.strategy import Strategy


class Bounds(ABC):
    """What is known of delta at the sigma and epsilon of a claim.

    Args:
        claim: that is checked.
        strategy: C.

    Attributes:
        proved: what was taken from the bytes of C.
    """

    proved: str

    def __init__(self, claim: Claim, strategy: Strategy) -> None:
        self.claim = claim

    @abstractmethod
    def norm(self) -> Fraction:
        """Return at least the largest squared norm of what one example shifts."""

    @abstractmethod
    def shown(self, direction: str, part: Mapping[str, Any]) -> tuple[arb, str]:
        """Return at least delta in a direction by evidence without samples, and by what; its rule is not `gaussian`.

        Raises:
            ClaimRefused: a number that the rule does not know.
        """

    def least(self) -> arb:
        """Return a lower bound of delta, which refutes at once: 0 where no set of steps has a weight to speak of."""
        return arb(0)

    def weights(self, direction: str, part: Mapping[str, Any]) -> bets.Weights:
        """Return what a bet of a direction draws.

        Raises:
            ClaimRefused: the law has no bets.
        """
        raise ClaimRefused(f"{self.claim.document['sampling']} has bounds alone, and no bets")


class BinBounds(Bounds):
    """Balls in bins, by the Gram matrix of the bins."""

    def __init__(self, claim: Claim, strategy: Strategy) -> None:
        super().__init__(claim, strategy)
        self._gram = gram(strategy, claim.bins)
        self.proved = f"column sums of |C| over {claim.bins} bins, their Gram matrix, rounded up from the bytes of C"

    def norm(self) -> Fraction:
        """Of the largest bin."""
        return Fraction(float(self._gram.high.diagonal().max()))

    def shown(self, direction: str, part: Mapping[str, Any]) -> tuple[arb, str]:
        """Theorem 4 or 7."""
        if part["rule"] == "closed_form":
            found = star.addition(self._gram, self.claim.scale, self.claim.epsilon)
            return found, "the closed form of theorem 7"
        order = integer(part, "m", 2, star.MOST_ORDER)
        kernel = star.covariance(self._gram, self.claim.scale)
        return star.log_ceiling(kernel, order, self.claim.epsilon).exp(), f"the star bound with m={order}"

    def least(self) -> arb:
        """Theorem 8 a."""
        return star.least_delta(self._gram, self.claim.scale, self.claim.epsilon)

    def weights(self, direction: str, part: Mapping[str, Any]) -> bets.Weights:
        """Theorem 5 or 7."""
        given = self._gram.high, self.claim.scale, self.claim.epsilon
        shared = real(part, "shared", zero=True)
        if direction == "pq":
            return bets.removal(*given, integer(part, "m", 2, star.MOST_ORDER), shared)
        eta = real(part, "eta")
        require(eta <= star.MOST_ORDER, f"qp.eta {eta!r} is above {star.MOST_ORDER}")
        return bets.addition(*given, eta, shared)


class AllocationBounds(Bounds):
    """One step of every epoch, drawn anew, by the largest entry of a C with one band."""

    def __init__(self, claim: Claim, strategy: Strategy) -> None:
        super().__init__(claim, strategy)
        require(claim.n % claim.bins == 0, f"{claim.bins} bins do not divide n={claim.n} steps into blocks")
        self._square = allocation.largest_square(strategy)
        self.proved = "C has one band; its largest entry, rounded up from the bytes of C"

    @cached_property
    def _losses(self) -> allocation.Losses:
        return allocation.losses_of_blocks(self._square, self.claim.scale, self.claim.bins, self._number)

    @property
    def _number(self) -> int:
        return self.claim.n // self.claim.bins

    def norm(self) -> Fraction:
        """Of any k steps."""
        return self._square * self._number

    def shown(self, direction: str, part: Mapping[str, Any]) -> tuple[arb, str]:
        """Theorem 9."""
        bound = self._losses.removal if direction == "pq" else self._losses.addition
        return bound(self.claim.epsilon), "the loss distribution on a grid"


BOUNDS: dict[str, type[Bounds]] = {
    "balls_in_bins": BinBounds,
    "random_allocation": AllocationBounds,
}
"""By the law of sampling."""
