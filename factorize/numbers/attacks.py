"""Attacks: how well any of them tells from a run whether an example took part, from what bounds the run's privacy.

Reference: Dong, Roth, Su 2022 (Gaussian differential privacy), section 2.
"""

from __future__ import annotations

import math

from factorize.errors import InvalidParameter
from factorize.numbers.gaussian import gaussian_delta
from factorize.numbers.scalars import finite_real

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
"""At which answers state the largest true-positive rate."""

_LARGEST_LEVEL = 700.0  # epsilon whose exponential is a double
_ROUNDED = 1e-12  # relative: more than doubles lose of the rates

Level = tuple[float, float]
"""Epsilon and delta that hold beside mu."""


def attack_advantage(mu: float, level: Level | None) -> float:
    """Return the most by which an attack's true-positive rate exceeds its false-positive rate, from above.

    By mu alone it is exact, 2 Phi(mu / 2) - 1. With a level it is what that allows, if it is less.
    """
    most = gaussian_delta(0.0, mu)
    if level is not None:
        epsilon, delta = level
        shrunk = math.exp(-epsilon)
        most = min(most, math.tanh(epsilon / 2) + 2 * delta * shrunk / (1 + shrunk))
    return min(most * (1 + _ROUNDED), 1.0)


def true_positive_rate(false_positive_rate: float, mu: float, level: Level | None) -> float:
    """Return the largest true-positive rate of an attack at a false-positive rate in (0, 1), from above.

    By mu alone it is exact, Phi(Phi^-1(rate) + mu). With a level it is what that allows, if it is less.

    Raises:
        InvalidParameter: a rate outside (0, 1).
    """
    from statistics import NormalDist

    rate = finite_real("false_positive_rate", false_positive_rate, remedy="give a rate above 0 and below 1")
    if rate >= 1:
        raise InvalidParameter(f"false_positive_rate={rate!r} is not below 1; give one", field="false_positive_rate")
    touching = abs(mu * NormalDist().inv_cdf(rate) + mu**2 / 2)  # each epsilon has a bound: this one touches
    known = [(min(touching, _LARGEST_LEVEL), gaussian_delta(min(touching, _LARGEST_LEVEL), mu))]
    if level is not None and level[0] <= _LARGEST_LEVEL:
        known.append(level)
    below = (math.exp(epsilon) * rate + delta for epsilon, delta in known)
    above = (-math.expm1(-epsilon) + (delta + rate) * math.exp(-epsilon) for epsilon, delta in known)
    return min(min(*below, *above) * (1 + _ROUNDED), 1.0)
