"""Strategies with redraws for tests, and what they are by definition, in fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from checker_files import in_fractions

from factorize.structures.redrawn import RedrawnMatrix


def likely(n: int, *, buffers: int = 3, redraws: int = 2, lag: int | None = None, seed: int = 0) -> RedrawnMatrix:
    """Return numbers as a solver finds them: slow decays, C^-1 with a falling tail."""
    rng, lag = np.random.default_rng(seed), max(1, n // 4) if lag is None else lag
    decay = 1 - np.logspace(-2.2, -0.1, buffers) * (1 + 0.1 * rng.random((n, buffers)))
    inputs, direct = np.zeros((redraws + 1, n, buffers)), np.zeros((redraws + 1, n))
    inputs[0], direct[0] = np.sqrt(1 - decay), 1 + 0.1 * rng.random(n)
    for m in range(1, redraws + 1):
        later = max(n - m * lag, 0)
        inputs[m, n - later :] = 0.1 * rng.standard_normal((later, buffers)) / m
        direct[m, n - later :] = -0.2 * rng.random(later) / m
    return RedrawnMatrix(decay, -0.7 * np.sqrt(1 - decay) / buffers, inputs, direct, lag)


def wild(n: int, buffers: int, redraws: int, lag: int, seed: int) -> RedrawnMatrix:
    """Return numbers of any signs, decays beyond 1 and exact zeros among them."""
    rng = np.random.default_rng(seed)
    decay, output = rng.choice([-1.2, -0.5, 0.0, 0.3, 1.0, 1.1], (n, buffers)), rng.standard_normal((n, buffers))
    inputs, direct = rng.standard_normal((redraws + 1, n, buffers)), rng.standard_normal((redraws + 1, n))
    direct[0] = rng.choice([1.0, 0.7, 3.1], n)
    for m in range(1, redraws + 1):
        inputs[m, : m * lag], direct[m, : m * lag] = 0, 0
    return RedrawnMatrix(decay, output * (rng.random((n, buffers)) < 0.8), inputs, direct, lag)


def inverse(matrix: RedrawnMatrix) -> np.ndarray:
    """Return K column by column, by the definition."""
    n, decay, output = matrix.n, in_fractions(matrix.decay), in_fractions(matrix.output)
    inputs, direct = in_fractions(matrix.input), in_fractions(matrix.direct)
    found = np.full((n, n), Fraction(0), dtype=object)
    for j in range(n):
        state = np.full(decay.shape[1], Fraction(0), dtype=object)
        for i in range(n):
            drawn = [m for m in range(len(direct)) if i - m * matrix.lag == j]
            found[i, j] = sum((direct[m, i] for m in drawn), Fraction(0)) + (output[i] * state).sum()
            state = decay[i] * state + sum((inputs[m, i] for m in drawn), 0 * state)
    return found
