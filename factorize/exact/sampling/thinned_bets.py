"""Bets that are thinned: most candidates are dropped by a coin once their tuple is drawn, before any normal is.

The weight of theorem 5 a holds the ratio exp(mean A) / mean exp(A), which the tuple decides and which is at most 1. A
candidate is kept with that probability here, and its weight leaves the ratio out; what is dropped has the weight 0 (and
V, for rounding). Mean and bound stay (theorem 5 b of docs/notes/amplification-proofs.md).
"""

from __future__ import annotations

import numpy as np

from factorize.exact.sampling.bets import CHUNK, Stream, Weights, star_picks, star_ratios, tables_of, uniforms
from factorize.exact.sampling.shared_bets import removal_of

CANDIDATES = 16_384
"""Of a chunk."""


def thinned_removal(gram: np.ndarray, scale: float, epsilon: float, order: int, shared: float) -> Weights:
    """Weights whose mean is delta where the example's contributions are taken out, most of them V alone.

    Args:
        gram: G rounded up, shape (bins, bins).
        scale: s, rounded down.
        epsilon: of the claim.
        order: m, at least 2.
        shared: t^2 of the claim.

    Raises:
        InvalidParameter: t, epsilon or m is beyond the limits, or G / s^2 - t^2 is no covariance.
    """
    found, bins = removal_of(gram, scale, epsilon, order, shared), len(gram)
    tables = tables_of(found.rest.kernel, order)

    def draw(stream: Stream) -> np.ndarray:
        drawn = uniforms(stream.words(CANDIDATES * (order + 1)))
        picks, chances = star_picks(found.rest, tables, drawn[: CANDIDATES * order].reshape(CANDIDATES, order))
        kept = np.flatnonzero(drawn[CANDIDATES * order :] < np.exp(chances))
        words = stream.words(len(kept) * bins, lane=1).reshape(len(kept), bins)
        weights = np.full(CANDIDATES, found.added)
        for start in range(0, len(kept), CHUNK):
            some = slice(start, start + CHUNK)
            ratio = star_ratios(found.rest, picks[kept[some]], words[some].ravel())
            weights[kept[some]] = found.weights(ratio, 0.0, order)
        return weights

    return Weights(found.bound, draw, CANDIDATES)
