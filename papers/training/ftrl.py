"""DP-FTRL with matrix factorization: clipped gradients plus correlated noise, given to a first-order method.

With C = I this is DP-SGD; with the optimal C for one epoch DP-MF (Denisov et al. 2022; K23, section 3), under
lambda_tau DP-MF+ (K23, section 5); for several epochs DP-MEMF (S24, algorithm 2); with a Toeplitz C of damping nu
nu-DP-FTRL (C24, equation 13); with the tree of DP-FTRL or C = S (anti-PGD, K23, example 3.2) the older ones. They
differ in C alone: `papers.training.specs` writes the spec of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from factorize.privacy import Calibration
from factorize.training.bins_order import BallsInBins
from factorize.training.orders import Order
from papers.training.clip import GradientFunction, contributions_at
from papers.training.optimizers import Optimizer
from papers.training.private_sums import Sums

Observer = Callable[[int, np.ndarray, np.ndarray], None]
"""A function called after each step with its number (from 0), the new weights and what the step released. It may read
the weights that are private anyway (a test accuracy, say); what it tells about the training data is not covered."""


@dataclass(frozen=True)
class Run:
    """The result of a training run.

    Attributes:
        weights: the output.
        steps: number of steps taken.
        calibration: scale and guarantee, None for a run without privacy.
    """

    weights: np.ndarray
    steps: int
    calibration: Calibration | None


def unobserved(step: int, weights: np.ndarray, release: np.ndarray) -> None:
    """Watch nothing."""


def guarantee(sums: Sums) -> Calibration | None:
    """Return the calibration behind a door, None where there is no noise."""
    return getattr(sums, "calibration", None)


def dp_ftrl(
    gradient: GradientFunction,
    start: np.ndarray,
    order: Order | BallsInBins,
    sums: Sums,
    *,
    optimizer: Optimizer,
    project: Callable[[np.ndarray], np.ndarray] | None = None,
    observe: Observer = unobserved,
) -> Run:
    """Train with clipped gradients and the noise of a factorization.

        g_t = (1/B) sum_e clip(grad loss(x_t, e), clip) + (C^-1 Z)[t];   x_{t+1} = Proj(optimizer(x_t, g_t))

    The steps of epoch i and batch j are t = i b + j (the printed index i k + j of S24 collides). The noise is that of
    means: clip / B times that of unit contributions, which the printed algorithm leaves out.

    Args:
        gradient: a function of (weights, batch) to one gradient per example; need not be of a convex or smooth loss.
        start: first weights, any shape.
        order: the batches; refused where the sensitivity does not cover them.
        sums: clipping and noise, with the guarantee; `PlainSums` for none.
        optimizer: what consumes the noisy gradients, as `Sgd`.
        project: a function of a point to the nearest one of a constraint set, after each step; None for no constraint.
        observe: called after each step with (step, weights, noisy gradient).

    Raises:
        InvalidParticipation: the order is not what the sensitivity was computed for.

    Reference:
        K23, equations 7 and 8; S24, algorithm 2; C24, algorithm 1.
    """
    sums.check(order)
    weights = np.array(start, dtype=np.float64)
    step = optimizer.begin()
    for t, batch in enumerate(order):
        released = sums.release(contributions_at(gradient, weights, batch))
        weights = step(weights, released)
        weights = weights if project is None else project(weights)
        observe(t, weights, released)
    return Run(weights, len(order), guarantee(sums))
