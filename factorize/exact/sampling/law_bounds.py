"""Bounds of a claim by its law of sampling: what deterministic evidence, and the epsilon without secrecy, rest on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property
from typing import Any

from factorize.exact.arithmetic.enclosures import context
from factorize.exact.sampling import epoch_chain, star
from factorize.exact.sampling.bins import Gram
from factorize.exact.sampling.star_claim import Claim


class Bounds(ABC):
    """What is known of delta at the sigma and epsilon of a claim.

    Args:
        claim: that is checked.
        gram: of the sums of columns that its law takes.
    """

    def __init__(self, claim: Claim, gram: Gram) -> None:
        self.claim, self.gram = claim, gram

    @abstractmethod
    def norm(self) -> Fraction:
        """Return at least the largest squared norm of what one example shifts."""

    @abstractmethod
    def removal(self, order: int) -> Decimal:
        """Return the star bound of delta with its contributions taken out, rounded up."""

    @abstractmethod
    def addition(self) -> Decimal:
        """Return the closed form of theorem 7, rounded up."""

    @abstractmethod
    def least(self) -> Decimal:
        """Return a lower bound of delta, which refutes at once."""

    def told(self) -> dict[str, Any]:
        """Return what is said of delta beside the claim's own evidence."""
        return {}


class BinBounds(Bounds):
    """Balls in bins; the Gram matrix is that of the bins."""

    def norm(self) -> Fraction:
        """Of the largest bin."""
        return Fraction(float(self.gram.high.diagonal().max()))

    def removal(self, order: int) -> Decimal:
        """Theorem 4."""
        kernel = star.covariance(self.gram, self.claim.scale)
        with localcontext(context()):
            return star.log_ceiling(kernel, order, self.claim.epsilon).exp()

    def addition(self) -> Decimal:
        """Theorem 7."""
        return star.addition(self.gram, self.claim.scale, self.claim.epsilon).high

    def least(self) -> Decimal:
        """Theorem 8 a."""
        return star.least_delta(self.gram, self.claim.scale, self.claim.epsilon)

    def told(self) -> dict[str, Any]:
        """The star bound at its best order."""
        bound = star.star(star.covariance(self.gram, self.claim.scale), self.claim.epsilon)
        with localcontext(context()):
            return {"star_bound": {"m": bound.order, "delta": float(min(bound.logarithm.exp(), Decimal(1)))}}


class RedrawnBounds(Bounds):
    """Bins that every epoch draws anew; the Gram matrix is that of all columns."""

    @cached_property
    def _epochs(self) -> epoch_chain.Epochs:
        return epoch_chain.Epochs(star.covariance(self.gram, self.claim.scale), self.claim.bins)

    def norm(self) -> Fraction:
        """Of any one step of every epoch."""
        return epoch_chain.Epochs(self.gram.high, self.claim.bins).norm()

    def removal(self, order: int) -> Decimal:
        """Theorem 9."""
        with localcontext(context()):
            return epoch_chain.log_ceiling(self._epochs, order, self.claim.epsilon).exp()

    def addition(self) -> Decimal:
        """Theorem 7."""
        return epoch_chain.addition(self.gram, self.claim.bins, self.claim.scale, self.claim.epsilon).high

    def least(self) -> Decimal:
        """Return nothing that is known: one set of steps alone has the probability b^-epochs."""
        return Decimal(0)
