"""Noise multipliers of Poisson-sampled DP-SGD by dp_accounting: Renyi divergences as in K23, and loss distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

MIN_MULTIPLIER = 0.05


def multipliers(epsilon: float, delta: float, *, probability: float, steps: int) -> tuple[float, float]:
    """Return the multipliers for zero-out adjacency by RDP and by PLD, each within 0.1 % of its smallest.

    The discretisation of the loss distribution follows epsilon: its error adds up over the steps, and the 10^-3 of
    `factorize.accounting.amplification` would double the noise at epsilon = 0.1.
    """
    from dp_accounting import NeighboringRelation, pld, rdp

    relation = NeighboringRelation.REPLACE_SPECIAL
    by_rdp = smallest(
        lambda z: spent(rdp.RdpAccountant(neighboring_relation=relation), z, delta, probability, steps), epsilon, 1.0
    )
    grid = min(1e-3, max(1e-6, epsilon * 1e-4))
    by_pld = smallest(
        lambda z: spent(pld.PLDAccountant(relation, value_discretization_interval=grid), z, delta, probability, steps),
        epsilon,
        by_rdp,
    )
    return by_rdp, by_pld


def spent(accountant: Any, multiplier: float, delta: float, probability: float, steps: int) -> float:
    """Return epsilon at delta."""
    import dp_accounting

    event = dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(multiplier))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    return float(accountant.get_epsilon(delta))


def smallest(epsilon_of: Callable[[float], float], epsilon: float, guess: float) -> float:
    """Return the smallest multiplier whose epsilon is within the target, from a guess, upwards or downwards."""
    high = guess
    while epsilon_of(high) > epsilon:
        high *= 1.5
    low = high / 1.25
    while low > MIN_MULTIPLIER and epsilon_of(low) <= epsilon:
        high, low = low, low / 1.25
    while high > low * 1.001:
        middle = math.sqrt(low * high)
        high, low = (middle, low) if epsilon_of(middle) <= epsilon else (high, middle)
    return high
