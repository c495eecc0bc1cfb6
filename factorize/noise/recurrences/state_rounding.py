"""Roundings as changes of coefficients, with bounds of the distance from C to the strategies that they make of it.

Coefficients and arithmetic are float64; the state may be float32. Each rounding multiplies a number by a factor 1 + e,
|e| <= 2^-24 or 2^-53, so that the noise is x = C'^-1 Z for some C' near C. This module bounds the columns of C' - C for
every such C', from above; allowances.py turns the bounds into noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

SINGLE, DOUBLE = 2.0**-24, 2.0**-53
"""The largest relative error of one rounding to float32, and to float64."""
_SLACK = 1 + 2.0**-16  # It covers the roundings of the bounds themselves.


@dataclass(frozen=True)
class Deviation:
    """Bounds of the distance from C to the strategies C' that roundings can make of it.

    Attributes:
        columns: an upper bound of |(C' - C) e_j| for every column j.
        entries: in addition, |C' - C| is at most this times |C|, entry by entry.
        rows: in addition, each row of C may be off by this factor less 1.
        inverse: an upper bound of |(X - C^-1) e_j| for every column, where the noise is X z with X near C^-1.
    """

    columns: float = 0.0
    entries: float = 0.0
    rows: float = 0.0
    inverse: float = 0.0

    def scaled(self, smallest: float, largest: float, arithmetic: float) -> Deviation:
        """Return the deviation with columns scaled by numbers between these, which rounds three times more."""
        return replace(
            self, columns=self.columns * largest, entries=self.entries + 3 * arithmetic, inverse=self.inverse / smallest
        )


def geometric_column(decay: np.ndarray, scale: np.ndarray, steps: int, unit: float) -> float:
    """Return a bound of |(C' - C) e_j| for the column 1, then sum_r scale_r decay_r^(m-1), with m roundings at lag m.

    By (1 + u)^m - 1 <= m u (1 + u)^(m-1), each buffer has at most scale^2 u^2 sum_m m^2 q^(m-1), q = (decay (1 + u))^2.
    """
    total, n = 0.0, float(steps)
    for theta, omega in zip(np.abs(decay).tolist(), np.abs(scale).tolist(), strict=True):
        left = (1 - theta) - theta * unit  # This is 1 - decay (1 + u).
        bounds = [n * n * n] if left >= 0 else [_power(n, theta * (1 + unit))]
        if left > 0:
            gap = left * (2 - left)  # This is 1 - q.
            bounds.append((2 - gap) / gap / gap / gap)
        total += omega * unit * math.sqrt(min(bounds))
    return total * _SLACK


def _power(n: float, growth: float) -> float:
    exponent = 3 * math.log(n) + 2 * n * math.log(growth)
    return math.exp(exponent) if exponent < 700 else math.inf


def varying_columns(
    moves: np.ndarray, reads: np.ndarray, writes: Sequence[np.ndarray], unit: float
) -> list[np.ndarray]:
    """Return a bound of |(M' - M) e_j| for the lower triangle M[t, j] = reads_t moves_(t-1) .. moves_(j+1) writes_j.

    The state is rounded after every step, so that the entry (t, j) has t - j factors, each off by at most `unit`. It is
    off by at most (t - j) u (1 + u)^(t - j) times the same product of absolute values.

    Args:
        moves: shape (n, groups, states, states), block diagonal.
        reads: shape (n, groups, states).
        writes: several, each of shape (n, groups, states).
        unit: relative error of a step's roundings.

    Returns:
        For each of `writes` an array of shape (n,).
    """
    ahead, read = np.abs(moves) * (1 + unit), np.abs(reads) * (1 + unit)
    with np.errstate(over="ignore", invalid="ignore"):
        moments = _moments(ahead, read[..., :, None] * read[..., None, :], 2)
        return [unit * _SLACK * _norms(moments, np.abs(write)).sum(axis=1) for write in writes]


def observe_columns(
    moves: np.ndarray, reads: np.ndarray, sizes: np.ndarray, writes: np.ndarray, unit: float, beside: float
) -> np.ndarray:
    """Return the same bound for states that cancel, where products of absolute values would grow without limit.

    The later steps read the rounding of a state as a column of norm g. So a column is off by at most
    H(v) = sum_i w_i |v_i|, with its true states v_i and w = u g, and in addition by the roundings of the arithmetic.
    Since the states are off themselves, the bound is H / (1 - h), where H of a unit state is at most h g. By Cauchy
    and Schwarz (sum_m a_m)^2 <= pi^2/6 sum_m m^2 a_m^2.

    Args:
        moves: shape (n, groups, states, states), block diagonal.
        reads: shape (n, groups, states).
        sizes: the same sums of absolute values.
        writes: shape (n, groups, states).
        unit: relative error of storing a state.
        beside: relative error of the arithmetic of one step, against sums of absolute values.

    Returns:
        Shape (n,).
    """
    n, states = len(moves), moves.shape[-1]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        seen = np.sqrt(np.einsum("tgii->tgi", _moments(moves, reads[..., :, None] * reads[..., None, :], 0)).clip(0))
        passed, read = np.zeros_like(seen), np.zeros_like(seen)
        passed[: n - 1] = np.einsum("tgi,tgij->tgj", seen[1:], np.abs(moves[1:]))
        read[: n - 1] = sizes[1:]
        weights = unit * seen + beside * (seen + passed + read)
        sources = np.einsum("tgji,tgj,tgjk->tgik", moves, weights**2, moves)
        moments = _moments(moves, sources, 2) * (states * math.pi**2 / 6)
        own = weights + np.sqrt(np.einsum("tgii->tgi", moments).clip(0))
        again = np.where(own > 0, own / seen, 0.0).max(initial=0.0)
        if not again < 0.5:
            return np.full(n, np.inf)
        sums = (weights * np.abs(writes)).sum(axis=-1) + _norms(moments, writes)
        return sums.sum(axis=1) / (1 - again) * _SLACK


def _norms(moments: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return sqrt(v^T M v), shape (n, groups), infinite where it is not a number."""
    squares = np.einsum("tgi,tgij,tgj->tg", vectors, moments, vectors)
    return np.sqrt(np.where(np.isnan(squares), np.inf, squares).clip(0))


def _moments(moves: np.ndarray, sources: np.ndarray, power: int) -> np.ndarray:
    """Return sum_(t > j) (t - j)^power F_(j+1) .. F_(t-1) sources_t (F_(j+1) .. F_(t-1))^T for each j, F = moves^T.

    Steps are cut into about sqrt(n) stretches that run side by side, from their last step to their first, once with
    nothing after them, and once with the moments of the steps after.

    Args:
        moves: shape (n, groups, states, states).
        sources: the same shape.
        power: 0 or 2.
    """
    n = len(moves)
    length = math.isqrt(max(n - 1, 0)) + 1
    runs = -(-n // length)
    ahead, source = (_stretches(part, runs, length) for part in (moves.swapaxes(-1, -2), sources))
    entering = np.zeros((3, *ahead.shape[1:]))
    alone, product = _backwards(ahead, source, entering, None)
    for run in range(runs - 1, 0, -1):
        entering[:, run - 1] = alone[:, run] + _around(product[run], _later(entering[:, run], length))
    kept = np.empty_like(source)
    _backwards(ahead, source, entering, kept, power)
    moments = np.zeros_like(sources)
    moments[: n - 1] = kept.swapaxes(0, 1).reshape(runs * length, *sources.shape[1:])[1:n]
    return moments


def _stretches(array: np.ndarray, runs: int, length: int) -> np.ndarray:
    """Cut steps into stretches, shape (length, runs, ...), so that one index goes through all of them in step."""
    padded = np.zeros((runs * length, *array.shape[1:]))
    padded[: len(array)] = array
    return np.ascontiguousarray(padded.reshape(runs, length, *array.shape[1:]).swapaxes(0, 1))


def _backwards(
    ahead: np.ndarray, source: np.ndarray, moments: np.ndarray, kept: np.ndarray | None, power: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Go backwards through all stretches; return the moments (m^0, m^1, m^2) before them, and the products of moves."""
    product = np.broadcast_to(np.eye(ahead.shape[-1]), ahead.shape[1:])
    for step in range(len(ahead) - 1, -1, -1):
        moments = _around(ahead[step], _later(moments, 1)) + source[step]
        product = _times(ahead[step], product)
        if kept is not None:
            kept[step] = moments[power]
    return moments, product


def _later(moments: np.ndarray, steps: int) -> np.ndarray:
    """Return the moments with m counted from `steps` earlier: (m + k)^2 = m^2 + 2 k m + k^2."""
    zero, one, two = moments
    return np.stack([zero, one + steps * zero, two + 2 * steps * one + steps * steps * zero])


def _around(forward: np.ndarray, inner: np.ndarray) -> np.ndarray:
    return _times(_times(forward, inner), forward.swapaxes(-1, -2))


def _times(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left * right if left.shape[-1] == 1 else left @ right
