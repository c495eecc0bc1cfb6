"""Fixed epochs with few states and redraws: draws of earlier epochs are made again by the generator, and not stored.

The optimum forgets a step at once when its class returns, an epoch later, and few states follow such an edge only
slowly. A draw that is made again when its class returns takes back what it added, at no memory: between returns the
inverse of the optimum is smooth, and p decays fit it as quickly as they do for one participation.
The search starts from that fit (redrawn_start.py) and follows the exact loss (redrawn_loss.py).
"""

import math
from typing import NamedTuple

import numpy as np

from factorize.errors import SolveFailed
from factorize.factors.solution import Outcome, ProgressCallback, Solution
from factorize.solvers.buffered.redrawn_loss import BidiagonalDecoder, RedrawnLoss, RedrawnNumbers
from factorize.solvers.buffered.redrawn_start import decays_between, fitted, usual_rates
from factorize.solvers.epochs import recursions
from factorize.solvers.epochs.blocks import BlockPoint, Ring, maximise
from factorize.solvers.epochs.cholesky import reverse_cholesky
from factorize.solvers.epochs.class_blocks import factors
from factorize.solvers.epochs.gram import mask, whole_gram
from factorize.solvers.methods.quasi_newton import descend
from factorize.solvers.methods.search import End, Iterate
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, mechanism_of, outline_of
from factorize.solvers.single.bidiagonal import refuse_far
from factorize.spec import Spec
from factorize.spec.mechanisms import BufferedLinear
from factorize.structures.base import MAX_DENSE
from factorize.structures.redrawn import RedrawnMatrix

MAX_SIDE = 128
"""The limit of epochs times (buffers + 1), the states of all epochs together, whose cube a step of the search costs.

Where more buffers are allowed, the strategy has as many as this leaves, and at least one.
"""

_DUAL_ACCURACY = 1e-7
_MAX_CANCELLATION = 1e3  # inputs are at most this many times the largest entry that takes part alone
_KINKS = (1e-4, 1e-5)
_WINDOW_STEPS, _MIN_GAINS = 100, (1e-2, 5e-3)
"""The search ends when this many steps gain less than these parts of the distance."""
_MAX_WORK = 1e11  # the limit of the search in multiplications
_MAX_STEPS, _MIN_STEPS = 800, 20
_SHARES = (0.7, 0.3)
_MAX_FITS, _MAX_FITTED_ROWS = 30, 6e4  # the limits of fits of the rates, and of fits times n
_LOOSE_TOLERANCE, _MAX_LOOSE_FITS = 1e-3, 6  # from this tolerance on fewer fits do: a tenth of the distance either way
_QUICK_TOLERANCE, _MAX_QUICK_STEPS = 1e-2, 40  # from this tolerance on the usual rates are taken, and hardly improved
_MANY_BUFFERS = 3
_FEW_BUFFERS = 2  # nearly all that states can do where no edge between epochs is redrawn
_PHASE_WORK = 120.0  # multiplications of a gradient, by steps of an epoch and cubed side
_ROW_WORK, _ENTRY_WORK = 8e6, 4e3
"""Multiplications of a fit by its rows, and of the certificate by its entries, from measured seconds."""
_STEP_WORK = 8e5  # multiplications of a gradient by steps of an epoch, however small its side is


