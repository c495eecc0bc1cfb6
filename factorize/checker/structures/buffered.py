"""Matrices with buffers: C[i, j] = output_i . T_i ... T_{j+1} input_j below a positive diagonal, enclosed.

Exact values would need more bits at every step, so recursions run in fixed point, in units of 2^-256, and every product
is cut towards minus infinity. What is cut in one step moves on through the transitions T as the state does. Adding up
absolute values would let it grow where T rotates, so it is bounded in the order of positive semidefinite matrices:
errors between -d I and d I of every step add up to something between -R and R, where R <- T^T R T + d I.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np

from factorize.checker.arithmetic.integers import Limbs, Numbers, mantissas, split
from factorize.checker.arithmetic.intervals import PLACES, NotEnclosed, shifted
from factorize.checker.arithmetic.near import Columns, Near, U, share
from factorize.checker.losses.covariances import Statement, variances
from factorize.checker.structures.base import Buffers as Buffers
from factorize.checker.structures.base import ComputedReading, KeptNumbers
from factorize.errors import CorruptObject, TooLarge

LARGEST_WHOLE = 2048
_STEPS = 4096  # whose numbers are Python integers at the same time
_WIDEST = 1 << (PLACES - 80)
_LOOSE = 2.0**-40  # share of a column norm that may be left open
_ROOT_TINY = 1e-150  # more than what underflows; its square does not

Real = tuple[int, int]
"""mantissa and exponent of a double"""


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
    if middle.ndim != 4:
        raise CorruptObject(f"a transition of shape {middle.shape} is none of a matrix with buffers")
    groups, states = middle.shape[1:3]
    fits = diagonal.shape == (n,) and inputs.shape == outputs.shape == (n, groups * states)
    if middle.shape != (n, groups, states, states) or not fits:
        raise CorruptObject(f"the tensors of a matrix with buffers do not fit n={n} and each other")
    return Buffers(diagonal, middle, *(part.reshape(n, groups, states) for part in (inputs, outputs)))


def _reals(array: np.ndarray) -> list[list[Real]]:
    """Doubles of shape (steps, ...) as one flat list of mantissas and exponents per step."""
    numbers, exponents = mantissas(array.reshape(len(array), -1))
    rows = zip(numbers.tolist(), exponents.tolist(), strict=True)
    return [list(zip(row, powers, strict=True)) for row, powers in rows]


class CongruencePlan(NamedTuple):
    """How T^T X T is computed for a symmetric X, kept as the list of its entries at `pairs`, and a block-diagonal T.

    Attributes:
        pairs: (a, b) with a <= b.
        terms: for each pair, which entries of T, T and X are multiplied and added.
    """

    pairs: list[tuple[int, int]]
    terms: list[list[tuple[int, int, int]]]

    @classmethod
    def of(cls, groups: int, states: int) -> CongruencePlan:
        """Return the plan for T of shape (groups, states, states)."""
        size = groups * states
        pairs = [(a, b) for a in range(size) for b in range(a, size)]
        place = {pair: k for k, pair in enumerate(pairs)} | {(b, a): k for k, (a, b) in enumerate(pairs)}
        terms = []
        for a, b in pairs:
            first, second = a // states * states, b // states * states
            inner = [(c, d) for c in range(first, first + states) for d in range(second, second + states)]
            terms.append([(c * states + a - first, d * states + b - second, place[c, d]) for c, d in inner])
        return cls(pairs, terms)

    def move(self, matrix: list[int], blocks: list[Real]) -> list[int]:
        """Return T^T X T; each entry is cut by less than states^2 units."""
        found = []
        for entry in self.terms:
            total = 0
            for i, j, k in entry:
                (x, e), (y, f) = blocks[i], blocks[j]
                power = e + f
                total += x * y * matrix[k] >> -power if power < 0 else x * y * matrix[k] << power
            found.append(total)
        return found

    def quadratic(self, matrix: list[int], vector: list[Real]) -> int:
        """Return v . X v, cut by less than one unit per pair."""
        total = 0
        for (a, b), entry in zip(self.pairs, matrix, strict=True):
            (x, e), (y, f) = vector[a], vector[b]
            power = e + f + (a != b)
            total += x * y * entry >> -power if power < 0 else x * y * entry << power
        return total

    def with_diagonal(self, matrix: list[int], units: int) -> list[int]:
        """Return X plus a multiple of the identity."""
        return [entry + units if a == b else entry for (a, b), entry in zip(self.pairs, matrix, strict=True)]


def column_norms(given: Buffers) -> Near:
    """Return the squared column norms: variances of z^T C for white noise z.

    Backwards, r <- r + output_j z_j, then T_j^T r; entry j is diagonal_j z_j and input_j . r, of what is behind j.

    Raises:
        NotEnclosed: the transitions grow so much that doubled precision does not enclose them.
    """
    diagonal, transition, inputs, outputs = given.balanced()
    groups, s = inputs.shape[1:]
    size = groups * s
    z, y, spare = size, size + 1, size + 2
    parts = [divmod(k, s) for k in range(size)]
    statements = [Statement(y, {(k, 0): inputs[:, g, a] for k, (g, a) in enumerate(parts)}), Statement(z, {})]
    statements += [Statement(k, {(k, 0): 1.0, (z, 0): outputs[:, g, a]}) for k, (g, a) in enumerate(parts)]
    for g in range(groups):
        own = [g * s + a for a in range(s)]
        for b in range(s):
            column = {(own[a], 0): transition[:, g, a, b] for a in range(s)}
            statements.append(Statement(own[b] if s == 1 else spare + b, column))
        statements += [Statement(own[b], {(spare + b, 0): 1.0}) for b in range(s) if s > 1]
    with np.errstate(all="ignore"):
        ends = diagonal**2 + variances(len(diagonal), statements, y, noise=z, backwards=True)
    loose = float(((ends[1] - ends[0]) / ends[0]).max()) if (ends[0] > 0).all() else np.inf
    if not loose < _LOOSE:
        raise NotEnclosed(f"the buffers' transitions grow so much that column norms are known to {loose:.3g} alone")
    return Near(ends[1], share(loose, roundings=8))


def near_columns(given: Buffers, indices: np.ndarray) -> Columns:
    """Return some columns: their states move on together, and what each step rounds moves on with them.

    A step k rounds the states of a column by a vector d_k, which reaches row i as output . Phi_ik d_k. By Cauchy and
    Schwarz all of them together change it by at most sqrt(output . W output) sqrt(sum |d_k|^2), W = sum Phi Phi^T.

    Raises:
        NotEnclosed: the transitions grow so much that W is not known.
    """
    diagonal, transition, inputs, outputs = given.balanced()
    n, groups, s = inputs.shape
    order = np.argsort(indices, kind="stable")
    starts = indices[order]
    states, drift, far = np.zeros((groups, s, len(starts))), np.zeros(len(starts)), np.zeros(len(starts))
    values, reach = np.zeros((n, len(starts))), np.zeros((groups, s, s))
    begun = 0
    for i in range(int(starts[0]), n):
        step = transition[i]
        if begun:
            moved = step @ states[:, :, :begun]
            sizes = (s + 2) * U * (np.abs(step) @ np.abs(states[:, :, :begun])) + _ROOT_TINY
            drift[:begun] += np.einsum("gac,gac->c", sizes, sizes)
            spread, widest = float(np.abs(step).sum()), float(np.abs(reach).max())
            if not (s + 4) * 2.0**-50 * spread**2 * widest < 0.5:
                raise NotEnclosed("the transitions grow so much that doubles do not enclose the entries of C")
            reach = step @ reach @ step.swapaxes(1, 2) + np.eye(s)  # twice it covers its own rounding
            states[:, :, :begun] = moved
            row, size = outputs[i].reshape(-1), np.abs(outputs[i])
            flat = moved.reshape(groups * s, begun)
            values[i, :begun] = row @ flat
            length = float(np.einsum("ga,gab,gb->", outputs[i], reach, outputs[i]))
            length = max(length, 0.0) + 2.0**-40 * float(np.einsum("ga,gab,gb->", size, np.abs(reach), size))
            own = (groups * s + 4) * U * (np.abs(row) @ np.abs(flat)) + _ROOT_TINY
            far[:begun] += (np.sqrt(2.0 * length * drift[:begun]) + own) ** 2
        while begun < len(starts) and starts[begun] == i:
            values[i, begun] = diagonal[i]
            states[:, :, begun] = inputs[i]
            begun += 1
    found, slack = np.empty_like(values), np.empty_like(far)
    found[:, order], slack[order] = values, np.sqrt(far) * (1 + 2.0**-20)
    return Columns(found, slack)


def entries(given: Buffers) -> Numbers:
    """Return all of C: the states of all columns move on together, one step per row.

    Every column's state loses less than one unit per step and term. Of a sum of N vectors Phi_k f_k with |f_k|^2 <= d,
    the outer product is at most N d sum_k Phi_k Phi_k^T = N d W in the order of semidefinite matrices, and W moves on
    as W <- T W T^T + I. So row i is off by at most sqrt(N d o . W o).

    Raises:
        TooLarge: n is above the limit, or the transitions grow so much that 256 places say nothing.
    """
    n, groups, states = given.inputs.shape
    if n > LARGEST_WHOLE:
        raise TooLarge(f"multiplying buffers out exactly is limited to n={LARGEST_WHOLE}; this matrix has n={n}")
    size = groups * states
    whole = np.full((n, n), 0, dtype=object)
    state = np.full((size, n), 0, dtype=object)
    plan = CongruencePlan.of(groups, states)
    reach, radius = [0] * len(plan.pairs), 0
    parts = [_reals(part) for part in given]
    for i, (diagonal, transition, feed, out) in enumerate(zip(*parts, strict=True)):
        if i:
            _advance(state[:, :i], transition, groups, states)
            moved = plan.move(reach, _transposed(transition, groups, states))
            reach = plan.with_diagonal(moved, 1 + size * states * states)
        row: Any = sum(shifted(state[a, :i] * number, exponent) for a, (number, exponent) in enumerate(out))
        whole[i, :i] = row
        whole[i, i] = shifted(diagonal[0][0], diagonal[0][1] + PLACES)
        for a, (number, exponent) in enumerate(feed):
            state[a, i] = shifted(number, exponent + PLACES)
        lost = (i + 1) * size * (states + 1) ** 2 * (plan.quadratic(reach, out) + size * size)
        radius = max(radius, math.isqrt(lost) + size + 2)
    if radius > _WIDEST:
        raise TooLarge("the buffers' transitions grow so much that 256 places do not enclose the entries of C")
    return Numbers(whole, -PLACES, radius)


def _advance(state: np.ndarray, blocks: list[Real], groups: int, states: int) -> None:
    for g in range(groups):
        before = state[g * states : (g + 1) * states].copy()
        for a in range(states):
            row = blocks[(g * states + a) * states : (g * states + a + 1) * states]
            state[g * states + a] = sum(shifted(before[b] * x, e) for b, (x, e) in enumerate(row))


def _transposed(blocks: list[Real], groups: int, states: int) -> list[Real]:
    inner = range(states)
    return [blocks[(g * states + b) * states + a] for g in range(groups) for a in inner for b in inner]


class BufferedReading(ComputedReading):
    """C by a diagonal and buffers, each with a decay.

    Args:
        buffers: the numbers.
    """

    parts = frozenset({"diagonal", "decay", "input", "output"})
    scalable = True

    def __init__(self, buffers: Buffers) -> None:
        self.n, self._numbers = len(buffers.diagonal), buffers
        self.memory = KeptNumbers(buffers.outputs[0].size, 0)

    @classmethod
    def read(cls, parts: dict[str, np.ndarray], n: int) -> Self:
        """Take the tensors; see `read`."""
        return cls(read(parts, n))

    @property
    def diagonal(self) -> np.ndarray:
        """The diagonal."""
        return self._numbers.diagonal

    @property
    def buffers(self) -> Buffers:
        """The numbers."""
        return self._numbers

    @property
    def signed(self) -> bool:
        """Whether an entry may be negative, by the signs of the numbers."""
        return not self._numbers.nonnegative

    def column_norms(self) -> Near:
        """Squared norms of the columns."""
        return column_norms(self._numbers)

    def near_columns(self, indices: np.ndarray) -> Columns:
        """Return some columns."""
        return near_columns(self._numbers, indices)

    def _whole(self) -> Limbs:
        return split(entries(self._numbers))


class StateSpaceReading(BufferedReading):
    """C by a diagonal and states that mix."""

    parts = frozenset({"diagonal", "transition", "input", "output"})
    scalable = True
