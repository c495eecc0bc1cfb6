"""Dual evidence for a bound over all matrices under `min_sep` (lower_bounds/separated_bounds.py), for a banded optimum.

The patterns {j, j + b, j + 2b, ...} are those of fixed epochs of b steps. Workloads with a bidiagonal inverse take the
dual of `factorize.solvers.epochs.blocks`, in O(n k^2) for k epochs; if b does not divide n, steps before the first
fill up the first epoch, and their rows of the evidence are left out. Others are decomposed, up to LARGEST_DENSE;
beyond, they borrow the evidence of the prefix sum, since any evidence certifies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from factorize.certificate.lower_bounds.separated_bounds import (
    LARGEST_RING,
    disjoint_patterns,
    padded_inverse,
    ring_places,
)
from factorize.errors import SolveFailed
from factorize.solvers.problem import Problem, Reporter
from factorize.spec import Spec
from factorize.workloads.forms import BidiagonalInverse

Array = NDArray[np.float64]

LARGEST_DENSE = 256  # n up to which decompositions are worth the evidence
LARGEST_BORROWED = 1024  # n up to which the certificate's decomposition is, where it has no recurrence
_ACCURACY = 1e-2
_RING_ACCURACY = 5e-3  # a hundredth of what separates such a bound from the optimum, in a tenth of the steps to 1e-4
_LEAST, _MOST = 1e-60, 1e60  # of the inverse's entries, whose fourth powers must be safe
_DECOMPOSITIONS = 300.0  # in products: a dozen of singular values and vectors, measured with 64 to 256 steps
_MANY_EPOCHS = 28  # from which power steps are slow, so that Newton's method takes over
_NEWTON_STEPS = 1.4  # in products: two Hessians of that side, formed and factored
_RIDGE = 1e-12  # of the diagonal of a block that is cut out of a larger one


def banded_evidence(spec: Spec, report: Reporter) -> dict[str, Array]:
    """Return dual evidence for the workload that the spec evaluates on, or nothing where that is too dear.

    Args:
        spec: canonical spec with `min_sep`.
        report: asked after each step whether to go on.
    """
    own = Problem(spec.model_copy(update={"optimize_for": None}))
    if max(own.n, own.workload.m) <= LARGEST_DENSE:
        return {"factors": _by_decompositions(own, report)}
    factors = _by_ring(own, report)
    return {} if factors is None else {"factors": factors}


def work(spec: Spec) -> float:
    """Return the multiplications that the evidence takes, about."""
    n = float(spec.workload.n)
    epochs = n / spec.participation.spread(spec.workload.n).separation
    if n <= LARGEST_DENSE:
        unknowns = n * (epochs + 1) / 2 if epochs >= _MANY_EPOCHS else 0.0
        return _DECOMPOSITIONS * n**3 + _NEWTON_STEPS * unknowns**3
    ring = n * (epochs + 1) ** 2
    return 2000.0 * ring if ring <= LARGEST_RING else 0.0


def _by_decompositions(own: Problem, report: Reporter) -> Array:
    """Fixed epochs over the disjoint patterns; columns of zeros stand in for steps that a shorter pattern lacks."""
    from factorize.solvers.epochs.correlation_blocks import start
    from factorize.solvers.epochs.decompositions import DecompositionSearch
    from factorize.solvers.single.ascent import scaled

    separation, most, _ = own.participation.spread(own.n)
    patterns = disjoint_patterns(own.n, separation, most)
    order = patterns.ravel().copy()
    missing = order < 0
    order[missing] = own.n + np.arange(int(missing.sum()))
    target = np.hstack([scaled(own.target), np.zeros((len(own.target), int(missing.sum())))])
    search = DecompositionSearch(start(target, order, patterns.shape[1]), lambda step, _gap: report(step, None))
    search.run(_ACCURACY)
    return search.dual.factors


def _by_ring(own: Problem, report: Reporter) -> Array | None:
    """Factors from the dual of fixed epochs, or None where its blocks or the certificate's would be too large."""
    n = own.n
    b, most, _ = own.participation.spread(n)
    inverse = own.workload.bidiagonal_inverse()
    inverse = None if inverse is None else own.objective.weighted_inverse(inverse)
    structured = inverse is not None and _in_range(inverse)
    epochs = -(-n // b)
    if n * epochs**2 > LARGEST_RING or (not structured and max(n, own.workload.m) > LARGEST_BORROWED):
        return None
    found = inverse if inverse is not None and structured else BidiagonalInverse(np.ones(n), np.ones(n))
    try:
        dual = _ring_dual(padded_inverse(found, epochs * b), epochs, report)
    except (ValueError, FloatingPointError, SolveFailed):
        return None
    return _cut_out(dual, disjoint_patterns(n, b, most), epochs * b - n)


def _in_range(inverse: BidiagonalInverse) -> bool:
    return all(bool(((part[1:] >= _LEAST) & (part[1:] <= _MOST)).all()) for part in inverse)


def _ring_dual(inverse: BidiagonalInverse, epochs: int, report: Reporter) -> Array:
    """The blocks of the dual, shape (b, k, k)."""
    from factorize.solvers.epochs.blocks import Ring, maximise

    q = np.array(inverse.q)
    q[0] = 0.0
    ring = Ring(np.array(inverse.p), q, epochs)
    return maximise(ring, tolerance=_RING_ACCURACY, callback=lambda step, _gap: report(step, None)).point.dual


def _cut_out(dual: Array, patterns: NDArray[np.intp], extra: int) -> Array:
    """Factors of the blocks of the patterns, lower triangles in the order of their steps."""
    factors = np.zeros((*patterns.shape, patterns.shape[1]))
    for pattern, factor in zip(patterns, factors, strict=True):
        group, places = ring_places(pattern, extra, len(dual))
        block = dual[group][np.ix_(places, places)]
        block[np.diag_indices(len(block))] *= 1 + _RIDGE
        factor[: len(block), : len(block)] = np.linalg.cholesky(block)
    return factors
