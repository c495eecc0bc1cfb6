"""Limits of squared sensitivities as the number of steps grows, from above, in integers and rationals.

With all coefficients non-negative and falling, at most K steps b or more apart have as worst pattern 0, b, .., (K-1) b
whatever n is (KL24, Theorem 2), and its squared norm grows with n; so the limit bounds every n and is approached:

    K r_0 + 2 sum_{d = 1}^{K-1} (K - d) r_{db},    r_m = sum_t c_t c_{t+m}

For c_0 = 1, c_t = sum_j omega_j theta_j^(t-1) these are geometric: r_0 = 1 + sum_j omega_j s_j and r_m =
sum_j omega_j (1 + theta_j s_j) theta_j^(m-1) with s_j = sum_i omega_i / (1 - theta_i theta_j). For the coefficients
of (1 - (1 - nu) x)^(-1/2), r_0 = (2 / pi) K(1 - nu) = 1 / agm(1, sqrt(nu (2 - nu))), by Gauss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

_PLACES = 512  # binary places of powers that are rounded up
_ROOT_PLACES = 2048  # of the arithmetic-geometric mean: 1e-308 has a root of 2^-512


def geometric_pattern(theta: Sequence[float], omega: Sequence[float], separation: int, most: int) -> Fraction:
    """Return the limit for a buffered Toeplitz strategy, rounded up by less than 2^-300.

    With sum omega > 1 the coefficients rise once, and it is the limit of the column (c_1, c_1, c_2, ..), which
    majorises the strategy's.

    Args:
        theta: decays in [0, 1).
        omega: scales, not negative.
        separation: b.
        most: K.
    """
    decays, scales = [Fraction(value) for value in theta], [Fraction(value) for value in omega]
    first = sum(scales) if most > 1 and sum(scales) > 1 else Fraction(1)
    inner = [sum(w / (1 - t * decay) for t, w in zip(decays, scales, strict=True)) for decay in decays]
    total = most * (first**2 + sum(w * s for w, s in zip(scales, inner, strict=True)))
    for decay, scale, s in zip(decays, scales, inner, strict=True):
        total += 2 * scale * (first + decay * s) * _powers(decay, separation, most)
    return Fraction(total)


def _powers(decay: Fraction, separation: int, most: int) -> Fraction:
    """Return sum_{d = 1}^{K-1} (K - d) decay^(db - 1), each power rounded up."""
    power, factor = _power(decay, separation - 1), _power(decay, separation)
    total = 0
    for d in range(1, most):
        total += (most - d) * power
        below = -(-power * factor >> _PLACES)
        if below == power:  # a unit in the last place, or 1: the rest are all alike
            left = most - d
            total += power * (left * (left - 1) // 2)
            break
        power = below
    return Fraction(total, 1 << _PLACES)


def _power(decay: Fraction, exponent: int) -> int:
    """Return decay^exponent in units of 2^-512, rounded up at each of O(log exponent) products."""
    result, base = 1 << _PLACES, -(-(decay.numerator << _PLACES) // decay.denominator)
    while exponent:
        if exponent & 1:
            result = -(-result * base >> _PLACES)
        base = -(-base * base >> _PLACES)
        exponent >>= 1
    return result


def elliptic_column(nu: float) -> Fraction:
    """Return sum_t c_t^2 for the coefficients of (1 - (1 - nu) x)^(-1/2), from above, by at most 2^-1000 of it.

    The mean is monotone in both numbers, and each geometric mean is below it: rounding down keeps a lower bound.

    Args:
        nu: in (0, 1).
    """
    exact = Fraction(nu)
    inner = exact * (2 - exact)
    unit = 1 << _ROOT_PLACES
    a, g = unit, math.isqrt(unit * unit * inner.numerator // inner.denominator)
    while a - g > 2:
        a, g = a + g >> 1, math.isqrt(a * g)
    return Fraction(unit, g)
