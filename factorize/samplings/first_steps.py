"""The first steps of a run: their own strategy and participation, so that a run that stops early has its own epsilon.

C is lower-triangular. So the first t steps release its leading t x t block times their gradients, plus their noise.
"""

import numpy as np

import factorize
from factorize.numbers.scalars import whole_number
from factorize.participation import AnyParticipation, FixedEpochs, MinSep, Single
from factorize.spec import Spec
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.workloads import Prefix

MAX_EXACT_STEPS = 4096
"""The most steps for which an incomplete epoch is covered only as far as it went, by an array of 128 MiB."""
_UNMADE_DIAGONAL = 2.0**-13
"""The diagonal entry of a step that was not made, relative to the smallest other one, so that C can be inverted."""


def first_steps(run: factorize.Factorization, steps: int, *, least: int = 1) -> factorize.Factorization:
    """Return the certified factorization of the first steps of a run, for calibrations of their releases.

    After the first epoch of a fixed order, an incomplete epoch has rows that release next to nothing for the steps that
    were not made; beyond 4096 steps it counts as complete, and more is covered than was released. The workload is that
    of running sums, since no calibration looks at it.

    Args:
        run: the whole run.
        steps: number of first steps, 1 to n.
        least: steps that are always covered: under bins those of an epoch, since each draw is among all of them.

    Raises:
        InvalidParameter: steps that are no number from 1 to n.
        UnsupportedProblem: a run without end.
    """
    covered = min(max(_taken(run, steps), least), run.steps)
    steps, participation = _covering(run.spec.participation, run.steps, covered)
    spec = Spec(workload=Prefix(kind="prefix", n=steps), participation=participation)
    strategy = run.matrix.leading(steps)
    if covered < steps <= MAX_EXACT_STEPS:
        strategy = _stopped(strategy, covered)
    return factorize.Factorization.from_strategy(spec, strategy)


def leading_block(run: factorize.Factorization, steps: int, *, multiple: int = 1) -> factorize.Factorization:
    """Return the certified factorization of the first steps of a run, for a law that asks for no participation.

    Args:
        run: the whole run.
        steps: number of first steps, 1 to n.
        multiple: the number of steps is rounded up to a multiple of this one, as far as the run has such steps.

    Raises:
        InvalidParameter: steps that are no number from 1 to n.
        UnsupportedProblem: a run without end.
    """
    taken = min(-(-_taken(run, steps) // multiple) * multiple, run.steps)
    spec = Spec(workload=Prefix(kind="prefix", n=taken), participation=Single())
    return factorize.Factorization.from_strategy(spec, run.matrix.leading(taken))


def _taken(run: factorize.Factorization, steps: int) -> int:
    """Return a number of steps that the run has; raise InvalidParameter for another."""
    return whole_number("steps", steps, high=run.steps, remedy="give the number of steps that the run took")


def _stopped(strategy: Matrix, made: int) -> Matrix:
    """Return a strategy whose last steps, which were not made, release next to nothing, and nothing of earlier ones."""
    array = strategy.dense().copy()
    array[made:] = 0.0
    later = np.arange(made, len(array))
    array[later, later] = _UNMADE_DIAGONAL * float(np.abs(np.diagonal(array)[:made]).min())
    return DenseMatrix(array)


def _covering(participation: AnyParticipation, n: int, steps: int) -> tuple[int, AnyParticipation]:
    """Return a number of steps, and a participation in them, that cover the examples of the first steps of n."""
    apart, most, _ = participation.spread(n)
    passes = -(-steps // apart)
    if passes == 1:
        return steps, Single()
    if participation.periodic:
        return passes * apart, FixedEpochs(kind="fixed_epochs", epochs=passes)
    return steps, MinSep(kind="min_sep", min_sep=apart, max_participations=min(passes, most))
