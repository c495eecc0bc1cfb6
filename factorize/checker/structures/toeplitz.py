"""Readings of Toeplitz matrices, by the numbers that each of these structures stores.

`toeplitz` and `banded_toeplitz` have the first column, `inverse_banded_toeplitz` that of C^-1, `blt` decays and scales,
and `nu_toeplitz`, which has no last row, one number.

The inverse of a banded matrix has c_0 = 1 and c_t = sum_d w_d c_{t-d} with w_d >= 0 and sum w_d <= 1. No coefficient is
above 1, and the rounding of a step never grows. A BLT has c_0 = 1 and c_t = sum_r scale_r decay_r^(t-1).

The coefficients of a BLT without end are non-negative and fall. So the worst pattern is 0, b, .., (K-1) b whatever n is
(KL24, Theorem 2), and its squared norm grows with n to the limit

    K r_0 + 2 sum_{d = 1}^{K-1} (K - d) r_{db},    r_m = sum_t c_t c_{t+m}.

With s_j = sum_i omega_i / (1 - theta_i theta_j) these are r_0 = c_0^2 + sum_j omega_j s_j and r_m = sum_j omega_j
(c_0 + theta_j s_j) theta_j^(m-1), and sum_d (K - d) x^(d-1) = (K - 1 - K x + x^K) / (1 - x)^2.
The column of a `nu_toeplitz`, (1 - (1 - nu) x)^(-1/2), has the squared norm 1 / agm(1, sqrt(nu (2 - nu))).
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

import numpy as np

from factorize.checker.arithmetic.balls import PLACES, Balls, ball, ends, of_doubles
from factorize.checker.arithmetic.near import Near, share
from factorize.checker.structures.base import Buffers, ComputedToeplitzReading, StoredReading, placed, prefix_norms
from factorize.checker.structures.covariances import Factor, Recursion, Statement
from factorize.errors import TooLarge

MAX_N_DIVIDED = 1 << 20
"""The largest n at which the column of an inverse is divided, which takes 15 seconds."""


class ToeplitzReading(StoredReading):
    """A reading of C by its first column, up to the last coefficient that is not 0."""

    column: np.ndarray

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        column = np.pad(parts["coefficients"], (0, n - len(parts["coefficients"])))
        self.n, self.column, self.diagonal = n, column, column[:1]
        self.signed, self.bandwidth = bool((column < 0).any()), width_of(column)

    def column_norms(self) -> Near:
        """Return the squared norms of the columns."""
        return prefix_norms(Near(self.column, 0.0))

    def entries_of(self, indices: np.ndarray) -> np.ndarray:
        """Return some columns."""
        return placed([self.column] * len(indices), indices, self.n)


def falls(column: np.ndarray) -> bool:
    """Return whether coefficients are non-negative and do not increase."""
    return bool((column >= 0).all() and (column[1:] <= column[:-1]).all())


def width_of(column: np.ndarray) -> int:
    """Return the number of coefficients up to the last that is not 0, with the first one."""
    return int(np.flatnonzero(column).max(initial=0)) + 1


class InverseBandedToeplitzReading(ComputedToeplitzReading):
    """A reading of C by the first column of C^-1 up to its last non-zero number: 1, then the negated weights."""

    signed = False

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        weights = np.concatenate([[0.0], -parts["inverse_coefficients"][1:]])
        self.n, self._weights, self.diagonal = n, weights, np.ones(1)
        self.bandwidth = n if weights.any() else 1

    @cached_property
    def series(self) -> Balls:
        """The first column, in balls.

        Raises:
            TooLarge: n is above `MAX_N_DIVIDED`.
        """
        from flint import arb, ctx

        if self.n > MAX_N_DIVIDED:
            raise TooLarge(f"the column of an inverse is divided up to n={MAX_N_DIVIDED}; got n={self.n}")
        terms = [(d, arb(weight)) for d, weight in enumerate(self._weights.tolist()) if weight]
        with ctx.workprec(PLACES):
            column = [arb(1)]
            for t in range(1, self.n):
                column.append(sum((weight * column[t - d] for d, weight in terms if d <= t), arb(0)))
        return column

    @cached_property
    def near_series(self) -> Near:
        """The first column, with a share for the roundings that sums of doubles go through."""
        return Near(self._rounded[0], share(roundings=3 * self.n) if self._weights.any() else 0.0)

    def inverse(self) -> Recursion:
        """Return the noise less the weights times the last draws, which are kept."""
        terms: dict[tuple[int, int], Factor] = {(1, d): -float(w) for d, w in enumerate(self._weights) if w}
        return Recursion([Statement(0, terms), Statement(1, {}), Statement(0, {(0, 0): 1.0, (1, 0): 1.0})], noise=1)


class BltReading(ComputedToeplitzReading):
    """A reading of C by theta, decays between 0 and 1, and omega, scales of at least 0, each of shape (buffers,)."""

    signed = False

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        self.n, self._decay, self._scale, self.diagonal = n, parts["theta"], parts["omega"], np.ones(1)
        last = n if self._scale[self._decay != 0].any() else 2
        self.bandwidth = min(last, n) if self._scale.any() else 1
        # This is the same matrix with states (a, b): b <- a, a <- theta a, b is read, and a takes the input.
        transition, ends = np.zeros((1, len(self._decay), 2, 2)), np.zeros((2, 1, len(self._decay), 2))
        transition[0, :, 0, 0], transition[0, :, 1, 0] = self._decay, 1.0
        ends[0, 0, :, 0], ends[1, 0, :, 1] = 1.0, self._scale
        self.buffers = Buffers(np.ones(n), transition, *ends)

    def inverse(self) -> Recursion:
        """Return the noise less what the states hold, one for each buffer, and the states moved on and fed with it.

        A state is kept at the power of two between the sizes at which it is fed and read; see `Buffers.balanced`.
        """
        powers = [2.0 ** (int(exponent) // 2) for exponent in np.frexp(self._scale)[1]]
        numbers = list(enumerate(zip(self._decay.tolist(), self._scale.tolist(), powers, strict=True), 1))
        read: dict[tuple[int, int], Factor] = {(s, 0): -scale / power for s, (_, scale, power) in numbers}
        moved = [Statement(s, {(s, 0): decay, (0, 0): power}) for s, (decay, _, power) in numbers]
        return Recursion([Statement(0, read), *moved])

    @cached_property
    def series(self) -> Balls:
        """The first column, in balls."""
        from flint import arb, ctx

        with ctx.workprec(PLACES):
            total = [arb(0)] * self.n
            for decay, term in zip(of_doubles(self._decay), of_doubles(self._scale), strict=True):
                for t in range(1, self.n):
                    total[t] += term
                    term *= decay
        return [arb(1), *total[1:]]

    @cached_property
    def near_series(self) -> Near:
        """The first column in doubles: sums of positive terms, each a product of as many factors as steps."""
        column = np.zeros(self.n)
        column[0] = 1.0
        for decay, scale in zip(self._decay, self._scale, strict=True):
            powers = np.full(self.n - 1, decay)
            powers[:1] = 1.0
            column[1:] += scale * np.cumprod(powers)
        return Near(column, share(roundings=self.n + len(self._scale) + 2))


def enclose_limit_of_blt(parts: Mapping[str, np.ndarray], separation: int, most: int) -> tuple[Fraction, Fraction]:
    """Enclose the limit of the squared sensitivity to at most `most` participations `separation` or more apart.

    Coefficients fall if sum omega <= 1; else the upper end is the limit for the column (c_1, c_1, c_2, ..).
    """
    total = sum(map(Fraction, parts["omega"].tolist()))
    if most == 1 or total <= 1:
        return _blt_limit(parts, Fraction(1), separation, most)
    return _blt_limit(parts, Fraction(1), separation, 1)[0], _blt_limit(parts, Fraction(total), separation, most)[1]


def _blt_limit(
    parts: Mapping[str, np.ndarray], first: Fraction, separation: int, most: int
) -> tuple[Fraction, Fraction]:
    """Enclose K r_0 + 2 sum of (K - d) r_db over 0 < d < K, for a column that begins with `first`."""
    from flint import arb, ctx

    with ctx.workprec(PLACES):
        start, thetas, omegas = ball(first), of_doubles(parts["theta"]), of_doubles(parts["omega"])
        inner = [sum((w / (1 - s * t) for s, w in zip(thetas, omegas, strict=True)), arb(0)) for t in thetas]
        total = most * start**2
        for theta, omega, s in zip(thetas, omegas, inner, strict=True):
            power = theta**separation
            pairs = theta ** (separation - 1) * (most - 1 - most * power + power**most) / (1 - power) ** 2
            total += omega * (most * s + 2 * (start + theta * s) * pairs)
        return ends(total)


def enclose_limit_of_nu(parts: Mapping[str, np.ndarray], _separation: int, most: int) -> tuple[Fraction, Fraction]:
    """Enclose the squared norm of a column.

    Raises:
        TooLarge: there are several participations, which have no closed limit.
    """
    from flint import arb, ctx

    if most > 1:
        raise TooLarge(
            f"{most} participations of nu_toeplitz have no closed limit; use blt, which has one",
            field="/participation/kind",
        )
    with ctx.workprec(4 * PLACES):
        nu = arb(float(parts["nu"][0]))
        return ends(1 / arb(1).agm((nu * (2 - nu)).sqrt()))
