"""Products of recursions, their coefficients as pairs of doubles: multiplying them out costs no accuracy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from factorize.numbers.error_free import rest_of_product
from factorize.workloads.state_space import StateSpace

Pair = tuple[np.ndarray, np.ndarray]


def composed(factors: Sequence[StateSpace], inputs: np.ndarray) -> Pair:
    """Return the coefficients of the product of diag(inputs) and the factors as double-doubles.

    Args:
        factors: the maps, the one applied first at the front.
        inputs: shape (n,).

    Returns:
        High and low parts, shape (n, q + 1, q + 1); row 0 of entry i is (read, through), the others (follow, feed).
    """
    whole = (inputs[:, None, None].astype(np.float64), np.zeros((len(inputs), 1, 1)))
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found out by those who use it
        for factor in factors:
            whole = _followed(whole, factor)
    return whole


def _followed(whole: Pair, factor: StateSpace) -> Pair:
    """Return the coefficients with one more factor, which reads the output of those before."""
    n, before, size = len(whole[0]), whole[0].shape[1] - 1, whole[0].shape[1] + factor.feed.shape[1]
    output = (whole[0][:, :1], whole[1][:, :1])
    first, last = _times(output, factor.through[:, None, None]), _times(output, factor.feed[:, :, None])
    high, low = np.zeros((n, size, size)), np.zeros((n, size, size))
    old = [*range(before), size - 1]  # the states of the others, then the input
    for joined, part in ((high, 0), (low, 1)):
        joined[:, :1, old] = first[part]
        joined[:, 1 : before + 1, old] = whole[part][:, 1:]
        joined[:, before + 1 :, old] = last[part]
    high[:, 0, before:-1] = factor.read
    high[:, before + 1 :, before:-1] = factor.follow
    return high, low


def _times(a: Pair, b: np.ndarray) -> Pair:
    """Return a b for arrays, b of doubles; shapes broadcast."""
    product = a[0] * b
    rest = rest_of_product(a[0], b, product) + a[1] * b
    high = product + rest
    return high, rest - (high - product)
