"""Fixed epochs with few states: a recurrence with full transitions, all of its numbers optimised together.

The optimum over all matrices forgets a step at once when its class returns, an epoch later; that sharp edge has
singular values like 1/r, so few states come near it only slowly, whatever their transitions are
(docs/notes/streaming.md). Signed transitions are worth a factor of two over decays. The search starts from the optimum,
projected (epoch_start.py), and follows the exact loss with every class normalised (epoch_kernels.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from factorize.errors import SolveFailed
from factorize.mechanisms import BufferedLinear
from factorize.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.budget import Estimate, estimate_of
from factorize.solvers.buffered import redrawn
from factorize.solvers.buffered.epoch_problem import dual_of, optimal, refusal
from factorize.solvers.epochs import epochs_optimum as epoch_optimum
from factorize.solvers.problem import Problem, Reporter
from factorize.spec import Spec

if TYPE_CHECKING:
    from factorize.solvers.buffered.epoch_loss import EpochLoss
    from factorize.solvers.epochs.blocks import BlockAscent

MOST_STATES = 24
"""A step of the search costs as the cube; 16 states bring two thirds of the distance that 8 leave."""

_DUAL_ACCURACY = 1e-7
_KINKS = (1e-3, 2e-4, 3e-5)
_ENOUGH = (2e-3, 5e-4, 5e-4)  # what a hundred steps must gain, as a part of the distance
_WORK = 5e6  # steps of the search times those of the workload, at most
_SHARES = (0.6, 0.25, 0.15)
_MOST, _LEAST = 2000, 60
_LOOSE = 1e-3  # a tolerance from which on gains end the search, after 0.6 of the steps where that was measured
_WORK_PER_STATE = 300.0  # multiplications of one gradient, per step and cubed state, in units of a dense kernel's


def own(spec: Spec) -> bool:
    """Return whether a spec has fixed epochs and asks for no redraws."""
    return spec.participation.periodic and not redrawn.own(spec)


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    assert isinstance(spec.mechanism, BufferedLinear)
    if spec.mechanism.buffers > MOST_STATES:
        return f"buffers={spec.mechanism.buffers} exceeds {MOST_STATES} under fixed_epochs; use fewer, or banded"
    return refusal(spec)


def estimate(spec: Spec) -> Estimate:
    """Return the cost: the search, and C whole in the certificate."""
    assert isinstance(spec.mechanism, BufferedLinear)
    n, states = float(spec.workload.n), spec.mechanism.buffers
    steps = min(_MOST, max(_WORK / n, 3 * _LEAST)) * (0.6 if spec.tolerance >= _LOOSE else 1.0)
    return estimate_of(
        entries=n * (50 * (states + 1) ** 2 + 200) + 3 * n * n,
        multiplications=2 * steps * n * _WORK_PER_STATE * (states + 1) ** 3 + n * n * states**2,
    )


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return a strategy with the given number of states.

    Raises:
        SolveFailed: the workload's numbers leave the range of double precision, or its optimum is lost to rounding.
    """
    assert isinstance(problem.spec.mechanism, BufferedLinear)
    report = Reporter(progress)
    try:
        ring = epoch_optimum.ring_of(problem)
        asked = (ring.p, ring.q, ring.epochs, problem.spec.mechanism.buffers, problem.tolerance)
        found = search(*asked, report)
    except (ValueError, FloatingPointError, np.linalg.LinAlgError) as error:
        raise SolveFailed(f"{error}; use fewer buffers, or a milder schedule") from None
    return Solution(
        strategy=found.loss.strategy(found.z),
        outcome=Outcome.LOCAL_OPTIMUM if found.finished else Outcome.ITERATION_LIMIT,
        iterations=found.steps,
        dual=dual_of(found.optimum),
    )


class EpochsFound(NamedTuple):
    """Where a search ended.

    Attributes:
        loss: the function.
        z: its variables.
        value: loss / lower bound - 1, without smoothing.
        steps: of the search.
        finished: whether the rule on gains stopped it.
        optimum: the dual without a limit on states.
    """

    loss: EpochLoss
    z: np.ndarray
    value: float
    steps: int
    finished: bool
    optimum: BlockAscent


def search(p: np.ndarray, q: np.ndarray, epochs: int, states: int, tolerance: float, report: Reporter) -> EpochsFound:
    """Return a strategy whose loss no longer falls.

    Args:
        p: diagonal of (W A)^-1, shape (n,), positive.
        q: negated subdiagonal, shape (n,), non-negative, ``q[0] = 0``.
        epochs: k; divides n.
        states: how many.
        tolerance: on the loss relative to the lower bound.
        report: told of the steps.

    Raises:
        ValueError: the numbers leave the range of the dual's solver.
        FloatingPointError: the optimum is lost to rounding.
    """
    from factorize.solvers.buffered.epoch_loss import EpochLoss, bidiagonal_decoder
    from factorize.solvers.buffered.epoch_start import symmetric, truncated
    from factorize.solvers.epochs.blocks import Ring

    ring = Ring(p, q, epochs)
    optimum = epoch_optimum.ascend(ring, _DUAL_ACCURACY, lambda step, _gap: report(step, None))
    loss = EpochLoss(bidiagonal_decoder(p, q), epochs, states, optimum.point.lower)
    z = loss.pack(symmetric(truncated(optimal(ring, optimum), states)))
    return _descend(loss, z, optimum, tolerance, report)


def _descend(loss: EpochLoss, z: np.ndarray, optimum: BlockAscent, tolerance: float, report: Reporter) -> EpochsFound:
    from factorize.solvers.methods.quasi_newton import descend

    steps, finished = 0, False
    best, value = z, loss.value(z)
    n = optimum.point.dual.shape[0] * optimum.point.dual.shape[1]
    for kink, enough, share in zip(_KINKS, _ENOUGH, _SHARES, strict=True):
        loss.soften(z, kink)
        most = int(min(max(share * _WORK / n, _LEAST), _MOST))
        end = descend(
            loss,
            z,
            tolerance=tolerance,
            enough=enough,
            most=most,
            report=lambda step, value, done=steps: report(done + step, value),  # type: ignore[misc]  # a default
        )
        z, finished, steps = end.z, end.finished, steps + end.steps
        loss.kink = 0.0
        if loss.value(z) < value:
            best, value = z, loss.value(z)
    return EpochsFound(loss, best, value, steps, finished, optimum)
