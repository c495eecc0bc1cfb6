"""Gradient descent with linearly correlated noise: the bounds of K23 and the examples that show them tight.

Iterates x_{t+1} = x_t - gamma (grad f(x_t) + (C^-1 Z)_t), so that the noise in x_t is row t of B Z with B = S C^-1. The
entries of Z have standard deviation `sigma` (from a calibration: the sensitivity is in it) in d dimensions; the paper's
sigma^2 = E|z_t|^2 is d sigma^2.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np

from factorize.plain_data import Count, NonNegative, Positive
from factorize.predict.prediction import (
    NO_CLIPPING,
    Basis,
    Inverse,
    Prediction,
    Question,
    Relation,
    ScaledNoise,
    require,
    rows_wanted,
)
from papers.predictions.noise_sums import noise_sums

_SMOOTHNESS, _CONVEXITY = "f is L-smooth", "f is convex and attains its minimum"
_EXACT_GRADIENTS = "gradients are exact (full batches)"


class _Descent(Question):
    """Fields that all of K23's statements share.

    Attributes:
        smoothness: L.
        learning_rate: gamma.
        sigma: standard deviation per entry of Z.
        dimension: d.
    """

    smoothness: Positive
    learning_rate: Positive
    sigma: NonNegative
    dimension: Count = 1

    @property
    def variance(self) -> float:
        """Return E|z_t|^2 = d sigma^2."""
        return self.dimension * self.sigma**2

    def limit_step(self, factor: float) -> None:
        """Refuse gamma L above 1 / factor."""
        product = self.learning_rate * self.smoothness
        require(
            product * factor <= 1 + 1e-12,
            f"learning_rate * smoothness = {product:.6g} is above 1/{factor:g}, outside the statement",
            f"use a learning_rate of at most {1 / (factor * self.smoothness):.6g}",
            field="/learning_rate",
        )


class NonconvexDescent(_Descent, ScaledNoise):
    """K23, theorem 4.6: the average squared gradient of a non-convex function.

    Attributes:
        initial_gap: f(x_0) - min f.
        tau: restarts of the analysis; floor(1 / (gamma L)) by default, the theorem's.
    """

    about_factorization: ClassVar[bool] = True

    kind: Literal["nonconvex_descent"]
    initial_gap: NonNegative
    tau: Count | None = None

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return 8 (f_0 - f*) / (gamma (n+1)) + sigma^2 (4 gamma^2 L^2 N1 + 40 gamma L N2) / (n + 1)."""
        self.limit_step(4)
        source = rows_wanted(inverse, self.kind)
        count = source.shape("C_inv")[0] + 1
        product = self.learning_rate * self.smoothness
        tau = self.tau or max(1, math.floor(1 / product + 1e-9))
        sums = noise_sums(source, tau)
        start = 8 * self.initial_gap / (self.learning_rate * count)
        noise = (
            self.dimension
            * self.scaled_sigma(source) ** 2
            * (4 * product**2 * sums.within + 40 * product * sums.between)
            / count
        )
        return Prediction(
            quantity="average over t = 0..n of E|grad f(x_t)|^2",
            relation=Relation.AT_MOST,
            value=start + noise,
            basis=Basis.PAPER,
            terms={"initial": start, "noise": noise, "N1": sums.within, "N2": sums.between, "tau": tau},
            assumptions=(_SMOOTHNESS, _EXACT_GRADIENTS, "learning_rate <= 1/(4L)", NO_CLIPPING),
            source="Koloskova et al. 2023, theorem 4.6 with the constants of its proof",
            notes=_rounded_tau(tau, 1 / product),
        )


class ConvexDescent(_Descent, ScaledNoise):
    """K23, theorem 4.7: the average suboptimality of a convex function.

    Attributes:
        initial_distance: |x_0 - x*|.
        tau: restarts of the analysis; floor(1 / (8 gamma L log2 n)) by default, the proof's.
    """

    about_factorization: ClassVar[bool] = True

    kind: Literal["convex_descent"]
    initial_distance: NonNegative
    tau: Count | None = None

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return 4 |x_0 - x*|^2 / (gamma (n+1)) + 12 gamma sigma^2 (gamma L N1 + N2 + N3) / (n + 1)."""
        self.limit_step(8)
        source = rows_wanted(inverse, self.kind)
        count = source.shape("C_inv")[0] + 1
        product = self.learning_rate * self.smoothness
        exact_tau = 1 / (8 * product * max(1.0, math.log2(count - 1)))
        tau = self.tau or max(1, math.floor(exact_tau + 1e-9))
        sums = noise_sums(source, tau)
        start = 4 * self.initial_distance**2 / (self.learning_rate * count)
        noise = self.learning_rate * self.dimension * self.scaled_sigma(source) ** 2 * 12
        noise *= (product * sums.within + sums.between + sums.last) / count
        return Prediction(
            quantity="average over t = 0..n of E f(x_t) - f*",
            relation=Relation.AT_MOST,
            value=start + noise,
            basis=Basis.PAPER,
            terms={
                "initial": start,
                "noise": noise,
                "N1": sums.within,
                "N2": sums.between,
                "N3": sums.last,
                "tau": tau,
            },
            assumptions=(_SMOOTHNESS, _CONVEXITY, _EXACT_GRADIENTS, "learning_rate <= 1/(8L)", NO_CLIPPING),
            source="Koloskova et al. 2023, theorem 4.7 with the constants of its proof",
            notes=(
                "the statement allows learning rates up to 1/(4L), its proof up to 1/(8L)",
                *_rounded_tau(tau, exact_tau),
            ),
        )


class IndependentDescent(_Descent):
    """K23, proposition 4.4: independent noise (B = S, PGD) on a convex function.

    Attributes:
        initial_distance: |x_0 - x*|.
        steps: n.
    """

    kind: Literal["independent_descent"]
    initial_distance: NonNegative
    steps: Count

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return |x_0 - x*|^2 / (2 gamma (n+1)) + gamma sigma^2 / 2."""
        self.limit_step(2)
        start = self.initial_distance**2 / (2 * self.learning_rate * (self.steps + 1))
        noise = self.learning_rate * self.variance / 2
        return _proposition(start, noise, "4.4", "gamma sigma^2: independent noise")


