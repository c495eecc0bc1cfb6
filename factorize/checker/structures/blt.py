"""Toeplitz matrices by decays and scales (structure `blt`): c_0 = 1 and c_t = sum_r scale_r decay_r^(t-1), enclosed.

Without end, the pattern 0, b, .., (K-1) b is followed to its last step t0 = (K-1) b, where the sum of its columns is
y_t = c_t + y_{t-b}; after it, y_{t0+1+m} = sum_j e_j theta_j^m with e_j = omega_j sum_{l < K} theta_j^{lb}, whose
squares sum to sum_jk e_j e_k / (1 - theta_j theta_k).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from factorize.checker.arithmetic.near import Near, share
from factorize.checker.structures.base import Buffers, ComputedToeplitzReading, EndlessReading
from factorize.errors import TooLarge

if TYPE_CHECKING:
    from factorize.checker.arithmetic.balls import Balls

LARGEST_HEAD = 1 << 20
"""Steps until the last participation that are followed one by one."""


class Decays(NamedTuple):
    """decay (buffers,) between 0 and 1, and scale (buffers,), at least 0."""

    decay: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, parts: Mapping[str, np.ndarray]) -> Decays:
        """Take the tensors of the structure `blt`."""
        return cls(parts["theta"], parts["omega"])

    @property
    def monotone(self) -> bool:
        """Whether 1 = c_0 >= c_1 >= ... >= 0: every term falls, and they begin with a sum of at most 1."""
        return sum(map(Fraction, self.scale.tolist())) <= 1


def series(given: Decays, n: int) -> Balls:
    """Return c_0, ..., c_{n-1}."""
    from flint import arb, ctx

    from factorize.checker.arithmetic.balls import PLACES, of_doubles

    with ctx.workprec(PLACES):
        total = [arb(0)] * n
        for decay, scale in zip(*map(of_doubles, given), strict=True):
            term = scale
            for t in range(1, n):
                total[t] += term
                term = term * decay
    return [arb(1), *total[1:]]


class BltReading(ComputedToeplitzReading):
    """C by decays and scales.

    Args:
        decays: the numbers.
        n: side.
    """

    signed = False

    def __init__(self, decays: Decays, n: int) -> None:
        self.n, self._decays, self.diagonal = n, decays, np.ones(1)
        self.monotone = decays.monotone
        last = n if decays.scale[decays.decay != 0].any() else 2
        self.bandwidth = min(last, n) if decays.scale.any() else 1

    @classmethod
    def read(cls, parts: Mapping[str, np.ndarray], n: int) -> Self:
        """Take the tensors; see `Reading.read`."""
        return cls(Decays.of(parts), n)

    @cached_property
    def series(self) -> Balls:
        """The first column."""
        return series(self._decays, self.n)

    @cached_property
    def near_series(self) -> Near:
        """The first column: sums of positive terms, each of as many factors as steps."""
        column = np.zeros(self.n)
        column[0] = 1.0
        for decay, scale in zip(*self._decays, strict=True):
            powers = np.full(self.n - 1, decay)
            powers[:1] = 1.0
            column[1:] += scale * np.cumprod(powers)
        return Near(column, share(roundings=self.n + len(self._decays.scale) + 2))

    @cached_property
    def buffers(self) -> Buffers:
        """The same with states (a, b): b <- a, a <- theta a, b is read, a is fed."""
        decay, scale = self._decays
        transition, ends = np.zeros((1, len(decay), 2, 2)), np.zeros((2, 1, len(decay), 2))
        transition[0, :, 0, 0], transition[0, :, 1, 0] = decay, 1.0
        ends[0, 0, :, 0], ends[1, 0, :, 1] = 1.0, scale
        return Buffers(np.ones(self.n), transition, *ends)


class EndlessBltReading(EndlessReading):
    """Decays and scales that go on.

    Args:
        decays: the numbers.
    """

    def __init__(self, decays: Decays) -> None:
        self._decays = decays

    @classmethod
    def read(cls, parts: Mapping[str, np.ndarray]) -> Self:
        """Take the tensors; see `EndlessReading.read`."""
        return cls(Decays.of(parts))

    def squared_sensitivity(self, separation: int, most: int) -> tuple[Fraction, Fraction]:
        """Enclose the squared norm; see `EndlessReading`."""
        if most > 1 and not self._decays.monotone:
            raise TooLarge("no exact rule reaches a strategy without end whose coefficients rise")
        last = separation * (most - 1)
        if last >= LARGEST_HEAD:
            raise TooLarge(
                f"{most} participations {separation} apart reach beyond the {LARGEST_HEAD} steps that are followed"
            )
        return _limit(self._decays, separation, most)


def _limit(decays: Decays, separation: int, most: int) -> tuple[Fraction, Fraction]:
    from flint import arb, ctx

    from factorize.checker.arithmetic.balls import PLACES, ends, of_doubles

    last = separation * (most - 1)
    with ctx.workprec(PLACES):
        sums = series(decays, last + 1)
        for t in range(separation, last + 1):
            sums[t] += sums[t - separation]
        thetas, omegas = map(of_doubles, decays)
        weights = [
            omega * (1 - theta ** (separation * most)) / (1 - theta**separation)
            for theta, omega in zip(thetas, omegas, strict=True)
        ]
        total = sum((value * value for value in sums), arb(0))
        for a, s in zip(weights, thetas, strict=True):
            total += sum((a * b / (1 - s * t) for b, t in zip(weights, thetas, strict=True)), arb(0))
        return ends(total)
