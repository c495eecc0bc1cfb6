"""Cases of balls in bins: covariances with their deltas by quadrature, and strategies with published sigmas."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from specs import document_of

from factorize.accounting import BinGram
from factorize.structures.toeplitz import InverseBandedToeplitz
from factorize.training.bins_order import BallsInBins

KEY = hashlib.sha256(b"the tests").digest()


class Pair(NamedTuple):
    """K, epsilon, both deltas by quadrature (6 digits, see the design's section 5), and the closed form of theorem 7."""

    kernel: list[list[float]]
    epsilon: float
    removal: float
    addition: float
    closed: float


PAIRS = [
    Pair([[2, 0.7], [0.7, 1.5]], 2.0, 4.982612e-2, 4.212292e-2, 5.885e-2),
    Pair([[0.5, 0.3], [0.3, 0.4]], 2.0, 2.629068e-4, 2.292074e-4, 2.854e-4),
    Pair([[4, 1], [1, 4]], 5.0, 1.505225e-2, 6.380777e-3, 1.122e-2),
    Pair([[2, 0.7, 0.2], [0.7, 1.5, 0.9], [0.2, 0.9, 1.8]], 2.0, 3.397075e-2, 2.675055e-2, 4.502e-2),
    Pair([[0.3, 0.2, 0.1], [0.2, 0.3, 0.2], [0.1, 0.2, 0.25]], 2.0, 1.834130e-6, 1.148634e-6, 1.898e-6),
]

ROUNDED = 1.01
"""The room for sigma's rounding: those below have four digits, and delta moves by 60 times as many parts."""
# C = I and one epoch (random allocation): bins, sigma, epsilon, and an interval of delta by convolution.
INTERVALS = [
    (10, 0.8, 1.0, 1.79630e-2, 1.79832e-2),
    (100, 0.6, 2.0, 3.81642e-4, 3.82814e-4),
    (256, 0.3912, 8.0, 1.06590e-5, 1.06630e-5),
    (256, 0.6969, 2.0, 1.0419e-6, 1.0470e-6),
    (256, 0.8872, 2.0, 1.4840e-10, 1.4972e-10),
]

# Four epochs of 16 steps, in closed form.
ROOT = document_of(64, "square_root", 4)


def of_matrix(rows: object) -> BinGram:
    return BinGram(np.array(rows, dtype=float), len(np.array(rows)))


def inverse_roots(taps: int, n: int) -> InverseBandedToeplitz:
    """Return BISR: the first coefficients of (1 - x)^(1/2)."""
    column = np.cumprod(np.concatenate([[1.0], 1 - 1.5 / np.arange(1, taps)]))
    return InverseBandedToeplitz(column, n)


def bin_of_each(order: BallsInBins, epoch: int = 0) -> np.ndarray:
    """Return the bin of each example in an epoch, shape (examples,), from the batches."""
    found = np.empty(order.examples, dtype=np.int64)
    for own in range(order.bins):
        found[order[epoch * order.bins + own]] = own
    return found
