"""Learning rates for private training: the one at which a model learned most, of noise of a given size.

The best rates without privacy are 1/32 to 256 times as large. The noise that is left in a weight at the end may be
about as large as `walk` over the mean of the schedule before accuracy falls: a rate that falls to zero may begin twice
as high as a constant one. Noise s in every weight costs about s^2 tr(H) / 2 of loss, and gradients of at most the clip
norm bound the trace in a model of any size. An optimizer of Adam's kind divides by the root of second moments, which
the noise of single steps fills, and is bound by that noise too. Fitted to trained models with the clip norm 1
(docs/choose.md); `python -m papers.leaderboard.rate_predictors --write` fits it again.

A run can be looked at without any cost of privacy, since weights are made of released gradients: `noise_moved` is how
far noise alone has moved them, and `share_of_data` what follows for the rate.
"""

import json
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple

import numpy as np

from factorize.format.manifest import CertifiedFactors
from factorize.privacy import Calibration
from factorize.structures.base import Matrix
from factorize.structures.layouts import build_matrix

ADAPTIVE: Final = ("adam", "adamw")
STUDIED_OPTIMIZERS: Final = ("sgd", *ADAPTIVE)
"""Optimizers, by name, that the study trained with."""
STUDY: Final[dict[str, Any]] = json.loads((files(__package__) / "rate_study.json").read_text())
"""What the study found, as its script wrote it."""
SPREAD: Final[float] = STUDY["spread"]
"""Two thirds of the best rates of jobs by which no rule was chosen lie within this factor of the stated rate."""
MAX_DECAY: Final = 0.5
"""Sum of rate times decay over a run beyond which it is told: the weights forget what they learned first."""


class Limits(NamedTuple):
    """What bounds the rate of averaged gradients, for a clip norm of 1.

    Attributes:
        walk: root mean square that the noise of a weight may have at the end, where the mean of all rates is 1.
        reach: largest rate that was stable without noise or momentum, which makes it 1 + momentum times as large.
        step: root mean square that the noise of a coordinate may have in a single step, times the rate and over the
            root of the number of steps, where an optimizer divides by it.
        mean: root mean square norm of a mean of clipped gradients, beside the noise, in second moments.
        divided: largest rate over the root of second moments.
    """

    walk: float
    reach: float
    step: float
    mean: float
    divided: float


LIMITS: Final = Limits(**STUDY["limits"])
RAISE_SHARES: Final = (0.05, 0.1)
"""Shares of the steps after which a rate of Adam is raised that began at MIN_SHARE."""
CHECK_SHARE: Final = 0.2
"""Share of the steps after which every rate may be lowered."""
MEAN_GAIN: Final = 1.7
"""How much larger a constant rate may be where the mean of the last weights is left: it has less of the noise."""
MIN_SHARE: Final = 0.25
"""Least factor for a rate: below it, what the data moved is lost in what noise did."""
_MIN_PROBE_ENTRIES = 4096
"""Entries of random vectors, at least, from which the noise of single steps is estimated, to about 3 %."""
_MAX_ENTRIES = 2**22
"""Entries of the rows of C^-1 that are looked at together, in 32 MiB."""


