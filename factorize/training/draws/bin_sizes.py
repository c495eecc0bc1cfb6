"""Sizes of independent bins: how likely one holds too many examples, and how likely they are nearly equal.

The second is what a dealt permutation betrays itself by. Probabilities that privacy rests on are rounded up.
"""

from __future__ import annotations

import math

import numpy as np


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


def equal_sizes_probability(examples: int, bins: int) -> float:
    """Return the probability that independent uniform bins have sizes that differ by 1 at most.

    With N = q b + r these are r bins of q + 1 and b - r of q: C(b, r) N! / (b^N q!^(b-r) (q+1)!^r). Rounded up.
    """
    size, more = divmod(examples, bins)
    ways = _log_factorial(bins) - _log_factorial(more) - _log_factorial(bins - more) + _log_factorial(examples)
    within = (bins - more) * _log_factorial(size) + more * _log_factorial(size + 1)
    rounding = 2.0**-48 * (ways + examples * math.log(bins))
    return min(1.0, math.nextafter(math.exp(ways - within - examples * math.log(bins) + rounding), math.inf))


def regularity(sizes: np.ndarray) -> float:
    """Return the probability that independent uniform bins are as equal as these, or more so.

    That of a chi-square statistic this small, and at least that of sizes that differ by 1 at most: they are the most
    equal ones, and where examples are few the law is not chi-square's.

    Args:
        sizes: of all bins, shape (bins,).
    """
    examples, bins = int(sizes.sum()), len(sizes)
    if bins == 1 or examples == 0:
        return 1.0
    mean = examples / bins
    statistic = float(((sizes - mean) ** 2).sum()) / mean
    return max(_chi_square_below(statistic, bins - 1), equal_sizes_probability(examples, bins))


def _chi_square_below(statistic: float, degrees: int) -> float:
    """Return P(chi-square <= statistic): the lower incomplete gamma function, by its series."""
    a, x = degrees / 2, statistic / 2
    if x == 0:
        return 0.0
    if x > a + 1:
        return 1.0  # above the mean: nothing regular about it, and the series is long
    term = total = 1.0
    k = a
    while term > total * 1e-17:
        k += 1
        term *= x / k
        total += term
    return min(1.0, math.exp(a * math.log(x) - x - math.lgamma(a + 1)) * total)


def _log_factorial(count: int) -> float:
    return math.lgamma(count + 1)
