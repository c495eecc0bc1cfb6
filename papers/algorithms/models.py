"""Models of the papers' experiments beside softmax regression: least squares, and a quadratic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LinearRegression:
    """Least squares: loss (x' w - y)^2 / 2, weights of shape (inputs,).

    Args:
        features: shape (examples, inputs).
        targets: shape (examples,).
    """

    features: np.ndarray
    targets: np.ndarray

    def __call__(self, weights: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Return the gradients x (x' w - y) of the batch's examples, shape (m, inputs)."""
        x = self.features[batch]
        return x * (x @ weights - self.targets[batch])[:, None]

    def loss(self, weights: np.ndarray) -> float:
        """Return the mean loss over all examples."""
        return float(((self.features @ weights - self.targets) ** 2).mean() / 2)


@dataclass(frozen=True)
class Quadratic:
    """The same loss for every example, sum_j curvature[j] (w[j] - optimum[j])^2 / 2: for tests and predictions.

    Args:
        curvature: shape (d,).
        optimum: shape (d,).
    """

    curvature: np.ndarray
    optimum: np.ndarray

    def __call__(self, weights: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Return the gradient once for each example of the batch, shape (m, d)."""
        return np.tile(self.curvature * (weights - self.optimum), (len(batch), 1))

    def loss(self, weights: np.ndarray) -> float:
        """Return the loss."""
        return float((self.curvature * (weights - self.optimum) ** 2).sum() / 2)
