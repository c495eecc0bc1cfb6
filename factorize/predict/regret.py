"""The regret of descent with correlated noise against an adversary: the proxy that DP-MF minimises."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from factorize.plain_data import Count, NonNegative, Positive
from factorize.predict.noise_sums import prefix_norms
from factorize.predict.prediction import (
    NO_CLIPPING,
    Basis,
    Inverse,
    Prediction,
    Relation,
    ScaledNoise,
    rows_wanted,
)


class RegretProxy(ScaledNoise):
    """K23, equation (5), from D22: the average suboptimality of a convex and Lipschitz function, by |B|_F.

    Attributes:
        lipschitz: of f.
        learning_rate: gamma.
        initial_distance: |x_0 - x*|.
        dimension: d.
    """

    about_factorization: ClassVar[bool] = True

    kind: Literal["regret_proxy"]
    lipschitz: Positive
    learning_rate: Positive
    initial_distance: NonNegative
    dimension: Count = 1

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return |x_0 - x*|^2 / (gamma n) + gamma G^2 + gamma G sqrt(d) sigma |B|_F / sqrt(n)."""
        source = rows_wanted(inverse, self.kind)
        norms = prefix_norms(source)
        frobenius = float(math.sqrt(float(norms @ norms)))
        noise = math.sqrt(self.dimension) * self.scaled_sigma(source) * frobenius / math.sqrt(len(norms))
        terms = {
            "initial": self.initial_distance**2 / (self.learning_rate * len(norms)),
            "gradients": self.learning_rate * self.lipschitz**2,
            "noise": self.learning_rate * self.lipschitz * noise,
        }
        return Prediction(
            quantity="average over t = 0..n of E f(x_t) - f*",
            relation=Relation.ORDER,
            value=math.fsum(terms.values()),
            basis=Basis.ORDER,
            terms={**terms, "frobenius_norm": frobenius},
            assumptions=("f is convex and Lipschitz", NO_CLIPPING),
            source="Koloskova et al. 2023, equation (5), from Denisov et al. 2022",
            notes=("an online bound: it grows with n for C = I, where convex_descent does not, and ranks poorly",),
        )
