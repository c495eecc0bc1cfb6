"""The level of a given sigma under balls in bins: claims about delta at an epsilon, and about epsilon at a delta.

The same protocol and the same test as for sigma: an estimate at a slightly smaller sigma, a finished claim, one test.
"""

from __future__ import annotations

from dataclasses import replace

from factorize.accounting.bins_search import WORK, BinsQuestion, FoundClaim, Proposal, Search
from factorize.accounting.star_bound import StarEvaluator, bins_epsilon
from factorize.errors import InvalidParameter

LEAST_EPSILON = 2.0**-30
"""Of a claim: where delta holds at epsilon 0 already, this is claimed."""

LARGEST_EPSILON = 1e6
"""Of a claim: beyond, nothing is private."""


def find_delta(question: BinsQuestion, sigma: float, *, work: int = WORK, seed: int = 0) -> FoundClaim:
    """Return a claim about delta at this very sigma that has passed its test; the question's own delta is not used.

    Args:
        question: with the epsilon at which delta is asked for.
        sigma: standard deviation per entry of Z.
        work: see `find_claim`.
        seed: see `find_claim`.

    Raises:
        InvalidParameter: there is so little noise that nothing is private there.
    """
    multiplier = question.multiplier(sigma)
    bound = StarEvaluator(question.gram).delta(multiplier, question.epsilon).delta
    if bound >= 1:
        raise InvalidParameter(
            f"sigma={sigma!r} is too small for any delta below 1 at epsilon={question.epsilon!r}; use more noise, or "
            "ask at a larger epsilon",
            field="sigma",
        )
    search = Search(question.gram, work=work, seed=seed)

    def propose(margin: float) -> Proposal | None:
        less = multiplier / (1 + margin)
        seen = (search.estimate.forward(less, question.epsilon), search.estimate.reverse(less, question.epsilon))
        delta = max(sampled.delta for sampled in seen)
        return Proposal(replace(question, delta=delta), sigma, margin) if 0 < delta < bound else None

    return search.first(propose, Proposal(replace(question, delta=bound), sigma, 0.0), multiplier)


def find_epsilon(question: BinsQuestion, sigma: float, *, work: int = WORK, seed: int = 0) -> FoundClaim:
    """Return a claim about epsilon at this very sigma that has passed its test; the question's own epsilon is not used.

    Args:
        question: with the delta at which epsilon is asked for.
        sigma: standard deviation per entry of Z.
        work: see `find_claim`.
        seed: see `find_claim`.

    Raises:
        InvalidParameter: epsilon is above 10^6.
    """
    multiplier, delta = question.multiplier(sigma), question.delta
    bound = max(bins_epsilon(question.gram, multiplier=multiplier, delta=delta), LEAST_EPSILON)
    if bound > LARGEST_EPSILON:
        raise InvalidParameter(
            f"sigma={sigma!r} gives no epsilon up to {LARGEST_EPSILON:g} at delta={delta!r}; use more noise",
            field="sigma",
        )
    search = Search(question.gram, work=work, seed=seed)

    def propose(margin: float) -> Proposal | None:
        if bound <= LEAST_EPSILON:  # nothing can be below it, and an estimate at so much noise takes minutes
            return None
        epsilon = max(search.estimate.epsilon(multiplier / (1 + margin), delta), LEAST_EPSILON)
        return Proposal(replace(question, epsilon=epsilon), sigma, margin) if epsilon < bound else None

    return search.first(propose, Proposal(replace(question, epsilon=bound), sigma, 0.0), multiplier)
