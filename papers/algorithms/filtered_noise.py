"""Noise of a short filter: C^-1 is Toeplitz with a few coefficients, as the papers' independent noises have it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from factorize.errors import CertificateError, InvalidParameter
from factorize.factors.sensitivity import Sensitivity, sensitivity_of
from factorize.noise.normals import BLOCK, Normals, ReplayableNormals
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.privacy.adjacency import Adjacency
from factorize.spec import parse_spec
from factorize.structures.toeplitz import ToeplitzMatrix

INDEPENDENT = (1.0,)
"""C^-1 = I: fresh noise for each gradient (DP-SGD)."""

DIFFERENCED = (1.0, -1.0)
"""C^-1 = first differences, C = S: fresh noise for each running sum (anti-PGD, and DP-mu^2 as printed)."""


def filtered_sensitivity(inverse: Sequence[float], steps: int, participation: Mapping[str, Any]) -> Sensitivity:
    """Return the certified sensitivity of the C whose inverse is Toeplitz with these few coefficients.

    Args:
        inverse: first coefficients of C^-1, the leading one 1; the others are zero.
        steps: n.
        participation: participation in the contract's JSON form.
    """
    asked = parse_spec({"workload": {"kind": "identity", "n": steps}, "participation": dict(participation)})
    column = _strategy_column(inverse, steps)
    stated = sensitivity_of(ToeplitzMatrix(column, steps), asked.participation)
    lost = _lost(inverse, column)
    if not lost:
        return stated
    value = stated.value + math.sqrt(steps) * lost
    rule = f"{stated.rule}, and what rounding the filter's inverse loses"
    return Sensitivity(math.nextafter(value * (1 + 2.0**-50), math.inf), "upper_bound", rule, stated.participation)


def _lost(inverse: Sequence[float], column: np.ndarray) -> float:
    """Return at least how far the computed C is from the true one, in the operator norm; 0 where it is exact.

    With N the filter and N C = I + E for the computed C, the true one is C (I + E)^-1, so they differ by at most
    |C| |E| / (1 - |E|); the norm of a Toeplitz matrix is at most the sum of its coefficients' sizes.

    Raises:
        CertificateError: the filter's inverse is not known at all in doubles.
    """
    exact = [Fraction(value) for value in column.tolist()]
    filtered = [Fraction(value) for value in inverse]
    rows = range(len(exact) if len(exact) > 1 else 0)
    zero = Fraction(0)
    terms = (sum((w * exact[t - d] for d, w in enumerate(filtered[: t + 1])), zero) - (t == 0) for t in rows)
    defect = sum(map(abs, terms), zero)
    if defect >= Fraction(1, 2):
        raise CertificateError(f"rounding loses the inverse of the filter {list(inverse)[:8]}; use fewer steps")
    return float(sum(map(abs, exact), zero) * defect / (1 - defect)) * (1 + 2.0**-50)


def _strategy_column(inverse: Sequence[float], steps: int) -> np.ndarray:
    """Return the first column of C by its recursion, which is exact for filters of integers."""
    if len(inverse) == 1:
        return np.ones(1)
    column = [1.0]
    for t in range(1, steps):
        column.append(-sum(weight * column[t - i] for i, weight in enumerate(inverse[1 : t + 1], start=1)))
    return np.array(column)


class FilteredNoise:
    """Noise z_t + sum_i inverse[i] z_{t-i} of a short filter: no factorization, no matrix, memory for its length.

    Float64 throughout. z_s is a function of (seed, filter, s) alone.

    Args:
        inverse: first coefficients of C^-1: `INDEPENDENT`, `DIFFERENCED`, or others that begin with 1.
        target: the privacy asked for.
        shape: shape of the parameters.
        steps: n, after which it refuses.
        participation: who may take part when, in the contract's JSON form.
        clip_norm: bound on one contribution to one step.
        divisor: the fixed public divisor where steps are means.
        adjacency: `zero_out` or `replace_one`.
        seed: secret, `secrets.randbits(128)`, for one run.

    Attributes:
        calibration: scale and guarantee.
        step: the step whose noise comes next.
        steps: n.
        origin: what the noise is a function of, the seed included.
    """

    def __init__(
        self,
        inverse: Sequence[float],
        target: PrivacyTarget,
        shape: int | Sequence[int],
        *,
        steps: int,
        participation: Mapping[str, Any] | None = None,
        clip_norm: float = 1.0,
        divisor: int | None = None,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
        seed: int,
    ) -> None:
        if not inverse or inverse[0] != 1 or not np.isfinite(inverse).all():
            raise InvalidParameter(f"inverse={list(inverse)[:8]} does not begin with 1; scale C", field="inverse")
        sensitivity = filtered_sensitivity(inverse, steps, participation or {"kind": "single"})
        self.calibration: Calibration = calibrate(
            sensitivity, target, clip_norm=clip_norm, divisor=divisor, adjacency=adjacency
        )
        self.shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(side) for side in shape)
        self.steps = steps
        self.step = 0
        self._inverse = tuple(float(value) for value in inverse)
        self.origin = ("filter", self._inverse, seed)
        self._normals = ReplayableNormals(seed, f"filter {self._inverse}")
        self._past: deque[np.ndarray] = deque(maxlen=len(self._inverse))

    def next(self) -> np.ndarray:
        """Return the noise of this step, float64.

        Raises:
            InvalidParameter: all n steps were taken.
        """
        if self.step >= self.steps:
            raise InvalidParameter(f"step {self.step + 1} is past n={self.steps}; ask for more steps", field="step")
        self._past.appendleft(standard_row(self._normals, self.step, math.prod(self.shape)))
        self.step += 1
        total = np.zeros_like(self._past[0])
        for weight, row in zip(self._inverse, self._past, strict=False):
            total += weight * row
        return (self.calibration.sigma_of_sums * total).reshape(self.shape)


def standard_row(normals: Normals, step: int, size: int) -> np.ndarray:
    """Return the first entries of z_step, shape (size,), float64."""
    fresh = np.empty(size)
    for block, first in enumerate(range(0, size, BLOCK)):
        normals.fill(fresh[first : first + BLOCK], step, block)
    return fresh
