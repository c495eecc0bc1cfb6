"""The lower bound within a band, in doubles: evidence F from C itself, and what it costs over its class.

For any F and every Y of the class with unit diagonal, tr(M Y^-1) + tr(F F^T Y) >= 2 tr(Q^T T F) / |Q|_2, with M = T^T T
and any Q. Y is zero outside the band and at most 1 inside, so tr(F F^T Y) is at most the trace of F F^T plus its
absolute entries in the band. For Z = T X^-1, X = C^T C, the best of the class has no entries of Z^T Z within the band,
off the diagonal. F is near the root of Z^T Z without them; then Z F^-T is near the polar factor of T F.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from factorize.checker.arithmetic.near import TINY, NotEnclosed
from factorize.checker.bounds.evidence import Evidence
from factorize.checker.doubles.nuclear_norms import WeightedTarget
from factorize.checker.doubles.roundings import SLACK, finite, gamma
from factorize.checker.doubles.triangles import gram, inverse_of

_ADDED = (0.0, 1e-15, 1e-13, 1e-11)
"""Of the largest entry, to a diagonal that rounding has made indefinite: any F proves something."""


def band_evidence(weighted: WeightedTarget, inverse: np.ndarray, bands: int) -> tuple[Evidence, np.ndarray]:
    """Return F, and something near the polar factor of W A F.

    Args:
        weighted: W A.
        inverse: N near C^-1.
        bands: diagonals of the class, the main one included.

    Raises:
        NotEnclosed: C is too far from the best of its class, or numbers leave the range of doubles.
    """
    n = len(inverse)
    with np.errstate(all="ignore"):
        both = weighted.guess(inverse @ inverse.T)
        weights = gram(both)
        for d in range(1, min(bands, n)):
            places = np.arange(n - d)
            weights[places, places + d] = weights[places + d, places] = 0.0
        finite(float(np.einsum("ij->", weights)))
        root = _root(weights)
        guess = both @ inverse_of(root).T
    return Evidence(np.arange(n)[None], root[None]), guess


def _root(weights: np.ndarray) -> np.ndarray:
    for added in _ADDED:
        try:
            return np.asarray(np.linalg.cholesky(weights + added * weights.max() * np.eye(len(weights))))
        except np.linalg.LinAlgError:
            continue
    raise NotEnclosed("C is too far from the best of its class for a bound of this kind")


def cost_in_band(factor: Evidence, bands: int) -> Fraction:
    """At least the trace of F F^T and its absolute entries in the band."""
    root = factor.blocks[0]
    n, total, sizes = len(root), [], 0.0
    norms = np.sqrt(np.einsum("ij,ij->i", root, root)) * (1 + gamma(n + 4))
    for d in range(min(bands, n)):
        entries = np.abs(np.einsum("ij,ij->i", root[d:], root[: n - d]))
        total.append(math.fsum(entries.tolist()) * (2 if d else 1))
        sizes += float((norms[d:] * norms[: n - d]).sum()) * (2 if d else 1)
    found = (math.fsum(total) + gamma(n + 2) * sizes * (1 + SLACK) * (1 + gamma(n))) * (1 + SLACK) + n * n * TINY
    finite(found)
    return Fraction(found)
