"""What claims about balls in bins say, changed for tests, and what is true of them by plain samples of the checker's weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from factorize.checker.file import read_factor_file
from factorize.checker.sampling import bets, star
from factorize.checker.sampling.bins import Gram, gram
from factorize.checker.strategy import Strategy
from factorize.numbers.gaussian import gaussian_epsilon

PILOT = 5


def gram_of(data: bytes, bins: int) -> Gram:
    """The Gram matrix of the bins of a factor file."""
    file = read_factor_file(data)
    entry = file.manifest["matrices"]["C"]
    return gram(Strategy(entry["structure"], file.matrices["C"], entry["shape"][1]), bins)


def drawn(weights: bets.Weights, key: tuple[int, int], chunks: int = PILOT) -> np.ndarray:
    """Weights of some chunks."""
    return np.concatenate([weights.draw(bets.Stream(key, chunk)) for chunk in range(chunks)])


def best_order(kernel: np.ndarray, epsilon: float) -> int:
    """The order with the smallest star bound, by plain floating point: any order is valid."""

    def rough(order: int) -> float:
        exponents = 0.5 * order * kernel
        tops = exponents.max(axis=1)
        rows = (order - 1) * (tops + np.log(np.exp(exponents - tops[:, None]).mean(axis=1)))
        moment = rows.max() + np.log(np.exp(rows - rows.max()).mean())
        return float(moment - (order - 1) * (epsilon - np.log(order - 1)) - order * np.log(order))

    order = 2
    while rough(order + 1) < rough(order):
        order += 1
    return order


def log_star(found: Gram, sigma: float, epsilon: float) -> float:
    """The logarithm of the star bound at its best order."""
    kernel = star.scaled(found.high, sigma)
    return float(star.log_ceiling(kernel, best_order(kernel, epsilon), epsilon))


def estimate(found: Gram, sigma: float, epsilon: float, chunks: int = PILOT) -> float:
    """delta of the pair, removal, from a pilot."""
    order = best_order(star.scaled(found.high, sigma), epsilon)
    return float(drawn(bets.removal(found.high, sigma, epsilon, order), (1, 1), chunks).mean())


def unamplified(found: Gram, sigma: float, delta: float) -> float:
    """epsilon of the Gaussian mechanism with the largest norm of a bin."""
    return gaussian_epsilon(delta, float(np.sqrt(found.high.diagonal().max())) / sigma) * (1 + 1e-12)


def changed(claim: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A copy with other values; a name with two underscores goes into a part."""
    copied = copy.deepcopy(claim)
    for name, value in values.items():
        *parts, last = name.split("__")
        place = copied
        for part in parts:
            place = place[part]
        place[last.removesuffix("_")] = value.hex() if isinstance(value, float) else value
    return copied


def consistent(claim: dict[str, Any], data: bytes) -> dict[str, Any]:
    """A copy whose epsilon without secrecy is that of its numbers: what is false is left to the test."""
    sigma, delta, clip = (float.fromhex(claim[name]) for name in ("sigma", "delta", "clip_norm"))
    found = gram_of(data, claim["mechanism"]["bins"])
    stated = unamplified(found, sigma / clip, delta)
    return changed(claim, unamplified__epsilon_at_delta=stated)
