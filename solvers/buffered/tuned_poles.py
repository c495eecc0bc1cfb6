"""Few buffers for momentum: the optimum truncated to few poles, with poles and weights tuned.

Momentum has two states per pole, so its transitions are 2 x 2 blocks and `kernels` does not apply. The
poles and weights of the truncation are few numbers: their gradient is taken by differences of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from factorize.solvers.buffered.loss import unit_columns
from factorize.solvers.methods.poles import Poles, zolotarev_with
from factorize.solvers.single.newton import Structure
from factorize.solvers.single.streaming import StreamableWorkload, streaming_factor
from factorize.structures.buffered import BufferedMatrix
from factorize.workloads.state_space import StateSpace

Array = NDArray[np.float64]

_REACHES = (1.0, 0.5, 0.25, 0.12, 0.06)  # upper ends of the poles' interval, over that of the spectrum
_DIFFERENCE = 1e-5
_MOST_STEPS = 60
_LARGEST_TUNED = 1 << 15  # above, a gradient by differences takes a minute, and the choice of an interval has to do


class StreamableStructure(Structure, StreamableWorkload, Protocol):
    """A workload that has both a dual and generators."""


@dataclass(frozen=True)
class Tuned:
    """Where the tuning ended.

    Attributes:
        strategy: C with unit columns.
        value: loss / lower bound - 1.
        steps: of the descent.
        finished: whether its own rule stopped it.
    """

    strategy: BufferedMatrix
    value: float
    steps: int
    finished: bool


def tune(
    structure: StreamableStructure,
    v: Array,
    count: int,
    *,
    workload: StateSpace,
    lower_bound: float,
    tolerance: float,
    report: Callable[[int, float], None],
) -> Tuned:
    """Return the best truncation found with ``count`` poles.

    Args:
        structure: the workload.
        v: its dual weights, shape (n,).
        count: number of poles.
        workload: the workload as a recursion, for the loss.
        lower_bound: of the total squared error at sensitivity 1.
        tolerance: on the loss relative to the bound.
        report: told (step, distance); what it raises ends the tuning.

    Raises:
        FloatingPointError: every truncation is lost to rounding.
    """
    from scipy.optimize import minimize

    def strategy(poles: Poles) -> BufferedMatrix:
        tensors = streaming_factor(structure, v, poles).tensors()
        return unit_columns(
            BufferedMatrix(tensors["diagonal"], tensors["transition"], tensors["input"], tensors["output"])
        )

    def distance(poles: Poles) -> float:
        try:
            return float(strategy(poles).decoder_errors(workload).sum()) / lower_bound - 1.0
        except FloatingPointError:
            return math.inf

    low, high = structure.interval(v)
    candidates = [zolotarev_with(low, max(low, high * reach), count=count) for reach in _REACHES]
    values = [distance(poles) for poles in candidates]
    best = candidates[int(np.argmin(values))]
    value = min(values)
    report(1, value)
    if not math.isfinite(value):
        raise FloatingPointError(f"{count} poles coincide to double precision")
    if v.size > _LARGEST_TUNED or value <= tolerance:
        return Tuned(strategy(best), value, 1, finished=True)

    def at(x: Array) -> Poles:
        nodes, weights = np.exp(x.reshape(2, count))
        return replace(best, nodes=best.nodes * nodes, weights=best.weights * weights, delta=1.0)

    def logarithm(x: Array) -> tuple[float, Array]:
        here = distance(at(x))
        if not math.isfinite(here) or here <= 0.0:
            return 1e3, np.zeros(x.size)
        moved = [distance(at(x + _DIFFERENCE * unit)) for unit in np.eye(x.size)]
        return math.log(here), (np.array(moved) - here) / (_DIFFERENCE * here)

    steps = [1]

    def told(x: Array) -> None:
        steps[0] += 1
        report(steps[0], distance(at(x)))

    bound = min(0.02, tolerance / value)
    found = minimize(
        logarithm, np.zeros(2 * count), jac=True, method="L-BFGS-B", callback=told,
        options={"maxiter": _MOST_STEPS, "ftol": bound / 20.0, "gtol": 0.0, "maxcor": 20},
    )  # fmt: skip
    tuned = at(found.x)
    return Tuned(strategy(tuned), distance(tuned), steps[0], finished=found.nit < _MOST_STEPS)
