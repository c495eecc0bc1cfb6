"""The numbers that a descent varies: the decays of C and of C^-1, which alternate.

C(x) = prod (1 - theta'_r x) / prod (1 - theta_r x) has positive scales omega exactly if

    1 > theta_1 > theta'_1 > theta_2 > ... > theta_d > theta'_d,

theta' being the decays of C^-1. Kept in [0, 1] that also gives sum omega = sum (theta_r - theta'_r) <= 1, so that all
coefficients of C fall and the leading pattern is its sensitivity. So the unknowns are points 0 = p_0 < p_1 < ... < p_2d
< 1, p = 1 - theta for the odd ones and 1 - theta' for the even, and these come from 2d + 1 gaps that sum to 1. All
scales are products and quotients of distances, which are sums of gaps: nothing is subtracted, however small 1 - theta.

Under one participation the coefficients need not fall: there the last theta' is free to become negative, C^-1 then
having one alternating part.

Reference: Dvijotham, McMahan, Pillutla, Steinke, Thakurta, Efficient and Near-Optimal Noise Generation for Streaming
Differential Privacy (2024), Lemma 5.2, for the scales in terms of both sets of decays.
"""

from dataclasses import dataclass

import numpy as np

from factorize.solvers.methods.compiled import Array

SMALLEST_GAP = 2.0**-42
"""Between neighbouring points: decays of C stay twice that apart."""

_LARGEST_EXPONENT = 50.0


@dataclass(frozen=True)
class BltPoint:
    """Decays, scales, and what is needed to follow a gradient back.

    Attributes:
        shares: softmax of the variables that share the unit interval; with a free end all but the last of them.
        extent: length of the last gap where it is free, else 0.
        places: p_0 .. p_2d, shape (2d + 1,).
        scales: at odd places the omega of C; at even places the weights of the series of S C^-1, shape (2d + 1,).
        slopes: derivative of log scale a with respect to place a through its distance from place q, shape (2d+1, 2d+1).
    """

    shares: Array
    extent: float
    places: Array
    scales: Array
    slopes: Array

    @property
    def theta(self) -> Array:
        """Decays of C, from the largest."""
        return 1.0 - self.places[1::2]

    @property
    def omega(self) -> Array:
        """Scales of C."""
        return self.scales[1::2]


class Alternating:
    """Maps 2d unconstrained variables to decays and scales, and gradients back.

    The series of S C^-1 is sum_r beta_r phi_r^t, phi_0 = 1 and phi_r = theta'_r, with positive weights beta.

    Args:
        buffers: d.
        free_end: whether p_2d may exceed 1.
    """

    def __init__(self, buffers: int, *, free_end: bool = False) -> None:
        self.buffers = buffers
        self.free_end = free_end
        index, gaps = np.arange(2 * buffers + 1), np.arange(1, 2 * buffers + 1)
        low, high = np.minimum.outer(index, index), np.maximum.outer(index, index)
        self._between = ((low[:, :, None] < gaps) & (gaps <= high[:, :, None])).astype(np.float64)
        self._sign = np.sign(np.subtract.outer(index, index)).astype(np.float64)
        alike = np.add.outer(index, index) % 2 == 0
        self._power = np.where(alike, -1.0, 1.0)
        np.fill_diagonal(self._power, 0.0)
        self._power[1::2, 0] = 0.0  # p_0 is a pole of the prefix sum, not of C^-1

    def at(self, variables: Array) -> BltPoint:
        """Return decays and scales.

        Args:
            variables: logarithms of the first gaps over the one that ends at 1, shape (2d,); with a free end the last
                is the logarithm of the gap before p_2d.
        """
        padded = np.append(variables[:-1] if self.free_end else variables, 0.0)
        shares = np.exp(padded - padded.max())
        shares /= shares.sum()
        gaps = SMALLEST_GAP + (1.0 - len(shares) * SMALLEST_GAP) * shares
        extent = float(np.exp(min(variables[-1], _LARGEST_EXPONENT))) if self.free_end else 0.0
        gaps[-1] = SMALLEST_GAP + extent
        distance = self._between @ gaps[: 2 * self.buffers]
        places = distance[0].copy()
        np.fill_diagonal(distance, 1.0)
        scales = np.exp((self._power * np.log(distance)).sum(axis=1))
        return BltPoint(shares, extent, places, scales, self._power * self._sign / distance)

    def back(self, point: BltPoint, by_place: Array, by_log_scale: Array) -> Array:
        """Return the gradient in the variables from that in places and in logarithms of scales, shape (2d,)."""
        total = by_place + by_log_scale * point.slopes.sum(axis=1) - by_log_scale @ point.slopes
        by_gap, shares = np.cumsum(total[::-1])[::-1][1:], point.shares
        sharing = np.append(by_gap[: len(shares) - 1], 0.0)
        shared = (shares * (sharing - shares @ sharing))[:-1] * (1.0 - len(shares) * SMALLEST_GAP)
        return np.append(shared, by_gap[-1] * point.extent) if self.free_end else shared

    def variables_of(self, places: Array) -> Array:
        """Return the variables of increasing places p_1 .. p_2d in (0, 1), shape (2d,)."""
        gaps = np.maximum(np.diff(np.concatenate([[0.0], places, [1.0]])), 2 * SMALLEST_GAP)
        if self.free_end:
            return np.append(np.log(gaps[:-2] / (1.0 - places[-2])), np.log(gaps[-2]))
        return np.log(gaps[:-1] / gaps[-1])
