"""Fixed epochs for workloads with a bidiagonal inverse: from a spec to C, without a decomposition of an n x n matrix.

The dual comes from `blocks`, X from `gram`, C from `cholesky`.  The result is that
of `decompositions`, to the same certificate.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from factorize.errors import SolveFailed
from factorize.solution import ProgressCallback, Solution
from factorize.solvers.budget import Estimate, estimate_of, refuse_beyond_dense
from factorize.solvers.problem import Problem, Reporter, StepReport, outline_of
from factorize.spec import Spec
from factorize.workloads import Workload
from factorize.workloads.forms import BidiagonalInverse

if TYPE_CHECKING:
    from factorize.solvers.epochs.blocks import Ring

SMALLEST = 128
"""Below this decompositions are as fast, and compiled code need not be loaded."""

LARGEST_EPOCHS = 128
SHORTEST_EPOCH = 4
"""With fewer steps per epoch the blocks are nearly the whole matrix."""

_SAFETY = 0.3  # stop this far below the tolerance, so that the certificate's own allowances fit in
_BEYOND, _FARTHEST = 0.01, 1e-11
"""A part of the tolerance, and the least gap, to which steps go on: each is cheap beside a product of whole matrices,
of which the proof makes two less where its guess is as near to a polar factor as the root of that gap."""
_GRAM_ERROR = 0.02
"""Relative error of X beside the root of the tolerance. What it costs is some twenty times its square: 1 % of that."""
_POLES = 32


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    if not spec.participation.periodic:
        return "the ring of epochs needs fixed_epochs"
    n = (spec.optimize_for or spec.workload).n
    epochs = spec.participation.spread(n).most
    if n < SMALLEST or epochs > LARGEST_EPOCHS or n < SHORTEST_EPOCH * epochs:
        return f"n={n} with {epochs} epochs is solved as fast by decompositions"
    return None if _inverse(spec, outline_of(spec)) is not None else "the weighted workload has no bidiagonal inverse"


def estimate(spec: Spec) -> Estimate:
    """Return the cost: C, B and their product in the certificate outweigh the solve until epochs are many."""
    n, epochs = float(spec.workload.n), spec.participation.spread(spec.workload.n).most
    solve = 20 * _POLES * 12 * n * epochs**2 + _POLES * 2 * epochs * n * n
    return refuse_beyond_dense(
        estimate_of(entries=6 * n * n + 4 * _POLES * n * epochs, multiplications=solve + 2 * n**3), int(n), int(n)
    )


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the optimum of a spec with fixed epochs, C whole.

    Raises:
        SolveFailed: the workload's numbers leave the range of double precision, or X is not definite in it.
    """
    from factorize.solvers.epochs.blocks import maximise
    from factorize.solvers.epochs.cholesky import reverse_cholesky
    from factorize.solvers.epochs.gram import masked, whole_gram
    from factorize.solvers.epochs.steps import factors

    report = Reporter(progress)
    tolerance = _SAFETY * problem.tolerance
    try:
        ring = ring_of(problem)
        beyond = max(_BEYOND * problem.tolerance, _FARTHEST)
        ascent = maximise(ring, tolerance=tolerance, beyond=beyond, report=report)
        dual = factors(ascent.best.dual)
        poles = ring.poles(ascent.best.dual, _GRAM_ERROR * math.sqrt(problem.tolerance))
        gram = whole_gram(ring, replace(ascent.best, poles=poles))
        masked(gram, ring.epochs)
        strategy = reverse_cholesky(gram, overwrite=True)
    except (ValueError, FloatingPointError) as error:
        raise SolveFailed(f"{error}; rescale the workload or use a milder schedule") from None
    return Solution(
        strategy=problem.with_unit_sensitivity(strategy),
        outcome=ascent.outcome,
        iterations=ascent.steps,
        dual={"factors": dual},
    )


def dual_factors(problem: Problem, accuracy: float, report: StepReport) -> np.ndarray:
    """Return dual factors, shape (b, k, k), with a bound within about `accuracy` of the optimum; no n x n array.

    Raises:
        SolveFailed: the workload's numbers leave the range of double precision.
    """
    from factorize.solvers.epochs.blocks import after_power_step, maximise
    from factorize.solvers.epochs.steps import factors

    try:
        point = maximise(ring_of(problem), tolerance=accuracy, report=report, coarse=True).best
        return factors(after_power_step(point))
    except (ValueError, FloatingPointError) as error:
        raise SolveFailed(f"{error}; rescale the workload or use a milder schedule") from None


def ring_of(problem: Problem) -> Ring:
    """Return the weighted workload folded by epochs.

    Raises:
        ValueError: its numbers leave the range in which their fourth powers are safe.
    """
    from factorize.solvers.epochs.blocks import Ring
    from factorize.solvers.single.newton import require_range

    inverse = _inverse(problem.spec, problem.workload)
    assert inverse is not None  # see `supports`
    p, q = (np.array(part, dtype=np.float64) for part in inverse)
    q[0] = 0.0
    require_range("p", p, 1e-60, 1e60)
    require_range("q", q[q != 0.0], 1e-60, 1e60)
    return Ring(p, q, problem.participation.spread(problem.n).most)


def _inverse(spec: Spec, workload: Workload) -> BidiagonalInverse | None:
    inverse = workload.bidiagonal_inverse()
    return None if inverse is None else spec.objective.weighted_inverse(inverse)
