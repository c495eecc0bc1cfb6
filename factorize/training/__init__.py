"""Private training with the noise of a factorization: numpy only, any gradient function.

Everything that leaves an algorithm goes through `PrivateSums`: clip, sum, add the noise of the step. The empirical
audit of that is in `factorize.training.audit`.
"""

from factorize.training.clip import Contributions, Rows, clipped_sum
from factorize.training.ftrl import Run, dp_ftrl
from factorize.training.models import OuterProducts, SoftmaxRegression
from factorize.training.optimizers import Sgd, cool_down_rates, schedule_rates
from factorize.training.orders import Order, fixed_order, full_batch
from factorize.training.private_sums import FactorizationNoise, NoiseSource, PlainSums, PrivateSums
from factorize.training.specs import method_spec, ones

__all__ = [
    "Contributions",
    "FactorizationNoise",
    "NoiseSource",
    "Order",
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
    "fixed_order",
    "full_batch",
    "method_spec",
    "ones",
    "schedule_rates",
]
