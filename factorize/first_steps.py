"""The first steps of a run: their own strategy and participation, so that a run that stops early has its own epsilon.

C is lower-triangular, so what is released in the first t steps is its leading t x t block times their gradients, plus
their noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import factorize
from factorize.errors import InvalidParameter, UnsupportedProblem, extras_named
from factorize.format.factors import certified
from factorize.numbers.scalars import whole_number
from factorize.participation import AnyParticipation, FixedEpochs, MinSep, Single
from factorize.privacy_question import GivenNoise
from factorize.spec import Spec
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.workloads import Prefix

MAX_STEPS_STOPPED = 4096
"""Steps up to which an epoch that is not whole is covered as far as it went: by an array, of 128 MiB."""
_REST = 2.0**-13  # of the smallest diagonal: what a step that was not made releases, so that C can be inverted


def first_steps(run: factorize.Factorization, steps: int, *, least: int = 1) -> factorize.Factorization:
    """Return the certified factorization of the first steps of a run, for calibrations of what they release.

    After the first epoch of a fixed order, an epoch that is not whole has rows that release next to nothing for the
    steps that were not made; beyond 4096 steps it counts as whole, and more is then covered than was released. The
    workload is that of running sums: no calibration looks at it.

    Args:
        run: the whole run.
        steps: how many of them, 1 to n.
        least: steps that are covered in any case: under bins those of an epoch, since the draws are among all of them.

    Raises:
        InvalidParameter: no number of its steps.
        UnsupportedProblem: it is a run without end.
    """
    taken = whole_number("steps", steps, high=run.steps, remedy="give how many of its steps the run made")
    covered = min(max(taken, least), run.steps)
    steps, participation = _covering(run.spec.participation, run.steps, covered)
    spec = Spec(workload=Prefix(kind="prefix", n=steps), participation=participation)
    strategy = run.matrix.leading(steps)
    if covered < steps <= MAX_STEPS_STOPPED:
        strategy = _stopped(strategy, covered)
    return factorize.Factorization.from_strategy(spec, strategy)


@extras_named("the epsilon of a run that stops early")
def epsilon_of_first_steps(run: object, noise: Mapping[str, Any], steps: int, delta: float | None = None) -> float:
    """Return epsilon of the first steps of a run, at most that of all steps.

    It holds where the stop depended neither on the data nor on what was released.

    Args:
        run: its factors.
        noise: the calibration, as plain data.
        steps: that were released, 0 to n.
        delta: of the guarantee; the calibration's by default.

    Raises:
        InvalidParameter: no number of its steps, or no delta.
        UnsupportedProblem: squares of gradients have noise of their own.
    """
    from factorize.accounting.schemes import calibrate_sampling  # which calls `first_steps`

    if "second_sigma_of_sums" in noise:
        raise UnsupportedProblem(
            "gradients and their squares are released together, and the epsilon of their first steps is not known "
            "here; take that of all steps"
        )
    at = noise["delta"] if delta is None else delta
    if at is None:
        raise InvalidParameter("the calibration states no delta; give delta", field="delta")
    if steps == 0:
        return 0.0
    options = {
        name: noise[name] for name in ("clip_norm", "adjacency", "bins", "dataset_size", "batch_size") if name in noise
    }
    given = GivenNoise(sigma=noise["sigma_of_sums"], delta=at)
    found = calibrate_sampling(certified(run), given, sampling=noise["sampling"], steps=steps, **options).epsilon
    assert found is not None
    return found if noise["epsilon"] is None or at != noise["delta"] else min(found, noise["epsilon"])


def _stopped(strategy: Matrix, made: int) -> Matrix:
    """Return a strategy whose last steps, which were not made, release next to nothing, and nothing of earlier ones."""
    array = strategy.dense().copy()
    array[made:] = 0.0
    later = np.arange(made, len(array))
    array[later, later] = _REST * float(np.abs(np.diagonal(array)[:made]).min())
    return DenseMatrix(array)


def _covering(participation: AnyParticipation, n: int, steps: int) -> tuple[int, AnyParticipation]:
    """Return steps, and a participation in them, that cover what examples can do in the first steps of n."""
    apart, most, _ = participation.spread(n)
    passes = -(-steps // apart)
    if passes == 1:
        return steps, Single()
    if isinstance(participation, FixedEpochs):
        return passes * apart, FixedEpochs(kind="fixed_epochs", epochs=passes)
    return steps, MinSep(kind="min_sep", min_sep=apart, max_participations=min(passes, most))