class AntiCorrelatedDescent(_Descent):
    """K23, proposition 4.5: fully anti-correlated noise (B = I, Anti-PGD) on a convex function.

    Attributes:
        initial_distance: |x_0 - x*|.
        steps: n.
    """

    kind: Literal["anti_correlated_descent"]
    initial_distance: NonNegative
    steps: Count

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return |x_0 - x*|^2 / (2 gamma (n+1)) + L gamma^2 sigma^2."""
        self.limit_step(2)
        start = self.initial_distance**2 / (2 * self.learning_rate * (self.steps + 1))
        noise = self.smoothness * self.learning_rate**2 * self.variance
        return _proposition(start, noise, "4.5", "L gamma^2 sigma^2: anti-correlated noise")


class DescentLowerBound(_Descent):
    """K23, appendix E: what noise leaves on f = (L/2)|x|^2, exactly.

    Attributes:
        noise: `independent` (B = S), `anti_correlated` (B = I), or `virtual`: the sequence of exact steps from which
            the analysis of Anti-PGD cannot bound PGD.
        steps: n.
        initial_distance: |x_0|.
    """

    kind: Literal["descent_lower_bound"]
    noise: Literal["independent", "anti_correlated", "virtual"]
    steps: Count
    initial_distance: NonNegative = 0.0

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return (L/2) E|x_n|^2, with the paper's lower bound of its noise beside it."""
        self.limit_step(1)
        gamma, product = self.learning_rate, self.learning_rate * self.smoothness
        stay, n = 1 - product, self.steps
        if self.noise == "independent":
            gain = _geometric(stay**2, n)
            paper, limit = gamma * self.variance / 8, math.log(2) / product
        elif self.noise == "anti_correlated":
            gain = 1 + product**2 * _geometric(stay**2, n - 1)
            paper, limit = self.smoothness * gamma**2 * self.variance / 2, 1
        else:
            gain = float(np.sum((1 - stay ** np.arange(1, n)) ** 2))
            paper, limit = self.smoothness * gamma**2 * self.variance * n / 8, 2 * math.log(4) / product
        start = self.smoothness / 2 * stay ** (2 * n) * self.initial_distance**2
        noise = self.smoothness / 2 * gamma**2 * self.variance * gain
        terms = {"initial": start, "noise": noise}
        if n >= limit:
            terms["paper_lower_bound_of_noise"] = paper
        return Prediction(
            quantity="E f(x_n) - f* on f = (L/2)|x|^2"
            + (", of the virtual sequence" if self.noise == "virtual" else ""),
            relation=Relation.EQUAL,
            value=start + noise,
            basis=Basis.EXACT,
            terms=terms,
            assumptions=(f"f = (L/2)|x|^2; the paper's bound needs n >= {limit:.6g}", _EXACT_GRADIENTS, NO_CLIPPING),
            source="Koloskova et al. 2023, appendix E",
            notes=("E.2 prints the initial term without its L/2, and E.1 a power 2 inside the base; mended here",),
        )


def _proposition(start: float, noise: float, number: str, what: str) -> Prediction:
    return Prediction(
        quantity="average over t = 0..n of E f(x_t) - f*",
        relation=Relation.AT_MOST,
        value=start + noise,
        basis=Basis.DERIVED,
        terms={"initial": start, "noise": noise},
        assumptions=(_SMOOTHNESS, _CONVEXITY, _EXACT_GRADIENTS, "learning_rate <= 1/(2L)", NO_CLIPPING),
        source=f"Koloskova et al. 2023, proposition {number} ({what}), printed as an order",
        notes=("constants from co-coercivity of the gradient: smaller than those of the printed descent inequality",),
    )


def _geometric(ratio: float, count: int) -> float:
    """Return 1 + ratio + ... (count terms)."""
    return float(count) if ratio == 1 else (1 - ratio**count) / (1 - ratio)


def _rounded_tau(tau: int, exact: float) -> tuple[str, ...]:
    if abs(tau - exact) < 1e-9 * exact:
        return ()
    return (f"the statement has tau = {exact:.6g}; evaluated at tau = {tau}",)
