"""The coefficients of every step of a recurrence, derived from the core's own arithmetic.

A recurrence is linear in (z, state). Its answers to the unit vectors are its coefficients:

    x = gain z - reads . s,    s <- moves s + writes x

A recurrence whose states keep draws has these in place of x, and may make earlier draws again: with u = gain z

    x = u + takes . z_earlier - reads . s,    s <- moves s + loads . (u, z_earlier)

Either way the row of C^-1 Z is x times the scale of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from factorize.errors import TooLarge
from factorize.noise.recurrences.base import Recurrence
from factorize.noise.source import Streamable

_MAX_NUMBERS = 1 << 26
"""The most numbers in a table of all steps: 512 MiB of doubles."""
Numbers = TypeVar("Numbers")


@dataclass(frozen=True)
class StepPlan:
    """The coefficients of one step, with k states.

    Attributes:
        gain: factor of z, without sigma.
        reads: shape (k,).
        moves: shape (k, k).
        loads: coefficients of x in the states, shape (k, 1); if they keep draws, of u and of each earlier draw, times
            sigma, shape (k, len(steps) + 1).
        keeps_draws: whether the states keep draws instead of rows of C^-1 Z.
        steps: the steps whose draws are made again.
        takes: coefficients of each earlier draw in x, times sigma, shape (len(steps),).
        scale: factor of x after the states have used it.
    """

    gain: float
    reads: np.ndarray
    moves: np.ndarray
    loads: np.ndarray
    keeps_draws: bool
    steps: list[int]
    takes: np.ndarray
    scale: float

    @classmethod
    def of(cls, recurrence: Recurrence, step: int) -> StepPlan:
        """Ask a recurrence for its coefficients.

        The next states are asked for once more with every x at 0, so that no coefficient is a difference of others.
        """
        recurrence, scale = recurrence.unscaled(step)
        k, earlier = recurrence.vectors, recurrence.earlier(step)
        width = 1 + k + len(earlier)
        x, state, scratch = np.eye(1, width)[0], np.eye(k, width, 1), np.zeros((recurrence.scratch, width))
        for m, (_, factor) in enumerate(earlier):
            scratch[m, 1 + k + m] = factor
        recurrence.advance(step, x, state, scratch)
        gain, reads, moves = recurrence.gain(step) * float(x[0]), -x[1 : k + 1], state[:, 1 : k + 1]
        loads = np.hstack([state[:, :1] / x[0], state[:, k + 1 :]])
        if not recurrence.keeps_draws:
            still, moves = reads.copy(), np.eye(k)
            recurrence.advance(step, still, moves, np.zeros((recurrence.scratch, k)))
        again = [before for before, _ in earlier]
        return cls(gain, reads, moves, loads, recurrence.keeps_draws, again, x[k + 1 :], scale)


@dataclass(frozen=True)
class PlanTable(Generic[Numbers]):
    """The coefficients of all n steps, as arrays of numpy or as a device keeps numbers.

    Attributes:
        gain: shape (n,).
        reads: shape (n, k).
        moves: shape (n, k), if every state has a decay of its own; else (n, k, k).
        takes: shape (n, redraws), 0 where there is no earlier draw.
        loads: shape (n, k, redraws + 1).
        scale: shape (n,).
        steps: steps of earlier draws, shape (n, redraws), 0 where there is none; int32.
        keeps_draws: see `StepPlan`.
        slots: the state that each step replaces by x, if all other states stay as they are, shape (n,); None where
            steps do more.
    """

    gain: Numbers
    reads: Numbers
    moves: Numbers
    takes: Numbers
    loads: Numbers
    scale: Numbers
    steps: np.ndarray
    keeps_draws: bool
    slots: np.ndarray | None


def plan_table(source: Streamable) -> PlanTable[np.ndarray]:
    """Collect the coefficients of all steps.

    Raises:
        TooLarge: states move into each other, and the table of all steps has more than 2^26 numbers.
    """
    recurrence = source.recurrence()
    n, k, redraws = recurrence.steps, recurrence.vectors, recurrence.redraws
    gain, scale, reads, decays = np.empty(n), np.empty(n), np.empty((n, k)), np.empty((n, k))
    steps, takes = np.zeros((n, redraws), dtype=np.int32), np.zeros((n, redraws))
    loads = np.zeros((n, k, redraws + 1))
    moves: np.ndarray | None = None
    for step in range(n):
        plan = StepPlan.of(recurrence, step)
        gain[step], reads[step], scale[step] = plan.gain, plan.reads, plan.scale
        count = len(plan.steps)
        steps[step, :count], takes[step, :count] = plan.steps, plan.takes
        loads[step, :, : count + 1] = plan.loads
        decays[step] = np.diag(plan.moves)
        if moves is None and (plan.moves - np.diag(decays[step])).any():
            if n * k * k > _MAX_NUMBERS:
                raise TooLarge(f"{n} steps of {k} states need {n * k * k} coefficients; use the client's noise")
            moves = np.zeros((n, k, k))
            moves[:step, range(k), range(k)] = decays[:step]
        if moves is not None:
            moves[step] = plan.moves
    keeps_draws = recurrence.unscaled(0)[0].keeps_draws
    slots = _slots(decays, loads) if moves is None else None
    return PlanTable(gain, reads, decays if moves is None else moves, takes, loads, scale, steps, keeps_draws, slots)


def _slots(decays: np.ndarray, loads: np.ndarray) -> np.ndarray | None:
    """Return the state that each step replaces, if no step does anything else to its states; else None."""
    if not loads.size:
        return None
    slots = loads[:, :, 0].argmax(axis=1)
    replaced = np.eye(decays.shape[1])[slots]
    alone = (loads == replaced[:, :, None]).all() and (decays == 1 - replaced).all()
    return slots if alone else None
