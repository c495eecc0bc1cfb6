"""DP-FTRL at many noise levels at once: the recursion of `papers.training.dp_ftrl`, one matrix product for all.

The runs share the batches and the standard normal numbers and differ in their scale, so that a grid of epsilons costs
little more than one run. Single precision. tests/house/test_papers.py holds it to `dp_ftrl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from factorize.factors.factorization import Factorization
from papers.reproductions.images import CLASSES

BLOCK = 256


def correlated_rows(factors: Factorization, seed: int, size: int) -> np.ndarray:
    """Return C^-1 Z with standard normal Z of shape (n, size), float32, the same Z for every C."""
    n = factors.strategy.n
    normals = np.random.default_rng(seed).standard_normal((n, size), dtype=np.float32)
    if factors.strategy.bandwidth() == 1:
        return normals
    out = np.empty_like(normals)
    for first in range(0, n, BLOCK):
        last = min(first + BLOCK, n)
        rows = factors.rows("C_inv", first, last)[:, :last].astype(np.float32)
        out[first:last] = rows @ normals[:last]
    return out


def train(
    features: np.ndarray,
    labels: np.ndarray,
    batches: Iterable[np.ndarray | slice],
    noise: Iterable[np.ndarray],
    sigmas: np.ndarray,
    *,
    batch_size: int,
    clip_norm: float,
    learning_rate: float | np.ndarray,
) -> np.ndarray:
    """Train logistic regression from zero, once for each scale, and return the weights, shape (runs, inputs, classes).

    Args:
        features: shape (examples, inputs), float32.
        labels: shape (examples,).
        batches: indices of each step's examples.
        noise: C^-1 Z of each step, inputs x classes numbers.
        sigmas: standard deviation per entry of Z, one for each run.
        batch_size: the fixed divisor of the means.
        clip_norm: bound on an example's gradient.
        learning_rate: rate of plain SGD, of all runs or one for each.
    """
    runs, inputs = len(sigmas), features.shape[1]
    weights = np.zeros((inputs, runs, CLASSES), dtype=np.float32)
    scales = sigmas.astype(np.float32)[None, :, None]
    rates = np.broadcast_to(np.asarray(learning_rate, dtype=np.float32), (runs,))[None, :, None]
    lengths = np.linalg.norm(features, axis=1)
    for batch, row in zip(batches, noise, strict=True):
        total = clipped_sum(features[batch], labels[batch], lengths[batch], weights, clip_norm)
        weights -= rates * (total / batch_size + scales * row.reshape(inputs, 1, CLASSES))
    return np.moveaxis(weights, 1, 0)


def clipped_sum(
    x: np.ndarray, labels: np.ndarray, lengths: np.ndarray, weights: np.ndarray, clip_norm: float
) -> np.ndarray:
    """Return the sum of clipped gradients at each of many weights, both of shape (inputs, runs, classes).

    Args:
        x: features of the examples, shape (examples, inputs).
        labels: labels of the examples.
        lengths: norms of the rows of x.
        weights: weights of all runs.
        clip_norm: bound on an example's gradient.
    """
    inputs, runs, classes = weights.shape
    residuals = softmax((x @ weights.reshape(inputs, -1)).reshape(len(x), runs, classes))
    residuals[np.arange(len(x)), :, labels] -= 1.0
    norms = lengths[:, None] * np.sqrt(np.einsum("erc,erc->er", residuals, residuals))
    residuals *= np.minimum(1.0, clip_norm / np.maximum(norms, np.float32(1e-30)))[:, :, None]
    return np.asarray((x.T @ residuals.reshape(len(x), -1)).reshape(weights.shape))


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def poisson_batches(examples: int, probability: float, steps: int, seed: int) -> Iterator[np.ndarray]:
    """Yield batches in which each example is with this probability, independently."""
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        size = generator.binomial(examples, probability)
        yield generator.choice(examples, size, replace=False)
