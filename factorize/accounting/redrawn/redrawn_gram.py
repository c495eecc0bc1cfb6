"""The Gram matrix of re-drawn bins: all columns of |C|, in epochs, with what the accountant takes out of it once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from factorize.accounting.gram_matrix import LARGEST_BINS, BinGram, bin_gram
from factorize.errors import InvalidParameter, TooLarge
from factorize.numbers.rounding import square_root_up
from factorize.structures.endless import AnyStrategy

MOST_WORK = 1 << 34
"""Epochs times bins^3, the products of one evaluation."""

_UP = 2.0**-50


@dataclass(frozen=True, eq=False)
class RedrawnGram:
    """The Gram matrix of all columns of |C|, seen as epochs of b steps.

    Attributes:
        steps: of n bins, one for each step: H s^2, from above.
        bins: b, steps of an epoch; the last one may be shorter.
    """

    steps: BinGram
    bins: int

    @property
    def n(self) -> int:
        """Steps of the run."""
        return self.steps.steps

    @property
    def epochs(self) -> int:
        """Ceil(n / b)."""
        return -(-self.n // self.bins)

    @cached_property
    def blocks(self) -> np.ndarray:
        """H s^2 by epochs, shape (epochs, b, epochs, b): entry (e, j, e', j'); 0 beyond n."""
        size = self.epochs * self.bins
        padded = np.zeros((size, size))
        padded[: self.n, : self.n] = self.steps.gram
        return padded.reshape(self.epochs, self.bins, self.epochs, self.bins)

    @cached_property
    def sensitivity(self) -> float:
        """Without secrecy: no choice of one step of every epoch has a larger norm; rounded up.

        Each step of S is charged its own square, and with every other epoch its largest product there.
        """
        return square_root_up(float(self._charged.max(axis=1).sum()) * (1 + self.n * _UP))

    @cached_property
    def _charged(self) -> np.ndarray:
        """Shape (epochs, b): squares of the columns, and the largest products with each of the other epochs."""
        largest = self.blocks.max(axis=3)  # (e, j, e')
        own = np.arange(self.epochs)
        diagonal = np.einsum("ejej->ej", self.blocks)
        return diagonal + largest.sum(axis=2) - largest[own, :, own]

    @cached_property
    def mean_norm(self) -> float:
        """E K_SS s^2: the mean over the draws of the squared norm."""
        diagonal = np.einsum("ejej->", self.blocks) / self.bins
        own = np.einsum("ejei->", self.blocks) / self.bins**2
        return float((diagonal - own) * (1 + self.n * _UP)) + self.whole

    @cached_property
    def whole(self) -> float:
        """E K_SS' s^2 for independent draws, from above."""
        return float(self.blocks.sum() / self.bins**2 * (1 + self.n * _UP))

    @cached_property
    def far(self) -> np.ndarray:
        """What a step of S adds at most to K_SS' by the far part of other epochs, shape (epochs, b).

        Far are: all of an epoch that is no neighbour, the later half of the next, and the earlier half of the last one.
        """
        found = np.zeros((self.epochs, self.bins))
        half = self.half
        for e in range(self.epochs):
            for other in range(self.epochs):
                part = self.blocks[e, :, other]
                if other == e + 1:
                    part = part[:, half:]
                elif other == e - 1:
                    part = part[:, :half]
                if other != e and part.size:
                    found[e] += part.max(axis=1)
        return found * (1 + 2 * self.epochs * _UP)

    @property
    def half(self) -> int:
        """Steps of the earlier half of an epoch."""
        return (self.bins + 1) // 2

    @cached_property
    def near(self) -> list[np.ndarray]:
        """For each pair e, e + 1: above the far part in the earlier half of e + 1, shape (b, b), (i of e, j')."""
        return [self._excess(e, e + 1, slice(None, self.half)) for e in range(self.epochs - 1)]

    @cached_property
    def nearer(self) -> list[np.ndarray]:
        """For each pair e, e + 1: above the far part in the later half of e, shape (b, b), (l of e + 1, j')."""
        return [self._excess(e + 1, e, slice(self.half, None)) for e in range(self.epochs - 1)]

    def _excess(self, centre: int, other: int, near: slice) -> np.ndarray:
        block = self.blocks[centre, :, other]
        rest = slice(self.half, None) if near.start is None else slice(None, self.half)
        floor = block[:, rest].max(axis=1, initial=0.0)
        found = np.zeros_like(block)
        found[:, near] = np.maximum(block[:, near] - floor[:, None], 0.0) * (1 + 4 * _UP)
        return found


def redrawn_gram(matrix: AnyStrategy, bins: int) -> RedrawnGram:
    """Return what re-drawn bins need to know of C.

    Args:
        matrix: C, lower-triangular, of any structure with an end.
        bins: b, from 1 to n, the steps of an epoch.

    Raises:
        InvalidParameter: bins outside 1 to n, or a C without end.
        TooLarge: more than 4096 steps, or so many bins that an evaluation takes more than 2^34 products.
    """
    if matrix.side is None:
        raise InvalidParameter(
            "a C without end has no epochs of known number; solve for a finite n, or calibrate without sampling",
            field="sampling",
        )
    n = matrix.finite().n
    if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or not 1 <= bins <= n:
        raise InvalidParameter(f"bins={bins!r} is not an integer from 1 to n={n}, the steps of a run", field="bins")
    if n > LARGEST_BINS:
        raise TooLarge(
            f"n={n} is above the limit {LARGEST_BINS} of re-drawn bins, which take all products of columns; "
            "use balls_in_bins, which keeps the bins",
            field="sampling",
        )
    if -(-n // bins) * int(bins) ** 3 > MOST_WORK:
        raise TooLarge(
            f"{bins} bins in {-(-n // bins)} epochs take more than {MOST_WORK} products; use balls_in_bins, or fewer, "
            "larger batches",
            field="bins",
        )
    return RedrawnGram(bin_gram(matrix, n), int(bins))
