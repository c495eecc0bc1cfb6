"""Engines that make the noise of a step, by a recurrence and its state, or by rows of C^-1 over Z.

Both work through the blocks of a shard one by one, in pieces that stay in the cache, on as many threads as asked for.
The bits of a block do not depend on the others.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from factorize.noise.noise_kernels import advance_vectors
from factorize.noise.normals import BLOCK, Normals
from factorize.noise.recurrences.base import Recurrence
from factorize.noise.regions import BlockPart, Region
from factorize.noise.source import ComputedRows
from factorize.numbers.compiling import HAS_COMPILER
from factorize.numbers.scalars import whole_number

_CACHED_BYTES = 1 << 22  # The memory of a piece: fewer calls for longer rows count for more than the nearest cache.
_MIN_WIDTH, _MAX_WIDTH = 1 << 9, 1 << 15
"""The limits of the entries of a piece."""
_MAX_ROWS_AHEAD = 16  # The most rows of noise that are made together.

Sink = np.ndarray | Callable[[slice, np.ndarray], None] | None
"""The receiver of a step's noise: a vector, or a function that several threads call with the place of a piece and with
float32 numbers that it may not keep. It is None where only the state has to move."""


class Workers:
    """Threads that run one function over the pieces of a shard, each with its own scratch space.

    Args:
        region: the shard.
        threads: at least 1.

    Attributes:
        width: number of entries of the shard.
        longest: the most entries that a piece draws.
        threads: number of threads in use, never more than there are pieces.
    """

    def __init__(self, region: Region, threads: int) -> None:
        self.width = region.size
        self._pieces = region.parts(BLOCK)
        self.longest = max((piece.last for piece in self._pieces), default=0)
        self.threads = min(whole_number("threads", threads), max(1, len(self._pieces)))
        self._pool: ThreadPoolExecutor | None = None
        self._drawn = [np.empty(self.longest) for _ in range(self.threads)]

    def run(self, work: Callable[[int, BlockPart, np.ndarray], None]) -> None:
        """Call work(thread, piece, scratch) for every piece; scratch holds one block of normals."""
        if self.threads == 1:
            self._share(0, work)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "factorize-noise")
        for done in [self._pool.submit(self._share, thread, work) for thread in range(self.threads)]:
            done.result()

    def _share(self, thread: int, work: Callable[[int, BlockPart, np.ndarray], None]) -> None:
        for piece in self._pieces[thread :: self.threads]:
            work(thread, piece, self._drawn[thread])

    def close(self) -> None:
        """End the threads; the next run starts others."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class Streaming:
    """A recurrence and its state.

    Args:
        recurrence: the recurrence of C.
        normals: Z.
        sigma: standard deviation of Z.
        workers: the workers over the shard.
        dtype: type of the state; the arithmetic is float64.
    """

    def __init__(
        self, recurrence: Recurrence, normals: Normals, sigma: float, workers: Workers, dtype: type[np.floating[Any]]
    ) -> None:
        self.steps = recurrence.steps
        self.state = np.zeros((recurrence.vectors, workers.width), dtype)
        self._recurrence, self._normals, self._sigma, self._workers = recurrence, normals, sigma, workers
        self._compiled = HAS_COMPILER and workers.width >= BLOCK  # Small shards are not worth a second of loading.
        column = 8 * (recurrence.scratch + 2) + np.dtype(dtype).itemsize * recurrence.vectors
        width = _CACHED_BYTES // column // 64 * 64
        self._width = max(_MIN_WIDTH, min(_MAX_WIDTH, width))
        self._scratch = [np.empty((recurrence.scratch, self._width)) for _ in range(workers.threads)]
        self._again = [np.empty((recurrence.redraws, workers.longest)) for _ in range(workers.threads)]

    def step(self, step: int, out: Sink) -> None:
        """Make the noise of a step piece by piece: draw, scale, advance."""
        plan = self._recurrence.vector_step(step) if self._compiled else None
        if plan is not None:
            factor = self._sigma * self._recurrence.gain(step)

            def run_compiled(_thread: int, piece: BlockPart, drawn: np.ndarray) -> None:
                z = _draw_normals(piece, self._normals, step, drawn)
                row = out[piece.at] if isinstance(out, np.ndarray) else np.empty(len(z), dtype=np.float32)
                advance_vectors(z, factor, *plan, self.state, piece.at.start, row)
                if callable(out):
                    out(piece.at, row)

            self._workers.run(run_compiled)
            return
        wanted = [(step, self._recurrence.gain(step)), *self._recurrence.earlier(step)]

        def work(thread: int, piece: BlockPart, drawn: np.ndarray) -> None:
            places = [drawn, *self._again[thread]]
            z, *again = (self._draw(piece, *each, at) for each, at in zip(wanted, places, strict=False))
            for low in range(0, len(z), self._width):
                high = min(low + self._width, len(z))
                at = slice(piece.at.start + low, piece.at.start + high)
                scratch = self._scratch[thread][:, : high - low]
                for place, earlier in zip(scratch, again, strict=False):
                    place[...] = earlier[low:high]
                self._recurrence.advance(step, z[low:high], self.state[:, at], scratch)
                if callable(out):
                    out(at, z[low:high].astype(np.float32))
                elif out is not None:
                    out[at] = z[low:high]

        self._workers.run(work)

    def _draw(self, piece: BlockPart, step: int, factor: float, place: np.ndarray) -> np.ndarray:
        z = _draw_normals(piece, self._normals, step, place)
        z *= self._sigma * factor
        return z

    def begin(self, vectors: np.ndarray | None) -> None:
        """Put vectors into the state, zeros for None."""
        self.state[...] = 0 if vectors is None else vectors

    def close(self) -> None:
        """End the threads."""
        self._workers.close()


