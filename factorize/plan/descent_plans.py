"""Plans of the systems that release sums of gradients: DP-FTRL, DP-SRG-MEMF, Accelerated-DP-SRGD."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from factorize.errors import ConditionNotMet
from factorize.plain_data import Count, Fraction, Positive
from factorize.plan.passes import POISSON, Passes, refuse_sampling, sampled_noise, solvable
from factorize.plan.request import Plan, PlanRequest
from factorize.predict import ask

Method = Literal["dp_sgd", "dp_mf", "dp_mf_plus", "dp_memf", "nu_dp_ftrl", "tree", "anti_pgd"]


class DpFtrlPlan(Passes):
    """DP-FTRL with any of the published mechanisms (K23, C24, D22, S24's DP-MEMF).

    Attributes:
        method: mechanism; see `factorize.training.method_spec`.
        momentum: of the optimiser; the "true" workload.
        optimize_for: `ones` optimises C for plain sums and evaluates it on the true workload.
        learning_rate: gamma; 1/(8L) where the smoothness is given and this is not.
        strong_convexity: mu, for nu = gamma mu of `nu_dp_ftrl`.
        tau: restarts of `dp_mf_plus`, where it is not to come from the theory, floor(1/(gamma L)).
        sampling: `poisson` counts on batches in which every example is with the same probability, independently and in
            secret; for `dp_sgd` under zero_out.
    """

    system: Literal["dp_ftrl"]
    method: Method = "dp_mf"
    momentum: Fraction = 0.0
    optimize_for: Literal["true", "ones"] = "true"
    learning_rate: Positive | None = None
    strong_convexity: Positive | None = None
    tau: Count | None = None
    sampling: Literal["none", "poisson"] = "none"

    def plan(self) -> Plan:
        """Return steps, noise and spec."""
        from factorize.training import method_spec, ones

        n = self.steps()
        rate = self.learning_rate or (None if self.smoothness is None else 1 / (8 * self.smoothness))
        optimize_for = ones(n) if self.optimize_for == "ones" and self.momentum else None
        true = {"kind": "momentum", "n": n, "momentum": self.momentum} if self.momentum else ones(n)
        given: dict[str, Any] = {"epochs": self.epochs, "optimize_for": optimize_for}
        spec = method_spec(self.method, true, **given, tau=self._tau(rate), nu=self._nu(rate))
        spec, notes = solvable(spec, n)
        noise = self.noise(self.clip_norm, self.batch_size)
        if self.sampling == "poisson":
            refuse_sampling(self.method, self.relation)
            noise |= sampled_noise(noise, self.examples, n)
            spec["participation"] = {"kind": "min_sep", "min_sep": 1}
            notes += (POISSON,)
        else:
            notes += self.left_over()
        if rate is None:
            notes += ("no learning rate: give one, or the smoothness, or sweep it on public data",)
        questions, missing = self.utility(noise, rate, momentum=self.momentum)
        return Plan(
            system=self.system,
            parameters={**self.shape(n), "learning_rate": rate, "momentum": self.momentum},
            noise=noise,
            spec=spec,
            questions=questions,
            notes=(*notes, *missing),
            comparison=self.comparison(spec, self.batch_size) if self.sampling == "none" else None,
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


class DpSrgPlan(Passes):
    """DP-SRG-MEMF: clipped differences of gradients (S24, section 5).

    Attributes:
        momentum: of the optimiser.
        decay: c of the recursion; the paper's is e^{-5/2}.
        optimize_for: `ones` or `true` (M A L).
        learning_rate: for the utility; the method has no theory that gives one.
    """

    system: Literal["dp_srg"]
    momentum: Fraction = 0.0
    decay: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = math.exp(-2.5)
    optimize_for: Literal["true", "ones"] = "true"
    learning_rate: Positive | None = None

    def plan(self) -> Plan:
        """Return steps, noise and spec."""
        from factorize.training import method_spec, ones, srg_workload

        n = self.steps()
        true = srg_workload(n, momentum=self.momentum, decay=self.decay)
        optimize_for = ones(n) if self.optimize_for == "ones" else None
        spec, notes = solvable(method_spec("dp_memf", true, epochs=self.epochs, optimize_for=optimize_for), n)
        noise = self.noise(self.clip_norm, self.batch_size)
        questions, missing = self.utility(noise, self.learning_rate, momentum=self.momentum, decay=self.decay)
        if self.learning_rate is None:
            notes += ("the learning rate has no theory: sweep it on public data",)
        return Plan(
            system=self.system,
            parameters={**self.shape(n), "momentum": self.momentum, "decay": self.decay},
            noise=noise,
            spec=spec,
            questions=questions,
            notes=(*notes, *self.left_over(), *missing),
            comparison=self.comparison(spec, self.batch_size),
        )


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
        spec, notes = solvable(method_spec("dp_mf", ones(recipe.steps)), recipe.steps)
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
            spec=spec,
            predictions={"rate": ask(rate)},
            notes=(*notes, *self.dropped(recipe.batch_size)),
        )
