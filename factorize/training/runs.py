"""Runs, as the training algorithms return them, and how they can be watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from factorize.privacy import Calibration
from factorize.training.private_sums import Sums

Observer = Callable[[int, np.ndarray, np.ndarray], None]
"""Called after each step with its number (from 0), the new weights and what the step released. It may read the weights
that are private anyway (a test accuracy, say); what it tells about the training data is not covered."""


@dataclass(frozen=True)
class Run:
    """The result of a training run.

    Attributes:
        weights: the output.
        steps: number of steps taken.
        calibration: scale and guarantee, None for a run without privacy.
    """

    weights: np.ndarray
    steps: int
    calibration: Calibration | None


def unobserved(step: int, weights: np.ndarray, release: np.ndarray) -> None:
    """Watch nothing."""


def guarantee(sums: Sums) -> Calibration | None:
    """Return the calibration behind a door, None where there is no noise."""
    return getattr(sums, "calibration", None)
