"""A lower bound over all matrices for participations that are at least `min_sep` steps apart.

The patterns {j, j + b, j + 2b, ...}, b = min_sep, j < b, cut into pieces of at most `most` steps, are disjoint, and
each is an allowed participation. A matrix of sensitivity 1 over all allowed patterns has sensitivity at most 1 over
these few, so the optimum is at least the optimum for them, and that has a dual for disjoint patterns of any sizes
(mathematics F.2): for U = F F^T block diagonal over the patterns and any X, with X_p <= Diag(l) and sum l <= 1 for each
pattern p,

    tr(M X^-1) + tr(U X) >= 2 |T F|_*,     tr(U X) <= sum over p of tr(U_p Diag(l)) <= sum over p of max_i U_ii = cost

hence tr(M X^-1) >= |T F|_*^2 / cost by the best scaling of F. The bound is not attained in general: patterns with other
distances are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from factorize.bounds import LowerBound, nuclear_norm_below
from factorize.errors import CertificateError
from factorize.participation import MinSep
from factorize.rounding import UNIT
from factorize.spec import Spec

SEPARATED_RULE = "nuclear norm dual over disjoint patterns min_sep apart"
LARGEST = 2048


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
    n = spec.workload.n
    if not isinstance(spec.participation, MinSep) or "factors" not in dual or spec.objective.kind == "max":
        return None
    if max(n, spec.workload.m) > LARGEST:
        return None
    factor, cost = _block_factor(dual["factors"], spec.participation, n)
    target = spec.objective.weigh(spec.workload.dense())
    norm = nuclear_norm_below(target @ factor)
    bound = spec.objective.scale(spec.workload.m) * norm**2 / cost * (1 - 16 * n * UNIT)
    return LowerBound(bound, SEPARATED_RULE)


def _block_factor(factors: np.ndarray, participation: MinSep, n: int) -> tuple[np.ndarray, float]:
    patterns = disjoint_patterns(n, participation.min_sep, participation.count(n))
    k = patterns.shape[1]
    if factors.shape != (len(patterns), k, k) or not np.isfinite(factors).all():
        raise CertificateError(f"dual.factors must be finite, of shape {(len(patterns), k, k)}; got {factors.shape}")
    factor, cost = np.zeros((n, len(patterns) * k)), 0.0
    for p, (pattern, block) in enumerate(zip(patterns, factors, strict=True)):
        used = pattern >= 0
        factor[pattern[used], p * k : (p + 1) * k] = block[used]
        cost += float((block[used] ** 2).sum(axis=1).max())
    if not cost > 0:
        raise CertificateError("dual.factors are all zero; evidence needs one positive number")
    return factor, cost
