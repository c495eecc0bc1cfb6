"""Single participation with few buffers: the optimum, truncated to a recurrence of given order and optimised again.

The optimum over all matrices is a recurrence with as many buffers as its poles need for full accuracy
(streaming.py). With few buffers, poles, weights and v are worth optimising together (profiles.py,
quasi_newton.py): at n = 2048, 6 buffers come from 5e-5 of the optimum to 2e-6. Columns are normalised, so the
sensitivity is exact. Above some thousand steps the profiles are found on a thinned workload and carried over with
the Hessian there; only a few steps remain.

Momentum, Nesterov and SRG have several states per pole. There C itself is projected,
while an array of its size fits.
Fixed epochs are another search (redrawn.py).

The projection is a recurrence with few states near a given matrix. The rows below step i, restricted to the columns up
to i, are a matrix that m states would have to factor; its m strongest right singular vectors are tracked from step to
step, each step adding a column and dropping a row.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.certificate import RESIDUAL_LIMIT
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.buffered import redrawn
from factorize.solvers.buffered.profiles import BufferedLoss, places, starts_of_blocks, unit_columns
from factorize.solvers.methods.compiled import Array
from factorize.solvers.methods.poles import zolotarev_with
from factorize.solvers.methods.quasi_newton import descend, differences
from factorize.solvers.methods.search import End, Iterate
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, mechanism_of, outline_of
from factorize.solvers.single import few_states
from factorize.solvers.single.bidiagonal import Bidiagonal, refuse_far
from factorize.solvers.single.few_states import is_filtered, structure_of
from factorize.solvers.single.newton import PolePoint, maximise
from factorize.spec import Spec
from factorize.spec.mechanisms import BufferedLinear
from factorize.structures.buffered import BufferedMatrix

MAX_BUFFERS = 24
"""Double precision loses more buffers: the pivots of the factor subtract, and 16 are within 1e-9 up to n = 10^6."""

_MAX_N_PROJECTED = 8192
_STEP_WORK = 1.5e6
"""Multiplications of a projection by buffers and steps, measured from 256 to 2000 steps with 1 and 4 buffers."""
_MAX_DIRECT_STEPS = 4096  # a solve from scratch of up to this many steps takes seconds
_THINNING = 8
_LOWER_END = 1.2  # the poles' interval begins at this times the spectrum's lower end, which row sums state too low
_UPPER_ENDS = (10.0, 5.0, 2.5, 1.2, 0.6)  # the poles' interval may end at these multiples of the spectrum's upper end
_SPACING = 4.0  # the distance of the splines in log i
_MAX_STEPS = 640
_WINDOW_STEPS, _MIN_GAIN = 40, 0.001  # the search ends when this many steps gain less than this part of the value
_QUICK_TOLERANCE, _MAX_N_QUICK = 1e-2, 2**15
"""From this tolerance and above that n the search is on coarse grids only; the error is up to one percent larger."""
_DUAL_ACCURACY = 1e-9
_TOLERANCE_SHARE = 0.5  # the search ends at this part of the tolerance: the certified bound is a little lower


def buffers_of(spec: Spec) -> int:
    """Return the number of buffers asked for."""
    return mechanism_of(spec, BufferedLinear).buffers


def own(spec: Spec) -> bool:
    """Return whether a spec has neither fixed epochs nor redraws."""
    return not redrawn.own(spec)


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    workload, buffers = spec.optimize_for or spec.workload, buffers_of(spec)
    if not spec.participation.single:
        return "buffered_linear supports only single participation and fixed_epochs; use banded or nu_toeplitz"
    if buffers > MAX_BUFFERS:
        return f"buffers={buffers} exceeds {MAX_BUFFERS}, the most that double precision can tell apart; use fewer"
    if buffers > workload.n // 2:
        return f"buffers={buffers} exceeds n // 2 = {workload.n // 2}, the largest rank below the diagonal; use dense"
    outline = outline_of(spec)
    inverse = outline.bidiagonal_inverse()
    weighted = None if inverse is None else spec.objective.weighted_inverse(inverse)
    if weighted is not None:
        return refuse_far(weighted)
    if spec.objective.uniform and is_filtered(outline):
        if workload.n <= _MAX_N_PROJECTED:
            return None
        return (
            f"buffered_linear solves the {workload.kind} workload up to n={_MAX_N_PROJECTED}; got n={workload.n}; use "
            "blt, or optimize_for the same learning rates without momentum"
        )
    return (
        f"buffered_linear cannot optimise the {workload.kind} workload under objective {spec.objective.kind!r}: it "
        "has no banded inverse with positive entries (is a learning rate or weight 0?); use dense or nu_toeplitz"
    )


def estimate(spec: Spec) -> Estimate:
    """Return the cost: the dual, a few hundred gradients of 40 operations per step and pair of buffers, and arrays."""
    n, buffers = float(spec.workload.n), buffers_of(spec)
    if n <= _MAX_N_PROJECTED and outline_of(spec).bidiagonal_inverse() is None:
        return estimate_of(
            entries=3 * n * n, multiplications=n * n * (buffers**2 + 100) + _STEP_WORK * n * (buffers + 1)
        )
    gradients = 20 if _is_carried_over(spec.workload.n, spec.tolerance) else 160
    work = 300 * 40 * n + gradients * 40 * n * (buffers + 2) ** 2
    return estimate_of(entries=n * (24 * buffers + 200), multiplications=50 * work)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the streaming strategy with the given number of buffers.

    Raises:
        SolveFailed: the workload is singular to double precision, or its numbers leave its range.
    """
    structure = structure_of(problem.workload, problem.spec)
    report = Reporter(progress)
    buffers = buffers_of(problem.spec)
    try:
        if isinstance(structure, Bidiagonal):
            return _stream(problem, structure, buffers, report)
        if structure is not None:
            return _project(problem, buffers, progress)
    except (ValueError, FloatingPointError) as error:
        raise SolveFailed(f"{error}; use fewer buffers than {buffers}, or a milder schedule") from None
    raise SolveFailed(f"no recurrence with few buffers was found for the {problem.workload.kind} workload; use dense")


