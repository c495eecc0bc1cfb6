"""Private training with the noise of a factorization: one file per algorithm, numpy only, any gradient function.

Everything that leaves an algorithm goes through `PrivateSums`: clip, sum, add the noise of the step. The empirical
audit of that is in `factorize.training.audit`.
"""

from factorize.training.algorithms.accelerated import (
    accelerated_dp_sgd,
    accelerated_dp_srgd,
    accelerated_recipe,
    unaccelerated_dp_srgd,
)
from factorize.training.algorithms.dp_mu2 import mu2_recipe, trusted_mu2, untrusted_mu2
from factorize.training.algorithms.dp_srg import dp_srg
from factorize.training.algorithms.ftrl import dp_ftrl
from factorize.training.algorithms.machines import Machine, machine_seeds
from factorize.training.algorithms.mu2_noise import mu2_noise
from factorize.training.algorithms.projections import Ball, Box, everywhere
from factorize.training.algorithms.sketches import BlockSketch, NiceSketch, full_sketch, importance, single_coordinates
from factorize.training.algorithms.skgd import (
    Lengths,
    convex_lengths,
    dp_skgd,
    paper_target,
    sketch_calibration,
    strongly_convex_lengths,
)
from factorize.training.clip import Contributions, Rows, clipped_sum
from factorize.training.correlated_noise import DIFFERENCED, INDEPENDENT, FactorizationNoise, FilteredNoise, NoiseSource
from factorize.training.models import LinearRegression, OuterProducts, Quadratic, SoftmaxRegression
from factorize.training.optimizers import Sgd, cool_down_rates, schedule_rates
from factorize.training.orders import Order, fixed_order, full_batch
from factorize.training.private_sums import PlainSums, PrivateSums
from factorize.training.runs import Run
from factorize.training.specs import method_spec, mu2_workload, ones, srg_workload
from factorize.training.stamped import StampedNoise
from factorize.training.varying_noise import VaryingNoise

__all__ = [
    "DIFFERENCED",
    "INDEPENDENT",
    "Ball",
    "BlockSketch",
    "Box",
    "Contributions",
    "FactorizationNoise",
    "FilteredNoise",
    "Lengths",
    "LinearRegression",
    "Machine",
    "NiceSketch",
    "NoiseSource",
    "Order",
    "OuterProducts",
    "PlainSums",
    "PrivateSums",
    "Quadratic",
    "Rows",
    "Run",
    "Sgd",
    "SoftmaxRegression",
    "StampedNoise",
    "VaryingNoise",
    "accelerated_dp_sgd",
    "accelerated_dp_srgd",
    "accelerated_recipe",
    "clipped_sum",
    "convex_lengths",
    "cool_down_rates",
    "dp_ftrl",
    "dp_skgd",
    "dp_srg",
    "everywhere",
    "fixed_order",
    "full_batch",
    "full_sketch",
    "importance",
    "machine_seeds",
    "method_spec",
    "mu2_noise",
    "mu2_recipe",
    "mu2_workload",
    "ones",
    "paper_target",
    "schedule_rates",
    "single_coordinates",
    "sketch_calibration",
    "srg_workload",
    "strongly_convex_lengths",
    "trusted_mu2",
    "unaccelerated_dp_srgd",
    "untrusted_mu2",
]
