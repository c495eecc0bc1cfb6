"""Zolotarev's rational approximation of ``x ** -0.5``, with a proven error bound.

``r(x) = sum_j weights[j] / (x + nodes[j])`` is the best approximation of ``x ** -0.5`` in relative error by a
partial fraction with ``p`` terms on ``[lower, upper]``.  Every solver for single participation evaluates it at a
matrix: ``T ** -0.5 ~ sum_j weights[j] (T + nodes[j])^-1``.

Two facts make the bound ``delta`` a theorem instead of a measurement.

*Exact function.*  Writing ``Q = exp(-2 pi p K / K')`` for the nome after the degree-``2p`` transformation, the
midpoint rule applied to the elliptic integral of ``x ** -0.5`` gives, with ``theta`` real on ``[lower, upper]``,

    sqrt(x) r(x) = 1 + 4 sum_{l >= 1} (-1)^l Q^l / (1 + Q^(2l)) cos(l theta),

that is ``2 K_Q / pi * dn`` of nome ``Q``.  It runs between ``theta_4(Q)^2`` and ``theta_3(Q)^2``; divided by their
mean ``theta_3(Q^2)^2`` it stays within ``theta_2(Q^2)^2 / theta_3(Q^2)^2 <= 4 Q`` of 1.  Its ``2p + 1`` extrema
on the interval are all that a function ``z r(z^2)`` of that degree can have, and both end points are minima, so it
decreases to 0 outside: ``sqrt(x) r(x) <= 1 + delta`` holds for **every** ``x > 0``.

*Rounded coefficients.*  All terms are positive and ``nodes / (x + nodes) < 1``, so relative errors ``alpha`` of the
nodes and ``beta`` of the weights move ``r`` by at most a factor ``(1 + beta) / (1 - alpha)`` at every ``x > 0``.
The nome is chosen so that its logarithm and all its multiples used below are exact doubles; nothing is then lost
to the width of the interval, and ``alpha + beta`` is below the constant ``ROUNDING``, counted operation by operation.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNIT = 2.0**-53
"""Unit roundoff of float64."""

ROUNDING = 320 * UNIT
"""Bound on alpha + beta: 138 u for a node and 155 u for a weight if ``exp`` and ``expm1`` err by at most 4 ulp."""

_MIN_RATIO = 100.0  # ratio upper / lower below which the series would need more than its twelve terms
_STEP_BITS = 24  # 24 bits times an odd number up to 23 times an odd number below 2 ** 20 is still exact in 53
_ODD_NUMBERS = np.arange(1.0, 24.0, 2.0)


@dataclass(frozen=True)
class Poles:
    """A partial fraction for ``x ** -0.5``.

    Attributes:
        nodes: t_j > 0, increasing, shape (p,).
        weights: w_j > 0, shape (p,).
        lower: left end of the interval of validity.
        upper: right end of the interval of validity.
        delta: bound on ``|sqrt(x) r(x) - 1|`` on the interval and on ``sqrt(x) r(x) - 1`` for every ``x > 0``.
    """

    nodes: NDArray[np.float64]
    weights: NDArray[np.float64]
    lower: float
    upper: float
    delta: float


def zolotarev(lower: float, upper: float, *, error: float, multiple: int = 1) -> Poles:
    """Return the best partial fraction for ``x ** -0.5`` on an interval that contains ``[lower, upper]``.

    Args:
        lower: left end, positive.
        upper: right end, at least ``lower``.
        error: relative error asked of the exact function; the returned ``delta`` adds the rounding of its
            coefficients (3.6e-14).
        multiple: the number of poles is rounded up to a multiple of this.

    Returns:
        The poles; ``delta <= error + ROUNDING`` up to second order.

    Raises:
        ValueError: if the interval is empty, not positive or not finite.

    Reference:
        Hale, Higham, Trefethen, Computing A^alpha, log(A) and related matrix functions by contour integrals
        (2008), section 4, whose method 3 gives these nodes; the hyperbolic series is that of sn in its nome.
    """
    log_nome = _log_nome(lower, upper)
    count = max(1, math.ceil(log_nome * math.log(4.0 / error) / (2.0 * math.pi**2)))
    return _assemble(log_nome, -(-count // multiple) * multiple, upper)


def zolotarev_with(lower: float, upper: float, *, count: int) -> Poles:
    """Return the best partial fraction with ``count`` poles on an interval that contains ``[lower, upper]``."""
    return _assemble(_log_nome(lower, upper), count, upper)


def _log_nome(lower: float, upper: float) -> float:
    """Return ``-log q = pi K'/K`` of the modulus ``k = sqrt(lower / upper)``, by the arithmetic-geometric mean."""
    if not 0.0 < lower <= upper < math.inf:
        raise ValueError(f"interval [{lower}, {upper}] must satisfy 0 < lower <= upper < inf")
    k = math.sqrt(min(lower / upper, 1.0 / _MIN_RATIO))
    return math.pi * _mean(math.sqrt((1.0 - k) * (1.0 + k))) / _mean(k)


