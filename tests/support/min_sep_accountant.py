"""A second accountant of b-min-sep sampling, which shares no code with the product.

Delta of the pair of theorem 1 by importance sampling: half of the draws are those of the run itself, half have another
probability of a step and longer columns, and the likelihood ratio of each is a recursion backwards over the steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_TRIED = ((1.0, 1.2), (1.5, 1.3), (2.0, 1.5), (3.0, 1.6), (4.0, 2.0), (6.0, 2.5), (4.0, 3.0), (8.0, 2.0), (3.0, 4.0))


class Found(NamedTuple):
    """An estimate and its standard error."""

    delta: float
    error: float


def deltas(
    c: np.ndarray, apart: int, chance: float, sigma: float, epsilon: float, draws: int, seed: int
) -> tuple[Found, Found]:
    """Return delta with the example's contributions taken out, and put in.

    Args:
        c: C, shape (n, n), of at most `apart` bands.
        apart: b.
        chance: p.
        sigma: of each entry of Z, for contributions of norm 1.
        epsilon: of (epsilon, delta).
        draws: of each of two stages; the first one chooses what is drawn from.
        seed: of the draws.
    """
    size = np.abs(c) / sigma
    rng = np.random.default_rng(seed)
    few = max(draws // 8, 1000)
    pilot = [(_removal(size, apart, chance, epsilon, few, rng, *each), each) for each in _TRIED]
    seen = [entry for entry in pilot if entry[0].delta > 0]
    best = min(seen, key=lambda entry: entry[0].error / entry[0].delta)[1] if seen else _TRIED[0]
    z = rng.standard_normal((draws, len(c)))
    lost = np.maximum(0.0, -np.expm1(epsilon + _log_ratio(size, apart, chance, 1.0, z)))
    return _removal(size, apart, chance, epsilon, draws, rng, *best), _found(lost)


def _removal(
    size: np.ndarray,
    apart: int,
    chance: float,
    epsilon: float,
    draws: int,
    rng: np.random.Generator,
    times: float,
    longer: float,
) -> Found:
    more, half = min(times * chance, 0.9), draws // 2
    z = rng.standard_normal((2 * half, len(size)))
    z[:half] += steps(half, len(size), apart, chance, rng) @ size.T
    z[half:] += longer * (steps(half, len(size), apart, more, rng) @ size.T)
    own, other = _log_ratio(size, apart, chance, 1.0, z), _log_ratio(size, apart, more, longer, z)
    weight = 2 / (1 + np.exp(np.clip(other - own, -700, 700)))
    return _found(weight * np.maximum(0.0, -np.expm1(epsilon - own)))


def steps(draws: int, n: int, apart: int, chance: float, rng: np.random.Generator) -> np.ndarray:
    """Return in which steps examples take part, shape (draws, n): each is simulated from long before the first step."""
    before = 40 * apart + int(40 / chance)
    rest, taken = np.zeros(draws, dtype=int), np.zeros((draws, n))
    for t in range(-before, n):
        takes = (rest == 0) & (rng.random(draws) < chance)
        rest = np.where(takes, apart - 1, np.maximum(rest - 1, 0))
        if t >= 0:
            taken[:, t] = takes
    return taken


def _log_ratio(size: np.ndarray, apart: int, chance: float, longer: float, z: np.ndarray) -> np.ndarray:
    """Return the log likelihood ratio by a recursion from the last step to the first."""
    n = len(size)
    after = [np.zeros(len(z)) for _ in range(apart)]  # the part for examples that are free 0, 1, ... steps later
    for t in range(n - 1, -1, -1):
        column = longer * size[:, t]
        taken = np.log(chance) + z @ column - column @ column / 2 + after[apart - 1]
        passed = (np.log1p(-chance) if chance < 1 else -np.inf) + after[0]
        after = [np.logaddexp(taken, passed), *after[: apart - 1]]
    shares = np.array([1.0, *[chance] * (apart - 1)]) / (1 + (apart - 1) * chance)
    return np.asarray(np.logaddexp.reduce([np.log(share) + each for share, each in zip(shares, after, strict=True)]))


def _found(weights: np.ndarray) -> Found:
    return Found(float(weights.mean()), float(weights.std() / np.sqrt(len(weights))))
