"""The sensitivity of a strategy from its rows, in plain doubles and with numpy alone.

It is the second program beside the checker's (factorize/checker/sensitivity.py), which counts all rounding. It also
guards every factor file before noise is scaled to what the file states: it costs seconds where a proof costs minutes,
and runs in a training job that has no extra installed.
"""

import math

import numpy as np

from factorize.encoding import json_digest
from factorize.errors import CorruptObject
from factorize.format.claims import Sensitivity
from factorize.format.manifest import ENDLESS_STEPS, CertifiedFactors, Manifest
from factorize.numbers.triangular import pattern_sums
from factorize.participation import Participation, read_participation
from factorize.structures.base import Matrix
from factorize.structures.endless import AnyStrategy, EndlessMatrix
from factorize.structures.layouts import build_matrix

LIMITS_AGREEMENT = 2.0**-26
"""The largest relative difference for limits without end, where the checker adds up millions of coefficients."""
_UNDERSTATED = 2.0**-25
"""The relative excess above a stated sensitivity that refutes it: that of two orders of summation is far below."""
MAX_N_WHOLE = 2048
"""The largest n at which a Toeplitz matrix is also evaluated as a general one."""
_MAX_ENTRIES = 1 << 24
"""The most entries of an array that are computed at a time: 128 MiB of doubles."""
_MAX_PATTERNS = 1 << 17
"""The most patterns that are visited one by one."""
_MAX_WORK = 1 << 29
"""The most sums that are compared in a search of patterns, over steps before, at and after each step."""
_CONFIRMED = set[str]()
"""Digests of the claims that this process has confirmed, or made itself, each with the matrix that it is for."""


def confirm_stated(factors: CertifiedFactors) -> Sensitivity:
    """Return the sensitivity that a certificate states, once it is compared with that of C.

    Anybody can write a certificate that states too little, with digests that fit. `verify` proves more, exactly.

    Raises:
        CorruptObject: the rows of C have a larger sensitivity, or the certificate states none.
    """
    manifest, stated = factors.manifest, Sensitivity.of(factors.manifest)
    if _claim(manifest) not in _CONFIRMED:
        n = None if manifest.steps == ENDLESS_STEPS else manifest.steps
        strategy = build_matrix(factors.structure, dict(factors.strategy_tensors()), n)
        participation = read_participation(stated.participation)
        plain = plain_value(strategy, participation.canonical(n) if n else participation.without_end())
        if not plain <= stated.value * (1 + _UNDERSTATED):
            raise CorruptObject(
                f"the certificate states sensitivity {stated.value!r}, but C has {plain!r} for its participation. "
                "Noise scaled to it would be too small; do not use this file"
            )
        note_confirmed(manifest)
    return stated


def note_confirmed(manifest: Manifest) -> None:
    """Note that a manifest's sensitivity is that of its C, as a certificate that was just made or proved says."""
    _CONFIRMED.add(_claim(manifest))


def _claim(manifest: Manifest) -> str:
    return json_digest([manifest.matrix("C"), manifest.certificate["sensitivity"]])


def plain_value(matrix: AnyStrategy, participation: Participation) -> float:
    """Return nearly the sensitivity of any strategy, with or without end; see `plain_sensitivity`."""
    if isinstance(matrix, EndlessMatrix):
        separation, most, _ = participation.endless_spread() or matrix.finite()
        return math.sqrt(matrix.squared_limit(separation, most))
    return plain_sensitivity(matrix, participation)


def plain_sensitivity(matrix: Matrix, participation: Participation) -> float:
    """Return nearly the sensitivity, by the formula with the lowest bound.

    Raises:
        TooLarge: columns overlap, and n is above the limit for an n x n array.
    """
    separation, most, _ = participation.spread(matrix.n)
    with np.errstate(over="ignore", invalid="ignore"):
        return math.sqrt(_squared(matrix, separation, most, periodic=participation.patterns(matrix.n) is not None))


def _squared(matrix: Matrix, separation: int, most: int, *, periodic: bool) -> float:
    if most == 1 or matrix.bandwidth() <= separation:
        norms = matrix.column_norms_squared()
        if periodic:
            norms = norms.reshape(most, separation).sum(axis=0)
        return float(norms.max() if most == 1 or periodic else best_selections(norms, separation, most))
    column = _column(matrix)
    leading = math.inf if column is None else _leading_pattern(column, separation, most)
    if column is not None and (matrix.n > MAX_N_WHOLE or (column[:-1] >= column[1:]).all() and column[-1] >= 0):
        return leading
    whole = matrix.dense()
    return min(leading, (_patterns if periodic else _two_stages)(whole, separation, most))


def _column(matrix: Matrix) -> np.ndarray | None:
    """Return the first column of a Toeplitz matrix, or None for another matrix."""
    if matrix.time_invariant:
        return matrix.rows(matrix.n - 1, matrix.n)[0, ::-1]
    if matrix.structure != "dense":
        return None
    whole = matrix.dense()
    constant = all((whole[i, 1 : i + 1] == whole[i - 1, :i]).all() for i in range(1, matrix.n))
    return whole[:, 0] if constant else None


def _leading_pattern(column: np.ndarray, separation: int, most: int) -> float:
    """Return the squared norm of the sum of columns 0, b, 2b, ... of the smallest non-increasing sequence above."""
    majorant = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    return float((pattern_sums(majorant, separation, most) ** 2).sum())


