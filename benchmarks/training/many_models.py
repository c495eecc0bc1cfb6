"""Many models trained at once: all seeds, noise levels and learning rates of a system as one batch of models.

Logistic regression by clipped gradients and correlated noise, single precision. Each seed has batches and normal
numbers of its own; the models of one seed share them and differ in scale and rate. tests/house/test_leaderboard.py
holds it to `factorize.training.dp_ftrl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.images import CLASSES, Images
from benchmarks.papers.together import softmax
from benchmarks.papers.user_data import UserData

PIECE = 500
"""Examples of a seed that are gathered at once, so that they stay near the processor."""
JUDGED = 10_000
"""Training examples whose accuracy the choice of a rate goes by, at most."""


@dataclass(frozen=True)
class Models:
    """Learning rates and noise of the models of one seed.

    Attributes:
        sigmas: standard deviation per entry of Z, for means; one for each model.
        rates: learning rates, one for each model.
        momentum: of all.
        clip_norm: of all.
        divisor: of the means.
    """

    sigmas: np.ndarray
    rates: np.ndarray
    momentum: float
    clip_norm: float
    divisor: int


def classes_of(images: Images) -> int:
    """Return the number of classes."""
    return images.classes if isinstance(images, UserData) else CLASSES


def trained(
    images: Images, batches: Sequence[Iterable[np.ndarray]], noise: Sequence[np.ndarray], models: Models
) -> np.ndarray:
    """Train all models from zero.

    Args:
        images: data.
        batches: for each seed, the examples of each step.
        noise: for each seed, C^-1 Z, shape (n, inputs x classes).
        models: of each seed, the same for all.

    Returns:
        Weights, shape (seeds, inputs, models, classes).
    """
    inputs, count, classes = images.train.shape[1], len(models.sigmas), classes_of(images)
    lengths = np.linalg.norm(images.train, axis=1)
    weights = np.zeros((len(batches), inputs, count, classes), dtype=np.float32)
    velocity = np.zeros_like(weights) if models.momentum else None
    scales, rates = (values.astype(np.float32)[:, None] for values in (models.sigmas, models.rates))
    for step, here in enumerate(zip(*batches, strict=True)):
        gradient = np.zeros_like(weights)
        for indices, present in pieces(here):
            gradient += clipped_sum(images, lengths, weights, indices, present, models.clip_norm)
        gradient /= models.divisor
        rows = np.stack([one[step] for one in noise]).reshape(len(noise), inputs, 1, classes)
        gradient += scales * rows
        if velocity is not None:
            velocity *= models.momentum
            velocity += gradient
            gradient = velocity.copy()
        gradient *= rates
        weights -= gradient
    return weights


def pieces(batches: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield indices of examples and whether they are there, both of shape (seeds, at most PIECE)."""
    longest = max(len(batch) for batch in batches)
    indices = np.zeros((len(batches), longest), dtype=np.intp)
    present = np.zeros((len(batches), longest), dtype=np.float32)
    for seed, batch in enumerate(batches):
        indices[seed, : len(batch)], present[seed, : len(batch)] = batch, 1
    for start in range(0, longest, PIECE):
        yield indices[:, start : start + PIECE], present[:, start : start + PIECE]


def clipped_sum(
    images: Images,
    lengths: np.ndarray,
    weights: np.ndarray,
    indices: np.ndarray,
    present: np.ndarray,
    clip_norm: float,
) -> np.ndarray:
    """Return the sum of clipped gradients of the examples that are present, for all models of all seeds."""
    seeds, inputs, count, classes = weights.shape
    x = images.train[indices]
    residuals = softmax((x @ weights.reshape(seeds, inputs, -1)).reshape(seeds, -1, count, classes))
    seed, example = np.indices(indices.shape)
    residuals[seed, example, :, images.train_labels[indices]] -= 1.0
    norms = lengths[indices][:, :, None] * np.sqrt(np.einsum("sbmc,sbmc->sbm", residuals, residuals))
    shrunk = np.minimum(1.0, clip_norm / np.maximum(norms, np.float32(1e-30)))
    residuals *= (shrunk * present[:, :, None])[:, :, :, None]
    total = x.swapaxes(1, 2) @ residuals.reshape(seeds, len(indices[0]), -1)
    return total.reshape(weights.shape)


def accuracies(features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the accuracy of all models in percent, shape (seeds, models)."""
    seeds, inputs, count, classes = weights.shape
    found = np.empty((seeds, count))
    for seed in range(seeds):
        scores = (features @ weights[seed].reshape(inputs, -1)).reshape(len(features), count, classes)
        found[seed] = 100 * (scores.argmax(axis=2) == labels[:, None]).mean(axis=0)
    return found


def judged(images: Images, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return training accuracy on the first examples, and test accuracy, each of shape (seeds, models)."""
    train = accuracies(images.train[:JUDGED], images.train_labels[:JUDGED], weights)
    return train, accuracies(images.test, images.test_labels, weights)
