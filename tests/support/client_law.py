"""The strategy whose noise is really made: impulse responses of a generator, inverted, with an enclosed sensitivity.

Coordinate i of the noise is drawn from a Z that is 1 at step i and 0 elsewhere, so that the rows that come out are a matrix
M, and the job releases M (M^-1 G + Z). The sensitivity of M^-1, found by the exact checker, is the mu that it really has.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import Any

import numpy as np

from factorize.checker.arithmetic.near import square_root_up
from factorize.checker.sensitivity import bracket_sensitivity
from factorize.checker.strategy import MAX_N_COMPUTED, Strategy
from factorize.noise.allowances import participations_of
from factorize.privacy import Calibration
from factorize.structures.base import Matrix

N = 12
PARTICIPATIONS: list[dict[str, Any]] = [
    {"kind": "single"},
    {"kind": "fixed_epochs", "epochs": 4},
    {"kind": "min_sep", "min_sep": 3, "max_participations": 3},
]


class Impulses:
    """Normals of which coordinate i is 1 at step first + i, and 0 at every other step."""

    def __init__(self, first: int = 0) -> None:
        self.key, self._first = b"", first

    def fill(self, out: np.ndarray, step: int, block: int) -> None:
        """Fill one block; there is only one."""
        assert block == 0
        out[:] = 0
        if 0 <= step - self._first < len(out):
            out[step - self._first] = 1


def impulse_rows(generator: Any, steps: int, again: int | None = None) -> np.ndarray:
    """Return M in float64, before the rows are rounded to float32; and see that they are these rows, rounded once.

    Args:
        generator: of a shape of so many entries.
        steps: n.
        again: how many of the rows are made once more, to see that; all of them by default.
    """
    generator._engine._normals = Impulses()
    rows, rounded = np.empty((steps, steps)), np.empty(steps, np.float32)
    for step in range(steps):
        generator._engine.step(step, rows[step])
    generator._engine.begin(None)
    for step in range(steps if again is None else again):
        generator._engine.step(step, rounded)
        assert np.array_equal(rounded, rows[step].astype(np.float32)), step
    return rows


class Demanded:
    """Normals that are whatever it takes for the noise to be 1 at some steps, and 0 at every other.

    The noise of these is x, so they are C' x / sigma for the C' of every rounding on the way: what a user who takes part
    at these steps with a gradient of norm 1 moves Z by.

    Args:
        generator: of one entry, whose state holds rows of C^-1 Z.
        steps: at which the noise is 1.

    Attributes:
        squares: sum of the squares of the normals so far, in extended precision.
    """

    def __init__(self, generator: Any, steps: Collection[int]) -> None:
        self.key, self.squares = b"", np.longdouble(0)
        self._engine, self._steps = generator._engine, frozenset(steps)
        self._recurrence, self._sigma = self._engine._recurrence, np.longdouble(self._engine._sigma)

    def fill(self, out: np.ndarray, step: int, block: int) -> None:
        """Ask the recurrence for what it takes from z at this step, and put that and the 1 into z."""
        taken = np.zeros(1)
        self._recurrence.advance(step, taken, self._engine.state.copy(), np.zeros((self._recurrence.scratch, 1)))
        wanted = np.longdouble(step in self._steps) - np.longdouble(taken[0])
        out[0] = wanted / self._sigma / np.longdouble(self._recurrence.gain(step))
        self.squares += np.longdouble(out[0]) ** 2


def demanded_mu(
    generator: Any, participations: Collection[int], steps: int, end: float = math.inf
) -> tuple[float, int]:
    """Return how far one user moves Z within so many steps, and the steps that were made before the time `end`.

    Args:
        generator: of one entry, calibrated for mu = 1, before its first step.
        participations: steps of the user.
        steps: to make, at most.
        end: as `time.monotonic` gives it.
    """
    normals = generator._engine._normals = Demanded(generator, participations)
    made = np.empty(1)
    for step in range(steps):
        if step % 1000 == 0 and time.monotonic() > end:
            return float(np.sqrt(normals.squares)), step
        generator._engine.step(step, made)
        assert abs(made[0] - (step in participations)) < 1e-12, step
    return float(np.sqrt(normals.squares)), steps


def inverse_of(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """Return A near M^-1, and at least |A M - I|."""
    n = len(rows)
    assert (np.triu(rows, 1) == 0).all() and (np.diag(rows) > 0).all()
    inverse = np.tril(np.linalg.inv(rows))
    lost = (n + 2) * 2.0**-53 * np.linalg.norm(np.abs(inverse) @ np.abs(rows))
    off = float(np.linalg.norm(inverse @ rows - np.eye(n)) + lost)
    assert off < 1e-7
    return inverse, off


def real_mu(rows: np.ndarray, strategy: Matrix, calibration: Calibration, sigma: float) -> float:
    """Return at least the sensitivity of M^-1, the smaller of two bounds.

    With A M = I + R it is (I + R)^-1 A. One bound is that of A by the exact checker; the other is the certified one of C
    / sigma and what is between that and A, column by column. Either is divided by 1 - |R|.
    """
    inverse, off = inverse_of(rows)
    certified, n = calibration.sensitivity, len(rows)
    times = participations_of(certified.participation, n)
    between = np.linalg.norm(inverse - strategy.dense() / sigma, axis=0).max()
    found = [certified.value / sigma + times * float(between)]
    if n <= MAX_N_COMPUTED // 8:
        bracket = bracket_sensitivity(Strategy("dense", {"": inverse}, n), certified.participation)
        found.append(square_root_up(bracket.upper))
    return min(found) / (1 - off) * (1 + 1e-14)
