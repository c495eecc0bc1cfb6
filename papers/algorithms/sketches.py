"""Sketches: the coordinates that a step of DP-SkGD touches, by the sampling laws of M24, section 4.2.1.

A law draws a non-empty set U of coordinates, p_j = P(j in U), and bounds the norm of an example's partial gradient on U
by L_U. U is public and independent of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from factorize.errors import InvalidParameter


@dataclass(frozen=True)
class Draw:
    """One drawn set: `coordinates` U (sorted indices) and `bound` L_U."""

    coordinates: np.ndarray
    bound: float


class Sketch(Protocol):
    """A sampling law."""

    @property
    def probabilities(self) -> np.ndarray:
        """p_j, shape (d,), all above 0."""

    def draw(self, generator: np.random.Generator) -> Draw:
        """Draw one set."""

    def noise_constant(self, smoothness: np.ndarray) -> float:
        """Return Sigma_S^2 = E[L_U^2 sum_{j in U} 1/(p_j M_j)]."""


class BlockSketch:
    """One block of a partition of the coordinates, drawn with its probability.

    Args:
        blocks: the partition, arrays of indices that cover 0..d-1 once.
        bounds: L_U of each block, shape (blocks,): what partial gradients are clipped to.
        probabilities: probability of each block, shape (blocks,); uniform by default.

    Raises:
        InvalidParameter: no partition, or bounds or probabilities that are not positive (and sum to 1).
    """

    def __init__(
        self, blocks: Sequence[np.ndarray], bounds: Sequence[float], probabilities: Sequence[float] | None = None
    ) -> None:
        self.blocks = [np.sort(np.asarray(block, dtype=np.intp)) for block in blocks]
        self.bounds = np.array(bounds, dtype=np.float64)
        count = len(self.blocks)
        law = [1.0 / count] * count if probabilities is None and count else (probabilities or [])
        self.law = np.array(law, dtype=np.float64)
        _check_partition(self.blocks)
        if self.bounds.shape != (count,) or not np.isfinite(self.bounds).all() or (self.bounds <= 0).any():
            raise InvalidParameter(f"bounds needs {count} positive numbers, one per block", field="bounds")
        if self.law.shape != (count,) or not (self.law > 0).all() or abs(self.law.sum() - 1) > 1e-9:
            raise InvalidParameter(
                f"probabilities needs {count} positive numbers with sum 1, got sum {self.law.sum():g}; a block that is "
                "never drawn is never trained",
                field="probabilities",
            )
        self.law = self.law / self.law.sum()

    @property
    def probabilities(self) -> np.ndarray:
        """p_j, the probability of j's block."""
        out = np.empty(sum(map(len, self.blocks)))
        for block, probability in zip(self.blocks, self.law, strict=True):
            out[block] = probability
        return out

    def draw(self, generator: np.random.Generator) -> Draw:
        """Draw one block."""
        chosen = int(generator.choice(len(self.blocks), p=self.law))
        return Draw(self.blocks[chosen], float(self.bounds[chosen]))

    def noise_constant(self, smoothness: np.ndarray) -> float:
        """Return sum_i L_i^2 sum_{j in A_i} 1/M_j: the probabilities cancel."""
        return float(sum(L**2 * (1 / smoothness[A]).sum() for A, L in zip(self.blocks, self.bounds, strict=True)))


class NiceSketch:
    """`size` coordinates out of d, all sets of that size alike (tau-nice sampling).

    Args:
        bounds: L_j of each coordinate, shape (d,); L_U = sqrt(sum_{j in U} L_j^2).
        size: number of coordinates per step.
        total: a bound on the whole gradient, where it is smaller than that.

    Raises:
        InvalidParameter: bounds that are not positive, or a size outside 1..d.
    """

    def __init__(self, bounds: Sequence[float], size: int, *, total: float = np.inf) -> None:
        self.bounds = np.array(bounds, dtype=np.float64)
        self.size = size
        self.total = float(total)
        d = len(self.bounds)
        if not np.isfinite(self.bounds).all() or (self.bounds <= 0).any() or not self.total > 0:
            raise InvalidParameter("bounds needs one positive number per coordinate", field="bounds")
        if not 1 <= size <= d:
            raise InvalidParameter(f"size={size} is outside 1..{d}", field="size")

    @property
    def probabilities(self) -> np.ndarray:
        """Return size / d for every coordinate."""
        return np.full(len(self.bounds), self.size / len(self.bounds))

    def draw(self, generator: np.random.Generator) -> Draw:
        """Draw one set without replacement."""
        chosen = np.sort(generator.choice(len(self.bounds), self.size, replace=False))
        return Draw(chosen, min(self.total, float(np.linalg.norm(self.bounds[chosen]))))

    def noise_constant(self, smoothness: np.ndarray) -> float:
        """Return the exact expectation over sets for L_U^2 = sum L_j^2, an upper bound where `total` is smaller.

        E = (d/size) sum_{j,l} P(j, l in U) L_l^2 / M_j, with P = size/d for j = l and size(size-1)/(d(d-1)) else.
        """
        d, inverse, squares = len(self.bounds), 1 / smoothness, self.bounds**2
        both = (self.size - 1) / (d - 1) if d > 1 else 0.0
        same = float((squares * inverse).sum())
        return same + both * (float(squares.sum() * inverse.sum()) - same)


def single_coordinates(bounds: Sequence[float], probabilities: Sequence[float] | None = None) -> BlockSketch:
    """Return the law that draws one coordinate; uniform by default, which makes DP-SkGD DP-CD (Mangold et al. 2022)."""
    return BlockSketch([np.array([j]) for j in range(len(bounds))], bounds, probabilities)


def full_sketch(coordinates: int, bound: float) -> BlockSketch:
    """Return the law that always takes all coordinates, which makes DP-SkGD DP-SGD with full batches."""
    return BlockSketch([np.arange(coordinates)], [bound])


def importance(blocks: Sequence[np.ndarray], smoothness: np.ndarray) -> list[float]:
    """Return the probabilities q_i proportional to the largest smoothness in block i (M24, section 4.2.1)."""
    largest = np.array([smoothness[np.asarray(block)].max() for block in blocks])
    return [float(q) for q in largest / largest.sum()]


def _check_partition(blocks: list[np.ndarray]) -> None:
    joined = np.concatenate(blocks) if blocks else np.empty(0, dtype=np.intp)
    if not blocks or min(map(len, blocks)) == 0 or not np.array_equal(np.sort(joined), np.arange(len(joined))):
        raise InvalidParameter(
            "blocks must be a partition: each coordinate 0..d-1 in exactly one block, none empty", field="blocks"
        )
