"""The bound of C24's Theorem 3.1 for strongly convex losses: a cone program in the multiplier alone.

For F mu-strongly convex and L-smooth, SGD with step eta driven by stationary noise of spectrum S(w) satisfies, for
every multiplier Lam(w) = lam_0 - sum_{t != 0} lam_t e^{-iwt} with lam >= 0 and sum_{t != 0} lam_t <= lam_0 (derived
again in docs/notes/frequency-domain.md; the printed sign of the lags is wrong),

    E|x - x*|^2 <= mean(psi S),    psi = ((L - mu)^2 |Lam|^2 + 2 Re Lam) / p,
    p = 2 Re[(a - mu) conj(a - L) conj(Lam)] - 1 > 0,    a(w) = (1 - e^{iw}) / eta.

psi is what is left when the 2 x 2 matrix inequality of each frequency is solved for its own variable: a quadratic over
a linear function of lam, so the objective is convex in the 2 tau + 1 numbers lam alone. With R + iI = Lam,

    R = lam_0 - sum_t s_t cos(wt),    I = sum_t d_t sin(wt),    s_t = lam_t + lam_-t > |d_t|,    sum_t s_t < lam_0,

the Newton matrix of the logarithmic barrier is two small Gram products of the cosines and sines.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from factorize.errors import ConditionNotMet, SolveFailed
from factorize.solvers.methods.compiled import Array

_WEIGHT_GROWTH = 30.0  # the weight of the objective grows by this from one centring to the next
_MAX_NEWTON_STEPS = 200
_MAX_CENTRINGS = 40
_LOOSE_DECREMENT, _TIGHT_DECREMENT = 0.1, 1e-4  # over the number of constraints: on the way, and at the end
_ROUNDING = 2.0**-50  # a smaller decrease of the centred function cannot be seen
_INTERIOR_GAP = 1e-2  # a similar problem starts from the point on the central path with this relative gap
_SUFFICIENT_DECREASE = 0.05


@dataclass(frozen=True)
class Plant:
    """SGD on a class of strongly convex functions.

    Attributes:
        learning_rate: eta > 0.
        strong_convexity: mu > 0.
        smoothness: L >= mu.
    """

    learning_rate: float
    strong_convexity: float
    smoothness: float

    def check(self) -> None:
        """Refuse what has no bound.

        Raises:
            ConditionNotMet: smoothness below strong convexity, or no multiplier certifies stability (eta >= 2 / L).
        """
        if self.smoothness < self.strong_convexity:
            raise ConditionNotMet(
                f"smoothness={self.smoothness} is below strong_convexity={self.strong_convexity}; give L >= mu",
                field="/mechanism/smoothness",
            )
        if self.learning_rate * self.smoothness >= 2:
            raise ConditionNotMet(
                f"learning_rate={self.learning_rate} has no certificate: it is not below 2 / smoothness = "
                f"{2 / self.smoothness:.3g}, where gradient descent itself stops converging; use a smaller one",
                field="/mechanism/learning_rate",
            )

    @property
    def width(self) -> float:
        """Scale of the narrowest feature of the spectra, near w = 0."""
        return self.learning_rate * self.strong_convexity


@dataclass(frozen=True)
class Multiplier:
    """Lam, by its real symmetric and antisymmetric parts.

    Attributes:
        centre: lam_0.
        even: s_t = lam_t + lam_-t, shape (lags,).
        odd: d_t = lam_t - lam_-t, shape (lags,).
    """

    centre: float
    even: Array
    odd: Array

    def spectrum(self, w: Array) -> tuple[Array, Array]:
        """Return the real and imaginary part of Lam(w)."""
        angles = w[:, None] * np.arange(1, len(self.even) + 1)
        return self.centre - np.cos(angles) @ self.even, np.sin(angles) @ self.odd

    def gain(self, plant: Plant, w: Array) -> Array:
        """Return psi(w), from noise power to E|x - x*|^2; infinite where the certificate fails."""
        real, imaginary = self.spectrum(w)
        slope, turn = _coefficients(plant, w)
        numerator = (plant.smoothness - plant.strong_convexity) ** 2 * (real**2 + imaginary**2) + 2 * real
        p = 2 * (slope * real - turn * imaginary) - 1
        return np.divide(numerator, p, out=np.full_like(p, np.inf), where=p > 0)


@dataclass(frozen=True)
class ConeSolution:
    """An optimal multiplier on a grid.

    Attributes:
        multiplier: Lam.
        value: sum_k weights_k S_k psi_k.
        lower: no multiplier with these lags has a smaller value on this grid, up to rounding.
        steps: Newton steps.
        interior: a multiplier on the central path well inside the cone, to start a similar problem from.
    """

    multiplier: Multiplier
    value: float
    lower: float
    steps: int
    interior: Multiplier


def _coefficients(plant: Plant, w: Array) -> tuple[Array, Array]:
    """Return alpha and beta of p = 2 (alpha R - beta I) - 1.

    alpha = Re[(a - mu) conj(a - L)] with 1 - cos w = 2 sin(w/2)^2, and beta = (L - mu) Im a.
    """
    eta, mu, smooth = plant.learning_rate, plant.strong_convexity, plant.smoothness
    versine = 2 * np.sin(w / 2) ** 2
    return versine * (2 / eta - mu - smooth) / eta + mu * smooth, -(smooth - mu) * np.sin(w) / eta


class ConeProgram:
    """Minimise sum_k weights_k S_k psi_k over multipliers with a number of lags.

    Args:
        plant: eta, mu, L.
        frequencies: shape (k,), in (0, pi].
        weights: weights of the mean over the circle, shape (k,).
        lags: largest |t|.

    Raises:
        ConditionNotMet: see `Plant.check`.
    """

    def __init__(self, plant: Plant, frequencies: Array, weights: Array, *, lags: int) -> None:
        plant.check()
        self.plant = plant
        self.frequencies = frequencies
        self.weights = weights
        self.lags = lags
        angles = frequencies[:, None] * np.arange(1, lags + 1)
        self._cosines = np.concatenate([np.ones((len(frequencies), 1)), -np.cos(angles)], axis=1)
        self._sines = np.sin(angles)
        self._alpha, self._beta = _coefficients(plant, frequencies)

    @cached_property
    def _start(self) -> Array:
        """Return a multiplier well inside: p >= 1 everywhere with half of lam_0 spread over the lags."""
        centre = 2 / float(self._alpha.min())
        return np.concatenate([[centre], np.full(self.lags, centre / (2 * self.lags)), np.zeros(self.lags)])

    def solve(self, power: Array, *, tolerance: float = 1e-8, start: Multiplier | None = None) -> ConeSolution:
        """Follow the central path: Newton's method on t * objective + barrier for growing t.

        Args:
            power: S at the frequencies, positive, shape (k,).
            tolerance: relative, on the value.
            start: the interior multiplier of a similar problem's solution.

        Raises:
            SolveFailed: Newton's method does not settle.
        """
        cost = self.weights * power
        constraints = 2 * self.lags + 1
        x = self._start if start is None else np.concatenate([[start.centre], start.even, start.odd])
        interior, value = x, self._value(x, cost)
        weight = constraints / value / (1.0 if start is None else _INTERIOR_GAP)
        steps = 0
        for _ in range(_MAX_CENTRINGS):
            last = constraints / weight <= tolerance * value
            x, used = self._centre(x, cost, weight, (_TIGHT_DECREMENT if last else _LOOSE_DECREMENT) * constraints)
            steps += used
            value = self._value(x, cost)
            if constraints / weight >= _INTERIOR_GAP * value:
                interior = x
            if last:
                lower = value - constraints / weight * (1 + 2 * _TIGHT_DECREMENT**0.5)
                return ConeSolution(self._multiplier(x), value, lower, steps, self._multiplier(interior))
            weight *= _WEIGHT_GROWTH
        raise SolveFailed(
            f"the cone program did not reach {tolerance:.1e} in {steps} steps; ask for a larger tolerance"
        )

    def _multiplier(self, x: Array) -> Multiplier:
        return Multiplier(float(x[0]), x[1 : self.lags + 1].copy(), x[self.lags + 1 :].copy())

    def _parts(self, x: Array) -> tuple[Array, Array, Array]:
        real = self._cosines @ x[: self.lags + 1]
        imaginary = self._sines @ x[self.lags + 1 :]
        return real, imaginary, 2 * (self._alpha * real - self._beta * imaginary) - 1

    def _value(self, x: Array, cost: Array) -> float:
        real, imaginary, p = self._parts(x)
        if not (p > 0).all():
            return np.inf
        spread = (self.plant.smoothness - self.plant.strong_convexity) ** 2
        return float(cost @ ((spread * (real**2 + imaginary**2) + 2 * real) / p))

    def _barrier(self, x: Array) -> float:
        even, odd = x[1 : self.lags + 1], x[self.lags + 1 :]
        rest = x[0] - even.sum()
        if rest <= 0 or not (even > np.abs(odd)).all():
            return np.inf
        return -float(np.log(rest)) - float(np.log(even - odd).sum() + np.log(even + odd).sum())

    def _centre(self, x: Array, cost: Array, weight: float, enough: float) -> tuple[Array, int]:
        """Newton's method with backtracking on weight * value + barrier."""
        here = weight * self._value(x, cost) + self._barrier(x)
        for step in range(1, _MAX_NEWTON_STEPS + 1):
            gradient, hessian = self._derivatives(x, cost, weight)
            direction = _solve(hessian, -gradient)
            slope = float(gradient @ direction)
            if -slope <= 2 * max(enough, _ROUNDING * abs(here)):
                return x, step
            length = 1.0
            while True:
                moved = x + length * direction
                there = weight * self._value(moved, cost) + self._barrier(moved)
                if there <= here + _SUFFICIENT_DECREASE * length * slope:
                    break
                length *= 0.5
                if length < 1e-10:  # rounding of the sum: the point is as centred as it can be seen to be
                    return x, step
            x, here = moved, there
        raise SolveFailed(f"Newton's method did not centre in {_MAX_NEWTON_STEPS} steps; ask for a larger tolerance")

    def _derivatives(self, x: Array, cost: Array, weight: float) -> tuple[Array, Array]:
        """Return gradient and Hessian in (lam_0, s, d).

        As a quadratic over a linear function psi = |q|^2 / p - 2 R with q = (kappa R, (L - mu) I - 2 Im(a) R), whose
        Hessian is a sum of squares: (2 / p) sum_j v_j v_j^T, v_j = grad q_j - (q_j / p) grad p.
        """
        plant, lags = self.plant, self.lags
        difference = plant.smoothness - plant.strong_convexity
        real, imaginary, p = self._parts(x)
        a_real = 2 * np.sin(self.frequencies / 2) ** 2 / plant.learning_rate
        a_imaginary = -np.sin(self.frequencies) / plant.learning_rate
        kappa = plant.smoothness + plant.strong_convexity - 2 * a_real
        first, second = kappa * real / p, (difference * imaginary - 2 * a_imaginary * real) / p
        # columns: derivative by R, by I
        v = (kappa - 2 * first * self._alpha, 2 * first * self._beta)
        u = (-2 * a_imaginary - 2 * second * self._alpha, difference + 2 * second * self._beta)
        ratio = first**2 + second**2
        by_real = 2 * first * kappa - 4 * second * a_imaginary - 2 * ratio * self._alpha - 2
        by_imaginary = 2 * second * difference + 2 * ratio * self._beta
        scaled = weight * cost
        gradient = np.concatenate([(scaled * by_real) @ self._cosines, (scaled * by_imaginary) @ self._sines])
        curved = 2 * scaled / p
        hessian = np.empty((2 * lags + 1, 2 * lags + 1))
        split = lags + 1
        mixed = self._cosines.T @ ((curved * (v[0] * v[1] + u[0] * u[1]))[:, None] * self._sines)
        hessian[:split, :split] = self._cosines.T @ ((curved * (v[0] ** 2 + u[0] ** 2))[:, None] * self._cosines)
        hessian[:split, split:], hessian[split:, :split] = mixed, mixed.T
        hessian[split:, split:] = self._sines.T @ ((curved * (v[1] ** 2 + u[1] ** 2))[:, None] * self._sines)
        self._add_barrier(x, gradient, hessian)
        return gradient, hessian

    def _add_barrier(self, x: Array, gradient: Array, hessian: Array) -> None:
        """Add the derivatives of -log(lam_0 - sum s) - sum log(s - d) - sum log(s + d)."""
        lags = self.lags
        even, odd = x[1 : lags + 1], x[lags + 1 :]
        outer = np.concatenate([[1.0], -np.ones(lags)]) / (x[0] - even.sum())
        minus, plus = 1 / (even - odd), 1 / (even + odd)
        gradient[: lags + 1] -= outer
        hessian[: lags + 1, : lags + 1] += np.outer(outer, outer)
        gradient[1 : lags + 1] -= minus + plus
        gradient[lags + 1 :] -= plus - minus
        s, d = np.arange(1, lags + 1), np.arange(lags + 1, 2 * lags + 1)
        hessian[s, s] += minus**2 + plus**2
        hessian[d, d] += minus**2 + plus**2
        hessian[s, d] += plus**2 - minus**2
        hessian[d, s] += plus**2 - minus**2


def _solve(hessian: Array, right: Array) -> Array:
    """Solve with the matrix scaled to unit diagonal, as the multipliers of far lags are near zero."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    scale = 1 / np.sqrt(np.diagonal(hessian))
    scaled = hessian * scale * scale[:, None]
    try:
        factor = cho_factor(scaled, lower=True, check_finite=False)
    except LinAlgError:
        factor = cho_factor(scaled + 1e-12 * np.eye(len(scale)), lower=True, check_finite=False)
    return scale * cho_solve(factor, scale * right, check_finite=False)
