"""Numbers read from the decoder of prefix sums, B = S C^-1, whatever workload C was made for: one pass, O(n) memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from factorize.predict.prediction import Inverse
from factorize.predict.quadratic import inverse_blocks


@dataclass(frozen=True)
class NoiseSums:
    """The three sums of K23's theorems, with b_t the rows of B counted from 1 and b_0 = 0.

    Attributes:
        within: N1 = sum_t |b_t - b_{floor(t / tau) tau}|^2.
        between: N2 = sum over multiples of tau of |b_t - b_{t - tau}|^2.
        last: N3 = |b_{floor(n / tau) tau}|^2.
    """

    within: float
    between: float
    last: float


def inverse_norms(inverse: Inverse) -> np.ndarray:
    """Return the norms of the rows of C^-1, shape (n,)."""
    return np.concatenate([np.linalg.norm(block, axis=1) for block in inverse_blocks(inverse)])


def prefix_rows(inverse: Inverse) -> Iterator[np.ndarray]:
    """Yield the rows of B = S C^-1, each valid until the next."""
    total = np.zeros(inverse.shape("C_inv")[1])
    for block in inverse_blocks(inverse):
        for row in block:
            total += row
            yield total


def prefix_norms(inverse: Inverse) -> np.ndarray:
    """Return |b_t|, shape (n,)."""
    return np.array([math.sqrt(float(row @ row)) for row in prefix_rows(inverse)])


def noise_sums(inverse: Inverse, tau: int) -> NoiseSums:
    """Return N1, N2 and N3 for restarts every `tau` steps."""
    return sums_of_rows(prefix_rows(inverse), tau)


def sums_of_rows(rows: Iterator[np.ndarray], tau: int) -> NoiseSums:
    """Return N1, N2 and N3 of a decoder whose rows come one at a time.

    Reference:
        K23, theorems 4.6 and 4.7; N1 / tau + N2 is the squared Frobenius norm of Lambda_tau B.
    """
    within = between = 0.0
    reference: np.ndarray | float = 0.0
    for t, row in enumerate(rows, start=1):
        distance = row - reference
        squared = float(distance @ distance)
        if t % tau:
            within += squared
        else:
            between += squared
            reference = row.copy()
    return NoiseSums(within, between, float(np.sum(np.square(reference))))
