"""Privacy of a choice among private runs on the same data: a search for hyperparameters.

Runs whose results are all released compose: k of mu-GDP are mu sqrt(k)-GDP (`factorize.numbers.gaussian.compose_mu`).
If only the best one is ever seen, and nobody knows how many there were, far less is released, provided their number was
random (Liu, Talwar 2019; Papernot, Steinke 2021, arXiv:2110.03620). The curve of delta over epsilon of the best run
follows from that of one run (Koskela, Redberg, Wang 2024, arXiv:2402.06701; in the form of f-DP, arXiv:2402.13087); the
proof is in docs/notes/selection.md.
"""

import math
import secrets
from dataclasses import dataclass
from typing import Final

from factorize.errors import InvalidParameter
from factorize.numbers.gaussian import check_delta, gaussian_delta, gaussian_epsilon
from factorize.numbers.scalars import finite_real

MAX_MEAN_RUNS: Final = 1e6
"""The largest mean number of runs: a larger one is taken for a mistake."""
_MAX_EPSILON = 700.0
"""The largest epsilon that enters an exponential, which must stay a double."""
_ROUNDING = 1e-12
"""Relative margin of results, which is far more than the doubles below lose."""


@dataclass(frozen=True)
class BestOf:
    """The best of a random number of runs: after each run the search ends with probability 1 / mean.

    Each run, with its choice of hyperparameters, must be as private as the others, and must have noise of its own. Only
    the best result of all runs is shown, and the number of runs stays secret, too. The meaning of `best` may depend
    only on the result that is released and on public data.

    Attributes:
        mean: expected number of runs, above 1.

    Raises:
        InvalidParameter: an invalid mean.
    """

    mean: float

    def __post_init__(self) -> None:
        """Refuse an invalid mean."""
        remedy = "give the expected number of runs, above 1"
        if not 1 < finite_real("mean", self.mean, remedy=remedy) <= MAX_MEAN_RUNS:
            message = f"mean={self.mean!r} is outside the limits (above 1, at most {MAX_MEAN_RUNS:g}); {remedy}"
            raise InvalidParameter(message, field="mean")

    def draw(self) -> int:
        """Return a random number of runs, from the operating system's randomness; draw it before the first run."""
        return 1 + math.floor(math.log1p(-secrets.SystemRandom().random()) / math.log1p(-1 / self.mean))

    def surplus(self, mu: float) -> float:
        """Return the least s with (mean - 1) delta(s) <= e^s - 1 for the delta of one run of mu-GDP, rounded up."""
        low, high = 0.0, math.log1p(self.mean - 1) * (1 + 4 * _ROUNDING)  # there delta of 1 is not too large
        while low < (middle := (low + high) / 2) < high:
            if (self.mean - 1) * gaussian_delta(middle, mu) * (1 + _ROUNDING) <= math.expm1(middle):
                high = middle
            else:
                low = middle
        return high * (1 + _ROUNDING)

    def epsilon(self, delta: float, mu: float, together: float | None = None) -> float:
        """Return epsilon of the best run at a delta, rounded up.

        Args:
            delta: a number in (0, 1).
            mu: the mu of each of the runs among which it is the best.
            together: the mu of one of them and all other releases from the same data; by default there are none.
        """
        one = gaussian_epsilon(check_delta(delta) / self.mean * (1 - _ROUNDING), mu if together is None else together)
        return (one + 2 * self.surplus(mu)) * (1 + _ROUNDING)

    def level(self, epsilon: float, delta: float) -> tuple[float, float]:
        """Return (3 epsilon, mean delta), rounded up, which the best of (epsilon, delta)-DP runs has.

        This holds where one pair is all that is known of a run, for example of one that relies on sampling.

        Raises:
            InvalidParameter: a value out of range, or delta is too large to prove this at epsilon.
        """
        level = finite_real("epsilon", epsilon, remedy="give the epsilon of each run")
        most = math.expm1(min(level, _MAX_EPSILON)) / (self.mean - 1)
        if check_delta(delta) * (1 + _ROUNDING) > most:
            message = f"delta={delta:g} is above {most:.3g}, the most at epsilon={level:g}; use a smaller delta"
            raise InvalidParameter(message, field="delta")
        return 3 * level * (1 + _ROUNDING), min(self.mean * delta * (1 + _ROUNDING), 1.0)
