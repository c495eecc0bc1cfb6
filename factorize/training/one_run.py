"""An audit of one trained job, whoever trained it: is an attack's success possible under a claimed (epsilon, delta)?

Each of m examples was put into the training data or left out by a fair coin of its own. The attack gives every example
a score, larger where it looks trained on; it sees the model, and not the coins. The largest k / 2 scores are guessed to
be in, the smallest k / 2 to be out. Of W correct guesses under an (epsilon, delta)-private algorithm

    P[W >= v] <= beta + m delta max_i (2 / i) P[v > B >= v - i],    beta = P[B >= v],

with B binomial of k and e^epsilon / (1 + e^epsilon) (Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1)
training run", theorem 5.2). The relation is that of one example added or removed, which zero-out is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from factorize.errors import InvalidParameter, extras_named
from factorize.numbers.scalars import finite_real

_SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The shares of the examples that the attack guesses, one after another."""
_MAX_EPSILON = 100.0
"""The largest epsilon that an audit may find: no number of examples that fits into memory shows more."""


@dataclass(frozen=True)
class OneRunReport:
    """The result of an attack on one job.

    Attributes:
        examples: m.
        guesses: k, the number of guesses that shows most.
        correct: number of correct ones among these guesses.
        p_value: upper bound on the probability of this many correct guesses or more under the claim, times the numbers
            of guesses tried.
        epsilon: lower bound on the algorithm's epsilon at delta, with the confidence, to 1e-4; 0 if the attack shows
            none.
        claimed_epsilon: epsilon of the claim.
        delta: delta of the claim.
        confidence: confidence of `epsilon`, and probability that a true claim is not refuted.
    """

    examples: int
    guesses: int
    correct: int
    p_value: float
    epsilon: float
    claimed_epsilon: float
    delta: float
    confidence: float

    @property
    def refutes(self) -> bool:
        """Whether the claim is false, with the confidence."""
        return self.p_value <= 1 - self.confidence


@extras_named("an audit")
def audit_scores(
    scores: Sequence[float] | np.ndarray,
    members: Sequence[float] | np.ndarray,
    *,
    epsilon: float,
    delta: float,
    confidence: float = 0.95,
) -> OneRunReport:
    """Test a claim by an attack's scores.

    Args:
        scores: score of each example, larger where it looks trained on; minus its loss, for example.
        members: 1 for those that a fair coin put into the data, 0 for those that it left out.
        epsilon: claimed.
        delta: claimed.
        confidence: see `OneRunReport`.

    Raises:
        InvalidParameter: other numbers, fewer than 20 examples, or coins that were not fair.
    """
    from scipy.stats import binom

    claimed = finite_real("epsilon", epsilon, strict=False, remedy="give the epsilon of the claim")
    delta = finite_real("delta", delta, strict=False, remedy="give the delta of the claim")
    if delta >= 1 or not 0.5 <= finite_real("confidence", confidence, remedy="give 0.95, for example") < 1:
        raise InvalidParameter(
            f"delta={delta!r} must be in [0, 1) and confidence={confidence!r} in [0.5, 1); give the delta of the "
            "claim, and confidence=0.95, for example",
            field="delta",
        )
    try:
        held, coins = np.asarray(scores, dtype=float), np.asarray(members)
    except (TypeError, ValueError) as error:
        message = f"the scores are no list of numbers ({error}); give one number for each example"
        raise InvalidParameter(message, field="scores") from None
    if held.ndim != 1 or held.shape != coins.shape or len(held) < 20 or np.isnan(held).any():
        raise InvalidParameter(
            f"scores has shape {held.shape}, members {coins.shape}; give one of each for at least 20 examples, no NaN",
            field="scores",
        )
    if not np.isin(coins, (0, 1)).all():
        other = coins[~np.isin(coins, (0, 1))][0]
        message = f"members contains {str(other)[:20]!r}; give 1 for an example in the data, 0 for one left out"
        raise InvalidParameter(message, field="members")
    count, fewer = int(coins.sum()), int(min(coins.sum(), len(coins) - coins.sum()))
    if binom.cdf(fewer, len(coins), 0.5) < 1e-9:
        raise InvalidParameter(
            f"{count} of {len(coins)} examples are members, which fair coins would almost never give, so the scores "
            "prove nothing; train with examples that fair coins chose",
            field="members",
        )
    # Equal scores are in an order of their own: that of the file may follow the coins, as where members come last.
    order = np.lexsort((np.random.default_rng(0).permutation(len(held)), held))
    half_counts = sorted({max(1, int(share * len(held)) // 2) for share in _SHARES})
    tried = [(2 * half, int(coins[order[-half:]].sum() + half - coins[order[:half]].sum())) for half in half_counts]

    def p_value(level: float) -> tuple[float, int, int]:
        values = [(_p_value(k, v, level, len(held), delta), k, v) for k, v in tried]
        least, k, v = min(values)
        return min(1.0, least * len(tried)), k, v

    chance, guesses, correct = p_value(claimed)
    low, high = 0.0, _MAX_EPSILON
    if p_value(0.0)[0] > 1 - confidence:
        high = 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle)[0] <= 1 - confidence else (low, middle)
    return OneRunReport(len(held), guesses, correct, chance, low, claimed, delta, confidence)


def _p_value(guesses: int, correct: int, epsilon: float, examples: int, delta: float) -> float:
    """Return an upper bound on the probability of this many correct guesses or more."""
    from scipy.stats import binom

    law = binom(guesses, 1 / (1 + math.exp(-epsilon)))
    beta = float(law.sf(correct - 1))
    if delta == 0:
        return beta
    below = np.arange(1, correct + 1)
    between = law.cdf(correct - 1) - law.cdf(correct - below - 1)
    return min(1.0, beta + examples * delta * float((2 / below * between).max(initial=0.0)))
