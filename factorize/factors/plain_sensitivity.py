"""The sensitivity of a strategy from its rows, in plain doubles and with numpy alone.

It is the second program beside the checker's (factorize/checker/sensitivity.py), which counts all rounding. It also
guards every factor file before noise is scaled to what the file states: it costs seconds where a proof costs minutes,
and runs in a training job that has no extra installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from factorize.encoding import json_digest
from factorize.errors import CorruptObject, TooLarge
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
_FIRST_KEPT, MAX_KEPT, MAX_LEFT_OPEN = 1 << 9, 1 << 17, 8
"""How many patterns of each number of steps a search for a large sum goes on from, at most; a search for the largest
after one first step; and of how many such searches more are given up: seconds each."""
_MAX_SEARCH_WORK = 1 << 35
"""The most sums of the paths of all first steps, n^4 times their steps, for a search: some seconds."""
_AT_ONCE = 1 << 18
"""The most patterns whose sums a search adds up at a time: some 10 MB."""
_TIE = 2.0**-48
"""The relative excess over a sum below which no larger one is searched: patterns often tie."""
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
    """Return the largest sum of |C^T C| over a pattern, or the lower of two bounds: of `Chains`, or by rows."""
    n, bound = len(whole), math.inf
    bands = int(np.flatnonzero([whole.diagonal(-d).any() for d in range(n)])[-1]) + 1
    if memory := memory_of(n, separation, most, bands):
        bound, found = Chains(np.abs(whole.T @ whole), separation, most, memory).worst()
        if found:
            return bound
    step = max(_MAX_ENTRIES // n, 1)
    blocks = (np.abs(whole.T @ whole[:, start : start + step]) for start in range(0, n, step))
    rows = np.concatenate([best_selections(block, separation, most) for block in blocks])
    return min(bound, float(best_selections(rows, separation, most)))


class Chains:
    """The largest sums over patterns of X_ii and twice |X_ij|, where a step counts with the one or two steps before it.

    Where it also overlaps with others, it counts with those further on by the largest |X_ij| that any j has which may
    come so much later: the sums are then bounds, by which a search finds the largest sum itself.

    Args:
        sizes: |X|, shape (n, n).
        separation: smallest distance between two steps of a pattern.
        most: largest number of steps of a pattern.
        memory: number of earlier steps that each step counts with, 1 or 2.

    Attributes:
        own: |X_ii|.
        ways: twice |X_ij| of steps i < j of a pattern, minus infinity of other steps.
        bounded: whether steps overlap that do not count with each other.
        limited: whether the number of steps counts, since fewer are allowed than fit, or their bounds depend on it.
        tables: sums of further steps after i and j at [i + 1, j], or [0, j] without i: at most 0, 1, ... steps; one
            table, for all, where the number does not count.
        rests: bounds of what i adds with 0, 1, ... steps after j, at [i, j]; zero where nothing is bounded.
    """

    def __init__(self, sizes: np.ndarray, separation: int, most: int, memory: int) -> None:
        n, self.own, self.memory, self._sizes = len(sizes), sizes.diagonal(), memory, sizes
        self._separation, self._most = separation, most
        apart = np.subtract.outer(np.arange(n), np.arange(n)) <= -separation
        self.ways = np.where(apart, 2 * sizes, -np.inf)
        self.bounded = most > memory + 1 and bool(np.triu(sizes, (memory + 1) * separation).any())
        self.limited = self.bounded or most < -(-n // separation)
        self.rests = np.zeros((most if self.bounded else 1, n, n))
        farther = 2 * np.maximum.accumulate(sizes[:, ::-1], axis=1)[:, ::-1]
        for left in range(1, len(self.rests)):
            self.rests[left] = self.rests[left - 1]
            self.rests[left, :, : max(n - left * separation, 0)] += farther[:, left * separation :]
        met = slice(n * (memory - 1))
        self.earlier = np.pad(self.ways[met] + self.rests[:, met], ((0, 0), (1, 0), (0, 0)))
        self.tables = np.zeros((most if self.limited else 1, *self.earlier.shape[1:]))
        after, table = (self.tables[:-1], self.tables[1:]) if self.limited else (self.tables, self.tables)
        for j in range(n - separation - 1, -1, -1):
            rows, far = max(j - separation + 2, 1), n if self.limited else j + 2 * separation
            added = self.own + self.ways[j] + after[:, (j + 1) * (memory - 1)]
            gains = self.earlier[: len(after), :rows, j + separation : far] + added[:, None, j + separation : far]
            np.maximum(gains.max(axis=2, initial=0.0), 0.0, out=table[:, :rows, j])

    @property
    def bound(self) -> float:
        """The largest sum, or a bound of it."""
        return float((self.own + self.tables[-1, 0]).max())

    def worst(self) -> tuple[float, bool]:
        """Return the largest sum or a closer bound of it, and whether it is the largest sum."""
        if not (self.bounded and math.isfinite(self.bound)) or len(self.own) ** 4 * self._most > _MAX_SEARCH_WORK:
            return self.bound, not self.bounded
        found, left_open = float(self.above(0.0, _FIRST_KEPT)[1].max()), list[float]()
        for first, after in self._after_each_first(found * (1 + _TIE)):
            own, most_kept = float(self.own[first]), MAX_KEPT if len(left_open) <= MAX_LEFT_OPEN else 0
            for kept, whole in ((_FIRST_KEPT, False), (most_kept, True)):  # a large sum first leaves less to search
                try:
                    sums = after.above(found * (1 + _TIE) - own, kept, whole=whole)[1]
                    found = max(found, own + float(sums.max(initial=0.0)))
                except TooLarge:
                    left_open.append(own + after.bound)
        return min(max([found, *left_open]), self.bound), not left_open

    def _after_each_first(self, limit: float) -> Iterator[tuple[int, Chains]]:
        """Yield the first steps whose bound is above a limit, and the steps after, which count with the first, too."""
        for first in np.flatnonzero((self.own + self.tables[-1, 0] > limit)[: -self._separation]).tolist():
            after = first + self._separation
            sizes = self._sizes[after:, after:] + 2 * np.diag(self._sizes[first, after:])
            most = min(self._most - 1, -(-len(sizes) // self._separation))
            yield first, Chains(sizes, self._separation, most, self.memory)

    def above_by_first(self, limit: float, kept: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what `above` does of patterns of several steps, from bounds that count the first step with all."""
        n, found = len(self.own), [(np.zeros((0, self._most), dtype=np.intp), np.zeros(0))]
        for first, after in self._after_each_first(limit):
            patterns, sums = after.above(limit - self.own[first], kept)
            here = np.full((len(patterns), self._most), n)
            here[:, 0], here[:, 1 : patterns.shape[1] + 1] = first, patterns + first + self._separation
            found.append((here, sums + self.own[first]))
        patterns, sums = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return patterns, sums

    def above(self, limit: float, kept: int, *, whole: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return patterns whose sum is above a limit and that no further step fits into, and these sums.

        The search goes on from the patterns of 1, 2, ... steps whose bounds are above the limit.

        Args:
            limit: sums at most this are left out.
            kept: of how many patterns of each number of steps it goes on; if there are more, those of highest bounds.
            whole: to find all.

        Returns:
            Steps, shape (patterns, most), filled up with n; sums, shape (patterns,).

        Raises:
            TooLarge: all are wanted, and there are more than `kept`.
        """
        n, most = len(self.own), self._most
        some, sums, found = np.arange(n)[:, None], self.own, []
        bounds = sums + self.tables[-1, 0]
        for count in range(1, most + 1):
            full = (some[:, -1] + self._separation >= n) | (count == most)
            ends = np.pad(some[full], ((0, 0), (0, most - count)), constant_values=n)
            found.append((ends[sums[full] > limit], sums[full & (sums > limit)]))
            chosen = np.flatnonzero(~full & (bounds > limit))
            if len(chosen) > kept:
                if whole:
                    raise TooLarge(f"the worst one may be any of more than {kept} patterns of {count} steps and others")
                chosen = chosen[np.argpartition(-bounds[chosen], kept)[:kept]]
            pieces = np.array_split(chosen, 1 + len(chosen) * n // _AT_ONCE)
            parts = [self._followed(some[piece], sums[piece], limit) for piece in pieces]
            some, sums, bounds = (np.concatenate(each) for each in zip(*parts, strict=True))
        patterns, sums = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return patterns, sums

    def _followed(self, some: np.ndarray, sums: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return patterns with one more step, their sums and bounds, of bounds above a limit."""
        n, left = len(self.own), min(self._most - some.shape[1] - 1, len(self.tables) - 1)
        many = n - self._separation - some[:, -1]
        before = np.repeat(np.arange(len(some)), many)
        last = n - np.repeat(np.cumsum(many), many) + np.arange(len(before))
        sums = sums[before] + self.own[last]
        for earlier in some.T:
            sums += self.ways[earlier[before], last]
        bounds = sums + self.tables[left][(some[before, -1] + 1) * (self.memory - 1), last]
        for earlier in some.T[:-1]:
            bounds += self.rests[min(left, len(self.rests) - 1)][earlier[before], last]
        kept = bounds > limit
        return np.column_stack([some[before[kept]], last[kept]]), sums[kept], bounds[kept]


def memory_of(n: int, separation: int, most: int, bands: int) -> int | None:
    """Return how many earlier steps each step of a pattern counts with in `Chains`, 1 or 2; None if too costly."""
    overlaps = min(most, -(-bands // separation)) - 1
    reach = separation if overlaps <= 2 and most >= -(-n // separation) else n * most
    work = n * reach * (1.0 if overlaps < 2 else min(reach, n) / 3)
    return min(max(overlaps, 1), 2) if n * n <= _MAX_ENTRIES and work <= _MAX_WORK else None


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
