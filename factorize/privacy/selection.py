"""Privacy of a choice among private runs on the same data: a search for hyperparameters.

Runs whose results are all released compose: k of mu-GDP are mu sqrt(k)-GDP (`factorize.numbers.gaussian.compose_mu`).
Where only the best one is ever seen, and nobody knows how many there were, far less is released, if their number was
random (Liu, Talwar 2019; Papernot, Steinke 2021, arXiv:2110.03620). The curve of delta over epsilon of the best follows
from that of one run (Koskela, Redberg, Wang 2024, arXiv:2402.06701; in the form of f-DP, arXiv:2402.13087); the proof
is in docs/notes/selection.md.
"""

import math
import secrets
from dataclasses import dataclass
from typing import Final

from factorize.errors import InvalidParameter
from factorize.numbers.gaussian import check_delta, gaussian_delta, gaussian_epsilon
from factorize.numbers.scalars import finite_real

MAX_MEAN_RUNS: Final = 1e6
"""Above it a number of runs is taken for a mistake."""
_ROUNDED = 1e-12  # relative: far more than the doubles below lose


@dataclass(frozen=True)
class BestOf:
    """The best of a random number of runs: after each run the search ends with probability 1 / mean.

    Each run, with its choice of hyperparameters, has to be as private as the others, and has noise of its own. Of all
    that they made only the best result is shown; the number of runs stays secret, too. What `best` means may depend on
    nothing but the result that is released and public data.

    Attributes:
        mean: expected number of runs, above 1.

    Raises:
        InvalidParameter: a mean that is none.
    """

    mean: float

    def __post_init__(self) -> None:
        """Refuse what is no mean."""
        remedy = "give the expected number of runs, above 1"
        if not 1 < finite_real("mean", self.mean, remedy=remedy) <= MAX_MEAN_RUNS:
            message = f"mean={self.mean!r} is outside the limits (above 1, at most {MAX_MEAN_RUNS:g}); {remedy}"
            raise InvalidParameter(message, field="mean")

    def draw(self) -> int:
        """Return a number of runs, from the operating system's randomness; draw it before the first run."""
        return 1 + math.floor(math.log1p(-secrets.SystemRandom().random()) / math.log1p(-1 / self.mean))

    def surplus(self, mu: float) -> float:
        """Return the least s with (mean - 1) delta(s) <= e^s - 1 for the delta of one run of mu-GDP, rounded up."""
        low, high = 0.0, mu * mu + 50 * mu  # beyond it delta is below all doubles
        while low < (middle := (low + high) / 2) < high:
            if (self.mean - 1) * gaussian_delta(middle, mu) * (1 + _ROUNDED) <= math.expm1(middle):
                high = middle
            else:
                low = middle
        return high * (1 + _ROUNDED)

    def epsilon(self, delta: float, mu: float, together: float | None = None) -> float:
        """Return epsilon of the best run at a delta, rounded up.

        Args:
            delta: in (0, 1).
            mu: of each of the runs among which it is the best.
            together: mu of one of them and all other releases from the same data; by default there are none.
        """
        one = gaussian_epsilon(check_delta(delta) / self.mean * (1 - _ROUNDED), mu if together is None else together)
        return (one + 2 * self.surplus(mu)) * (1 + _ROUNDED)

    def level(self, epsilon: float, delta: float) -> tuple[float, float]:
        """Return (3 epsilon, mean delta), which the best of runs that are (epsilon, delta)-DP has, rounded up.

        It is what follows where one pair is all that is known of a run, as of one that counts on sampling.

        Raises:
            InvalidParameter: delta is too large beside epsilon for that to be proved.
        """
        if (self.mean - 1) * check_delta(delta) * (1 + _ROUNDED) > math.expm1(epsilon):
            most = math.expm1(epsilon) / (self.mean - 1)
            message = (
                f"delta={delta:g} is above {most:.3g}, the most at epsilon={epsilon:g}; give runs of a smaller one"
            )
            raise InvalidParameter(message, field="delta")
        return 3 * epsilon * (1 + _ROUNDED), self.mean * delta * (1 + _ROUNDED)
