"""K23, Table 2: the epsilons of its noise multipliers, at the delta of 1e-6 that the paper uses throughout."""

from __future__ import annotations

from factorize.numbers.gaussian import gaussian_epsilon
from papers.reproductions.comparison import Comparison

TITLE = "Koloskova et al. 2023, Table 2: epsilon of each noise multiplier, StackOverflow"

MULTIPLIERS = (0.341, 0.682, 1.364, 2.728, 5.456)
PUBLISHED = ((17.65, 0.005), (7.6, 0.05), (3.44, 0.005), (1.61, 0.005), (0.76, 0.005))
"""The epsilons as printed, and half a unit of the last digit."""

DELTA = 1e-6


def run(comparison: Comparison) -> None:
    """Print epsilon of one Gaussian mechanism for each multiplier."""
    comparison.heading(f"epsilon of one Gaussian mechanism at delta {DELTA:g}, zero-out, exact")
    for multiplier, (printed, half) in zip(MULTIPLIERS, PUBLISHED, strict=True):
        found = gaussian_epsilon(DELTA, 1 / multiplier)
        comparison.row(f"noise multiplier {multiplier:g}", printed, found, tolerance=half)
    comparison.remark("the accuracies of the table need StackOverflow: not run")
