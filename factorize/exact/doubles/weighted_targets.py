"""Weighted targets: W A F by columns, for a weighted workload W A and a block diagonal F over patterns of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from factorize.exact.arithmetic.intervals import NotEnclosed
from factorize.exact.arithmetic.pairs import in_pairs
from factorize.exact.doubles.dense_losses import References, decoder_blocks
from factorize.exact.doubles.roundings import SLACK, TINY, column_norms, gamma, norm_of
from factorize.exact.doubles.triangles import blocks_of
from factorize.exact.doubles.workload_rows import Near, WorkloadRows
from factorize.exact.spec import Weighing

_ROWS = (
    128  # that are turned at one time: few enough for the cache, and enough that two threads do not wait for each other
)
_PARTS = 16  # in which columns of W A F are made where patterns are many, two of them at one time
_LEAST_COLUMNS = 128  # of a part
_SHORT, _MOST_EPOCHS = 1024, 8  # rows up to which gathered patterns stay in the cache; of more epochs sums are too many


class TargetBlock(NamedTuple):
    """Some columns of W A F, not made yet.

    Attributes:
        columns: which.
        make: returns them, and at least the norm of what they are off by.
    """

    columns: slice
    make: Callable[[], tuple[np.ndarray, float]]


class Factor(NamedTuple):
    """F, block diagonal over patterns of steps, one factor for each.

    Attributes:
        patterns: shape (patterns, k).
        blocks: shape (patterns, k, k).
    """

    patterns: np.ndarray
    blocks: np.ndarray

    def undone(self, rows: np.ndarray) -> np.ndarray:
        """Turn rows into those times F^-T, columns in the order of the patterns, and return them.

        Raises:
            NotEnclosed: a block is singular.
        """
        count, k = self.patterns.shape
        if k == 1:
            rows[:] = rows[:, self.patterns.ravel()] * self._inverses[:, 0, 0]
            return rows
        turned, apart = self._inverses.swapaxes(1, 2), np.arange(count * k).reshape(k, count).T
        by_epochs = len(rows) > _SHORT and k <= _MOST_EPOCHS and rows.flags.c_contiguous
        by_epochs = by_epochs and bool((self.patterns == apart).all())
        weights = np.ascontiguousarray(turned.transpose(1, 2, 0))

        def turn(block: tuple[int, int]) -> None:
            start, stop = block
            if by_epochs:
                for first in range(start, stop, _ROWS):
                    _turn_epochs(rows[first : min(first + _ROWS, stop)], weights)
                return
            parts = rows[start:stop, self.patterns.ravel()].reshape(stop - start, count, k).swapaxes(0, 1)
            rows[start:stop] = (parts @ turned).swapaxes(0, 1).reshape(stop - start, count * k)

        for _ in in_pairs(turn, blocks_of(len(rows)), rows.shape[1]):
            pass
        return rows

    @property
    def _inverses(self) -> np.ndarray:
        try:
            return np.asarray(np.linalg.inv(self.blocks))
        except np.linalg.LinAlgError:
            raise NotEnclosed("the evidence is singular, so that no polar factor is guessed from C") from None

    def targets(self, weighted: WeightedTarget) -> Iterator[TargetBlock]:
        """Yield W A F by columns in the order of the patterns."""
        count, k = self.patterns.shape
        if count == 1 < k:
            yield from self._targets_of_one(weighted)
            return
        for some in self.groups(weighted.workload.columns):
            yield TargetBlock(slice(some.start * k, some.stop * k), partial(self._target, weighted, some))

    @property
    def by_patterns(self) -> tuple[tuple[int, Factor], ...]:
        """The same, see `TargetSource`."""
        return ((0, self),) if len(self.patterns) > 1 else ()

    def groups(self, n: int) -> Iterator[slice]:
        """Yield groups of patterns with about a sixteenth of n steps, or 128 steps where that is more."""
        count, k = self.patterns.shape
        step = max(n // (_PARTS * k), _LEAST_COLUMNS // k, 1)
        return (slice(first, min(first + step, count)) for first in range(0, count, step))

    def _target(self, weighted: WeightedTarget, place: slice) -> tuple[np.ndarray, float]:
        """Columns of some patterns."""
        some, blocks = self.patterns[place], self.blocks[place]
        k = some.shape[1]
        given = weighted.column_block(some.ravel())
        parts = given.values.reshape(len(given.values), len(some), k).swapaxes(0, 1)
        together = parts * blocks if k == 1 else parts @ blocks
        made = together.swapaxes(0, 1).reshape(len(given.values), len(some) * k)
        sizes = np.sqrt(np.einsum("pij,pij->p", parts, parts)) * (1 + gamma(given.values.size))
        errors = norm_of(np.sqrt(np.einsum("ij->i", np.square(given.errors))) * (1 + gamma(given.values.size)))
        factors = np.sqrt(np.einsum("pij,pij->p", blocks, blocks)) * (1 + gamma(k * k))
        off = gamma(k + 2) * norm_of(sizes * factors) + errors * float(factors.max()) + made.size * k * TINY
        return np.ascontiguousarray(made), off * (1 + SLACK)

    def _targets_of_one(self, weighted: WeightedTarget) -> Iterator[TargetBlock]:
        """The same where one lower-triangular factor is for all steps."""
        block = self.blocks[0]
        given = weighted.column_block(self.patterns[0])
        lengths, errors = column_norms(given.values.T), column_norms(given.errors.T)

        def made(first: int, last: int) -> tuple[np.ndarray, float]:
            some = block[first:, first:last]
            own = norm_of(column_norms(some))
            product = given.values[:, first:] @ some
            off = (gamma(len(some) + 2) * norm_of(lengths) + norm_of(errors)) * own + product.size * len(some) * TINY
            return product, off * (1 + SLACK)

        for first, last in blocks_of(len(block)):
            yield TargetBlock(slice(first, last), partial(made, first, last))


def _turn_epochs(rows: np.ndarray, weights: np.ndarray) -> None:
    """Turn rows whose neighbours are steps of an epoch, in place: sums of runs of them, with no pattern gathered.

    Args:
        rows: shape (any, k count).
        weights: of each epoch in each place of a pattern, shape (k, k, count).
    """
    k, _, count = weights.shape
    given, out = rows.reshape(len(rows), k, count), np.zeros((k, len(rows), count))
    term = np.empty((len(rows), count))
    for s in range(k):
        for e in range(k):
            if weights[e, s].any():  # those of triangular factors are zero in half of the places
                out[s] += np.multiply(given[:, e], weights[e, s], out=term)
    rows.reshape(len(rows), count, k)[:] = out.transpose(1, 2, 0)


class TargetSource(Protocol):
    """F, of which W A F is asked."""

    @property
    def by_patterns(self) -> tuple[tuple[int, Factor], ...]:
        """Its parts, each with its first column, where F is block diagonal over more patterns than one."""

    def targets(self, weighted: WeightedTarget) -> Iterator[TargetBlock]:
        """Yield W A F by columns."""


class WeightedTarget(NamedTuple):
    """W A: rows less those that they refer to, times row factors.

    Attributes:
        workload: A.
        weighing: of the objective.
        scales: row factors, shape (m,).
    """

    workload: WorkloadRows
    weighing: Weighing
    scales: np.ndarray

    def column_block(self, indices: np.ndarray) -> Near:
        """Return some columns."""
        found = self.workload.column_block(indices)
        if self.weighing.tau is not None:
            found = Near(found.values, np.broadcast_to(found.errors, found.values.shape))
            before = np.array(self.weighing.references)
            other = Near(*(np.where(before[:, None] >= 0, part[np.maximum(before, 0)], 0.0) for part in found))
            found = found.minus(other)
        return found if (self.scales == 1).all() else found.times(self.scales[:, None])

    @property
    def of_ones(self) -> bool:
        """Whether W A is the matrix of prefix sums: exactly 1 on and below the diagonal."""
        return self.workload.of_ones and self.weighing.tau is None and bool((self.scales == 1).all())

    def decoder(self, inverse: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield W B for B = A N, nearly, block by block."""
        references = References(self.weighing)
        for block in decoder_blocks(self.workload, inverse):
            rows = references.subtracted(block)[0] if self.weighing.tau is not None else block.rows
            yield block.start, block.stop, rows * self.scales[block.start : block.stop, None]
