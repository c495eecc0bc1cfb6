"""Accounting: from a mechanism and a law of participation to sigma, epsilon and delta.

Names are loaded on first use: the light client imports nothing of this room but the Gaussian mechanism.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "BinGram": "factorize.accounting.gram_matrix",
    "BinsCalibration": "factorize.accounting.bins_calibration",
    "BinsLaw": "factorize.accounting.bins_law",
    "StarEstimate": "factorize.accounting.star_estimate",
    "bin_gram": "factorize.accounting.gram_matrix",
    "calibrate_bins": "factorize.samplings.calibrating",
    "calibrate_sampling": "factorize.samplings.calibrating",
    "loss_distribution": "factorize.samplings.loss_distributions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'factorize.accounting' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
