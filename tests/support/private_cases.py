"""A private job in small: sizes, a strategy by hand, and calibrations for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from handmade import handmade

from factorize.privacy import Calibration, Presence, PrivacyTarget, calibrate
from factorize.structures.buffered import BufferedMatrix

EXAMPLES, SIZE, EPOCHS, CLIP = 44, 8, 3, 0.7
BINS = EXAMPLES // SIZE
N = EPOCHS * BINS
SECRET = 0xC0FFEE << 90


def factors(n: int = N, epochs: int = EPOCHS) -> Any:
    u = np.random.default_rng(1).uniform(0.2, 0.6, (3, n, 2))
    return handmade(BufferedMatrix(np.ones(n), *u), {"kind": "fixed_epochs", "epochs": epochs}, value=2.5)


@dataclass(frozen=True, kw_only=True)
class BinsNoise(Calibration):
    """A calibration by hand that counts on balls in bins."""

    amplified: ClassVar[bool] = True
    bins: int
    sampling: str = "balls_in_bins"

    def __post_init__(self) -> None:
        """Take any numbers."""

    @property
    def presence(self) -> Presence:
        return Presence(self.bins, 1 / self.bins, independent=False)


def bins_noise(delta: float = 0.9e-5, bins: int = BINS, **more: Any) -> BinsNoise:
    plain = calibrate(factors().sensitivity, PrivacyTarget(epsilon=4.0, delta=delta), clip_norm=CLIP, divisor=SIZE)
    return BinsNoise(**{**vars(plain), "bins": bins, "sampling": "balls_in_bins", **more})
