"""The first steps of a run: their own strategy and participation, so that a run that stops early has its own epsilon.

C is lower-triangular, so what is released in the first t steps is its leading t x t block times their gradients, plus
their noise.
"""

from __future__ import annotations

from numbers import Integral

import numpy as np

import factorize
from factorize.encoding import tensor_digest
from factorize.errors import InvalidParameter
from factorize.mechanisms import Added
from factorize.participation import AnyParticipation, FixedEpochs, MinSep, Single
from factorize.solution import Outcome, Solution
from factorize.spec import Spec
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix
from factorize.structures.blt import BltMatrix
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.inverse_banded_toeplitz import InverseBandedToeplitz
from factorize.structures.redrawn import RedrawnMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import ToeplitzMatrix
from factorize.structures.tree import TreeMatrix, level_count
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
    if isinstance(steps, bool) or not isinstance(steps, Integral) or not 1 <= steps <= run.steps:
        message = (
            f"steps={steps!r} is not a whole number from 1 to {run.steps}, the steps of the run; give how many it made"
        )
        raise InvalidParameter(message, field="steps")
    covered = min(max(int(steps), least), run.steps)
    steps, participation = _covering(run.spec.participation, run.steps, covered)
    strategy = _leading(run.matrix, steps)
    spec = Spec(
        workload=Prefix(kind="prefix", n=steps),
        participation=participation,
        mechanism=Added(kind="added", sha256=tensor_digest(list(strategy.tensors().values()))),
    )
    solver = {"mechanism": "added", "version": factorize.__version__, "seconds": 0.0, "environment": {}}
    return factorize.Factorization.from_solution(spec.canonical(), Solution(strategy, Outcome.ADDED, 0), solver=solver)


def _leading(strategy: Matrix, steps: int) -> Matrix:
    """Return the leading block of C, shape (steps, steps), of the same structure and from the same stored numbers."""
    match strategy:
        case ColumnScaled():
            return ColumnScaled(_leading(strategy.inner, steps), strategy.scale[:steps])
        case ToeplitzMatrix():
            return ToeplitzMatrix(strategy.column[:steps], steps)
        case InverseBandedToeplitz():
            return InverseBandedToeplitz(strategy.noising[:steps], steps)
        case BltMatrix():
            return BltMatrix(strategy.theta, strategy.omega, steps)
        case BufferedMatrix():
            parts = (strategy.diagonal, strategy.transition, strategy.inputs, strategy.outputs)
            return BufferedMatrix(*(part[:steps] for part in parts))
        case RedrawnMatrix():
            decay, output, passes = strategy.decay[:steps], strategy.output[:steps], -(-steps // strategy.lag)
            taken, direct = strategy.input[:passes, :steps], strategy.direct[:passes, :steps]
            return RedrawnMatrix(decay, output, taken, direct, min(strategy.lag, steps))
        case BandedMatrix():
            bands = np.array(strategy.bands[:steps, :steps])
            for d, band in enumerate(bands):
                band[steps - d :] = 0.0
            return BandedMatrix(bands)
        case TreeMatrix():
            levels = level_count(min(strategy.restart, steps))
            return TreeMatrix(strategy.nodes[: levels + 1, :steps], strategy.restart)
    return DenseMatrix(strategy.whole()[:steps, :steps])


def _covering(participation: AnyParticipation, n: int, steps: int) -> tuple[int, AnyParticipation]:
    """Return steps, and a participation in them, that cover what examples can do in the first steps of n."""
    apart, most, _ = participation.spread(n)
    passes = -(-steps // apart)
    if passes == 1:
        return steps, Single()
    if isinstance(participation, FixedEpochs):
        return passes * apart, FixedEpochs(kind="fixed_epochs", epochs=passes)
    return steps, MinSep(kind="min_sep", min_sep=apart, max_participations=min(passes, most))
