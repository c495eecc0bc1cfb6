"""Binomial tails: how likely it is that a bin holds more examples than there is room for, rounded up."""

from __future__ import annotations

import math


def overflow_probability(examples: int, bins: int, capacity: int) -> float:
    """Return an upper bound of the probability that one of the bins holds more than `capacity` examples.

    A union over the bins of the exact tail: min(1, b P(Binomial(N, 1/b) > capacity)).

    Args:
        examples: N.
        bins: b.
        capacity: the most examples that a bin may hold.

    Returns:
        A probability, rounded up; 0 where no bin can overflow.
    """
    if capacity >= examples:
        return 0.0
    if bins == 1:
        return 1.0
    return min(1.0, math.nextafter(bins * math.exp(_log_tail(examples, bins, capacity + 1)), math.inf))


def capacity_for(examples: int, bins: int, *, physical_batch: int, tau: float) -> int:
    """Return the smallest multiple of `physical_batch` that some bin exceeds with probability at most `tau`."""
    low, high = 0, -(-examples // physical_batch)  # parts: too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        if overflow_probability(examples, bins, middle * physical_batch) <= tau:
            high = middle
        else:
            low = middle
    return high * physical_batch


def _log_tail(examples: int, bins: int, first: int) -> float:
    """Return log P(Binomial(examples, 1 / bins) >= first), rounded up, for 1 <= first <= examples.

    The sum is its first term times 1 + r_1 + r_1 r_2 + ..., where r_i = (N - k) / ((k + 1) (b - 1)) falls with
    k = first + i; from r < 1 on what is left out is at most a geometric series.
    """
    term, total, k = 1.0, 1.0, first
    while k < examples:
        ratio = (examples - k) / ((k + 1) * (bins - 1))
        if ratio < 1 and term * ratio / (1 - ratio) < total * 2.0**-53:
            total += term * ratio / (1 - ratio)
            break
        term *= ratio
        if term > 1e300:
            return 0.0  # far below the mean
        total, k = total + term, k + 1
    whole, some, rest = (math.lgamma(count + 1) for count in (examples, first, examples - first))
    log_first = whole - some - rest - examples * math.log(bins) + (examples - first) * math.log(bins - 1)
    rounding = 2.0**-48 * (whole + examples * math.log(bins) + 1)  # of logarithms and of the sum
    return min(0.0, log_first + math.log(total) + rounding)
