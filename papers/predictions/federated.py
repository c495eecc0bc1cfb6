"""DP-mu^2-FL: excess risk with independent noise as in R24, and with a factorization in its place.

T rounds, M machines, increments bounded by S = G + 2LD, mu-GDP (the paper calls mu "rho"), replace-one.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from factorize.plain_data import Count, NonNegative, Positive
from factorize.predict.prediction import (
    Basis,
    Inverse,
    Prediction,
    Question,
    Relation,
    certified_sensitivity,
    require,
    rows_wanted,
)
from papers.predictions.noise_sums import prefix_norms


class _Federated(Question):
    """Fields of both predictions.

    Attributes:
        rounds: T.
        machines: M.
        lipschitz: G.
        smoothness: L.
        diameter: D of the constraint set.
        dimension: d.
        mu: mu of mu-GDP.
        trusted: whether the server adds the noise.
        gradient_noise: sigma, root of the stochastic gradients' variance; at most G, which stands for it if left out.
        smoothness_noise: sigma_L, the same for differences of gradients, per distance; at most L, taken likewise.
        optimal_gradient: G* = |grad f(x*)|; at most G, taken likewise.
    """

    rounds: Count
    machines: Count = 1
    lipschitz: Positive
    smoothness: Positive
    diameter: Positive
    dimension: Count
    mu: Positive
    trusted: bool = False
    gradient_noise: NonNegative | None = None
    smoothness_noise: NonNegative | None = None
    optimal_gradient: NonNegative | None = None

    def worst_cases(self) -> dict[str, tuple[str, float]]:
        """Return, by field, the paper's symbol and the largest value that G and L allow (R24, below equation 4)."""
        G, L = self.lipschitz, self.smoothness
        return {"gradient_noise": ("sigma", G), "smoothness_noise": ("sigma_L", L), "optimal_gradient": ("G*", G)}

    def constants(self) -> dict[str, float]:
        """Return sigma, sigma_L and G* by field, each as given or its largest possible value.

        Raises:
            ConditionNotMet: a value is above what G and L allow, so that one of them is wrong.
        """
        found = {}
        for name, (symbol, limit) in self.worst_cases().items():
            given = getattr(self, name)
            require(
                given is None or given <= limit,
                f"{symbol}={given} is above {limit}, the largest value that lipschitz and smoothness allow",
                "correct one of them, or leave it out for the worst case",
                field=f"/{name}",
            )
            found[name] = limit if given is None else given
        return found

    def assumed(self) -> tuple[str, ...]:
        """Say which constants were not given and are taken at their largest."""
        cases = self.worst_cases()
        return tuple(
            f"{name} is not given: its worst case {symbol} = {limit:g}"
            for name, (symbol, limit) in cases.items()
            if getattr(self, name) is None
        )

    def risk(self, noise_factor: float, basis: Basis, source: str, extra: dict[str, float]) -> Prediction:
        """Return 4D [(G* + 2LD)/T + factor 2S sqrt(d)/(mu T share) + sigma~/sqrt(TM)]."""
        S = self.lipschitz + 2 * self.smoothness * self.diameter
        share = self.machines if self.trusted else math.sqrt(self.machines)
        constants = self.constants()
        spread = constants["gradient_noise"] + 2 * constants["smoothness_noise"] * self.diameter
        scale = 4 * self.diameter
        terms = {
            "optimisation": scale * (constants["optimal_gradient"] + 2 * self.smoothness * self.diameter) / self.rounds,
            "privacy": scale * noise_factor * 2 * S * math.sqrt(self.dimension) / (self.mu * self.rounds * share),
            "sampling": scale * spread / math.sqrt(self.rounds * self.machines),
        }
        return Prediction(
            quantity="E f(x_T) - f(x*)",
            relation=Relation.AT_MOST,
            value=math.fsum(terms.values()),
            basis=basis,
            terms={**terms, "increment_bound": S, **extra},
            assumptions=(
                "losses are convex, G-Lipschitz and L-smooth on a convex set of diameter D",
                "each sample is used once, and in both gradients of its round",
                "increments are clipped to S = G + 2LD, which then never binds",
                *self.assumed(),
            ),
            source=source,
        )


class FederatedRisk(_Federated):
    """R24, theorems 5.2 (untrusted) and 6.2 (trusted): independent noise on the increments' sums."""

    kind: Literal["federated_risk"]

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return the bound and the learning rate that it is for."""
        S = self.lipschitz + 2 * self.smoothness * self.diameter
        share = self.machines if self.trusted else math.sqrt(self.machines)
        flat = 1 / (4 * self.smoothness * self.rounds)
        noisy = self.mu * self.diameter * share / (2 * S * self.rounds * math.sqrt(self.dimension))
        deviation = 2 * S * math.sqrt(self.rounds) / self.mu
        return self.risk(
            1.0,
            Basis.PAPER,
            f"Reshef and Levy 2024, theorem {'6.2' if self.trusted else '5.2'}; constants derived again",
            {"learning_rate": min(noisy, flat), "sigma": deviation / (self.machines if self.trusted else 1)},
        )


class FactorizedFederatedRisk(_Federated):
    """The factorized version: each release better, and this bound gbar times worse in its noise term."""

    about_factorization: ClassVar[bool] = True

    kind: Literal["factorized_federated_risk"]

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return the bound with gbar = sens(C) mean_t |B[t]|, for learning_rate = 1/(4LT)."""
        source = rows_wanted(inverse, self.kind)
        steps = source.shape("C_inv")[0]
        require(
            steps == self.rounds,
            f"the factorization has n={steps} steps, but the run has {self.rounds} rounds",
            "ask about a factorization of as many steps as rounds",
            field="/rounds",
        )
        norms = certified_sensitivity(source) * prefix_norms(source)
        gbar = float(norms.mean())
        return self.risk(
            gbar,
            Basis.DERIVED,
            "derived in papers/pages/notes-predictions.md; the proof of Reshef and Levy 2024, theorem 5.2, needs "
            "E<Y_t, w_t> = 0, "
            "which correlated noise does not have",
            {
                "gbar": gbar,
                "learning_rate": 1 / (4 * self.smoothness * self.rounds),
                "release_variance_ratio": self.rounds / float((norms**2).mean()),
            },
        )
