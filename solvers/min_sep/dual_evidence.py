"""Dual evidence for a bound over all matrices under `min_sep` (checker/bounds/block_resolvents.py), for any claim.

For few steps it is the optimum (min_sep_optimum.py). For more, patterns may overlap (overlapping_patterns.py): up to
MAX_N_DENSE patterns of steps, and up to MAX_N_CELLS patterns of some hundred cells. Beyond, and where patterns are so
long that few may be listed, the patterns {j, j + b, j + 2b, ...}, cut into pieces, are disjoint, so that the dual of
fixed epochs serves. Workloads with a bidiagonal inverse take it from a ring (pattern_ring.py), in O(n k^2) for k
epochs; if b does not divide n, steps that nobody has fill up the first epoch. Other workloads borrow the evidence of
the prefix sum, since any evidence certifies.
"""

import numpy as np

from factorize.solvers.epochs.class_blocks import factors
from factorize.solvers.methods.compiled import Array
from factorize.solvers.min_sep import min_sep_optimum
from factorize.solvers.min_sep.cells import Cells
from factorize.solvers.min_sep.overlapping_patterns import MAX_BLOCK_WORK, ascents, dual_carried, dual_of_patterns
from factorize.solvers.min_sep.patterns import Places, disjoint_patterns
from factorize.solvers.problem import Problem, Reporter, StepReport
from factorize.solvers.single.dense import scaled, triangle
from factorize.spec import Spec
from factorize.workloads.operators import BidiagonalInverse

MAX_RING_WORK = 1 << 23  # the limit of n x k^2 of block resolvents, k = ceil(n / min_sep)
MAX_N_DENSE = 512  # up to this n decompositions are worth the evidence
MAX_N_CELLS = 2048  # up to this n the few with factors of cells are worth it, and what the certificate decomposes
_CELLS = 128  # this many cells, about, give a bound 1 % below that of the steps' own patterns for n = 1024
MAX_N_BORROWED = 1024  # up to this n the certificate decomposes what has no recurrence
_ACCURACY = 3e-4  # the relative accuracy, a thousandth of what separates such a bound from the optimum
_MIN_ENTRY, _MAX_ENTRY = 1e-60, 1e60  # limits of the inverse's entries, whose fourth powers must be safe
_RING_STEP_WORK = 1500.0  # multiplications for each step and pair of epochs
_ASCENT_WORK = 10.0  # products of n x n matrices in a power step
_DECOMPOSITION_WORK = 800.0  # products of n x n matrices in a hundred power steps, measured with 128 to 512 steps


def banded_evidence(spec: Spec, report: Reporter) -> dict[str, Array]:
    """Return dual evidence for the workload that the spec evaluates on, or nothing where that is too dear.

    Args:
        spec: canonical spec with `min_sep`.
        report: asked after each step whether to go on.
    """
    own = Problem(spec.model_copy(update={"optimize_for": None}))
    try:
        if _decomposed(own) and min_sep_optimum.is_short(spec):
            return min_sep_optimum.evidence(own, report)
        if fewer := _fewer(own):
            return _by_cells(own, fewer, report)
        dual = _by_ring(own, report)
    except (ValueError, FloatingPointError, np.linalg.LinAlgError):  # numbers that leave the range of doubles
        return {}
    return {} if dual is None else {"factors": factors(dual)}


def work(spec: Spec) -> float:
    """Return the multiplications that the evidence takes, about."""
    own = Problem(spec.model_copy(update={"optimize_for": None}))
    n, epochs = float(own.n), _epochs(own)
    if _decomposed(own):
        return _DECOMPOSITION_WORK * n**3
    if _fewer(own):
        return _DECOMPOSITION_WORK * (2.0 * _CELLS) ** 3 + _ASCENT_WORK * ascents(own.n) * n**3
    return _RING_STEP_WORK * n * (epochs + 1) ** 2 if n * epochs**2 <= MAX_RING_WORK else 0.0


def _epochs(own: Problem) -> int:
    return -(-own.n // own.participation.spread(own.n).separation)


def _decomposed(own: Problem) -> bool:
    """Return whether the target is small enough to be decomposed at every step."""
    return max(own.n, own.workload.m) <= MAX_N_DENSE


def _fewer(own: Problem) -> int:
    """Return how far cells are apart under whose patterns steps may be listed, steps where these are few, or 0."""
    separation, most, _ = own.participation.spread(own.n)
    if _decomposed(own):
        return separation
    fewer = max(separation * _CELLS // own.n, 1)
    enough = fewer < separation and 2 * fewer <= MAX_BLOCK_WORK // most**3
    return fewer if enough and max(own.n, own.workload.m) <= MAX_N_CELLS else 0


def _by_cells(own: Problem, fewer: int, report: StepReport) -> dict[str, Array]:
    """Return factors and patterns that overlap, of steps or of cells that are so far apart."""
    separation, most, _ = own.participation.spread(own.n)
    target, cells = triangle(scaled(own.target)), Cells(own.n, separation, fewer)
    few = target if fewer == separation else triangle(cells.sums(target))
    found = dual_of_patterns(few, disjoint_patterns(cells.count, fewer, most), fewer, most, report)
    if fewer < separation:
        found = dual_carried(target, cells, *found, report)
    return {"factors": found[0], "patterns": found[1].astype(np.float64)}


def _inverse(own: Problem) -> BidiagonalInverse | None:
    """Return the weighted workload's inverse, if it is bidiagonal and of safe numbers."""
    inverse = own.workload.bidiagonal_inverse()
    weighted = None if inverse is None else own.objective.weighted_inverse(inverse)
    if weighted is None or not all(((part[1:] >= _MIN_ENTRY) & (part[1:] <= _MAX_ENTRY)).all() for part in weighted):
        return None
    return weighted


def _by_ring(own: Problem, report: Reporter) -> Array | None:
    """Return W from the dual of fixed epochs, or None where its blocks or the certificate's would be too large."""
    from factorize.solvers.epochs.blocks import Ring, after_power_step, maximise
    from factorize.solvers.min_sep.pattern_ring import PieceRing

    n, inverse = own.n, _inverse(own)
    if n * _epochs(own) ** 2 > MAX_RING_WORK or (inverse is None and max(n, own.workload.m) > MAX_N_BORROWED):
        return None
    p, q, patterns = _pieces(own, inverse)
    ring = PieceRing(Ring(p, q, _epochs(own)), patterns)
    end = maximise(ring, tolerance=_ACCURACY, report=lambda step, _gap: report(step, None), coarse=True)
    return after_power_step(end.best)


def _patterns(own: Problem) -> Places:
    separation, most, _ = own.participation.spread(own.n)
    return disjoint_patterns(own.n, separation, most)


def _pieces(own: Problem, inverse: BidiagonalInverse | None) -> tuple[Array, Array, Places]:
    """Return an inverse, or the prefix sum's, after steps that fill up the first epoch, and the patterns in it."""
    n, epochs, patterns = own.n, _epochs(own), _patterns(own)
    bidiagonal = BidiagonalInverse(np.ones(n), np.ones(n)) if inverse is None else inverse
    size = epochs * own.participation.spread(n).separation
    before = np.full(size - n, bidiagonal.p[0])
    p, q = (np.concatenate([before, part]) for part in bidiagonal)
    q[size - n], q[0] = p[0], 0.0
    return p, q, np.where(patterns >= 0, patterns + size - n, -1)
