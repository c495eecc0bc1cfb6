"""The training algorithms of the papers: one file each, numpy only, any gradient function."""

from papers.algorithms.accelerated import (
    accelerated_dp_sgd,
    accelerated_dp_srgd,
    accelerated_recipe,
    unaccelerated_dp_srgd,
)
from papers.algorithms.dp_mu2 import mu2_recipe, mu2_workload, trusted_mu2, untrusted_mu2
from papers.algorithms.dp_srg import dp_srg, srg_workload
from papers.algorithms.filtered_noise import DIFFERENCED, INDEPENDENT, FilteredNoise
from papers.algorithms.machines import Machine, machine_seeds
from papers.algorithms.models import LinearRegression, Quadratic
from papers.algorithms.mu2_noise import mu2_noise
from papers.algorithms.projections import Ball, everywhere
from papers.algorithms.sketches import BlockSketch, NiceSketch, full_sketch, importance, single_coordinates
from papers.algorithms.skgd import (
    Lengths,
    convex_lengths,
    dp_skgd,
    independent_releases,
    paper_target,
    sketch_calibration,
    strongly_convex_lengths,
)
from papers.algorithms.stamped import StampedNoise

__all__ = [
    "DIFFERENCED",
    "INDEPENDENT",
    "FilteredNoise",
    "LinearRegression",
    "Quadratic",
    "mu2_workload",
    "srg_workload",
    "Ball",
    "BlockSketch",
    "Lengths",
    "Machine",
    "NiceSketch",
    "StampedNoise",
    "accelerated_dp_sgd",
    "accelerated_dp_srgd",
    "accelerated_recipe",
    "convex_lengths",
    "dp_skgd",
    "dp_srg",
    "everywhere",
    "full_sketch",
    "importance",
    "independent_releases",
    "machine_seeds",
    "mu2_noise",
    "mu2_recipe",
    "paper_target",
    "single_coordinates",
    "sketch_calibration",
    "strongly_convex_lengths",
    "trusted_mu2",
    "unaccelerated_dp_srgd",
    "untrusted_mu2",
]
