"""Plans of the systems that release sums of gradients: DP-FTRL, DP-SRG-MEMF, Accelerated-DP-SRGD."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from factorize.errors import ConditionNotMet
from factorize.plain_data import Count, Fraction, Positive
from factorize.plan.request import Plan, PlanRequest
from factorize.predict import ask


class DpFtrlPlan(PlanRequest):
    """DP-FTRL with any of the published mechanisms (K23, C24, D22, S24's DP-MEMF).

    Attributes:
        batch_size: examples per step.
        epochs: passes in a fixed order.
        clip_norm: bound on one gradient.
        method: mechanism; see `factorize.training.method_spec`.
        momentum: of the optimiser; the "true" workload.
        optimize_for: `ones` optimises C for plain sums and evaluates it on the true workload.
        learning_rate: gamma; 1/(8L) where the smoothness is given and this is not.
        smoothness: L, for the learning rate and for tau = floor(1/(gamma L)) of `dp_mf_plus`.
        strong_convexity: mu, for nu = gamma mu of `nu_dp_ftrl`.
        tau: restarts of `dp_mf_plus`, where it is not to come from the theory.
    """

    system: Literal["dp_ftrl"]
    batch_size: Count
    epochs: Count = 1
    clip_norm: Positive = 1.0
    method: Literal["dp_sgd", "dp_mf", "dp_mf_plus", "dp_memf", "nu_dp_ftrl", "tree", "anti_pgd"] = "dp_mf"
    momentum: Fraction = 0.0
    optimize_for: Literal["true", "ones"] = "true"
    learning_rate: Positive | None = None
    smoothness: Positive | None = None
    strong_convexity: Positive | None = None
    tau: Count | None = None

    def plan(self) -> Plan:
        """Return steps, noise and spec."""
        from factorize.training import method_spec, ones

        n = self.epochs * self.batches(self.batch_size)
        rate = self.learning_rate or (None if self.smoothness is None else 1 / (8 * self.smoothness))
        true = {"kind": "momentum", "n": n, "momentum": self.momentum} if self.momentum else ones(n)
        spec = method_spec(
            self.method,
            true,
            epochs=self.epochs,
            optimize_for=ones(n) if self.optimize_for == "ones" and self.momentum else None,
            tau=self._tau(rate),
            nu=self._nu(rate),
        )
        notes = self.dropped(self.batch_size)
        if rate is None:
            notes += ("no learning rate: give one, or the smoothness, or sweep it on public data",)
        return Plan(
            system=self.system,
            parameters={
                "steps": n,
                "batch_size": self.batch_size,
                "epochs": self.epochs,
                "clip_norm": self.clip_norm,
                "learning_rate": rate,
                "momentum": self.momentum,
            },
            noise=self.noise(self.clip_norm, self.batch_size),
            spec=spec,
            notes=notes,
            comparison=self.comparison(spec, self.batch_size),
        )

    def _tau(self, rate: float | None) -> int | None:
        if self.method != "dp_mf_plus":
            return None
        if self.tau is None and (rate is None or self.smoothness is None):
            raise ConditionNotMet(
                "dp_mf_plus restarts every tau = 1/(gamma L) steps; give the smoothness, or tau itself", field="/tau"
            )
        return self.tau or max(1, math.floor(1 / ((rate or 0.0) * (self.smoothness or 0.0)) + 1e-9))

    def _nu(self, rate: float | None) -> float | None:
        if self.method != "nu_dp_ftrl" or rate is None or self.strong_convexity is None:
            return None
        return min(rate * self.strong_convexity, 0.5)


class DpSrgPlan(PlanRequest):
    """DP-SRG-MEMF: clipped differences of gradients (S24, section 5).

    Attributes:
        batch_size: examples per step.
        epochs: passes in a fixed order.
        clip_norm: bound on one difference.
        momentum: of the optimiser.
        decay: c of the recursion; the paper's is e^{-5/2}.
        optimize_for: `ones` or `true` (M A L).
    """

    system: Literal["dp_srg"]
    batch_size: Count
    epochs: Count = 1
    clip_norm: Positive = 1.0
    momentum: Fraction = 0.0
    decay: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = math.exp(-2.5)
    optimize_for: Literal["true", "ones"] = "true"

    def plan(self) -> Plan:
        """Return steps, noise and spec."""
        from factorize.training import method_spec, ones, srg_workload

        n = self.epochs * self.batches(self.batch_size)
        true = srg_workload(n, momentum=self.momentum, decay=self.decay)
        spec = method_spec(
            "dp_memf", true, epochs=self.epochs, optimize_for=ones(n) if self.optimize_for == "ones" else None
        )
        parameters = {
            "steps": n,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "clip_norm": self.clip_norm,
            "momentum": self.momentum,
            "decay": self.decay,
        }
        noise = self.noise(self.clip_norm, self.batch_size)
        notes = ("the learning rate has no theory: sweep it on public data", *self.dropped(self.batch_size))
        given: dict[str, Any] = {"parameters": parameters, "noise": noise, "spec": spec, "notes": notes}
        return Plan(system=self.system, **given, comparison=self.comparison(spec, self.batch_size))


class AcceleratedPlan(PlanRequest):
    """Accelerated-DP-SRGD with the recipe of S24, theorem 4.10.

    Attributes:
        lipschitz: L.
        smoothness: M.
        diameter: D of the constraint set.
        dimension: d.
        batch_size: B; floor(sqrt(n) min(1, M)) by default.
    """

    system: Literal["accelerated_srgd"]
    lipschitz: Positive
    smoothness: Positive
    diameter: Positive
    dimension: Count
    batch_size: Count | None = None

    def plan(self) -> Plan:
        """Return the recipe, the noise and the spec of the prefix sums that it releases."""
        from factorize.training import accelerated_recipe, method_spec, ones

        constants = {"lipschitz": self.lipschitz, "smoothness": self.smoothness, "diameter": self.diameter}
        recipe = accelerated_recipe(
            self.examples, **constants, batch_size=self.batch_size, epsilon=self.epsilon, delta=self.delta
        )
        rate = {"kind": "accelerated_rate", "examples": self.examples, **constants, "batch_size": recipe.batch_size}
        rate |= {"epsilon": self.epsilon, "dimension": self.dimension}
        return Plan(
            system=self.system,
            parameters={
                "steps": recipe.steps,
                "batch_size": recipe.batch_size,
                "clip_norm": recipe.clip_norm,
                "beta": recipe.beta,
                "paper_sigma": recipe.paper_sigma,
            },
            noise=self.noise(recipe.clip_norm, recipe.batch_size),
            spec=method_spec("dp_mf", ones(recipe.steps)),
            predictions={"rate": ask(rate)},
            notes=self.dropped(recipe.batch_size),
        )
