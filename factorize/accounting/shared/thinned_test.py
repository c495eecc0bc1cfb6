"""The thinned test: tuples are drawn by the million, and noise only for those that a coin of their own keeps.

The weight of the shared test is call(log L0) L0^-m E*(m) times the ratio exp(mean_i A_i) / mean_i exp(A_i), which the
tuple alone decides and which is at most 1. Here a tuple is kept with that probability, and the weight of what is kept
has no ratio: its mean and its ceiling are the same, but most candidates cost one tuple and no noise of b bins, and
orders m pay whose ceiling is attained by rare tuples (theorem 5 b; docs/notes/bins-1.md).
"""

from __future__ import annotations

import numpy as np

from factorize.accounting.gram_matrix import BinCovariance
from factorize.accounting.shared.shared_call import THINNED_CHUNK
from factorize.accounting.star_sampler import (
    CHUNK,
    Key,
    SharedTest,
    check_ceiling,
    chunk_words,
    log_mixture,
    multiplied,
    normals_of,
    shared_weights,
)


class ThinnedTest(SharedTest):
    """Weights for delta of (P, Q) of which most are 0, from tuples that were thinned out.

    Args:
        covariance: of the rest, K - t^2.
        shared: t^2.
        epsilon: at which delta is asked for.
        order: m, at least 2; any choice is sound.

    Attributes:
        ceiling: W, never exceeded.

    Raises:
        InvalidParameter: t, epsilon or m is beyond the limits of the protocol.
    """

    chunk = THINNED_CHUNK

    def weights(self, key: Key, chunk: int) -> np.ndarray:
        """Return the weights of chunk number `chunk` of a stream, shape (16384,)."""
        tuples, kept = self.kept(key, chunk)
        noise = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=[0, 0, chunk, 1])
        found = np.full(self.chunk, self._rest)
        for start in range(0, len(kept), CHUNK):
            some = kept[start : start + CHUNK]
            words = noise.random_raw(len(some) * self.covariance.bins)
            log_l = log_ratios(self.covariance, np.ascontiguousarray(tuples[some]), words)
            scale = np.full(len(some), self.tables.log_moment + 2 * self.slack)
            found[some] += shared_weights(log_l, scale, self.level, self.order, self._spread)
        return check_ceiling(found, self.ceiling)

    def kept(self, key: Key, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """Return all tuples, shape (16384, m), and the places of those that are kept."""
        m = self.order
        words = chunk_words(key, chunk, self.chunk * (m + 1))
        picks, coins = words[: self.chunk * m].reshape(self.chunk, m), words[self.chunk * m :]
        tuples, log_chance = self.tables.draw(picks, self.covariance.matrix)
        return tuples, np.flatnonzero((coins >> np.uint64(11)) * 2.0**-53 < np.exp(log_chance))


def log_ratios(covariance: BinCovariance, tuples: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return log L0 given tuples, shape (samples,).

    Args:
        covariance: K of what is drawn.
        tuples: shape (samples, m).
        words: of the normals, shape (samples b,).
    """
    from factorize.accounting.star_kernels import add_rows

    normals = normals_of(words).reshape(len(tuples), covariance.bins)
    add_rows(tuples, np.ascontiguousarray(covariance.factor), normals)
    return log_mixture(multiplied(covariance.factor, normals), covariance.half_diagonal)