class RowSums:
    """Rows of C^-1 times Z, which is kept in memory or drawn again; sums are float64, in the order of the steps.

    Drawing again costs t rows of normals for step t. Where memory holds several rows of noise, they are made together,
    and each row of Z is drawn once for all of them.

    Args:
        rows: rows of C^-1.
        normals: Z.
        sigma: standard deviation of Z.
        workers: the workers over the shard.
        memory_bytes: Z is kept where it takes at most this much; else this much is used for rows made ahead.
    """

    state: np.ndarray | None = None

    def __init__(self, rows: ComputedRows, normals: Normals, sigma: float, workers: Workers, memory_bytes: int) -> None:
        self.steps = rows.steps
        self._rows, self._normals, self._sigma, self._workers = rows, normals, sigma, workers
        keeps = 8 * self.steps * workers.width <= memory_bytes
        self._kept = np.empty((self.steps, workers.width)) if keeps else None
        self._have = np.zeros(self.steps, dtype=bool)
        self._at_once = 1 if keeps else max(1, min(_MAX_ROWS_AHEAD, memory_bytes // (4 * max(1, workers.width))))
        self._ahead: dict[int, np.ndarray] = {}
        self._scratch = [np.empty(min(BLOCK, workers.width)) for _ in range(workers.threads)]

    def step(self, step: int, out: Sink) -> None:
        """Take the row that was made ahead, or make it and those after it."""
        made = self._ahead.pop(step, None)
        if callable(out):
            row = np.empty(self._workers.width, np.float32) if made is None else made
            if made is None:
                self._make(step, row)
            out(slice(0, len(row)), row)
        elif out is not None and made is not None:
            out[...] = made
        elif out is not None:
            self._make(step, out)

    def _make(self, step: int, out: np.ndarray) -> None:
        count = min(self._at_once, self.steps - step)
        row = self._rows.make()
        weights = self._sigma * np.stack([row(step + i) for i in range(count)])[:, : step + count]
        made = [out, *(np.empty_like(out) for _ in range(count - 1))]
        self._workers.run(lambda thread, piece, drawn: self._sum(weights, made, piece, drawn, self._scratch[thread]))
        self._have[: weights.shape[1]] |= weights.any(axis=0)
        self._ahead = {step + i: row for i, row in enumerate(made) if i}

    def _sum(
        self, weights: np.ndarray, made: list[np.ndarray], piece: BlockPart, drawn: np.ndarray, scratch: np.ndarray
    ) -> None:
        """Write sum_s weights[i, s] z_s into made[i], for one piece."""
        width = piece.width
        totals, part = np.zeros((len(made), width)), scratch[:width]
        for s in np.flatnonzero(weights.any(axis=0)).tolist():
            z = self._z(s, piece, drawn)
            for total, weight in zip(totals, weights[:, s].tolist(), strict=True):
                if weight:
                    np.multiply(z, weight, out=part)
                    total += part
        for row, total in zip(made, totals, strict=True):
            row[piece.at] = total

    def _z(self, step: int, piece: BlockPart, drawn: np.ndarray) -> np.ndarray:
        if self._kept is None:
            return _draw_normals(piece, self._normals, step, drawn)
        kept = self._kept[step, piece.at]
        if not self._have[step]:
            kept[...] = _draw_normals(piece, self._normals, step, drawn)
        return kept

    def begin(self, vectors: np.ndarray | None) -> None:
        """Do nothing, since rows of Z are drawn again, or still there."""
        self._ahead.clear()

    def close(self) -> None:
        """End the threads, and keep rows that were made ahead."""
        self._workers.close()


Engine = Streaming | RowSums
"""An engine makes row after row of sigma C^-1 Z for one shard, with steps in order."""


def _draw_normals(piece: BlockPart, normals: Normals, step: int, scratch: np.ndarray) -> np.ndarray:
    """Return a piece's entries of z_step, shape (width,); a view of `scratch` where they are neighbours."""
    normals.fill(scratch[: piece.last], step, piece.block)  # The generator cannot skip earlier entries.
    return scratch[piece.inside]