def _patterns(whole: np.ndarray, separation: int, most: int) -> float:
    """Return the largest absolute sum of the Gram matrices of the columns j, j + b, ..."""
    n, largest = len(whole), 0.0
    step = max(_MAX_ENTRIES // (n * most), 1)
    for start in range(0, separation, step):
        columns = whole.reshape(n, most, separation)[:, :, start : start + step].transpose(2, 1, 0)
        largest = max(largest, float(np.abs(columns @ columns.swapaxes(1, 2)).sum(axis=(1, 2)).max()))
    return largest


def _two_stages(whole: np.ndarray, separation: int, most: int) -> float:
    """Return the best selection within each row of |C^T C|, then of the rows; the best pattern if that is feasible."""
    n = len(whole)
    count = sum(math.comb(max(n - (size - 1) * (separation - 1), 0), size) for size in range(1, most + 1))
    bands = int(np.flatnonzero([whole.diagonal(-d).any() for d in range(n)])[-1]) + 1
    memory, exact = memory_of(n, separation, most, bands), min(most, -(-bands // separation)) <= 3
    if n * n <= _MAX_ENTRIES and (memory or count <= _MAX_PATTERNS):
        sizes = np.abs(whole.T @ whole)
        if memory and (exact or count > _MAX_PATTERNS):
            return Chains(sizes, separation, most, memory).best()
        return _visit_patterns(sizes, sizes.diagonal(), separation, most)
    step = max(_MAX_ENTRIES // n, 1)
    blocks = (np.abs(whole.T @ whole[:, start : start + step]) for start in range(0, n, step))
    rows = np.concatenate([best_selections(block, separation, most) for block in blocks])
    return float(best_selections(rows, separation, most))


def _visit_patterns(sizes: np.ndarray, gains: np.ndarray, separation: int, most: int) -> float:
    """Return the most that up to `most` further steps add; `gains` is what each adds to the steps before."""
    if most == 1 or len(gains) <= separation:
        return float(gains.max(initial=0.0))
    return max(
        float(gains[i])
        + _visit_patterns(
            sizes[i + separation :, i + separation :],
            gains[i + separation :] + 2 * sizes[i, i + separation :],
            separation,
            most - 1,
        )
        for i in range(len(gains))
    )


class Chains:
    """The largest sums over patterns of X_ii and twice |X_ij|, where a step counts with the one or two steps before it.

    Where fewer steps are allowed than fit, it also counts with those further on, by the largest |X_ij| that any j has
    which may come so much later: the sums are then bounds.

    Args:
        sizes: |X|, shape (n, n).
        separation: smallest distance between two steps of a pattern.
        most: largest number of steps of a pattern.
        memory: number of earlier steps that each step counts with, 1 or 2.

    Attributes:
        own: |X_ii|.
        ways: twice |X_ij| of steps i < j of a pattern, minus infinity of other steps.
        tables: sums of further steps after i and j at [i + 1, j], or [0, j] without i: at most 0, 1, ... steps; one
            table, for all, where any number fits.
        rests: bounds of what i adds with 0, 1, ... steps after j, at [i, j]; zero where any number fits.
    """

    def __init__(self, sizes: np.ndarray, separation: int, most: int, memory: int) -> None:
        n, self.own, self.memory = len(sizes), sizes.diagonal(), memory
        apart = np.subtract.outer(np.arange(n), np.arange(n)) <= -separation
        self.ways = np.where(apart, 2 * sizes, -np.inf)
        self.earlier = np.pad(self.ways[: n * (memory - 1)], ((1, 0), (0, 0)))
        self.limited = most < -(-n // separation)
        self.tables, self.rests = [np.zeros_like(self.earlier)], [np.zeros_like(sizes)]
        farther = 2 * np.maximum.accumulate(sizes[:, ::-1], axis=1)[:, ::-1]
        for left in range(most - 1 if self.limited else 1):
            after, rest = self.tables[-1], self.rests[-1]
            table = after.copy() if self.limited else after
            earlier = self.earlier + np.pad(rest[: n * (memory - 1)], ((1, 0), (0, 0)))
            for j in range(n - separation - 1, -1, -1):
                rows, far = max(j - separation + 2, 1), n if self.limited else j + 2 * separation
                added = self.own + self.ways[j] + after[(j + 1) * (memory - 1)]
                gains = earlier[:rows, j + separation : far] + added[j + separation : far]
                table[:rows, j] = np.maximum(gains.max(axis=1), 0.0)
            if self.limited:
                next_steps = np.pad(farther[:, min((left + 1) * separation, n) :], ((0, 0), (0, n)))[:, :n]
                self.tables, self.rests = [*self.tables, table], [*self.rests, rest + next_steps]

    def best(self) -> float:
        """Return the largest sum."""
        return float((self.own + self.tables[-1][0]).max())


def memory_of(n: int, separation: int, most: int, bands: int) -> int | None:
    """Return how many earlier steps each step of a pattern meets, 1 or 2; None if that is too costly.

    Where it meets more and fewer steps are allowed than fit, 2: `Chains` then bounds the rest. Else None.
    """
    memory = min(most, -(-bands // separation)) - 1
    if most < -(-n // separation):
        memory = min(memory, 2)
    reach = separation if most >= -(-n // separation) else n * most
    work = n * reach * (1.0 if memory < 2 else min(reach, n) / 3)
    return max(memory, 1) if memory <= 2 and n * n <= _MAX_ENTRIES and work <= _MAX_WORK else None


def best_selections(values: np.ndarray, separation: int, most: int) -> np.ndarray:
    """Return the largest sums of `most` non-negative values, shape (n, ...), along the first axis.

    The selected places are at least `separation` apart.
    """
    n = len(values)
    best = np.zeros((n + separation, *values.shape[1:]))
    if most >= math.ceil(n / separation):
        for i in range(n - 1, -1, -1):
            best[i] = np.maximum(best[i + 1], values[i] + best[i + separation])
        return np.asarray(best[0])
    for _ in range(most):
        best[:n] = np.maximum.accumulate((values + best[separation:])[::-1], axis=0)[::-1]
    return np.asarray(best[0])
