"""The coefficients of every step of a recurrence, derived from the core's own arithmetic.

A recurrence is linear in (z, state). Fed with the unit vectors it tells its coefficients:

    x = gain z - reads . s,    s <- moves s + writes x
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from factorize.client.recurrences import Recurrence
from factorize.client.structures import Streamable
from factorize.errors import TooLarge

_ZERO = 1e-14  # of what was subtracted: below it a coefficient is rounding
_MOST = 1 << 26  # numbers in a table of all steps


@dataclass(frozen=True)
class StepPlan:
    """The coefficients of one step, with k states.

    Attributes:
        gain: what z is multiplied by, without sigma.
        reads: shape (k,).
        moves: shape (k, k).
        writes: shape (k,).
    """

    gain: float
    reads: np.ndarray
    moves: np.ndarray
    writes: np.ndarray

    @classmethod
    def of(cls, recurrence: Recurrence, step: int) -> StepPlan:
        """Ask a recurrence in float64 for its coefficients."""
        k = recurrence.vectors
        x, state = np.eye(1, k + 1)[0], np.eye(k, k + 1, 1)
        recurrence.advance(step, x, state, np.empty((recurrence.scratch, k + 1)))
        writes = state[:, 0] / x[0]
        taken = np.outer(writes, x[1:])
        moves = state[:, 1:] - taken
        moves[np.abs(moves) <= _ZERO * np.abs(taken)] = 0
        return cls(recurrence.gain(step) * float(x[0]), -x[1:], moves, writes)


@dataclass(frozen=True)
class PlanTable:
    """The coefficients of all n steps.

    Attributes:
        gain: shape (n,).
        reads: shape (n, k).
        moves: shape (n, k), where every state has a decay of its own; else (n, k, k).
        writes: shape (n, k).
    """

    gain: np.ndarray
    reads: np.ndarray
    moves: np.ndarray
    writes: np.ndarray

    @classmethod
    def of(cls, source: Streamable) -> PlanTable:
        """Collect them.

        Raises:
            TooLarge: states move into each other, and the table of all steps has more than 2^26 numbers.
        """
        recurrence = source.recurrence(np.float64)
        n, k = recurrence.steps, recurrence.vectors
        gain, reads, decays, writes = np.empty(n), np.empty((n, k)), np.empty((n, k)), np.empty((n, k))
        moves: np.ndarray | None = None
        for step in range(n):
            plan = StepPlan.of(recurrence, step)
            gain[step], reads[step], writes[step] = plan.gain, plan.reads, plan.writes
            decays[step] = np.diag(plan.moves)
            if moves is None and (plan.moves - np.diag(decays[step])).any():
                if n * k * k > _MOST:
                    raise TooLarge(f"{n} steps of {k} states need {n * k * k} coefficients; use the client's noise")
                moves = np.zeros((n, k, k))
                moves[:step, range(k), range(k)] = decays[:step]
            if moves is not None:
                moves[step] = plan.moves
        return cls(gain, reads, decays if moves is None else moves, writes)