def _stream(problem: Problem, structure: Bidiagonal, buffers: int, report: Reporter) -> Solution:
    search = optimise(structure.p, structure.q, buffers, problem.tolerance, report)
    return Solution(
        strategy=search.loss.strategy(search.end.best.z),
        outcome=Outcome.ITERATION_LIMIT if search.end.outcome is Outcome.ITERATION_LIMIT else Outcome.CONVERGED,
        iterations=search.end.steps,
        dual={"weights": search.optimum.v / search.optimum.v.sum()},
    )


@dataclass(frozen=True)
class BufferedOptimum:
    """The end of an optimisation.

    Attributes:
        loss: the function, with the arrays of its strategy.
        end: the end of the search, where the loss is stationary.
        optimum: the dual without a limit on buffers.
    """

    loss: BufferedLoss
    end: End[Iterate]
    optimum: PolePoint


def optimise(
    p: Array, q: Array, buffers: int, tolerance: float, report: Reporter, *, intervals: int | None = None
) -> BufferedOptimum:
    """Return profiles whose loss is stationary, for a workload with (W A)^-1 of diagonal p and subdiagonal -q.

    Args:
        p: shape (n,), positive.
        q: shape (n,), non-negative, ``q[0] = 0``.
        buffers: the number of buffers.
        tolerance: tolerance on the loss relative to its lower bound.
        report: told of the steps.
        intervals: the number of the splines' intervals; chosen by n if left out.

    Raises:
        FloatingPointError: the plain truncation is lost to rounding already.
        ValueError: the numbers leave the range of the dual's solver.
    """
    if intervals is None:
        intervals = max(1, math.ceil(2 * float(np.abs(places(q)).max()) / _SPACING))
    coarse = thinned(p, q) if len(p) > _MAX_DIRECT_STEPS else None
    before = coarse and optimise(*coarse, buffers, tolerance, report.within("coarse grid"), intervals=intervals)
    structure = Bidiagonal(p, q)
    optimum = maximise(structure, tolerance=_DUAL_ACCURACY, report=lambda step, _gap: report(step, None)).best
    loss = BufferedLoss(p, q, optimum.v, buffers, optimum.lower_bound, intervals)
    value = _choose_poles(loss, structure.interval(optimum.v), buffers)
    z = loss.origin
    if before is not None and loss.value(before.end.best.z) < value:
        z = before.end.best.z
    first = Iterate(z, *loss(z))
    hessian = None
    carried_over = before is not None and _is_carried_over(len(p), tolerance)
    if not carried_over and first.value > _TOLERANCE_SHARE * tolerance:
        function, at = (loss, first) if before is None else (before.loss, before.end.best)
        hessian = differences(function, at, lambda: report(1, first.value))
    end = descend(
        loss.certified,
        first,
        tolerance=_TOLERANCE_SHARE * tolerance,
        enough=_MIN_GAIN,
        window=_WINDOW_STEPS,
        most=0 if carried_over else _MAX_STEPS,
        report=report,
        hessian=hessian,
    )
    return BufferedOptimum(loss, end, optimum)


