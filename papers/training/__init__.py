"""Private training with the noise of a factorization: numpy only, any gradient function.

Everything that leaves an algorithm goes through `PrivateSums`: clip, sum, add the noise of the step. The empirical
audit of that is in `papers.training.audit`, with `papers.training.neighbours`.
"""

from papers.training.clip import Contributions, Rows, clipped_sum
from papers.training.ftrl import Run, dp_ftrl
from papers.training.models import OuterProducts, SoftmaxRegression
from papers.training.optimizers import Sgd, cool_down_rates
from papers.training.private_sums import FactorizationNoise, NoiseSource, PlainSums, PrivateSums
from papers.training.specs import method_spec, ones

__all__ = [
    "Contributions",
    "FactorizationNoise",
    "NoiseSource",
    "OuterProducts",
    "PlainSums",
    "PrivateSums",
    "Rows",
    "Run",
    "Sgd",
    "SoftmaxRegression",
    "clipped_sum",
    "cool_down_rates",
    "dp_ftrl",
    "method_spec",
    "ones",
]
