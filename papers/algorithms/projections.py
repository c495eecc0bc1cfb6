"""Projections onto convex sets; after the noise they are post-processing and cost no privacy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Projection = Callable[[np.ndarray], np.ndarray]
"""A function from any point to the nearest one of a convex set."""


@dataclass(frozen=True)
class Ball:
    """The ball of a radius around the origin; its diameter is twice the radius."""

    radius: float

    def __call__(self, point: np.ndarray) -> np.ndarray:
        """Scale the point down to the radius where it is outside."""
        norm = float(np.linalg.norm(point))
        return point if norm <= self.radius else point * (self.radius / norm)


def everywhere(point: np.ndarray) -> np.ndarray:
    """Return the point: no constraint."""
    return point
