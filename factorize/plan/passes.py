"""Passes over the data, as every plan of sums of gradients has them: steps, a spec that has a solver, its utility."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from factorize.errors import ConditionNotMet
from factorize.numbers.gaussian import mu_of, rho_of
from factorize.plain_data import Count, NonNegative, Positive, Real
from factorize.plan.request import PlanRequest
from factorize.privacy import Adjacency
from factorize.structures.base import MAX_DENSE

LARGEST_DENSE_PLAN = 8192
"""Steps up to which a plan asks for the optimum whole: above, memory and hours are beyond most machines."""

LARGEST_CORRELATED_PLAN, LARGEST_INDEPENDENT_PLAN = 2**20, 2**23

POISSON = (
    "every step takes each example with the sampling probability, independently and in secret, in place of a fixed "
    "order; mu and rho are what holds without that secrecy"
)


def solvable(spec: Mapping[str, Any], steps: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the spec with a mechanism that has a solver for so many steps, and what to know of it.

    Raises:
        ConditionNotMet: no correlated noise of so many steps has a solver.
    """
    kind = spec["mechanism"]["kind"]
    limit = LARGEST_INDEPENDENT_PLAN if kind in ("identity", "anti_pgd") else LARGEST_CORRELATED_PLAN
    if steps > limit:
        raise ConditionNotMet(
            f"{steps} steps are above {limit}, the most that {kind} is planned for; use larger batches or fewer epochs"
            + ("" if kind == "identity" else ", or independent noise (method dp_sgd)"),
            field="/batch_size",
        )
    if kind != "dense" or steps <= LARGEST_DENSE_PLAN:
        return dict(spec), _dense_notes(kind, steps)
    several = spec["participation"]["kind"] != "single"
    if several and steps <= MAX_DENSE:
        note = f"{steps} steps are above {LARGEST_DENSE_PLAN}, so the spec asks for blt; dense by name takes hours"
        return {**spec, "mechanism": {"kind": "blt", "buffers": 8}}, (note,)
    note = f"{steps} steps are above {LARGEST_DENSE_PLAN}, so the spec asks for auto, the best that has a solver there"
    return {**spec, "mechanism": {"kind": "auto"}}, (note,)


def _dense_notes(kind: str, steps: int) -> tuple[str, ...]:
    """Say what dense noise costs, where it costs much."""
    from factorize.mechanisms import WARNED_STEPS, dense_note

    return (dense_note(steps, "`factorize recommend --memory 4`"),) if kind == "dense" and steps >= WARNED_STEPS else ()


def refuse_sampling(method: str, relation: Adjacency) -> None:
    """Refuse Poisson sampling where its amplification is not planned.

    Raises:
        ConditionNotMet: the method has correlated noise, or the adjacency is not zero_out.
    """
    if method != "dp_sgd" or relation is not Adjacency.ZERO_OUT:
        raise ConditionNotMet(
            f"sampling 'poisson' is planned for dp_sgd under zero_out, not for {method} under {relation.value}; leave "
            "sampling out; `factorize plan --compare` has the samplings of correlated noise",
            field="/sampling",
        )


def sampled_noise(noise: Mapping[str, Any], examples: int, steps: int) -> dict[str, Any]:
    """Return what Poisson sampling changes of the noise of C = I over so many steps, whose sensitivity is their root.

    Raises:
        InvalidParameter: no noise reaches the target.
        UnsupportedProblem: dp_accounting is not installed.
    """
    from factorize.accounting.amplification import amplified_multiplier

    probability = min(1.0, noise["batch_size"] / examples)
    target = {"epsilon": noise["epsilon"], "delta": noise["delta"]}
    sampled = amplified_multiplier(**target, probability=probability, compositions=steps)
    multiplier = sampled / math.sqrt(steps)
    scale = noise["clip_norm"] / noise["batch_size"]
    return {
        "sampling": "poisson",
        "sampling_probability": probability,
        "sampled_noise_multiplier": sampled,
        "sigma": sampled * scale,
        "noise_multiplier": multiplier,
        "sigma_at_sensitivity_1": multiplier * scale,
        "mu": mu_of(multiplier),
        "rho": rho_of(multiplier),
    }


class Passes(PlanRequest):
    """Requests for several passes in a fixed order.

    Attributes:
        batch_size: examples per step, and the divisor of the means.
        epochs: passes in a fixed order.
        clip_norm: bound on one contribution.
        remainder: `drop` leaves out the examples that fill no batch; `pad` makes of them a shorter last batch.
        eigenvalues: of a quadratic, for its exact utility.
        initial: x_0 - x* on it, one per eigenvalue or one for all.
        smoothness: L.
        initial_distance: |x_0 - x*|, for the bounds of convex functions.
        dimension: d, for the same.
    """

    batch_size: Count
    epochs: Count = 1
    clip_norm: Positive = 1.0
    remainder: Literal["drop", "pad"] = "drop"
    eigenvalues: Annotated[list[NonNegative], Field(min_length=1, max_length=4096)] | None = None
    initial: Annotated[list[Real], Field(min_length=1)] = [1.0]
    smoothness: Positive | None = None
    initial_distance: NonNegative | None = None
    dimension: Count = 1

    def steps(self) -> int:
        """Return n."""
        return self.epochs * self.batches(self.batch_size, pad=self.remainder == "pad")

    def shape(self, steps: int) -> dict[str, Any]:
        """Return the counts of the run and the clip norm."""
        counts = {"steps": steps, "batch_size": self.batch_size, "epochs": self.epochs}
        padded = {"remainder": "pad"} if self.remainder == "pad" else {}
        return {**counts, "clip_norm": self.clip_norm, **padded}

    def left_over(self) -> tuple[str, ...]:
        """Say what becomes of the examples that fill no batch."""
        left = self.examples % self.batch_size
        if self.remainder == "drop" or not left:
            return self.dropped(self.batch_size)
        return (
            f"the last batch of a pass has {left} of {self.batch_size} examples (pad); the divisor stays "
            f"{self.batch_size}",
        )

    def utility(
        self, noise: Mapping[str, Any], rate: float | None, *, momentum: float, decay: float = 0.0
    ) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
        """Return the questions about the solved spec that the given facts allow, and what is missing for any."""
        if rate is None or not (self.eigenvalues or (self.smoothness and self.initial_distance is not None)):
            return {}, (
                "no utility is stated: give a learning rate, and the eigenvalues of a quadratic like the loss, or the "
                "smoothness and initial_distance of a convex one",
            )
        common: dict[str, Any] = {"learning_rate": rate, "sigma": noise["sigma_at_sensitivity_1"]}
        common["sigma_at"] = "sensitivity_1"
        found: dict[str, dict[str, Any]] = {}
        if self.eigenvalues:
            run = {"eigenvalues": self.eigenvalues, "initial": self.initial, "momentum": momentum, "decay": decay}
            found["quadratic"] = {"kind": "quadratic", **common, **run}
        if not (momentum or decay) and self.smoothness and self.initial_distance is not None:
            if 8 * rate * self.smoothness > 1 + 1e-12:
                return found, ("the learning rate is above 1/(8L), where no bound for convex functions holds",)
            bound = {"smoothness": self.smoothness, "initial_distance": self.initial_distance}
            found["descent"] = {"kind": "convex_descent", **common, **bound, "dimension": self.dimension}
        return found, ()