def _is_carried_over(n: int, tolerance: float) -> bool:
    """Return whether profiles of the coarse grid are taken as they are, since steps of so many rows take seconds."""
    return n > _MAX_N_QUICK and tolerance >= _QUICK_TOLERANCE


def _choose_poles(loss: BufferedLoss, interval: tuple[float, float], buffers: int) -> float:
    """Set the poles whose truncation is best, and return its distance."""
    low, high = _LOWER_END * interval[0], interval[1]
    candidates = [zolotarev_with(low, max(low, high * reach), count=buffers + 1) for reach in _UPPER_ENDS]
    values = []
    for poles in candidates:
        loss.use(poles)
        values.append(loss.value(loss.origin))
    best = int(np.argmin(values))
    if not math.isfinite(values[best]):
        raise FloatingPointError(f"{buffers} poles coincide to double precision")
    loss.use(candidates[best])
    return values[best]


def thinned(p: Array, q: Array) -> tuple[Array, Array] | None:
    """Return a workload with an eighth of the steps whose profiles are like those of the whole, or None.

    Within long blocks every eighth step is kept; of short blocks, those in the middle.
    """
    n = len(p)
    starts = np.append(starts_of_blocks(q), n)
    if np.diff(starts).max() > n // _THINNING:
        kept = np.unique(np.concatenate([np.arange(a, b, _THINNING) for a, b in zip(starts, starts[1:], strict=False)]))
        if np.isin(starts[:-1], kept).all() and len(kept) > _MAX_DIRECT_STEPS // _THINNING:
            return p[kept].copy(), q[kept].copy()
        return None
    first = starts[np.searchsorted(starts, (n - n // _THINNING) // 2)]
    last = starts[np.searchsorted(starts, min(n, first + n // _THINNING))]
    window = q[first:last].copy()
    window[0] = 0.0
    return p[first:last].copy(), window


def _project(problem: Problem, buffers: int, progress: ProgressCallback) -> Solution:
    """Return the optimum over all matrices with its parts below and left of each step kept to rank ``buffers``."""
    accurate = problem.spec.model_copy(update={"tolerance": min(problem.tolerance, _DUAL_ACCURACY)})
    whole = few_states.solve(replace(problem, spec=accurate), progress)
    strategy = unit_columns(projected(whole.strategy.finite().dense(), buffers))
    last = problem.workload.row_block(problem.workload.m - 1, problem.workload.m)
    with np.errstate(over="ignore", invalid="ignore"):
        residual = float(np.abs(strategy.left_multiply(strategy.right_solve(last)) - last).max())
    if not residual <= RESIDUAL_LIMIT * max(float(np.abs(last).max()), 1.0):
        raise SolveFailed(f"with buffers={buffers} the inverse of the projected strategy overflows; use more buffers")
    return Solution(strategy=strategy, outcome=whole.outcome, iterations=whole.iterations, dual=whole.dual)


_LEAVING_WEIGHT = 1e-3
"""The weight of the row that a step reads, beside those after it; a block's last row has none after it."""
_MIN_SHRINKAGE = 1e-6  # a direction that a transition shrinks by more is not traced back through it


def projected(strategy: Array, states: int) -> BufferedMatrix:
    """Return a recurrence near a lower-triangular matrix of shape (n, n)."""
    n, m = len(strategy), states
    transition, inputs, rows = np.zeros((n, m, m)), np.zeros((n, m)), np.zeros((n, m))
    ahead = np.zeros((n, m))  # rows from i on, columns before i, in the basis of the states
    for i in range(n - 1):
        rows[i] = ahead[0]
        extended = np.column_stack([ahead[1:], strategy[i + 1 :, i]])
        leaving = np.append(_LEAVING_WEIGHT * ahead[0], 0.0)  # read after the transition, so that it has to survive it
        basis = np.linalg.eigh(extended.T @ extended + np.outer(leaving, leaving))[1][:, :0:-1]
        transition[i], inputs[i] = basis[:m].T, basis[m]
        ahead = extended @ basis
    rows[-1], transition[-1] = ahead[0], np.eye(m)
    outputs = np.einsum("iab,ia->ib", np.linalg.pinv(transition, rcond=_MIN_SHRINKAGE), rows)
    return BufferedMatrix(np.diagonal(strategy).copy(), transition, inputs, outputs)
