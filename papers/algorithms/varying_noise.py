"""Noise whose scale varies over the rounds: fresh noise on each running sum, R24, theorems 5.1 and 6.1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from factorize.client.normals import ReplayableNormals
from factorize.errors import InvalidParameter
from factorize.privacy import Adjacency, Calibration, PrivacyTarget, calibrate
from factorize.training.correlated_noise import standard_row

if TYPE_CHECKING:
    from factorize.certificate.sensitivity import Sensitivity


class VaryingNoise:
    """Noise Y_t - Y_{t-1} of the increments, so that running sum t has noise Y_t of deviation sigma scales[t].

    This is C = diag(1 / scales) S. A sample of round tau is in all later sums, and the first round is the worst, so
    that sens(C)^2 is the sum of 1 / scales[t]^2, exactly; with equal scales it is `DIFFERENCED`.

    Args:
        scales: sigma_t relative to each other, positive, one for each round.
        target: the privacy asked for.
        shape: of the parameters.
        clip_norm: bound S on one increment.
        divisor: the fixed public divisor where rounds are means.
        adjacency: `zero_out` or `replace_one`.
        seed: secret, `secrets.randbits(128)`, for one run.

    Attributes:
        calibration: scale and guarantee; sigma_t is `calibration.sigma_of_sums` times scales[t].
        step: the round whose noise comes next.
        steps: T.
        origin: what the noise is a function of, the seed included.

    Reference:
        R24, theorems 5.1 (one machine's sigma_{t,i}) and 6.1 (the server's sigma_t).
    """

    def __init__(
        self,
        scales: Sequence[float],
        target: PrivacyTarget,
        shape: int | Sequence[int],
        *,
        clip_norm: float = 1.0,
        divisor: int | None = None,
        adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
        seed: int,
    ) -> None:
        self._scales = tuple(float(value) for value in scales)
        self.calibration: Calibration = calibrate(
            scaled_sensitivity(self._scales), target, clip_norm=clip_norm, divisor=divisor, adjacency=adjacency
        )
        self.shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(side) for side in shape)
        self.steps, self.step = len(self._scales), 0
        self.origin = ("varying", self._scales, seed)
        self._normals = ReplayableNormals(seed, f"varying {self._scales}")
        self._last: np.ndarray | float = 0.0

    def next(self) -> np.ndarray:
        """Return the noise of this round's increment, float64.

        Raises:
            InvalidParameter: all rounds were taken.
        """
        if self.step >= self.steps:
            raise InvalidParameter(f"step {self.step + 1} is past n={self.steps}; give more scales", field="step")
        fresh = self._scales[self.step] * standard_row(self._normals, self.step, math.prod(self.shape))
        increment, self._last = fresh - self._last, fresh
        self.step += 1
        return np.asarray(self.calibration.sigma_of_sums * increment).reshape(self.shape)


def scaled_sensitivity(scales: Sequence[float]) -> Sensitivity:
    """Return the certified sensitivity of diag(1 / scales) S for one participation, rounded up.

    Raises:
        InvalidParameter: no scales, or one that is not positive and finite.
    """
    from factorize.certificate.sensitivity import Sensitivity

    if not scales or not all(0 < value < math.inf for value in scales):
        raise InvalidParameter("scales must be positive and finite, one for each round", field="scales")
    total = sum((1 / Fraction(value) ** 2 for value in scales), Fraction(0))
    value = math.sqrt(float(total))
    while Fraction(value) ** 2 < total:
        value = math.nextafter(value, math.inf)
    rule = "fresh noise on running sums: root of the sum of 1 / scale^2 (R24, theorem 5.1)"
    return Sensitivity(value, "exact", rule, {"kind": "single"})
