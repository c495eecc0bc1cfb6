"""Matrices with buffers: C[i, j] = output_i . T_i ... T_{j+1} input_j below a positive diagonal, enclosed.

Exact values would need more bits at every step, so both recursions run in fixed point with a bound on what was cut.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from factorize.errors import CorruptObject, TooLarge
from factorize.exact.integers import Numbers
from factorize.exact.intervals import PLACES, Interval, dyadic

LARGEST_WHOLE = 1024


class Buffers(NamedTuple):
    """Diagonal (n,), transitions (n, groups, s, s), inputs and outputs (n, groups, s)."""

    diagonal: np.ndarray
    transition: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray

    @property
    def nonnegative(self) -> bool:
        """Whether every number is non-negative, and with them every entry of C."""
        return all((part >= 0).all() for part in self)


def read(parts: dict[str, np.ndarray], n: int) -> Buffers:
    """Take the tensors of the structures `buffered` and `state_space`.

    Raises:
        CorruptObject: their shapes do not fit each other.
        KeyError: one is missing.
    """
    diagonal, inputs, outputs = parts.pop("diagonal"), parts.pop("input"), parts.pop("output")
    middle = parts.pop("decay") if "decay" in parts else parts.pop("transition")
    if middle.ndim == 2:
        middle = middle[:, :, None, None]
    elif middle.ndim == 3:
        middle = middle[:, None]
    groups, states = middle.shape[1:3]
    fits = diagonal.shape == (n,) and inputs.shape == outputs.shape == (n, groups * states)
    if middle.ndim != 4 or middle.shape != (n, groups, states, states) or not fits:
        raise CorruptObject(f"the tensors of a matrix with buffers do not fit n={n} and each other")
    return Buffers(diagonal, middle, *(part.reshape(n, groups, states) for part in (inputs, outputs)))


def column_norms(given: Buffers) -> Numbers:
    """Return the squared column norms: diagonal_j^2 + input_j . P_j input_j with P_{j-1} = T_j^T (P_j + o_j o_j^T) T_j.

    P is kept in units of 2^-256 and cut at every step; `error` bounds its entries' error in those units.

    Raises:
        TooLarge: the transitions grow so much that 256 places do not enclose the norms.
    """
    n, groups, states = given.inputs.shape
    size = groups * states
    fixed = [_fixed(part) for part in (given.diagonal, given.inputs.reshape(n, size), given.outputs.reshape(n, size))]
    blocks = _fixed(given.transition)
    gram = np.full((size, size), 0, dtype=object)
    norms, error, widest = np.empty(n, dtype=object), 0, 0
    for j in range(n - 1, -1, -1):
        diagonal, feed, read_out = (part[j] for part in fixed)
        norms[j] = (diagonal * diagonal + (feed @ gram @ feed >> PLACES)) >> PLACES
        reach = int(abs(feed).sum()) + size
        largest = int(abs(gram).max()) + error
        cut = _up(error * reach * reach, 2) + _up(2 * size * reach * largest, 2) + _up(2 * int(diagonal) + 1, 1) + 2
        widest = max(widest, cut)
        if j == 0:
            break
        through = _block_diagonal(blocks[j], size)
        filled = gram + (np.multiply.outer(read_out, read_out) >> PLACES)
        spread = int(abs(through).sum(axis=0).max()) + size
        error += _up(2 * (int(abs(read_out).max()) + 1), 1) + 1
        largest = int(abs(filled).max()) + error
        error = _up(error * spread * spread, 2) + _up(2 * size * spread * largest, 2) + 2
        gram = through.T @ filled @ through >> (2 * PLACES)
    if widest > 1 << (PLACES - 80):
        raise TooLarge("the buffers' transitions grow so much that 256 places do not enclose the column norms")
    return Numbers(norms, -PLACES, widest)


def _fixed(array: np.ndarray) -> np.ndarray:
    """Doubles in units of 2^-256, rounded down."""
    return Interval.of_doubles(array).low


def _up(units: int, factors: int) -> int:
    """Divide by 2^256 as often as factors were multiplied, rounding up; at least what a unit's error can do."""
    return (units >> (PLACES * factors)) + 1


def _block_diagonal(blocks: np.ndarray, size: int) -> np.ndarray:
    groups, states = blocks.shape[:2]
    out = np.full((size, size), 0, dtype=object)
    for g in range(groups):
        out[g * states : (g + 1) * states, g * states : (g + 1) * states] = blocks[g]
    return out


def entries(given: Buffers) -> Numbers:
    """Return all of C: the states of all columns move on together, one step per row.

    Raises:
        TooLarge: n is above the limit.
    """
    n, groups, states = given.inputs.shape
    if n > LARGEST_WHOLE:
        raise TooLarge(f"multiplying buffers out exactly is limited to n={LARGEST_WHOLE}; this matrix has n={n}")
    lows, highs = np.full((n, n), 0, dtype=object), np.full((n, n), 0, dtype=object)
    kept = [[Interval.zeros(n) for _ in range(states)] for _ in range(groups)]
    diagonal = Interval.of_doubles(given.diagonal)
    feeds = Interval.of_doubles(given.inputs)
    for i in range(n):
        row = Interval.zeros(n)
        for g in range(groups):
            before = kept[g]
            kept[g] = [_combine(given.transition[i, g, s], before) for s in range(states)] if i else before
            row = row.plus(_combine(given.outputs[i, g], kept[g]))
            for s in range(states):
                kept[g][s].low[i], kept[g][s].high[i] = feeds.low[i, g, s], feeds.high[i, g, s]
        row.low[i], row.high[i] = diagonal.low[i], diagonal.high[i]
        lows[i], highs[i] = row
    return Interval(lows, highs).numbers()


def _combine(weights: np.ndarray, states: list[Interval]) -> Interval:
    total = states[0].times(dyadic(float(weights[0])))
    for weight, state in zip(weights[1:], states[1:], strict=True):
        total = total.plus(state.times(dyadic(float(weight))))
    return total
