"""Workloads with filters from both ends (momentum, Nesterov, SRG), and what they are as matrices, to any precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from factorize.solvers.single.cascade import Cascade
from factorize.solvers.single.filtered import Filtered
from factorize.solvers.single.momentum import MomentumFilters
from factorize.solvers.single.nesterov import Nesterov
from factorize.solvers.single.newton import Optimum, maximise

SRG_DECAY = 0.0820849986238988


def schedule(name: str, n: int) -> np.ndarray:
    i = np.arange(n)
    return {
        "constant": np.ones(n),
        "cooldown": np.where(i < 0.75 * n, 1.0, 1.0 - 0.95 * (i - 0.75 * n) / (0.25 * n)),
        "cosine": 1e-6 + 0.5 * (1 + np.cos(np.pi * i / n)),
        "warmup": np.minimum(1.0, (i + 1) / (0.2 * n)),
        "random": np.exp(np.random.default_rng(0).uniform(-0.3, 0.3, n)),
        "wild": np.exp(np.random.default_rng(0).normal(size=n)),
    }[name]


def momentum(n: int, beta: float = 0.95, rates: str = "cooldown", lam: float = 0.999) -> MomentumFilters:
    return MomentumFilters(np.full(n, beta), schedule(rates, n), np.full(n, lam))


def nesterov(n: int, mu: float = 0.95, rates: str = "warmup", lam: float = 0.999) -> Nesterov:
    return Nesterov(mu, schedule(rates, n), np.full(n, lam))


def srg(n: int, mu: float = 0.9, decay: float = SRG_DECAY) -> Cascade:
    return Cascade(np.full(n, mu), np.ones(n), np.ones(n), np.full(n, decay))


def uneven(n: int) -> Cascade:
    """A cascade whose factors are other ones at every step."""
    decay = np.random.default_rng(5).uniform(0.5, 1.1, n)
    return Cascade(np.full(n, 0.95), np.linspace(1.0, 0.05, n), np.full(n, 0.99), decay)


def optimum_of(structure: Filtered, tolerance: float = 1e-9) -> Optimum:
    return maximise(structure, tolerance=tolerance)


def dense(structure: Any, number: Callable[[float], Any] = float) -> np.ndarray:
    """A, shape (n, n), its entries in the arithmetic of `number`."""
    n = structure.size

    def chain(factors: np.ndarray) -> np.ndarray:
        """Lower-triangular products of the factors from each step to the next."""
        out = np.array([[number(i == k) for k in range(n)] for i in range(n)])
        for i in range(1, n):
            out[i, :i] = out[i - 1, :i] * number(float(factors[i - 1]))
        return out

    scaled = chain(structure.lam) * np.array([number(float(rate)) for rate in structure.eta])
    if isinstance(structure, Nesterov):
        return scaled @ (chain(np.zeros(n)) + number(structure.mu) * chain(np.full(n, structure.mu)))
    if isinstance(structure, Cascade):
        return scaled @ chain(structure.beta) @ chain(structure.decay)
    return scaled @ chain(structure.beta)


def dense_bounds(a: np.ndarray, v: np.ndarray) -> tuple[float, float]:
    """Both bounds from singular values: independent of poles and recurrences."""
    root = np.sqrt(v)
    _, s, vt = np.linalg.svd(a * root)
    diagonal = ((vt * s[:, None]) * vt).sum(axis=0) / v
    return float(s.sum() ** 2 / v.sum()), float(s.sum() * diagonal.max())
