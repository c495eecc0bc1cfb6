"""Linear maps as recursions with few states, by which losses are computable without an n x n array.

A map takes x to y by y_i = read_i . u_i + through_i x_i and u_{i+1} = follow_i u_i + feed_i x_i, u_0 = 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class StateSpace(NamedTuple):
    """A lower-triangular map with q states.

    Attributes:
        follow: shape (n, q, q).
        feed: shape (n, q).
        read: shape (n, q).
        through: shape (n,).
    """

    follow: np.ndarray
    feed: np.ndarray
    read: np.ndarray
    through: np.ndarray

    def solve(self, outputs: np.ndarray) -> np.ndarray:
        """Return inputs with these outputs, shape (n, any); 0 where an input is not passed through."""
        inputs, state = np.zeros_like(outputs), np.zeros((self.feed.shape[1], outputs.shape[1]))
        for i in np.arange(len(outputs)):
            if self.through[i]:
                inputs[i] = (outputs[i] - self.read[i] @ state) / self.through[i]
            state = self.follow[i] @ state + np.multiply.outer(self.feed[i], inputs[i])
        return inputs

    def then(self, after: StateSpace) -> StateSpace:
        """Return the product `after` times this map: this one is applied first."""
        n, q, r = len(self.through), self.feed.shape[1], after.feed.shape[1]
        follow = np.zeros((n, q + r, q + r))
        follow[:, :q, :q] = self.follow
        follow[:, q:, q:] = after.follow
        follow[:, q:, :q] = after.feed[:, :, None] * self.read[:, None, :]
        feed = np.concatenate([self.feed, after.feed * self.through[:, None]], axis=1)
        read = np.concatenate([after.through[:, None] * self.read, after.read], axis=1)
        return StateSpace(follow, feed, read, after.through * self.through)


def identity(n: int) -> StateSpace:
    """Return the map that changes nothing; it has no state."""
    return scaling(np.ones(n))


def scaling(factors: np.ndarray) -> StateSpace:
    """Return the diagonal map with these factors, shape (n,)."""
    n = len(factors)
    return StateSpace(np.zeros((n, 0, 0)), np.zeros((n, 0)), np.zeros((n, 0)), np.asarray(factors, dtype=np.float64))


def first_order(factors: np.ndarray) -> StateSpace:
    """Return y_i = factors_i y_{i-1} + x_i; the state is the last output."""
    n = len(factors)
    follow = np.asarray(factors, dtype=np.float64).reshape(n, 1, 1)
    return StateSpace(follow, np.ones((n, 1)), follow[:, :, 0], np.ones(n))


def differences_from_reference(scale: np.ndarray, closing: np.ndarray) -> StateSpace:
    """Return y_i = scale_i (x_i - reference); the reference is the last x at a closing step, 0 before the first."""
    n = len(scale)
    keep = np.where(closing, 0.0, 1.0)
    return StateSpace(keep.reshape(n, 1, 1), 1.0 - keep[:, None], -scale[:, None], np.asarray(scale, dtype=np.float64))
