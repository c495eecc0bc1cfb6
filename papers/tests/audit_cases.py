"""What audits of training algorithms share: neighbouring data sets, what tells them apart, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from training_cases import nothing

from factorize.factors.factorization import Factorization
from factorize.privacy import Calibration, PrivacyTarget
from factorize.training import Order
from papers.training import FactorizationNoise, PrivateSums
from papers.training.audit import audit
from papers.training.clip import GradientFunction
from papers.training.neighbours import neighbours

TARGET = PrivacyTarget(epsilon=6.0, delta=1e-5)  # mu = 1.24: told apart often enough for few trials
TRIALS = 600
D = 2
LONG = np.array([60.0, 80.0])  # longer than every clip norm here: all of it is clipped away but the direction
DIRECTION = LONG / 100


def one_by_one(steps: int, *, epochs: int = 1) -> Order:
    return Order([np.array([i]) for i in range(steps)], epochs=epochs)


def releases_of(train: Callable[..., object], *arguments: object, **options: object) -> np.ndarray:
    """Run with an observer and return all releases, shape (steps, d)."""
    releases: list[np.ndarray] = []
    train(*arguments, **options, observe=lambda step, weights, release: releases.append(np.array(release)))
    return np.array(releases)


def holds_and_is_tight(trial: Callable[[int, int], float], claim: Calibration, seed: int) -> None:
    """Not refuted, and above a third of the claim: the attack is the best there is, so the audit has teeth.

    Of honest claims the usual confidence refutes 1 in 20, and the noise follows the digest.
    """
    trial = cache(trial)
    assert not (report := audit(trial, claim, trials=TRIALS, seed=seed, confidence=1 - 1e-7)).refutes, report
    report = audit(trial, claim, trials=TRIALS, seed=seed)
    assert report.epsilon > report.claimed_epsilon / 3, report


def planted(example: int, adjacency: str) -> tuple[GradientFunction, GradientFunction]:
    return neighbours(nothing, example, LONG, adjacency)


def difference(steps: list[int], n: int, *, clip_norm: float = 1.0, factor: int = 1) -> np.ndarray:
    """What world 1 contributes minus what world 0 does: the clipped contribution in these steps."""
    rows = np.zeros((n, D))
    rows[steps] = factor * clip_norm * DIRECTION
    return rows


def door_of(factors: Factorization, seed: int, *, clip_norm: float = 1.0, adjacency: str = "zero_out") -> PrivateSums:
    noise = FactorizationNoise(factors, TARGET, D, clip_norm=clip_norm, divisor=1, adjacency=adjacency, seed=seed)
    return PrivateSums(noise)
