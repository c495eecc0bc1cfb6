"""How equal the sizes of independent bins are: the law that a dealt permutation betrays itself by."""

from __future__ import annotations

import math

import numpy as np


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
