"""Toeplitz matrices by decays and scales (structure `blt`): c_0 = 1 and c_t = sum_r scale_r decay_r^(t-1), enclosed."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from factorize.errors import CorruptObject, InvalidStrategy
from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.arithmetic.intervals import PLACES, dyadic, shifted


class Decays(NamedTuple):
    """decay (buffers,) between -1 and 1, and scale (buffers,)."""

    decay: np.ndarray
    scale: np.ndarray

    @property
    def nonnegative(self) -> bool:
        """Whether no coefficient is negative, by the signs of the numbers."""
        return bool((self.decay >= 0).all() and (self.scale >= 0).all())

    @property
    def monotone(self) -> bool:
        """Whether 1 = c_0 >= c_1 >= ... >= 0: every term falls, and they begin with a sum of at most 1."""
        return self.nonnegative and sum(map(Fraction, self.scale.tolist())) <= 1

    @property
    def bandwidth(self) -> int:
        """Diagonals that can be told apart from zero by the numbers alone."""
        if not self.scale.any():
            return 1
        return 2 if not (self.scale[self.decay != 0]).any() else 1 << 62

    def series(self, n: int) -> Numbers:
        """Return the first n coefficients; see `series`."""
        return series(self, n)


def read(parts: dict[str, np.ndarray]) -> Decays:
    """Take the tensors of the structure `blt`.

    Raises:
        CorruptObject: their shapes do not fit each other.
        InvalidStrategy: a decay is above 1 in magnitude.
        KeyError: one is missing.
    """
    decay, scale = parts.pop("theta"), parts.pop("omega")
    if decay.ndim != 1 or not len(decay) or decay.shape != scale.shape:
        raise CorruptObject(f"theta and omega of shapes {decay.shape} and {scale.shape} are no decays and scales")
    if (np.abs(decay) > 1).any():
        raise InvalidStrategy(f"a decay of {float(np.abs(decay).max())!r} lets the coefficients grow without end")
    return Decays(decay, scale)


def series(given: Decays, n: int) -> Numbers:
    """Return c_0, ..., c_{n-1} in units of 2^-256.

    Each step after the first cuts less than a unit per decay, and none of it grows.
    """
    total = [0] * n
    total[0] = 1 << PLACES
    for factor, scale in zip(map(dyadic, given.decay.tolist()), map(dyadic, given.scale.tolist()), strict=True):
        term = shifted(scale.value, PLACES + scale.exponent)
        number, power = factor.value, -factor.exponent
        for t in range(1, n):
            total[t] += term
            if not term:
                break
            term = term * number >> power
    return Numbers(np.array(total, dtype=object), -PLACES, n * len(given.decay) if n > 1 else 0)
