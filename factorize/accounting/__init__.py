"""Accounting: from a mechanism and a law of participation to sigma, epsilon and delta.

Names are loaded on first use: the light client imports nothing of this room but the Gaussian mechanism.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "BinGram": "factorize.accounting.gram_matrix",
    "BinsCalibration": "factorize.accounting.bins_calibration",
    "BinsClaim": "factorize.accounting.bins_claim",
    "StarEstimate": "factorize.accounting.star_estimate",
    "bin_gram": "factorize.accounting.gram_matrix",
    "bins_delta": "factorize.accounting.star_bound",
    "bins_epsilon": "factorize.accounting.star_bound",
    "bins_sigma": "factorize.accounting.star_bound",
    "calibrate_bins": "factorize.accounting.bins_calibration",
    "calibrate_sampling": "factorize.accounting.schemes",
    "epsilon_bins": "factorize.accounting.bins_calibration",
    "calibrate_allocation": "factorize.accounting.allocation.allocation_calibration",
    "examine": "factorize.accounting.claim_test",
    "loss_distribution": "factorize.accounting.levels.loss_distribution",
    "renyi_divergence": "factorize.accounting.star_bound",
    "renyi_epsilon": "factorize.accounting.star_bound",
}

if TYPE_CHECKING:
    from factorize.accounting.allocation.allocation_calibration import calibrate_allocation
    from factorize.accounting.bins_calibration import BinsCalibration, calibrate_bins, epsilon_bins
    from factorize.accounting.bins_claim import BinsClaim
    from factorize.accounting.claim_test import examine
    from factorize.accounting.gram_matrix import BinGram, bin_gram
    from factorize.accounting.levels.loss_distribution import loss_distribution
    from factorize.accounting.schemes import calibrate_sampling
    from factorize.accounting.star_bound import bins_delta, bins_epsilon, bins_sigma, renyi_divergence, renyi_epsilon
    from factorize.accounting.star_estimate import StarEstimate

__all__ = [
    "BinGram",
    "BinsCalibration",
    "BinsClaim",
    "StarEstimate",
    "bin_gram",
    "bins_delta",
    "bins_epsilon",
    "bins_sigma",
    "calibrate_allocation",
    "calibrate_bins",
    "calibrate_sampling",
    "epsilon_bins",
    "examine",
    "loss_distribution",
    "renyi_divergence",
    "renyi_epsilon",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'factorize.accounting' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
