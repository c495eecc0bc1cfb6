"""A maker of claims about balls in bins for tests: pilots, a rate and a sigma, with no care for speed; nothing trusts what it finds."""

from __future__ import annotations

import copy
import hashlib
import json
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


def sigma_of(found: Gram, epsilon: float, delta: float, chunks: int = PILOT) -> float:
    """sigma at which the pilot's delta is `delta`, within a thousandth."""
    low, high = 0.05, 50.0 * float(np.sqrt(found.high.diagonal().max()))
    while log_star(found, high, epsilon) > np.log(delta):
        high *= 2
    while high / low > 1.001:
        middle = float(np.sqrt(low * high))
        rough = log_star(found, middle, epsilon)
        if rough > np.log(delta) + 40 or estimate(found, middle, epsilon, chunks) > delta:
            low = middle
        else:
            high = middle
    return high


def rate_of(weights: bets.Weights, delta: float, pilot: np.ndarray) -> tuple[float, float]:
    """lambda and what it earns a sample on the pilot."""
    most = 0.9 / (float(weights.bound) - delta)
    rates = most * np.geomspace(1e-3, 1, 60)
    earned = [float(np.log1p(rate * (delta - pilot)).mean()) for rate in rates]
    best = int(np.argmax(earned))
    return float(rates[best]), earned[best]


def unamplified(found: Gram, sigma: float, delta: float) -> float:
    """epsilon of the Gaussian mechanism with the largest norm of a bin."""
    return gaussian_epsilon(delta, float(np.sqrt(found.high.diagonal().max())) / sigma) * (1 + 1e-12)


def make_claim(
    data: bytes, bins: int, epsilon: float, delta: float, *, sigma: float | None = None, margin: float = 0.01
) -> dict[str, Any]:
    """A claim that holds with ample samples."""
    manifest = read_factor_file(data).manifest
    found = gram_of(data, bins)
    sigma = sigma_of(found, epsilon, delta) * (1 + margin) if sigma is None else sigma
    order = best_order(star.scaled(found.high, sigma), epsilon)
    parts: dict[str, Any] = {}
    eta = min(np.geomspace(0.25, 64, 33).tolist(), key=lambda x: bets.addition(found.high, sigma, epsilon, x).bound)
    for name, weights in (
        ("pq", bets.removal(found.high, sigma, epsilon, order)),
        ("qp", bets.addition(found.high, sigma, epsilon, eta)),
    ):
        rate, earned = rate_of(weights, delta, drawn(weights, (2, 2)))
        samples = bets.CHUNK * (1 + int(1.5 * bets.NEEDED / max(earned, 1e-6) / bets.CHUNK))
        parts[name] = {"rule": "bet", "lambda": rate.hex(), "samples": samples, "shared": (0.0).hex()}
    parts["pq"]["m"], parts["qp"]["eta"] = order, eta.hex()
    if star.addition(found, sigma, epsilon) <= delta:
        parts["qp"] = {"rule": "closed_form"}
    n = manifest["matrices"]["C"]["shape"][1]
    return {
        "adjacency": "zero_out",
        "attempt": 1,
        "beta_log2": -128,
        "clip_norm": (1.0).hex(),
        "delta": delta.hex(),
        "epsilon": epsilon.hex(),
        "mechanism": {
            "bins": bins,
            "epochs": -(-n // bins),
            "factors": "sha256:" + manifest["digest"].removeprefix("sha256:"),
            "n": n,
        },
        "protocol": "bins-1",
        "sampling": "balls_in_bins",
        "sigma": sigma.hex(),
        "unamplified": {"epsilon_at_delta": unamplified(found, sigma, delta).hex()},
        **parts,
    }


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


def digest(claim: dict[str, Any]) -> str:
    """The digest of a claim as it is stated beside it."""
    text = json.dumps(claim, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
