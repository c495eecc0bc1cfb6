"""Suffix sums: traces against A F for prefix sums A, from the sums U = A^T P of P from each step on, without A F.

For F block diagonal over patterns of steps, P^T A F = U^T F takes rows of U and one small block for each pattern. So
tr(P^T A F) and tr((P E)^T A F) = tr(E^T U^T F) cost no product of whole matrices. Entry (i, j) of U is at most the sum
s_j <= sqrt(n) |P_j| of the magnitudes of its column, and as computed it is off by at most gamma_n s_j.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import numpy as np

from factorize.exact.doubles.roundings import SLACK, TINY, gamma, norm_of, row_norms


class Traces(NamedTuple):
    """What some columns of A F give.

    Attributes:
        parts: terms of tr(P^T A F) - tr((P E)^T A F) / 2.
        lost: what they are off by, from above.
        apart: the norm of E there, from above.
    """

    parts: list[float]
    lost: float
    apart: float


class SuffixSums(NamedTuple):
    """U = A^T P, nearly.

    Attributes:
        values: shape (n, columns of P).
        sizes: at least the sums of the magnitudes of the columns of P, shape (columns,).
    """

    values: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, guess: np.ndarray, lengths: np.ndarray, *, in_place: bool = False) -> Self:
        """Add the rows of P from the last to the first.

        Args:
            guess: P.
            lengths: at least the norms of its columns.
            in_place: whether U may take the place of P.
        """
        values = guess if in_place else np.empty_like(guess)
        values[-1] = guess[-1]
        for i in range(len(guess) - 2, -1, -1):  # ten times as quick as a cumulative sum over rows
            np.add(guess[i], values[i + 1], out=values[i])
        return cls(values, lengths * (math.sqrt(len(guess)) * (1 + SLACK)))

    def traces(self, steps: np.ndarray, blocks: np.ndarray, first: int, near: np.ndarray) -> Traces:
        """Return the terms of the columns of some patterns.

        Args:
            steps: of these patterns, shape (patterns, k).
            blocks: of F, shape (patterns, k, k).
            first: column of P that belongs to the first step of the first pattern.
            near: E^T, of which only the rows of these columns are given, shape (patterns k, columns).
        """
        (count, k), (n, columns) = steps.shape, self.values.shape
        rows = self.values[steps.ravel()].reshape(count, k, columns)
        own = rows[:, :, first : first + count * k].reshape(count, k, count, k)
        places = np.arange(count)
        parts: list[float] = np.einsum("pes,pes->p", own[places, :, places, :], blocks).tolist()
        turned = (blocks.swapaxes(1, 2) @ rows).reshape(near.shape)
        parts += (-0.5 * np.einsum("ij,ij->i", near, turned)).tolist()
        sums = (np.abs(blocks).sum(axis=1) * (1 + gamma(k))).ravel()
        apart, mine = norm_of(row_norms(near)), self.sizes[first : first + count * k]
        lost = gamma(n + k * k + 4) * math.fsum((mine * sums).tolist())
        lost += 0.5 * gamma(n + k + columns + 8) * apart * norm_of(self.sizes) * norm_of(sums)
        lost += (k + 1) * near.size * (k + 1) * TINY
        return Traces(parts, lost * (1 + SLACK), apart)
