"""The first steps of a run: their own strategy and participation, so that a run that stops early has its own epsilon.

C is lower-triangular, so what is released in the first t steps is its leading t x t block times their gradients, plus
their noise.
"""

from __future__ import annotations

import factorize
from factorize.numbers.scalars import whole_number
from factorize.participation import AnyParticipation, FixedEpochs, MinSep, Single
from factorize.spec import Spec
from factorize.workloads import Prefix


def first_steps(run: factorize.Factorization, steps: int, *, least: int = 1) -> factorize.Factorization:
    """Return the certified factorization of the first steps of a run, for calibrations of what they release.

    After the first epoch of a fixed order, an epoch that is not whole counts as whole: more is then covered than was
    released. The workload is that of running sums: no calibration looks at it.

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
    return factorize.Factorization.from_strategy(spec, run.matrix.leading(steps))


def _covering(participation: AnyParticipation, n: int, steps: int) -> tuple[int, AnyParticipation]:
    """Return steps, and a participation in them, that cover what examples can do in the first steps of n."""
    apart, most, _ = participation.spread(n)
    passes = -(-steps // apart)
    if passes == 1:
        return steps, Single()
    if isinstance(participation, FixedEpochs):
        return passes * apart, FixedEpochs(kind="fixed_epochs", epochs=passes)
    return steps, MinSep(kind="min_sep", min_sep=apart, max_participations=min(passes, most))
