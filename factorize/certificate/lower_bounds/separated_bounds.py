"""A lower bound over all matrices for participations that are at least `min_sep` steps apart.

The patterns {j, j + b, j + 2b, ...}, b = min_sep, j < b, cut into pieces of at most `most` steps, are disjoint, and
each is an allowed participation. A matrix of sensitivity 1 over all allowed patterns has sensitivity at most 1 over
these few, so the optimum is at least the optimum for them, and that has a dual for disjoint patterns of any sizes
(docs/notes/method.md): for U = F F^T block diagonal over the patterns and any X, with X_p <= Diag(l) and sum l <= 1
for each pattern p,

    tr(M X^-1) + tr(U X) >= 2 |T F|_*,     tr(U X) <= sum over p of tr(U_p Diag(l)) <= sum over p of max_i U_ii = cost

hence tr(M X^-1) >= |T F|_*^2 / cost by the best scaling of F. The bound is not attained in general: patterns with other
distances are left out.

Where the weighted workload has a bidiagonal inverse, the norm costs O(n k^2) for k = ceil(n / b): the patterns are the
classes of k epochs of b steps, once steps are added *before* the first to fill k b. With them the target is larger only
in rows of zeros and in columns for which F has no entries, so the norm is the same (`block_resolvents.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from factorize.certificate.lower_bounds import block_resolvents
from factorize.certificate.lower_bounds.bounds import LowerBound, nuclear_norm_by_squares
from factorize.errors import CertificateError
from factorize.numbers.rounding import UNIT
from factorize.spec import Spec
from factorize.workloads.forms import BidiagonalInverse

SEPARATED_RULE = "nuclear norm dual over disjoint patterns min_sep apart"
SEPARATED_RING_RULE = "nuclear norm dual over disjoint patterns min_sep apart, by block resolvents"
LARGEST = 2048  # of matrices that are decomposed
LARGEST_RING = 1 << 23  # n x k^2 of block resolvents, k = ceil(n / min_sep)
_DIRECT_SVD = 640  # n up to which a decomposition is always quick enough
_STEPS_OF_A_RING = 82  # n over the number of epochs from which block resolvents are quicker than a decomposition


def disjoint_patterns(n: int, min_sep: int, most: int) -> np.ndarray:
    """Return disjoint allowed patterns that cover all steps, shape (patterns, most), filled up with -1."""
    found = []
    for j in range(min(min_sep, n)):
        steps = np.arange(j, n, min_sep)
        for start in range(0, len(steps), most):
            piece = steps[start : start + most]
            found.append(np.concatenate([piece, np.full(most - len(piece), -1)]))
    return np.array(found)


def separated_lower_bound(spec: Spec, dual: Mapping[str, np.ndarray]) -> LowerBound | None:
    """Return the bound that `factors`, shape (patterns, most, most), certify, or None where there are none.

    Raises:
        CertificateError: the factors have the wrong shape, are not finite or are all zero.
    """
    participation = spec.participation
    if not participation.free or "factors" not in dual or not spec.objective.quadratic:
        return None
    n, scale = spec.workload.n, spec.objective.scale(spec.workload.m)
    separation, most, _ = participation.spread(n)
    patterns = disjoint_patterns(n, separation, most)
    factors, cost = _checked(dual["factors"], patterns)
    norm = None if _decomposed(spec, separation) else _ring_norm(spec, separation, patterns, factors)
    if norm is not None:
        return LowerBound(scale * norm**2 / cost * (1 - 8 * UNIT), SEPARATED_RING_RULE)
    if max(n, spec.workload.m) > LARGEST:
        return None
    whole = np.zeros((n, factors.shape[0] * factors.shape[2]))
    for place, (pattern, block) in enumerate(zip(patterns, factors, strict=True)):
        whole[pattern[pattern >= 0], place * len(block) : (place + 1) * len(block)] = block[pattern >= 0]
    norm = nuclear_norm_by_squares(spec.objective.weigh(spec.workload.apply(whole)))
    return LowerBound(scale * norm**2 / cost * (1 - 16 * n * UNIT), SEPARATED_RULE)


def _decomposed(spec: Spec, min_sep: int) -> bool:
    """Whether a decomposition is quicker than block resolvents: 2e-10 n^3 seconds beside 1.3e-6 n k^2, measured."""
    n = spec.workload.n
    few_steps = n <= _STEPS_OF_A_RING * -(-n // min_sep) and max(n, spec.workload.m) <= LARGEST
    return n <= _DIRECT_SVD or few_steps


def padded_inverse(inverse: BidiagonalInverse, size: int) -> BidiagonalInverse:
    """Return the inverse with steps before the first, like it; its last n columns are those of A below zeros.

    Args:
        inverse: of A, n steps.
        size: number of steps wanted, at least n.
    """
    p, q = (np.asarray(part, dtype=np.float64) for part in inverse)
    extra = size - len(p)
    first = np.full(extra, p[0])
    return BidiagonalInverse(np.concatenate([first, p]), np.concatenate([first, [p[0] if extra else q[0]], q[1:]]))


def ring_places(pattern: np.ndarray, extra: int, min_sep: int) -> tuple[int, np.ndarray]:
    """Return the class of a pattern and its epochs, `extra` steps having been added before the first."""
    places = pattern[pattern >= 0] + extra
    return int(places[0]) % min_sep, places // min_sep


def _ring_norm(spec: Spec, min_sep: int, patterns: np.ndarray, factors: np.ndarray) -> float | None:
    """Return |T F|_* below, or None where T has no bidiagonal inverse or there are too many epochs."""
    n, epochs = spec.workload.n, -(-spec.workload.n // min_sep)
    inverse = spec.workload.bidiagonal_inverse() if n * epochs**2 <= LARGEST_RING else None
    weighted = None if inverse is None else spec.objective.weighted_inverse(inverse)
    if weighted is None:
        return None
    extra = epochs * min_sep - n
    blocks = np.zeros((min_sep, epochs, epochs))
    for pattern, factor in zip(patterns, factors, strict=True):
        group, places = ring_places(pattern, extra, min_sep)
        blocks[group][np.ix_(places, places)] = factor[: len(places), : len(places)]
    return block_resolvents.nuclear_norm_below(padded_inverse(weighted, epochs * min_sep), blocks)


def _checked(factors: np.ndarray, patterns: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the factors, times a power of two, with zeros where a pattern has no step, and their cost rounded up.

    Columns that a shorter pattern does not need are cleared as well: that makes F F^T smaller, which proves less.
    """
    count, k = patterns.shape
    if factors.shape != (count, k, k) or not np.isfinite(factors).all():
        raise CertificateError(f"dual.factors must be finite, of shape {(count, k, k)}; got {factors.shape}")
    used = patterns >= 0
    kept = np.where(used[:, :, None] & used[:, None, :], factors, 0.0)
    if not kept.any():
        raise CertificateError("dual.factors are all zero; evidence needs one positive number")
    # Any scale proves the same, and squares of numbers near 1e-160 have no digits left.
    kept = np.ldexp(kept, -np.frexp(np.abs(kept).max())[1])
    squares = np.einsum("jik,jik->ji", kept, kept).max(axis=1)
    return kept, math.fsum(squares) * (1 + (k + 4) * UNIT)
