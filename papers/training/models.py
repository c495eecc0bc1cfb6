"""Gradients per example of models that need no library for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class OuterProducts:
    """Contributions features[e] residuals[e]': the form of every generalised linear model.

    Norms are products of norms and sums are matrix products, so no gradient per example is ever stored.

    Args:
        features: shape (m, inputs).
        residuals: shape (m, outputs).
    """

    features: np.ndarray
    residuals: np.ndarray

    def __len__(self) -> int:
        """Return m."""
        return len(self.features)

    def norms(self) -> np.ndarray:
        """Return the product of the two norms."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.linalg.norm(self.features, axis=1) * np.linalg.norm(self.residuals, axis=1)

    def weighted_sum(self, weights: np.ndarray) -> np.ndarray:
        """Return one matrix product over the examples that count."""
        used = weights != 0
        if used.all():
            return self.features.T @ (self.residuals * weights[:, None])
        return self.features[used].T @ (self.residuals[used] * weights[used, None])

    def dense(self) -> np.ndarray:
        """Return every outer product, shape (m, inputs, outputs)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.features[:, :, None] * self.residuals[:, None, :]


@dataclass(frozen=True)
class SoftmaxRegression:
    """Multiclass logistic regression: loss -log softmax(x W)[y], weights W of shape (inputs, classes).

    Args:
        features: shape (examples, inputs); append a constant one for a bias.
        labels: shape (examples,), integers from 0.
        classes: number of classes.
    """

    features: np.ndarray
    labels: np.ndarray
    classes: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weights."""
        return self.features.shape[1], self.classes

    def __call__(self, weights: np.ndarray, batch: np.ndarray) -> OuterProducts:
        """Return the gradients x (softmax(x W) - onehot(y))' of the batch's examples."""
        x = self.features[batch]
        scores = x @ weights
        residuals = np.exp(scores - scores.max(axis=1, keepdims=True))
        residuals /= residuals.sum(axis=1, keepdims=True)
        residuals[np.arange(len(x)), self.labels[batch]] -= 1.0
        return OuterProducts(x, residuals)

    def loss(self, weights: np.ndarray) -> float:
        """Return the mean loss over all examples."""
        scores = self.features @ weights
        scores -= scores.max(axis=1, keepdims=True)
        own = scores[np.arange(len(scores)), self.labels]
        return float((np.log(np.exp(scores).sum(axis=1)) - own).mean())

    def accuracy(self, weights: np.ndarray) -> float:
        """Return the share of all examples whose largest score is their label's."""
        return float((np.argmax(self.features @ weights, axis=1) == self.labels).mean())
