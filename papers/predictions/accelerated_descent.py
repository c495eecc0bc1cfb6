"""Accelerated-DP-SRGD: the population risk of S24 with any factorization in place of the tree.

Steps t = 0..T-1, weights eta_t = t + 1, noise b_t in the step of z and b_t / eta_t in that of y. Recursive gradients
are running sums of what is released, so b_t = (row t of B Z) / beta with B = S C^-1; a fresh gradient carries the noise
of its own step, so b_t = eta_t (row t of C^-1 Z) / beta. Entries of Z have standard deviation `sigma` on the scale of
batch means: E|b_t|^2 is d sigma^2 / beta^2 times the row's squared norm.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np

from factorize.plain_data import Count, NonNegative, Positive
from factorize.predict.prediction import Basis, Inverse, Prediction, Question, Relation, require, rows_wanted
from papers.predictions.noise_sums import inverse_norms, prefix_norms

_RISK = "E F(y_T) - F(x*), population risk"
_LOSSES = (
    "losses are convex, L-Lipschitz and M-smooth on a convex set of diameter D",
    "each example is used once, i.i.d.",
)
_DIFFERENCES = (*_LOSSES, "differences are clipped to R = 4L + 8MD, which then never binds")
_GRADIENTS = (*_LOSSES, "gradients are clipped to L, which then never binds")


class _Accelerated(Question):
    """Fields of both theorems.

    Attributes:
        lipschitz: L.
        smoothness: M.
        diameter: D of the constraint set.
        batch_size: B.
        beta: the scaling; the recipe's is M + (8L + 16MD) n^1.5 / (D B^2).
        sigma: standard deviation per entry of Z, from a calibration with this clip norm and batch size.
        dimension: d.
    """

    about_factorization: ClassVar[bool] = True

    lipschitz: Positive
    smoothness: Positive
    diameter: Positive
    batch_size: Count
    beta: Positive
    sigma: NonNegative
    dimension: Count = 1

    def noise_norms(self, norms: np.ndarray) -> np.ndarray:
        """Return sqrt(E|b_t|^2), shape (T,), of the norms of the rows that b_t draws on."""
        require(
            self.beta >= self.smoothness,
            f"beta={self.beta} is below the smoothness {self.smoothness}",
            "use the recipe's beta, or any above the smoothness",
            field="/beta",
        )
        return math.sqrt(self.dimension) * self.sigma * norms / self.beta

    def total(
        self, parts: dict[str, np.ndarray], weights: np.ndarray, source: str, assumptions: tuple[str, ...]
    ) -> Prediction:
        """Return the weighted mean of the parts plus the initial term."""
        last = float(weights[-1])
        terms = {name: float(weights @ values) / last for name, values in parts.items()}
        terms["initial"] = self.beta * self.diameter**2 / last
        return Prediction(
            quantity=_RISK,
            relation=Relation.AT_MOST,
            value=math.fsum(terms.values()),
            basis=Basis.PAPER,
            terms=terms,
            assumptions=assumptions,
            source=source,
            notes=(
                "divided by eta_{0:T-1}, which the potential of the proof has; the paper prints eta_{0:T}",
                "the proof has slips of a factor 2 (papers/pages/predictions.md)",
            ),
        )


class AcceleratedRisk(_Accelerated):
    """S24, theorem 4.7: excess population risk with recursive gradients.

    Attributes:
        spread: Q >= 2 max |v|, v the clipped difference; 2 (4L + 8MD) by default.
    """

    kind: Literal["accelerated_risk"]
    spread: Positive | None = None

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return the bound on E F(y_T) - F(x*), by terms."""
        b = self.noise_norms(prefix_norms(rows_wanted(inverse, self.kind)))
        t = np.arange(len(b))
        eta, weights = t + 1.0, (t + 1.0) * (t + 2.0) / 2
        root, L, D = math.sqrt(self.batch_size), self.lipschitz, self.diameter
        spread = self.spread or 2 * (4 * L + 8 * self.smoothness * D)
        walk = spread * np.sqrt(t + 1.0) / (root * eta)
        parts = {
            "sampling": 2 * walk * (L + spread * (t + 1) / (root * eta)) / self.beta,
            "noise_linear": (3 * walk + L) * b / eta,
            "sampling_distance": spread * D * np.sqrt(t + 1.0) / (root * weights),
            "noise_distance": 3 * self.beta * b * D / weights,
            "noise_squared": self.beta * b**2 / eta**2,
        }
        return self.total(parts, weights, "Choquette-Choo et al. 2024b, theorem 4.7", _DIFFERENCES)


class IndependentGradientRisk(_Accelerated):
    """S24, theorem 4.11: the accelerated baseline that takes a fresh gradient in each step (`accelerated_dp_sgd`).

    `sigma` belongs to a clip norm of L, and the factorization is the one whose noise C^-1 Z the gradients get.
    """

    kind: Literal["independent_gradient_risk"]

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return the bound on E F(y_T) - F(x*), by terms."""
        norms = inverse_norms(rows_wanted(inverse, self.kind))
        t = np.arange(len(norms))
        eta, weights = t + 1.0, (t + 1.0) * (t + 2.0) / 2
        b = eta * self.noise_norms(norms)
        L = self.lipschitz
        parts = {
            "sampling": np.full(len(b), 8 * L**2 / (math.sqrt(self.batch_size) * self.beta)),
            "noise_linear": 5 * L * b / eta,
            "noise_distance": 3 * self.beta * b * self.diameter / weights,
            "noise_squared": self.beta * b**2 / eta**2,
        }
        source = "Choquette-Choo et al. 2024b, theorem 4.11; its term 3 beta |b_t| D divided by eta_{0:t}, as in 4.7"
        return self.total(parts, weights, source, _GRADIENTS)
