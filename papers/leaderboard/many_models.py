"""Many models trained at once: all seeds, noise levels and learning rates of a system as one batch of models.

Clipped gradients and correlated noise, single precision. Each seed has batches and normal numbers of its own; the
models of one seed share them and differ in scale and rate. What kind of model it is, a `Kind` says: logistic
regression here, a network in convolutional.py. tests/house/test_leaderboard.py holds it to
`papers.training.dp_ftrl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from papers.reproductions.images import CLASSES, Images
from papers.reproductions.together import softmax
from papers.reproductions.user_data import UserData

PIECE_EXAMPLES = 500
"""The examples of a seed that are gathered at once, so that they stay near the processor."""
MAX_JUDGED_EXAMPLES = 10_000
"""The most training examples whose accuracy the choice of a rate goes by."""


@dataclass(frozen=True)
class Models:
    """Learning rates and noise of the models of one seed.

    Attributes:
        sigmas: standard deviation per entry of Z, for means; one for each model.
        rates: learning rates, one for each model.
        momentum: momentum of all, or one for each model.
        clip_norm: clip norm of all.
        divisor: divisor of the means.
        schedule: what each step multiplies the rates by, shape (steps, models); nothing if None.
    """

    sigmas: np.ndarray
    rates: np.ndarray
    momentum: float | np.ndarray
    clip_norm: float
    divisor: int
    schedule: np.ndarray | None = None


class Kind(Protocol):
    """A kind of model. Weights have the models in the last axis but one: scales and rates are columns."""

    def size(self, images: Images) -> int:
        """Return how many numbers a model has."""

    def start(self, images: Images, seeds: int, count: int) -> np.ndarray:
        """Return the weights that all models begin with, the first axis that of seeds."""

    def rows(self, images: Images, noise: np.ndarray) -> np.ndarray:
        """Return a step's noise, shape (seeds, size), as it is added to the weights of every model."""

    def clipped_sum(
        self, images: Images, weights: np.ndarray, indices: np.ndarray, present: np.ndarray, clip_norm: float
    ) -> np.ndarray:
        """Return the sum of clipped gradients of the examples that are present, for all models of all seeds."""

    def accuracies(self, images: Images, weights: np.ndarray, *, training: bool) -> np.ndarray:
        """Return the accuracy of all models in percent on `examples`, shape (seeds, models)."""


def classes_of(images: Images) -> int:
    """Return the number of classes."""
    return images.classes if isinstance(images, UserData) else CLASSES


def trained(
    images: Images,
    batches: Sequence[Iterable[np.ndarray]],
    noise: Sequence[np.ndarray],
    models: Models,
    kind: Kind | None = None,
) -> np.ndarray:
    """Train all models from the start of their kind.

    Args:
        images: data.
        batches: the examples of each step, for each seed.
        noise: C^-1 Z for each seed, shape (n, numbers of a model).
        models: models of each seed, the same for all.
        kind: kind of the models; logistic regression if None.

    Returns:
        Weights, as the kind lays them; of logistic regression (seeds, inputs, models, classes).
    """
    kind = kind or LogisticRegression()
    weights = kind.start(images, len(batches), len(models.sigmas))
    velocity = np.zeros_like(weights) if np.any(models.momentum) else None
    momentum = np.broadcast_to(models.momentum, models.rates.shape)
    scales, rates, momentum = (one.astype(np.float32)[:, None] for one in (models.sigmas, models.rates, momentum))
    for step, here in enumerate(zip(*batches, strict=True)):
        gradient = np.zeros_like(weights)
        for indices, present in pieces(here):
            gradient += kind.clipped_sum(images, weights, indices, present, models.clip_norm)
        gradient /= models.divisor
        gradient += scales * kind.rows(images, np.stack([one[step] for one in noise]))
        if velocity is not None:
            velocity *= momentum
            velocity += gradient
            gradient = velocity.copy()
        gradient *= rates if models.schedule is None else rates * models.schedule[step].astype(np.float32)[:, None]
        weights -= gradient
    return weights


def pieces(batches: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield indices of examples and whether they are there, both of shape (seeds, at most PIECE_EXAMPLES)."""
    longest = max(len(batch) for batch in batches)
    indices = np.zeros((len(batches), longest), dtype=np.intp)
    present = np.zeros((len(batches), longest), dtype=np.float32)
    for seed, batch in enumerate(batches):
        indices[seed, : len(batch)], present[seed, : len(batch)] = batch, 1
    for start in range(0, longest, PIECE_EXAMPLES):
        yield indices[:, start : start + PIECE_EXAMPLES], present[:, start : start + PIECE_EXAMPLES]


class LogisticRegression:
    """Logistic regression from zero; weights of shape (seeds, inputs, models, classes)."""

    def size(self, images: Images) -> int:
        """Return inputs x classes."""
        return images.train.shape[1] * classes_of(images)

    def start(self, images: Images, seeds: int, count: int) -> np.ndarray:
        """Return zeros."""
        return np.zeros((seeds, images.train.shape[1], count, classes_of(images)), dtype=np.float32)

    def rows(self, images: Images, noise: np.ndarray) -> np.ndarray:
        """Return the noise, the same for every model."""
        return noise.reshape(len(noise), images.train.shape[1], 1, classes_of(images))

    def clipped_sum(
        self, images: Images, weights: np.ndarray, indices: np.ndarray, present: np.ndarray, clip_norm: float
    ) -> np.ndarray:
        """Return the sums; an example's gradient is an outer product, whose norm is a product."""
        inputs, count, classes = weights.shape[1:]
        total = np.empty_like(weights)
        for seed, places in enumerate(indices):  # one seed at a time, so that its examples stay near the processor
            x, labels = images.train[places], images.train_labels[places]
            residuals = softmax((x @ weights[seed].reshape(inputs, -1)).reshape(-1, count, classes))
            residuals[np.arange(len(x)), :, labels] -= 1.0
            norms = np.sqrt(np.einsum("bd,bd->b", x, x)[:, None] * np.einsum("bmc,bmc->bm", residuals, residuals))
            shrunk = np.minimum(1.0, clip_norm / np.maximum(norms, np.float32(1e-30)))
            residuals *= (shrunk * present[seed, :, None])[:, :, None]
            total[seed] = (x.T @ residuals.reshape(len(x), -1)).reshape(weights[seed].shape)
        return total

    def accuracies(self, images: Images, weights: np.ndarray, *, training: bool) -> np.ndarray:
        """Return the accuracy of all models in percent on `examples`, shape (seeds, models)."""
        features, labels = examples(images, training=training)
        seeds, inputs, count, classes = weights.shape
        found = np.empty((seeds, count))
        for seed in range(seeds):
            scores = (features @ weights[seed].reshape(inputs, -1)).reshape(len(features), count, classes)
            found[seed] = 100 * (scores.argmax(axis=2) == labels[:, None]).mean(axis=0)
        return found


def judged(images: Images, weights: np.ndarray, kind: Kind | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return training accuracy on the first examples, and test accuracy, each of shape (seeds, models)."""
    kind = kind or LogisticRegression()
    return kind.accuracies(images, weights, training=True), kind.accuracies(images, weights, training=False)


def examples(images: Images, *, training: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return what models are judged by: the first training examples, or all test examples; features and labels."""
    if training:
        return images.train[:MAX_JUDGED_EXAMPLES], images.train_labels[:MAX_JUDGED_EXAMPLES]
    return images.test, images.test_labels
