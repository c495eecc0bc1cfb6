"""A lower bound on the nuclear norm of F = W A diag(sqrt v) in O(n), for any workload that is a recursion.

It needs no inverse: learning rates, weights and outputs may be zero. Since

    s = (1 / pi) integral over u of e^-u log(1 + e^(2u) s^2)      for every s >= 0,

the norm is an integral of log-determinants, log det(I + t F F^T), which a Kalman filter in square-root form adds up
from its innovations (filter_recurrences.py). Every step of the proof that the result is a lower bound:

- *Quadrature.* The trapezoidal rule with step h gives s (1 + 2 sum_{l >= 1} Re z_l), |z_l| = sech(pi^2 l / h) /
  sqrt(1 + (2 pi l / h)^2) (Poisson summation; by parts, the transform is that of sech divided by 1 - i omega), so at
  most (1 + delta) s.
- *Tails.* Terms are positive. Beyond the last node the determinant grows; before the first,
  log(1 + c x) >= c log(1 + x) for c <= 1. Both give geometric series with ratio e^-h.
- *Rounding of a step.* The arrays are double-doubles. The computed array is an exact one, M, reflected exactly, but for
  an error E whose row a is at most eps times the size of that row, and (M + E)(M + E)^T <= (1 + theta) M M^T +
  (1 + 1 / theta) E E^T. So the computed covariance is at most 1 + theta times that of a process with a little more
  noise, of covariance (1 + 1 / theta)(q + 1) eps^2 diag(sizes^2); and scaling a covariance up by c scales those after
  it, and log(1 + t a^2), by at most c. No condition number enters.
- *All steps.* The additional noise makes F into [F, N], and ||[F, N]||_* <= ||F||_* + ||N||_*; the second norm is at
  most the sum of its columns' norms (`reach`).
- *Doubles.* Positive terms, a dozen roundings each.

A is the product of its operators with their coefficients as they stand, as doubles. This shares neither formula nor
code with the solvers, and only the idea of a quadrature with lower_bounds/resolvents.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from factorize.certificate.lower_bounds.composition import Pair, composed
from factorize.workloads.state_space import StateSpace

LARGEST = 1 << 14
"""Steps up to which the checker proves bounds by log-determinants, and the certificate states them."""
_STEP = 1.0 / 3.0
_DELTA = 2.0 / math.cosh(math.pi**2 / _STEP) / math.hypot(1.0, 2 * math.pi / _STEP) * 1.0001
_TAIL = math.exp(-_STEP) / (1 - math.exp(-_STEP)) * (1 - 1e-14)
_MOST_STATES = 6
_CUTOFF = 3e-12
_EPSILON = 2.0**-92
"""Relative error of a row in one step for q <= 6: q + 1 reflections of at most (16 (q + 2) + 364) 2^-106 each (the dot
product and the update; vector, scale and with them the distance from orthogonality), and half as much for the rest."""
_GROWTH = 2.0**-44  # n theta; a step takes the factor 1 + theta twice, before and after the observation
_FLOOR = 1e-100  # added to sizes: what underflow drops is below _EPSILON times this
_FARTHEST = 300.0  # |u|: beyond, e^(2u) leaves the range of doubles
_TINIEST = 1e-280  # of the largest weight; smaller ones count as zero, which lowers the bound
_ROUNDINGS = 1e-13  # nodes (7e-14 at |u| = 300), exponentials and logarithms (4 ulp each), sums, roots of v


def nuclear_norm_below(factors: Sequence[StateSpace], weights: np.ndarray) -> float | None:
    """Return a number not above the nuclear norm of A diag(sqrt(weights)).

    Args:
        factors: the maps of which A is the product, the one applied first at the front.
        weights: v, shape (n,), non-negative, not all zero.

    Returns:
        The bound, or None with more states than the proof covers and where numbers leave the range of doubles.
    """
    from factorize.certificate.lower_bounds.filter_recurrences import reach

    largest = float(weights.max())
    relative = weights / largest
    coefficients = composed(factors, np.sqrt(np.where(relative < _TINIEST, 0.0, relative)))
    n, rows, _ = coefficients[0].shape
    if rows - 1 > _MOST_STATES or not all(np.isfinite(part).all() for part in coefficients):
        return None
    with ThreadPoolExecutor(2) as pool:
        sides = list(pool.map(lambda sign: _side(coefficients, sign), (1, -1)))
    total = math.fsum(term for side in sides for term in side) * (_STEP / math.pi)
    total *= (1 - _ROUNDINGS) * (1 - 2 * _GROWTH) / (1 + _DELTA)
    added = _EPSILON * math.sqrt(rows * (2 + n / _GROWTH)) * reach(coefficients[0], _FLOOR) * 1.01
    bound = (total - added) * math.sqrt(largest) * (1 - 1e-15)
    return max(0.0, bound) if math.isfinite(bound) else None


def _side(coefficients: Pair, direction: int) -> list[float]:
    """Return the terms from the middle outwards, and a lower bound of the rest."""
    from factorize.certificate.lower_bounds.filter_recurrences import log_determinant

    centre = _middle(coefficients[0])
    terms: list[float] = []
    k = 0 if direction > 0 else -1
    while abs(u := centre + k * _STEP) < _FARTHEST:
        determinant = log_determinant(*coefficients, math.exp(2 * u))
        terms.append(math.exp(-u) * determinant)
        # The geometric series misses a fifth of the last term to the right, that times the determinant to the left.
        missed = terms[-1] * (1.0 if direction > 0 else min(1.0, determinant))
        if not missed > _CUTOFF * math.fsum(terms):
            return [*terms, terms[-1] * _TAIL]
        k += direction
    return terms


def _middle(coefficients: np.ndarray) -> float:
    """Return minus the log of a singular value of middling size. Any number is correct; a good one saves terms."""
    through = np.abs(coefficients[:, 0, -1])
    largest = float(through.max())
    if largest == 0:
        return 0.0
    return -math.log(largest) - 0.5 * math.log(float(((through / largest) ** 2).mean()))
