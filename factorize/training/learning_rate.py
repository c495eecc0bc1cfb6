"""Learning rates for private training: the one at which a model learned most, of noise of a given size.

The rates without privacy say next to nothing of it. Weights move by the sum of the steps: its noise, over the whole
model, may be about as large as `walk` before accuracy falls. An optimizer of Adam's kind divides by the root of second
moments, which the noise of single steps fills, and is bound by that noise too. Fitted to trained models with the clip
norm 1 (docs/choose.md); `python -m papers.leaderboard.rate_predictors` fits it again.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from factorize.format.factors import CertifiedFactors
from factorize.privacy import Calibration
from factorize.structures.base import Matrix
from factorize.structures.layouts import build_matrix

ADAPTIVE: Final = ("adam", "adamw")
STUDIED: Final = ("sgd", *ADAPTIVE)
"""Optimizers, by name, that the study trained with."""
SPREAD: Final = 2.3
"""Two thirds of the best rates of jobs that nothing was fitted on lie within this factor of the rate that is stated."""


class Limits(NamedTuple):
    """What bounds the rate of averaged gradients, for a clip norm of 1.

    Attributes:
        walk: norm that the noise of the weights may have.
        reach: largest rate that was stable without noise.
        step: norm that the noise of a single step may have, times the rate.
        mean: root mean square norm of a mean of clipped gradients, beside the noise, in second moments.
    """

    walk: float
    reach: float
    step: float = math.inf
    mean: float = 0.0


PLAIN: Final = Limits(15.0, 9.5)
SECOND_MOMENTS: Final = Limits(13.0, 60.0, 17.0, 0.15)
_PROBED = 4096
"""Entries of random vectors, at least, from which the noise of single steps is estimated, to about 3 %."""


def noise_of_steps(strategy: Matrix) -> float:
    """Return the root mean square norm of the rows of C^-1, the noise of a single step at sigma 1, by an estimate."""
    count = -(-_PROBED // strategy.n)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (count, strategy.n))
    return float(np.sqrt(np.square(strategy.right_solve(signs)).sum() / (count * strategy.n)))


def best_rate(
    optimizer: str, momentum: float, parameters: int, error: float, step: float, limits: Limits | None = None
) -> float:
    """Return the largest learning rate of a schedule, for a clip norm of 1.

    Args:
        optimizer: of STUDIED.
        momentum: of SGD, by which it adds up gradients.
        parameters: of the model.
        error: root mean squared noise of a weight, over all steps, at a largest learning rate of 1, from averages of
            noisy means of gradients.
        step: root mean squared noise of a coordinate in a single step.
        limits: of another fit.
    """
    adaptive = optimizer in ADAPTIVE
    most = limits or (SECOND_MOMENTS if adaptive else PLAIN)
    walk, jump = error * parameters**0.5, step * parameters**0.5
    rate = 1 / math.hypot(walk / most.walk, 1 / most.reach, jump / most.step)
    return rate * (math.hypot(jump, most.mean) / parameters**0.5 if adaptive else 1 - momentum)


def rate_for(
    optimizer: str, momentum: float, parameters: int, factors: CertifiedFactors, noise: Calibration
) -> float | None:
    """Return the rate for factors and their noise, or None where none is known.

    Args:
        optimizer: by name.
        momentum: of SGD.
        parameters: of the model.
        factors: of C, for what the optimizer sums.
        noise: its calibration, with a divisor.
    """
    certified, sigma = factors.manifest.get("certificate"), noise.sigma_of_means
    if optimizer not in STUDIED or certified is None or sigma is None:
        return None
    workload = factors.manifest.spec["workload"]
    if not isinstance(workload.get("n"), int):  # without end, or a matrix of one's own
        return None
    unit, averaged = sigma / noise.clip_norm, 1 - workload.get("momentum", 0.0)
    error = unit * averaged * certified["loss"]["rmse"] / certified["sensitivity"]["value"]
    strategy = build_matrix(factors.structure, factors.strategy_tensors(), factors.steps)
    best = best_rate(optimizer, momentum, parameters, error, unit * noise_of_steps(strategy))
    return best / (1.0 if optimizer in ADAPTIVE else noise.clip_norm)


def note_on_rate(rate: float, best: float | None) -> str | None:
    """Return a sentence on a learning rate that is far from the best one; None where it is not, or none is known."""
    if best is None or SPREAD**-2 <= rate / best <= SPREAD**2:
        return None
    return (
        f"The learning rate {rate:g} is {rate / best:.2g} times {best:.2g}, near which models learned most from such "
        f"noise in our study (docs/choose.md), within a factor of {SPREAD:g}."
    )
