"""Made images, and noise that was drawn before."""

from __future__ import annotations

import numpy as np

from papers.reproductions.images import Images


def made_images(examples: int = 120) -> Images:
    """Ten pixels and ten classes; four fifths are for training."""
    luck = np.random.default_rng(0)
    labels = luck.integers(0, 10, examples)
    pixels = (np.eye(10)[labels] + luck.normal(scale=0.2, size=(examples, 10))).astype(np.float32)
    own = examples * 4 // 5
    return Images(pixels[:own], labels[:own], pixels[own:], labels[own:])


class Replayed:
    """Rows that were drawn before, scaled."""

    def __init__(self, rows: np.ndarray, sigma: float, shape: tuple[int, int]) -> None:
        self._rows, self._sigma, self._shape = iter(rows), sigma, shape

    def next(self) -> np.ndarray:
        """Return the next row."""
        return self._sigma * next(self._rows).reshape(self._shape)
