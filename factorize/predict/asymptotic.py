"""Asymptotic costs of correlated noise, for quadratics: spectra, limits and closed forms (C24).

Everything is per unit of G^2 / (2 rho), the noise variance of a rho-zCDP release at sensitivity 1 and clip norm G, and
for a noising filter B with limiting sensitivity gamma^2 = mean(1 / |B|^2), where `mean` is over the circle. For
learning rate eta and Hessian eigenvalues l_j the stationary loss is

    F = (eta^2 / 2) gamma^2 mean(|B|^2 h),    h(w) = sum_j l_j / |1 - eta l_j - e^{iw}|^2,

and it is smallest for |B|^2 = 1 / sqrt(h), where it is (eta^2 / 2) mean(sqrt(h))^2 (Cauchy and Schwarz).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from factorize.errors import ConditionNotMet, SolveFailed

Array = NDArray[np.float64]

_FIRST_GRID, _LAST_GRID, _TOLERANCE = 64, 2**21, 1e-12
"""The numbers of points of the first and the last grid, and the relative difference of two grids that agree."""


def circle_mean(function: Callable[[Array], Array], *, width: float) -> float:
    """Return the mean over the circle of an even function that is smooth but narrow near w = 0.

    It is the trapezoidal rule in theta with tan(w / 2) = d tan(theta / 2), a map of the circle to itself, so the rule
    keeps its geometric convergence, and of N points N / 2 lie within 2 d of w = 0. The grid is doubled until two values
    agree.

    Args:
        function: function of frequencies in (0, pi].
        width: scale of the narrowest feature; d is its square root, halfway between that scale and 1.

    Raises:
        SolveFailed: the values do not settle.
    """
    previous, count = math.inf, _FIRST_GRID
    while count <= _LAST_GRID:
        w, weights = warped_grid(count, width)
        value = float(weights @ function(w))
        if abs(value - previous) <= _TOLERANCE * abs(value):
            return value
        previous, count = value, 2 * count
    raise SolveFailed(f"a mean over frequencies did not converge with {_LAST_GRID} points; it is near {value:.6g}")


def warped_grid(count: int, width: float) -> tuple[Array, Array]:
    """Return frequencies in (0, pi) and weights (of sum near 1) of the warped rule; see `circle_mean`.

    Args:
        count: number of frequencies in (0, pi); the even function's other half is the same.
        width: scale of the narrowest feature near w = 0, up to 1 for a uniform grid.
    """
    d = math.sqrt(min(width, 1.0))
    theta = np.pi * (np.arange(count) + 0.5) / count
    sine, cosine = np.sin(theta / 2), np.cos(theta / 2)
    w = 2 * np.arctan2(d * sine, cosine)
    return w, d / (cosine**2 + d**2 * sine**2) / count


def distance_squared(contraction: float | Array, w: Array) -> Array:
    """Return |1 - x - e^{iw}|^2 for x = `contraction` without cancellation: x^2 + 4 (1 - x) sin(w / 2)^2."""
    return contraction**2 + 4 * (1 - contraction) * np.sin(w / 2) ** 2


def quadratic_power(
    eigenvalues: Sequence[float], learning_rate: float, weights: Sequence[float] | None = None
) -> Callable[[Array], Array]:
    """Return h(w), the gain from noise to loss of SGD on a quadratic with these Hessian eigenvalues.

    Args:
        eigenvalues: l_j.
        learning_rate: eta.
        weights: weights of the terms; the l_j themselves if left out.

    Raises:
        ConditionNotMet: a step of `learning_rate` overshoots, so that nothing is stationary.
    """
    largest = max(eigenvalues)
    if learning_rate * largest >= 2:
        raise ConditionNotMet(
            f"learning_rate={learning_rate} times the largest eigenvalue {largest} is {learning_rate * largest:.3g}, "
            f"not below 2, so the iterates diverge; use a learning_rate below {2 / largest:.3g}",
            field="/mechanism/learning_rate",
        )
    distinct, places = np.unique(np.asarray(eigenvalues, dtype=np.float64), return_inverse=True)
    shares = np.bincount(places, weights=np.asarray(eigenvalues if weights is None else weights, dtype=np.float64))

    def power(w: Array) -> Array:
        total = np.zeros_like(w)
        for eigenvalue, share in zip(distinct, shares, strict=True):
            total += share / distance_squared(learning_rate * eigenvalue, w)
        return total

    return power


def limiting_sensitivity_squared(nu: float) -> float:
    """Return gamma^2 = (2 / pi) K(1 - nu) of the nu-Toeplitz strategy without end; K takes the modulus (C24, eq. 99).

    Raises:
        ConditionNotMet: nu is not in (0, 1]; at nu = 0 the sensitivity grows without bound.
    """
    from scipy.special import ellipkm1

    if not 0 < nu <= 1:
        raise ConditionNotMet(f"nu={nu} has no limiting sensitivity; use 0 < nu <= 1")
    return 2 / math.pi * float(ellipkm1(nu * (2 - nu)))


def circle_integral(a: float, b: float) -> float:
    """Return the integral over (-pi, pi) of |1 - a - e^{iw}| / |1 - b - e^{iw}|^2 (C24, eq. 100).

    0 < a < 1, 0 < b < 2. It uses Carlson's forms of the complete elliptic integral of the third kind; its
    characteristic is negative for a > b.
    """
    from scipy.special import elliprf, elliprj

    modulus_complement = (a / 2) ** 2 / (1 - a / 2) ** 2  # 1 - k^2
    rest = (a * (1 - b / 2) / (b * (1 - a / 2))) ** 2  # 1 - characteristic, without cancellation where a is far below b
    third = elliprf(0, modulus_complement, 1) + (1 - rest) / 3 * elliprj(0, modulus_complement, 1, rest)
    return 2 * a**2 / (b**2 * (1 - a / 2)) * float(third)
