"""Plans of DP-SkGD and of DP-mu^2-FL, whose papers fix every parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from factorize.errors import ConditionNotMet
from factorize.plain_data import Count, NonNegative, Positive
from factorize.plan.passes import LARGEST_CORRELATED_PLAN, LARGEST_DENSE_PLAN
from factorize.plan.request import AdjacencyName, Plan, PlanRequest
from factorize.predict import ask
from factorize.predict.coordinate import one_for_each
from factorize.privacy import PrivacyTarget


class SkgdPlan(PlanRequest):
    """DP-SkGD with the recipe of M24, theorem 4.2, over a partition into blocks.

    Attributes:
        smoothness: M_j, block after block.
        block_sizes: single coordinates by default.
        block_bounds: L_U per block.
        sampling: `uniform`, `importance` or `nice`.
        size: coordinates per step of `nice`.
        initial_distances: |w^0_j - w*_j|, one per coordinate or one for all.
        initial_gap: f(w^0) - f*.
        strong_convexity: mu, where there is one.
    """

    default_adjacency: ClassVar[AdjacencyName] = "replace_one"

    system: Literal["dp_skgd"]
    smoothness: Annotated[list[Positive], Field(min_length=1, max_length=1_000_000)]
    block_sizes: Annotated[list[Count], Field(min_length=1)] | None = None
    block_bounds: Annotated[list[Positive], Field(min_length=1)]
    sampling: Literal["uniform", "importance", "nice"] = "uniform"
    size: Count | None = None
    initial_distances: Annotated[list[NonNegative], Field(min_length=1)]
    initial_gap: NonNegative
    strong_convexity: Positive | None = None

    def plan(self) -> Plan:
        """Return K, T, the step sizes and the noise per unit of L_U, computed for the counts that are run."""
        from factorize.training import sketch_calibration

        question = self._question()
        lengths = self._lengths(question)
        target = PrivacyTarget(epsilon=self.epsilon, delta=self.delta)
        calibration = sketch_calibration(lengths, target, examples=self.examples, adjacency=self.relation)
        asked = {**question, "sigma": calibration.sigma, "inner": lengths.inner, "outer": lengths.outer}
        return Plan(
            system=self.system,
            parameters={
                "inner": lengths.inner,
                "outer": lengths.outer,
                "step_sizes": [1 / m for m in self.smoothness],
                "sampling": self.sampling,
                **({} if self.size is None else {"size": self.size}),
                "block_bounds": self.block_bounds,
            },
            noise={**calibration.document(), "sigma_of_block": [calibration.sigma * x for x in self.block_bounds]},
            spec=None,
            predictions={"utility": ask(asked)},
            notes=("sigma is per unit of L_U and for full-batch means over all examples",),
        )

    def _question(self) -> dict[str, Any]:
        return {
            "kind": "sketched_descent",
            "smoothness": self.smoothness,
            "block_sizes": self.block_sizes,
            "block_bounds": self.block_bounds,
            "sampling": self.sampling,
            "size": self.size,
            "initial_distances": self.initial_distances,
            "initial_gap": self.initial_gap,
            "strong_convexity": self.strong_convexity,
        }

    def _lengths(self, question: Mapping[str, Any]) -> Any:
        from factorize.predict.coordinate import SketchedDescent
        from factorize.training import convex_lengths, strongly_convex_lengths

        sketch = SketchedDescent(**question, sigma=0.0, inner=1)
        blocks, law = sketch.blocks(), sketch.probabilities()
        constant = sketch.noise_constants()[0]
        common: dict[str, Any] = {"examples": self.examples, "epsilon": self.epsilon, "delta": self.delta}
        if self.strong_convexity is None:
            distances = one_for_each(self.initial_distances, len(self.smoothness))
            radius = math.sqrt(sketch.radius_squared(distances))
            return convex_lengths(**common, radius=radius, noise_constant=constant)
        return strongly_convex_lengths(
            **common,
            strong_convexity=self.strong_convexity,
            smoothness=np.array(self.smoothness),
            probabilities=np.repeat(law, [len(block) for block in blocks]),
            initial_gap=self.initial_gap,
            noise_constant=constant,
        )


class Mu2Plan(PlanRequest):
    """DP-mu^2-FL with the recipe of R24, theorems 5.2 and 6.2; `examples` are those of one machine, one per round.

    Attributes:
        machines: M.
        lipschitz: G.
        smoothness: L.
        diameter: D.
        dimension: d.
        trusted: whether the server adds the noise.
        gradient_noise: sigma, sigma_L and G* of the bound, with the next two; the worst case where they are left out.
        smoothness_noise: sigma_L.
        optimal_gradient: G*.
        noise_kind: `independent` as printed, or `factorized`.
        output: workload that a factorization is optimised for.
    """

    default_adjacency: ClassVar[AdjacencyName] = "replace_one"

    system: Literal["mu2"]
    machines: Count = 1
    lipschitz: Positive
    smoothness: Positive
    diameter: Positive
    dimension: Count
    trusted: bool = False
    gradient_noise: NonNegative | None = None
    smoothness_noise: NonNegative | None = None
    optimal_gradient: NonNegative | None = None
    noise_kind: Literal["independent", "factorized"] = "independent"
    output: Literal["q", "w", "x"] = "q"

    def plan(self) -> Plan:
        """Return rounds, clip norm, learning rate, noise and, where it is factorized, the spec."""
        from factorize.training import mu2_recipe, mu2_workload

        divisor = self.machines if self.trusted else 1
        mu = 1 / PrivacyTarget(epsilon=self.epsilon, delta=self.delta).noise_multiplier
        constants: dict[str, Any] = {"lipschitz": self.lipschitz, "smoothness": self.smoothness}
        constants |= {"machines": self.machines, "diameter": self.diameter, "dimension": self.dimension}
        recipe = mu2_recipe(self.examples, **constants, mu=mu, trusted=self.trusted)
        independent = self.noise_kind == "independent"
        kind = "federated_risk" if independent else "factorized_federated_risk"
        risk = {"kind": kind, "rounds": self.examples, "mu": mu, "trusted": self.trusted, **constants, **self._given()}
        notes = ("independent noise is C = S: sens(C) = sqrt(T), so sigma is that many times the one stated",)
        correlated = (
            "correlated noise improves every release; the output x_T only with curvature (docs/predict.md)",
            "the bound depends on the factorization: solve the spec, then ask the question `risk` about it",
        )
        return Plan(
            system=self.system,
            parameters={
                "rounds": self.examples,
                "machines": self.machines,
                "clip_norm": recipe.clip_norm,
                "learning_rate": recipe.learning_rate if independent else recipe.factorized_learning_rate,
                "trusted": self.trusted,
            },
            noise=self.noise(recipe.clip_norm, divisor),
            spec=None if independent else self._spec(mu2_workload(self.examples, self.output)),
            predictions={"risk": ask(risk)} if independent else {},
            questions={} if independent else {"risk": risk},
            notes=notes if independent else correlated,
        )

    def _spec(self, workload: dict[str, Any]) -> dict[str, Any]:
        limit = LARGEST_DENSE_PLAN if self.output == "x" else LARGEST_CORRELATED_PLAN
        if self.examples > limit:
            raise ConditionNotMet(
                f"a factorization for the output {self.output} has a solver up to {limit} rounds, got {self.examples}; "
                + ("use output w" if self.examples <= LARGEST_CORRELATED_PLAN else "use noise_kind independent"),
                field="/output",
            )
        return {"workload": workload}

    def _given(self) -> dict[str, float]:
        names = ("gradient_noise", "smoothness_noise", "optimal_gradient")
        return {name: value for name in names if (value := getattr(self, name)) is not None}
