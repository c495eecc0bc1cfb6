"""DP-SRG-MEMF: stochastic recursive gradients with correlated noise, over one or several epochs (S24, algorithm 3).

Only the difference of the gradients at two iterates is clipped and released, so that an example changes one increment
per participation, and the estimate is rebuilt from the releases:

    v_e = clip(grad loss(x_t, e) - c_t grad loss(x_{t-1}, e), clip)      both gradients on the batch of step t
    D_t = (1/B) sum_e v_e + (C^-1 Z)[t]                                  the one release
    nabla_t = c_t nabla_{t-1} + D_t                                      given to the optimizer, nothing added again

The printed line 7 adds the noise of the step a second time: too much noise for c < 1, and too little for c > 1, where
the effective strategy C (I + L^-1)^-1 has a larger sensitivity than C. Its noise also lacks the factor clip / B, and
c_0 has to be zero since there is no iterate before the first. The tests audit both versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from factorize.errors import InvalidParameter
from factorize.training.orders import Order
from papers.algorithms.differences import combined
from papers.algorithms.machines import mean_divisor
from papers.algorithms.projections import Projection, everywhere
from papers.training.clip import GradientFunction, contributions_at
from papers.training.ftrl import Observer, Run, guarantee, unobserved
from papers.training.optimizers import Optimizer
from papers.training.private_sums import Sums


def dp_srg(
    gradient: GradientFunction,
    start: np.ndarray,
    order: Order,
    sums: Sums,
    *,
    decay: float | Sequence[float],
    optimizer: Optimizer,
    project: Projection = everywhere,
    observe: Observer = unobserved,
) -> Run:
    """Train with recursive gradients. With `decay=0` this is `dp_ftrl`.

    The workload of the increments is M A L: `srg_workload(n, momentum=..., decay=...)`, solved as its own
    problem ("true"), or plain running sums ("ones"). Any factorization will do. The guarantee needs no convexity,
    smoothness or bound on gradients, since the difference is clipped.

    Args:
        gradient: a function of (weights, batch) to one gradient per example.
        start: first weights, any shape.
        order: the batches; refused where the sensitivity does not cover them.
        sums: clipping and noise of means over a fixed batch size.
        decay: c, or c_t for every step; the first one is not used. S24 takes e^(-5/2) for MNIST. In the terms of
            `accelerated`, c_t = eta_{t-1} / eta_t.
        optimizer: what consumes the estimates, as `Sgd(momentum=0.9)`.
        project: onto the constraint set, after each step.
        observe: called after each step with (step, weights, released increment).

    Raises:
        InvalidParameter: a decay below 0, fewer decays than steps, or a calibration for sums.
        InvalidParticipation: the order is not what the sensitivity was computed for.

    Reference:
        S24, algorithm 3, with line 7 and the noise's scale mended.
    """
    sums.check(order)
    mean_divisor(sums, "DP-SRG-MEMF")
    decays = _decays(decay, len(order))
    weights = previous = np.array(start, dtype=np.float64)
    estimate = np.zeros_like(weights)
    step = optimizer.begin()
    for t, (batch, kept) in enumerate(zip(order, decays, strict=True)):
        change = contributions_at(gradient, weights, batch)
        if kept:
            change = combined(change, 1.0, contributions_at(gradient, previous, batch), kept)
        released = sums.release(change)
        estimate = kept * estimate + released
        previous, weights = weights, project(step(weights, estimate))
        observe(t, weights, released)
    return Run(weights, len(order), guarantee(sums))


def _decays(decay: float | Sequence[float], steps: int) -> np.ndarray:
    """Return c_0 = 0, c_1, ..., shape (steps,)."""
    given = np.asarray(decay, dtype=np.float64)
    if given.ndim == 1 and len(given) != steps:
        raise InvalidParameter(
            f"{len(given)} decays for {steps} steps; give one for each, or one number", field="decay"
        )
    decays = np.broadcast_to(given, (steps,)).copy()
    if not np.isfinite(decays).all() or (decays < 0).any():
        raise InvalidParameter(f"decay={given.min()} is not finite and >= 0; use a c_t in [0, 1]", field="decay")
    decays[0] = 0.0
    return decays


def srg_workload(n: int, *, momentum: float = 0.0, decay: float = 0.0) -> dict[str, Any]:
    """Return M A L, the true workload of recursive gradients under SGD with momentum (S24, section 5.1)."""
    return {"kind": "srg", "n": n, "momentum": momentum, "decay": decay}