def _mean(b: float) -> float:
    a = 1.0
    while abs(a - b) > 1e-8 * a:  # another step squares this distance
        a, b = 0.5 * (a + b), math.sqrt(a * b)
    return 0.5 * (a + b)


def _assemble(log_nome: float, count: int, upper: float) -> Poles:
    step = _round_up(log_nome * (1.0 + 1e-12) / (4 * count))
    log_nome = 4 * count * step
    odd = 2.0 * np.arange(1, (count + 1) // 2 + 1)[:, None] - 1.0
    # q^(a/2)/(1 - q^a) sinh(a pi u/2K), the growing exponential folded into q^(a/2): positive factors only
    terms = np.exp(-_ODD_NUMBERS * step * (2 * count - odd)) * np.expm1(-2.0 * _ODD_NUMBERS * step * odd)
    series = 0.5 * (terms / np.expm1(-_ODD_NUMBERS * log_nome)).sum(axis=1)
    q = math.exp(-log_nome)
    theta2_squared = 4.0 * math.exp(-0.5 * log_nome) * (1.0 + q**2 + q**6) ** 2
    theta3_squared = (1.0 + 2.0 * q + 2.0 * q**4) ** 2
    k = theta2_squared / theta3_squared
    s = 4.0 * series / theta2_squared  # sc(u_j), the lower half of the nodes; the upper half mirrors it
    low, high = s * s, 1.0 / (k * k * s * s)  # t / lower
    over_lower = np.concatenate([low, high[::-1][count % 2 :]])
    over_upper = np.concatenate([(4.0 * series / theta3_squared) ** 2, (1.0 / (s * s))[::-1][count % 2 :]])
    centre, spread = _extremes(count, log_nome)
    scale = 4.0 * step * theta3_squared * k * math.sqrt(upper) / (math.pi * centre)
    weights = scale * np.sqrt((1.0 + over_upper) * (1.0 + over_lower))
    delta = (1.0 + spread) * (1.0 + ROUNDING) - 1.0 + UNIT
    return Poles(upper * over_upper, weights, k * k * upper * (1.0 + 64 * UNIT), upper, delta)


def _extremes(count: int, log_nome: float) -> tuple[float, float]:
    """Return centre ``theta_3(Q^2)^2`` and relative half width of the values of ``sqrt(x) r(x)``."""
    nome = math.exp(-2.0 * math.pi**2 * count / log_nome)
    centre = (1.0 + 2.0 * nome**2 + 2.0 * nome**8 + 2.0 * nome**18) ** 2
    spread = 4.0 * nome * (1.0 + nome**4 + nome**12) ** 2 / centre
    return centre, spread * (1.0 + 1e-12)


def _round_up(x: float) -> float:
    mantissa, exponent = math.frexp(x)
    return math.ldexp(math.ceil(mantissa * 2**_STEP_BITS), exponent - _STEP_BITS)
