"""Claims about balls in bins, changed for tests, and what is true of them by plain samples of the checker's weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from manifest_mutations import changed as with_value

from factorize.accounting import BinGram, BinsLaw
from factorize.checker.sampling import bets, star
from factorize.checker.sampling.bins import Gram, gram
from factorize.checker.strategy import Strategy, read_factor_file
from factorize.numbers.gaussian import gaussian_epsilon

PILOT = 5


def gram_of(data: bytes, bins: int) -> Gram:
    """Return the Gram matrix of the bins of a factor file."""
    file = read_factor_file(data)
    entry = file.manifest["matrices"]["C"]
    return gram(Strategy(entry["structure"], file.matrices["C"], entry["shape"][1]), bins)


def drawn(weights: bets.Weights, key: tuple[int, int], chunks: int = PILOT) -> np.ndarray:
    """Return weights of some chunks."""
    return np.concatenate([weights.draw(bets.Stream(key, chunk)) for chunk in range(chunks)])


def best_order(kernel: np.ndarray, epsilon: float) -> int:
    """Return the order with the smallest star bound, as the accountant finds it: any order is valid."""
    return BinsLaw(BinGram(kernel, len(kernel))).best_order(1.0, epsilon)[0]


def log_star(found: Gram, sigma: float, epsilon: float) -> float:
    """Return the logarithm of the star bound at its best order."""
    kernel = star.scale_gram(found.high, sigma)
    return float(star.log_ceiling(kernel, best_order(kernel, epsilon), epsilon))


def estimate(found: Gram, sigma: float, epsilon: float, chunks: int = PILOT) -> float:
    """Return delta of the pair, removal, from a pilot."""
    order = best_order(star.scale_gram(found.high, sigma), epsilon)
    return float(drawn(bets.removal(found.high, sigma, epsilon, order), (1, 1), chunks).mean())


def unamplified(found: Gram, sigma: float, delta: float) -> float:
    """Return epsilon of the Gaussian mechanism with the largest norm of a bin."""
    return gaussian_epsilon(delta, float(np.sqrt(found.high.diagonal().max())) / sigma) * (1 + 1e-12)


def changed(claim: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Return a copy with other values; a name with two underscores goes into a part."""
    for name, value in values.items():
        claim = with_value(claim, name.replace("__", "/"), value.hex() if isinstance(value, float) else value)
    return claim


def consistent(claim: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Return a copy whose epsilon without secrecy is that of its numbers: what is false is left to the test."""
    sigma, delta, clip = (float.fromhex(claim[name]) for name in ("sigma", "delta", "clip_norm"))
    found = gram_of(data, claim["mechanism"]["bins"])
    stated = unamplified(found, sigma / clip, delta)
    return changed(claim, unamplified__epsilon_at_delta=stated)
