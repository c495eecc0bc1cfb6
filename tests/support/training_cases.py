"""The parts that tests of training algorithms share: data without gradients, noise of one unit row per step."""

from __future__ import annotations

import numpy as np

from factorize.privacy import PrivacyTarget
from papers.algorithms import INDEPENDENT, FilteredNoise
from papers.training import PrivateSums


def nothing(weights: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Return the gradients of examples that contribute nothing."""
    return np.zeros((len(batch), *weights.shape))


class UnitNoise:
    """Noise of which row t is that of the identity in step t, so that what comes out is a row of a linear map."""

    def __init__(self, n: int) -> None:
        self.steps = n
        self.step = 0

    def next(self) -> np.ndarray:
        self.step += 1
        return np.eye(self.steps)[self.step - 1]


def unit_door(n: int) -> PrivateSums:
    """Return a door for means of one example, in whatever order; its noise is no noise at all."""
    every_step = {"kind": "fixed_epochs", "epochs": n}
    target = PrivacyTarget(epsilon=2.0, delta=1e-5)
    made = FilteredNoise(INDEPENDENT, target, n, steps=n, participation=every_step, divisor=1, seed=1 << 70)
    return PrivateSums(UnitNoise(n), made.calibration)