def noise_of_steps(strategy: Matrix) -> float:
    """Return the root mean square norm of the rows of C^-1, the noise of a single step at sigma 1, by an estimate."""
    count = -(-_MIN_PROBE_ENTRIES // strategy.n)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (count, strategy.n))
    return float(np.sqrt(np.square(strategy.right_solve(signs)).sum() / (count * strategy.n)))


def best_rate(
    optimizer: str,
    momentum: float,
    parameters: int,
    last: float,
    step: float,
    *,
    steps: int,
    average: float,
    limits: Limits = LIMITS,
    checked: bool = True,
) -> float:
    """Return the largest learning rate of a schedule, for a clip norm of 1.

    Args:
        optimizer: of STUDIED_OPTIMIZERS.
        momentum: of SGD, by which it adds up gradients.
        parameters: of the model.
        last: root mean squared noise of a weight at the end, at a largest learning rate of 1, from averages of noisy
            means of gradients.
        step: root mean squared noise of a coordinate in a single step.
        steps: of the run.
        average: mean of the learning rates of all steps, over the largest.
        limits: of another fit.
        checked: whether the run has the check, which leaves the mean of the last weights where the rate is constant.
    """
    walk, more = last * average / limits.walk, MEAN_GAIN if checked and math.isclose(average, 1.0) else 1.0
    if optimizer not in ADAPTIVE:
        return more * (1 - momentum) / math.hypot(walk, 1 / (limits.reach * (1 + momentum)))
    jump = step / (limits.step * math.sqrt(steps))
    return more * math.hypot(step, limits.mean / math.sqrt(parameters)) / math.hypot(walk, 1 / limits.divided, jump)


def noise_moved(
    strategy: Matrix,
    unit: float,
    parameters: int,
    rates: Sequence[float] | np.ndarray,
    momentum: float,
    second: float | None = None,
    decay: float = 0.0,
) -> float:
    """Return the root mean square norm by which noise alone moves the weights of a model in the first steps.

    Args:
        strategy: C.
        unit: standard deviation of an entry of Z for means, over the clip norm.
        parameters: of the model.
        rates: learning rates of these steps.
        momentum: by which SGD adds up gradients, or Adam's beta_1.
        second: Adam's beta_2; None of SGD, whose answer is for the clip norm 1.
        decay: of the weights, times the rate of each step.
    """
    from scipy.signal import lfilter

    steps, each = len(rates), np.array(rates, dtype=float)
    leading, since = strategy.leading(steps), np.arange(1, steps + 1)
    each *= np.append(np.cumprod(1 - decay * each[:0:-1])[::-1], 1.0)  # what later steps leave of each
    if second is not None:
        # Rows of C^-1 change slowly: the noise of some steps says that of all.
        some = np.unique(np.geomspace(1, steps, min(64, 2 + _MAX_ENTRIES // steps)).astype(int)) - 1
        probes = np.zeros((len(some), steps))
        probes[range(len(some)), some] = 1.0
        single = np.interp(since - 1, some, np.square(leading.right_solve(probes)).sum(axis=1))
        squares = unit**2 * single + LIMITS.mean**2 / parameters
        seconds = lfilter([1 - second], [1, -second], squares) / (1 - second**since)
        each *= (1 - momentum) / (1 - momentum**since) / np.sqrt(seconds)
    weights = lfilter([1.0], [1.0, -momentum], each[::-1])[::-1]
    return float(unit * math.sqrt(parameters) * np.linalg.norm(leading.right_solve(weights[None])))


def averaged_steps(steps: int) -> int:
    """Return how many steps at the end of a run give the mean of the weights, where the rate is constant: a quarter."""
    return -(-steps // 4)


def share_of_data(moved: float, noise: float) -> float:
    """Return how far the data have moved weights over how far noise has, from MIN_SHARE to 1: a factor for the rate.

    Args:
        moved: norm by which the weights have moved since the start.
        noise: by noise alone, from `noise_moved`; 0 while the rate is.
    """
    return 1.0 if noise == 0 else min(1.0, math.sqrt(max((moved / noise) ** 2 - 1.0, MIN_SHARE**2)))


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
    if optimizer not in STUDIED_OPTIMIZERS or certified is None or sigma is None:
        return None
    workload = factors.manifest.spec["workload"]
    if not isinstance(workload.get("n"), int):  # without end, or a matrix of one's own
        return None
    relative = np.array(workload.get("learning_rates", [1.0]))
    unit, averaged = sigma / noise.clip_norm, (1 - workload.get("momentum", 0.0)) / relative.max()
    last = unit * averaged * certified["loss"]["last_iterate"] / certified["sensitivity"]["value"]
    strategy = build_matrix(factors.structure, factors.strategy_tensors(), factors.steps)
    average = float(relative.mean() / relative.max())
    step = unit * noise_of_steps(strategy)
    best = best_rate(optimizer, momentum, parameters, last, step, steps=strategy.n, average=average)
    return best / (1.0 if optimizer in ADAPTIVE else noise.clip_norm)


def note_on_rate(rate: float, best: float | None) -> list[str]:
    """Return a sentence on a learning rate that is far from the best one; none where it is not, or none is known."""
    if best is None or SPREAD**-2 <= rate / best <= SPREAD**2:
        return []
    return [
        f"The learning rate {rate:g} is {rate / best:.2g} times {best:.2g}, the rate that suits this noise; in our "
        f"study (docs/choose.md), models learned most within a factor of {SPREAD:g} of it."
    ]


def note_on_decay(rate: float, decay: float, summed: float) -> list[str]:
    """Return a sentence on a decay that is multiplied by the rate; none where it takes little away.

    Args:
        rate: the schedule's largest.
        decay: of AdamW.
        summed: the relative rates of all steps together.
    """
    exponent = rate * decay * summed
    if exponent <= MAX_DECAY:
        return []
    return [
        f"weight_decay={decay:g} is multiplied by the learning rate: at {rate:g} it leaves {math.exp(-exponent):.0%} "
        "of what the first step learned, and that cost a job of our study 3 points (docs/choose.md); use at most "
        f"{decay * MAX_DECAY / exponent:.1g}."
    ]