def own(spec: Spec) -> bool:
    """Return whether a spec has fixed epochs, or asks for redraws, which need them."""
    return spec.participation.periodic or bool(mechanism_of(spec, BufferedLinear).redraws)


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside this solver, or None."""
    mechanism = mechanism_of(spec, BufferedLinear)
    redraws, buffers = mechanism.redraws, mechanism.buffers
    workload = spec.optimize_for or spec.workload
    n = workload.n
    if not spec.participation.periodic:
        return (
            f"redraws={redraws} needs fixed_epochs, whose steps return after a fixed time; got "
            f"{spec.participation.kind}; leave redraws out"
        )
    epochs = spec.participation.spread(n).most
    if redraws is not None and redraws >= epochs:
        return f"redraws={redraws} is more than {epochs} epochs allow; use at most {epochs - 1}"
    inverse = outline_of(spec).bidiagonal_inverse()
    weighted = None if inverse is None else spec.objective.weighted_inverse(inverse)
    if weighted is None:
        return (
            f"buffered_linear under fixed_epochs cannot optimise the {spec.workload.kind} workload under objective "
            f"{spec.objective.kind!r}, which has no bidiagonal inverse with positive entries; use dense"
        )
    if epochs > recursions.MAX_EPOCHS or n < recursions.MIN_EPOCH_STEPS * epochs:
        return (
            f"n={n} with {epochs} epochs is outside the limits of buffered_linear (at most {recursions.MAX_EPOCHS} "
            f"epochs, at least {recursions.MIN_EPOCH_STEPS} steps each); use dense"
        )
    if buffers >= n // epochs:
        return f"buffers={buffers} must be below the {n // epochs} steps of an epoch; use fewer, or dense"
    if (far := refuse_far(weighted)) is not None:
        return far
    if n > MAX_DENSE:
        return (
            f"n={n} exceeds {MAX_DENSE}, the limit for a certified sensitivity to several epochs; use a smaller n, or "
            "nu_toeplitz"
        )
    return None


def estimate(spec: Spec) -> Estimate:
    """Return the cost: the optimum and its inverse, whole, the fits, the search, and the certificate's columns."""
    n = spec.workload.n
    epochs = spec.participation.spread(n).most
    buffers, redraws = _sizes(spec, epochs)
    search = 0.0
    for states in _numbers_of_states(buffers, redraws, epochs):
        gradient = _per_gradient(n, epochs, states)
        steps, evaluations = (_steps(gradient), 2)
        if spec.tolerance >= _QUICK_TOLERANCE:  # a start with many states is near enough
            steps, evaluations = (_MAX_QUICK_STEPS if states < _MANY_BUFFERS else _MAX_QUICK_STEPS // 10), 1
        search += steps * (evaluations * gradient + _STEP_WORK * n / epochs)
        search += _ROW_WORK * n * (_most_fits(n, spec.tolerance) + 1)
    return estimate_of(
        entries=3.0 * n * n + 12.0 * n * epochs * (buffers + 1) ** 2,
        multiplications=search + float(n) ** 3 + _ENTRY_WORK * n * n,
    )


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return a strategy with the given numbers of states and redraws.

    Raises:
        SolveFailed: the workload's numbers leave the range of double precision, or its optimum is lost to rounding.
    """
    report = Reporter(progress)
    try:
        ring = recursions.bidiagonal_ring(problem)
        assert ring is not None  # see `supports`
        sizes = _sizes(problem.spec, ring.epochs)
        inverse = search(ring.p, ring.q, ring.epochs, *sizes, problem.tolerance, report)
    except (ValueError, FloatingPointError, np.linalg.LinAlgError) as error:
        raise SolveFailed(f"{error}; use fewer buffers, or a milder schedule") from None
    return Solution(
        strategy=RedrawnMatrix(*inverse.numbers, lag=problem.n // ring.epochs),
        outcome=Outcome.LOCAL_OPTIMUM if inverse.finished else Outcome.ITERATION_LIMIT,
        iterations=inverse.steps,
        dual={"factors": factors(inverse.optimum.best.dual)},
    )


def _sizes(spec: Spec, epochs: int) -> tuple[int, int]:
    """Return the buffers and the redraws of the strategy."""
    mechanism = mechanism_of(spec, BufferedLinear)
    redraws = mechanism.redraws
    buffers = min(mechanism.buffers, max(MAX_SIDE // epochs - 1, 1))
    return buffers, epochs - 1 if redraws is None else redraws


class RedrawnOptimum(NamedTuple):
    """The end of a search.

    Attributes:
        numbers: numbers of C^-1, every class scaled to a sensitivity of just below 1.
        value: loss / lower bound - 1.
        steps: steps of the search.
        finished: whether the rule on gains stopped it.
        optimum: the dual without a limit on states.
    """

    numbers: RedrawnNumbers
    value: float
    steps: int
    finished: bool
    optimum: End[BlockPoint]


def search(
    p: np.ndarray, q: np.ndarray, epochs: int, buffers: int, redraws: int, tolerance: float, report: Reporter
) -> RedrawnOptimum:
    """Return the inverse of a strategy whose loss no longer falls by much.

    Args:
        p: diagonal of (W A)^-1, shape (n,), positive.
        q: negated subdiagonal, shape (n,), non-negative, ``q[0] = 0``.
        epochs: k; divides n.
        buffers: states.
        redraws: the number of redraws, below k.
        tolerance: tolerance on the loss relative to the lower bound, at which the search ends.
        report: told of the steps.

    Raises:
        ValueError: the numbers leave the range of the dual's solver.
        FloatingPointError: the optimum is lost to rounding.
    """
    ring = Ring(p, q, epochs)
    optimum = maximise(ring, tolerance=_DUAL_ACCURACY, report=lambda step, _gap: report(step, None))
    decoder, inverse = BidiagonalDecoder(q / p, 1.0 / p), _inverse(ring, optimum)
    fits = _most_fits(len(p), tolerance)

    def found(states: int) -> RedrawnOptimum:
        loss = RedrawnLoss(decoder, epochs, states, redraws, optimum.best.lower)
        start = _start(loss, inverse, decoder, (epochs, states, redraws), fits)
        most = _MAX_QUICK_STEPS if tolerance >= _QUICK_TOLERANCE else _steps(_per_gradient(len(p), epochs, states))
        return _descend(loss, start, optimum, most, tolerance, report)

    return min(map(found, _numbers_of_states(buffers, redraws, epochs)), key=lambda one: one.value)


def _numbers_of_states(buffers: int, redraws: int, epochs: int) -> list[int]:
    """Return the numbers to search with: without all redraws a search over many states may end above one over few."""
    few = min(buffers, _FEW_BUFFERS) if redraws < epochs - 1 else buffers
    return sorted({few, buffers})


def _inverse(ring: Ring, optimum: End[BlockPoint]) -> np.ndarray:
    """Return C^-1 of the optimum, in the memory of C."""
    from scipy.linalg.lapack import dtrtri

    gram = whole_gram(ring, optimum.best)
    mask(gram, ring.epochs)
    upper = reverse_cholesky(gram).T  # LAPACK works in the order of columns without a copy
    inverse, failed = dtrtri(upper, lower=0, overwrite_c=1)
    if failed:
        raise FloatingPointError(f"the optimum has no pivot at step {failed - 1}")
    return np.asarray(inverse.T)


def _start(
    loss: RedrawnLoss, inverse: np.ndarray, decoder: BidiagonalDecoder, sizes: tuple[int, int, int], most: int
) -> np.ndarray:
    """Return the best fit of C^-1 whose rates of decay are spread evenly between two, found by simplexes.

    Where rates come close to each other, inputs grow and cancel: such a C could not be inverted in double precision.
    """
    from scipy.optimize import minimize

    epochs, buffers, redraws = sizes

    def at(rates: np.ndarray) -> RedrawnNumbers:
        slow, fast = np.exp(rates)
        return fitted(inverse, decoder, epochs, redraws, decays_between(slow, fast, buffers))

    def value(rates: np.ndarray) -> float:
        numbers = at(rates)
        cancelled = np.abs(numbers.input).max() > _MAX_CANCELLATION * np.abs(numbers.direct).max()
        return math.inf if cancelled else loss.value(loss.pack(numbers))

    rates = np.log(usual_rates(buffers, len(inverse) // epochs))
    if most > 1:
        options = {"maxfev": most, "initial_simplex": rates + 0.3 * np.array([[0, 0], [1, 0], [0, 1]])}
        rates = minimize(value, rates, method="Nelder-Mead", options=options).x
    start = loss.pack(at(rates))
    if not math.isfinite(loss.value(start)):
        raise FloatingPointError("no fit of the optimum's inverse is stable")
    return start


def _descend(
    loss: RedrawnLoss, z: np.ndarray, optimum: End[BlockPoint], most: int, tolerance: float, report: Reporter
) -> RedrawnOptimum:
    steps, finished = 0, False
    best, value = z, loss.value(z)
    for kink, enough, share in zip(_KINKS, _MIN_GAINS, _SHARES, strict=True):
        if value <= tolerance:
            return RedrawnOptimum(loss.scaled(best), value, steps, True, optimum)
        loss.kink = kink * loss.share(z)
        end = descend(
            loss,
            Iterate(z, *loss(z)),
            tolerance=tolerance,
            enough=enough,
            window=_WINDOW_STEPS,
            most=max(int(share * most), 1),
            report=lambda step, value, done=steps: report(done + step, value),  # type: ignore[misc]  # a default
        )
        z, steps = end.best.z, steps + end.steps - 1
        finished = end.outcome is not Outcome.ITERATION_LIMIT
        loss.kink = 0.0
        if loss.value(z) < value:
            best, value = z, loss.value(z)
    return RedrawnOptimum(loss.scaled(best), value, steps, finished, optimum)


def _per_gradient(n: int, epochs: int, buffers: int) -> float:
    return _PHASE_WORK * (n // epochs) * float(epochs * (buffers + 1)) ** 3


def _most_fits(n: int, tolerance: float) -> int:
    """Return how many pairs of rates are fitted."""
    if tolerance >= _QUICK_TOLERANCE:
        return 1
    return int(min(max(_MAX_FITTED_ROWS / n, 4), _MAX_LOOSE_FITS if tolerance >= _LOOSE_TOLERANCE else _MAX_FITS))


def _steps(gradient: float) -> int:
    return int(min(max(_MAX_WORK / gradient, _MIN_STEPS), _MAX_STEPS))
