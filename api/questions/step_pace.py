"""The pace of a training step's noise on this machine, for the seconds of a step in comparisons.

It is a model of one processor core: what drawing a normal and what an operation on large arrays took here, times how
many of both a step has for each parameter. Both are measured once in a process, in some hundredths of a second.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

TIMED_ENTRIES = 1 << 20
"""The entries of the arrays that are timed, more than caches hold."""
KEPT_BYTES = 256 << 20
"""The most bytes of Z that are kept where C has no recurrence; else rows are drawn again, `ROWS_AT_ONCE` at a time."""
ROWS_AT_ONCE = 16


class StepPace(NamedTuple):
    """Seconds of one core for each parameter.

    Attributes:
        normal: drawing a normal and putting it away.
        operation: an addition or a multiplication of the recurrence, with its traffic to memory.
    """

    normal: float
    operation: float

    def seconds(self, row: Mapping[str, Any], parameters: int, steps: int | None) -> float:
        """Return the seconds of one step's noise for a model of so many parameters.

        Args:
            row: a row of a comparison.
            parameters: the number of the model's parameters.
            steps: n, None where training has no end.
        """
        redraws = float(row["redraws"])
        if steps is not None and row["noise_vectors"] >= steps and 8 * steps * parameters > KEPT_BYTES:
            redraws += steps / 2 / ROWS_AT_ONCE
        return parameters * (self.normal * (1 + redraws) + self.operation * float(row["flops"]))


@cache
def step_pace() -> StepPace:
    """Return the pace of a step on this machine."""
    draw = np.random.Generator(np.random.SFC64(0))
    kept, made = np.ones(TIMED_ENTRIES, np.float32), np.empty(TIMED_ENTRIES)

    def normals() -> None:
        made[:] = draw.standard_normal(TIMED_ENTRIES, dtype=np.float32)

    def operations() -> None:
        np.multiply(kept, 0.5, out=made)
        np.add(kept, made, out=made)

    return StepPace(_least(normals) / TIMED_ENTRIES, _least(operations) / TIMED_ENTRIES / 2)


def _least(work: Callable[[], object]) -> float:
    """Return the least processor seconds of three runs."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)
