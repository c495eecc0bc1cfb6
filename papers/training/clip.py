"""Contributions of examples to one step, and the clipping that bounds what one of them can change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from factorize.errors import InvalidParameter


class Contributions(Protocol):
    """The contribution of each example to one step: m arrays of the parameters' shape, in whatever form is cheap."""

    def __len__(self) -> int:
        """Return m."""

    def norms(self) -> np.ndarray:
        """Return the 2-norm of each contribution, shape (m,)."""

    def weighted_sum(self, weights: np.ndarray) -> np.ndarray:
        """Return sum_e weights[e] contribution[e]; what has weight zero counts as zero even where it is not finite."""

    def dense(self) -> np.ndarray:
        """Return all of them, shape (m, *parameters)."""


class Rows:
    """Contributions stored one by one.

    Args:
        array: shape (m, *parameters), float64.
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = np.asarray(array, dtype=np.float64)

    def __len__(self) -> int:
        """Return m."""
        return len(self.array)

    def norms(self) -> np.ndarray:
        """Return the root of the sum of squares of each row."""
        flat = self.array.reshape(len(self.array), -1)
        with np.errstate(over="ignore", invalid="ignore"):  # clipped_sum drops what is not finite
            return np.sqrt(np.einsum("ij,ij->i", flat, flat))

    def weighted_sum(self, weights: np.ndarray) -> np.ndarray:
        """Return one product with the rows that count."""
        used = weights != 0
        rows = self.array if used.all() else self.array[used]
        return np.tensordot(weights[used], rows, axes=1)

    def dense(self) -> np.ndarray:
        """Return the array."""
        return self.array


GradientFunction = Callable[[np.ndarray, np.ndarray], "np.ndarray | Contributions"]
"""A function of weights and the indices of a batch's examples to contributions, one per example: `Contributions`, or
an array of shape (m, *weights.shape). An array of the weights' own shape is one contribution of the whole batch: the
unit of privacy is then the batch (a user's device, say), and the function must have used nobody else's data."""


def contributions_at(gradient: GradientFunction, weights: np.ndarray, batch: np.ndarray) -> Contributions:
    """Return what the examples of a batch contribute at these weights: one row each, or one for the whole batch.

    Raises:
        InvalidParameter: the gradient function returned another shape, or another number of rows than the batch has
            examples, so that one example could be in several.
    """
    contributions = gradient(weights, batch)
    if isinstance(contributions, np.ndarray):
        contributions = Rows(contributions[None] if contributions.shape == weights.shape else contributions)
        if contributions.array.shape[1:] != weights.shape:
            raise InvalidParameter(
                f"the gradient function returned shape {contributions.array.shape} for weights of shape {weights.shape}"
                f"; return one gradient per example, shape {('m', *weights.shape)}, or one for the whole batch",
                field="gradient",
            )
    if len(contributions) not in (len(batch), 1):
        raise InvalidParameter(
            f"the gradient function returned {len(contributions)} contributions for a batch of {len(batch)} examples; "
            "return one per example, so that clipping bounds each example's, or one for the whole batch",
            field="gradient",
        )
    return contributions


def clipped_sum(contributions: Contributions, clip_norm: float) -> np.ndarray:
    """Return the sum of the contributions, each scaled down to norm `clip_norm` where it is longer.

    A contribution that is not finite counts as zero: its norm is within the bound whatever the others are, and neither
    an error nor a NaN tells that it was there.
    """
    norms = contributions.norms()
    finite = np.isfinite(norms)
    scales = np.ones(len(norms))
    np.divide(clip_norm, norms, out=scales, where=finite & (norms > clip_norm))
    return contributions.weighted_sum(np.where(finite, scales, 0.0))
