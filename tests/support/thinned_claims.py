"""Claims with thinned bets that are made by hand: with a margin that a few chunks show."""

from __future__ import annotations

from factorize.accounting.bins_claim import BinsClaim
from factorize.accounting.bins_search import BinsQuestion, plan, plan_bets
from factorize.accounting.star_estimate import StarEstimate


def thinned_claim(question: BinsQuestion, *, margin: float = 0.05, order: int | None = None) -> BinsClaim:
    """A claim whose pq is a thinned bet, at a margin above the estimate; by default with the lowest ceiling."""
    estimate = StarEstimate(question.gram, seed=3)
    sigma = question.sigma((1 + margin) * estimate.sigma(question.epsilon, question.delta))
    multiplier = question.multiplier(sigma)
    sampled = estimate.forward(multiplier, question.epsilon, order)
    bets = plan_bets(sampled, question.delta, question.gram.bins)
    pq = next(bet.evidence for bet in bets if bet.evidence.rule == "thinned_bet")
    qp = plan(estimate, "qp", multiplier, question)
    assert qp is not None
    return question.claim(sigma, pq=pq, qp=qp.evidence)
