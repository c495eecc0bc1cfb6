"""Toeplitz matrices by decays and scales (structure `blt`): c_0 = 1 and c_t = sum_r scale_r decay_r^(t-1), enclosed.

Without end, all coefficients being non-negative and falling, the worst pattern is 0, b, .., (K-1) b whatever n is
(KL24, Theorem 2), and its squared norm grows with n to the limit

    K r_0 + 2 sum_{d = 1}^{K-1} (K - d) r_{db},    r_m = sum_t c_t c_{t+m}.

With s_j = sum_i omega_i / (1 - theta_i theta_j) these are r_0 = c_0^2 + sum_j omega_j s_j and r_m = sum_j omega_j
(c_0 + theta_j s_j) theta_j^(m-1), and sum_d (K - d) x^(d-1) = (K - 1 - K x + x^K) / (1 - x)^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from factorize.checker.arithmetic.near import Near, share
from factorize.checker.structures.base import Buffers, ComputedToeplitzReading, EndlessReading

if TYPE_CHECKING:
    from factorize.checker.arithmetic.balls import Balls


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
        """Enclose the limit; see `EndlessReading`. With sum omega > 1 the upper end is that of (c_1, c_1, c_2, ..)."""
        if most == 1 or self._decays.monotone:
            return _limit(self._decays, 1, separation, most)
        high = _limit(self._decays, sum(map(Fraction, self._decays.scale.tolist())), separation, most)[1]
        return _limit(self._decays, 1, separation, 1)[0], high


def _limit(decays: Decays, first: Fraction | int, separation: int, most: int) -> tuple[Fraction, Fraction]:
    """Enclose K r_0 + 2 sum of (K - d) r_db over 0 < d < K, for a column that begins with `first`."""
    from flint import arb, ctx

    from factorize.checker.arithmetic.balls import PLACES, ball, ends, of_doubles

    with ctx.workprec(PLACES):
        start, (thetas, omegas) = ball(Fraction(first)), map(of_doubles, decays)
        inner = [sum((w / (1 - s * t) for s, w in zip(thetas, omegas, strict=True)), arb(0)) for t in thetas]
        total = most * start**2
        for theta, omega, s in zip(thetas, omegas, inner, strict=True):
            power = theta**separation
            pairs = theta ** (separation - 1) * (most - 1 - most * power + power**most) / (1 - power) ** 2
            total += omega * (most * s + 2 * (start + theta * s) * pairs)
        return ends(total)
