"""Dual evidence for a bound over all matrices under `min_sep` (checker/bounds/block_resolvents.py), for any claim.

Few steps have the best that there is (separated.py). With more, patterns may overlap (overlapping.py): up to
LARGEST_DENSE those of steps, and up to LARGEST_CELLS those of some hundred cells. Beyond, and where patterns are so
long that few may be listed, the patterns {j, j + b, j + 2b, ...}, cut into pieces, are disjoint, so that the dual of
fixed epochs serves. Workloads with a bidiagonal inverse take it from a ring, in O(n k^2) for k epochs (pieces.py); if
b does not divide n, steps that nobody has fill up the first epoch. Others borrow the evidence of the prefix sum, since
any evidence certifies.
"""

import numpy as np

from factorize.solvers.epochs import separated
from factorize.solvers.epochs.cells import Cells
from factorize.solvers.epochs.overlapping import MAX_WORK, ascents, dual_carried, dual_of_patterns
from factorize.solvers.epochs.patterns import Places, disjoint_patterns
from factorize.solvers.epochs.steps import factors
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Problem, Reporter, StepReport
from factorize.solvers.single.dense import scaled, triangle
from factorize.spec import Spec
from factorize.workloads.operators import BidiagonalInverse

LARGEST_RING = 1 << 23  # n x k^2 of block resolvents, k = ceil(n / min_sep)
LARGEST_DENSE = 512  # n up to which decompositions are worth the evidence
LARGEST_CELLS = 2048  # the same for the few with factors of cells, and what the certificate decomposes
_CELLS = 128  # about: then the bound is 1 % below that of the steps' own patterns for n = 1024
LARGEST_BORROWED = 1024  # n up to which the certificate's decomposition is, where it has no recurrence
_ACCURACY = 3e-4  # a thousandth of what separates such a bound from the optimum
_LEAST, _MOST = 1e-60, 1e60  # of the inverse's entries, whose fourth powers must be safe
_RING = 1500.0  # multiplications for each step and pair of epochs
_ASCENT = 10.0  # in products of n x n
_DECOMPOSITIONS = 800.0  # in products of n x n: those of a hundred power steps, measured with 128 to 512 steps


def banded_evidence(spec: Spec, report: Reporter) -> dict[str, Array]:
    """Return dual evidence for the workload that the spec evaluates on, or nothing where that is too dear.

    Args:
        spec: canonical spec with `min_sep`.
        report: asked after each step whether to go on.
    """
    own = Problem(spec.model_copy(update={"optimize_for": None}))
    try:
        if _decomposed(own) and separated.is_short(spec):
            return separated.evidence(own, report)
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
        return _DECOMPOSITIONS * n**3
    if _fewer(own):
        return _DECOMPOSITIONS * (2.0 * _CELLS) ** 3 + _ASCENT * ascents(own.n) * n**3
    return _RING * n * (epochs + 1) ** 2 if n * epochs**2 <= LARGEST_RING else 0.0


def _epochs(own: Problem) -> int:
    return -(-own.n // own.participation.spread(own.n).separation)


def _decomposed(own: Problem) -> bool:
    """Whether the target is small enough to be decomposed at every step."""
    return max(own.n, own.workload.m) <= LARGEST_DENSE


def _fewer(own: Problem) -> int:
    """Return how far cells are apart under whose patterns steps may be listed, steps where these are few, or 0."""
    separation, most, _ = own.participation.spread(own.n)
    if _decomposed(own):
        return separation
    fewer = max(separation * _CELLS // own.n, 1)
    enough = fewer < separation and 2 * fewer <= MAX_WORK // most**3
    return fewer if enough and max(own.n, own.workload.m) <= LARGEST_CELLS else 0


def _by_cells(own: Problem, fewer: int, report: StepReport) -> dict[str, Array]:
    """Factors and patterns that overlap, of steps or of cells that are so far apart."""
    separation, most, _ = own.participation.spread(own.n)
    target, cells = triangle(scaled(own.target)), Cells(own.n, separation, fewer)
    few = target if fewer == separation else triangle(cells.sums(target))
    found = dual_of_patterns(few, disjoint_patterns(cells.count, fewer, most), fewer, most, report)
    if fewer < separation:
        found = dual_carried(target, cells, *found, report)
    return {"factors": found[0], "patterns": found[1].astype(np.float64)}


def _inverse(own: Problem) -> BidiagonalInverse | None:
    """The weighted workload's inverse, if it is bidiagonal and of safe numbers."""
    inverse = own.workload.bidiagonal_inverse()
    weighted = None if inverse is None else own.objective.weighted_inverse(inverse)
    if weighted is None or not all(((part[1:] >= _LEAST) & (part[1:] <= _MOST)).all() for part in weighted):
        return None
    return weighted


def _by_ring(own: Problem, report: Reporter) -> Array | None:
    """W from the dual of fixed epochs, or None where its blocks or the certificate's would be too large."""
    from factorize.solvers.epochs.blocks import Ring, after_power_step, maximise
    from factorize.solvers.epochs.pieces import PieceRing

    n, inverse = own.n, _inverse(own)
    if n * _epochs(own) ** 2 > LARGEST_RING or (inverse is None and max(n, own.workload.m) > LARGEST_BORROWED):
        return None
    p, q, patterns = _pieces(own, inverse)
    ring = PieceRing(Ring(p, q, _epochs(own)), patterns)
    end = maximise(ring, tolerance=_ACCURACY, report=lambda step, _gap: report(step, None), coarse=True)
    return after_power_step(end.best)


def _patterns(own: Problem) -> Places:
    separation, most, _ = own.participation.spread(own.n)
    return disjoint_patterns(own.n, separation, most)


def _pieces(own: Problem, inverse: BidiagonalInverse | None) -> tuple[Array, Array, Places]:
    """An inverse, or that of the prefix sum, after steps that fill up the first epoch, and the patterns in it."""
    n, epochs, patterns = own.n, _epochs(own), _patterns(own)
    bidiagonal = BidiagonalInverse(np.ones(n), np.ones(n)) if inverse is None else inverse
    size = epochs * own.participation.spread(n).separation
    before = np.full(size - n, bidiagonal.p[0])
    p, q = (np.concatenate([before, part]) for part in bidiagonal)
    q[size - n], q[0] = p[0], 0.0
    return p, q, np.where(patterns >= 0, patterns + size - n, -1)
