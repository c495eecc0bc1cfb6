"""The noise of each training step: row t of C^-1 Z, from rows of C^-1 and normals that can be drawn again.

A job that adds this to the clipped gradient of step t releases C^-1 (C G + Z), a function of one Gaussian mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from factorize.client.normals import ReplayableNormals, blocks
from factorize.errors import InvalidParameter
from factorize.privacy import Calibration

MEMORY_BYTES = 1 << 28
"""Z is kept where it takes at most this much; otherwise its rows are drawn again, in constant memory."""

_CHUNK = 16  # rows of Z drawn together, so that a step is matrix-vector products rather than a loop over its rows
_STATE_VERSION = 1


class RowSource(Protocol):
    """Where rows of C^-1 come from: a `RowStream`, or `ArrayRows`."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""

    @property
    def digest(self) -> str:
        """Names the factorization."""

    def iterate(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on."""


class ArrayRows:
    """Rows of a C^-1 that is in memory.

    Args:
        array: shape (n, n), float64.
        digest: of the factorization that it belongs to.
    """

    def __init__(self, array: np.ndarray, digest: str = "") -> None:
        self._array = np.asarray(array, dtype=np.float64)
        if self._array.ndim != 2 or self._array.shape[0] != self._array.shape[1]:
            raise InvalidParameter(f"C^-1 is square; got shape {self._array.shape}", field="array")
        self.shape: tuple[int, int] = self._array.shape
        self.digest = digest

    def iterate(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on."""
        yield from self._array[start:]


class NoiseGenerator:
    """Correlated noise, one step at a time: sigma * sum_{s <= t} C^-1[t, s] z_s.

    z_s depends on (seed, factorization, s) alone, so a job that restarts from a checkpoint goes on with the same noise.
    The sums are in float64 and the result is rounded once to float32. For n steps of d entries it keeps 8 n d bytes
    where `memory_bytes` allows, and otherwise draws z_0..z_t again at step t: time O(t d), memory O(1).

    Args:
        rows: rows of C^-1.
        calibration: from `factorize.privacy.calibrate`, for the sensitivity of this very C. Never a bare number.
        shape: of the noise, the shape of the (flattened) parameters.
        seed: see `ReplayableNormals`. Keep it secret, and never use it for a second run of the same factorization.
        memory_bytes: largest size of a Z that is kept.

    Attributes:
        step: the step whose noise `next` returns, from 0.
        steps: n, after which it refuses.

    Raises:
        InvalidParameter: rows that are not square, no `Calibration`, or an empty shape.
    """

    def __init__(
        self,
        rows: RowSource,
        calibration: Calibration,
        shape: int | Sequence[int],
        *,
        seed: int,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        if not isinstance(calibration, Calibration):
            raise InvalidParameter(
                f"the scale of the noise is a bare {type(calibration).__name__}; pass the Calibration that "
                "factorize.privacy.calibrate makes from a certified sensitivity and a privacy target",
                field="calibration",
            )
        if rows.shape[0] != rows.shape[1]:
            raise InvalidParameter(f"rows of shape {rows.shape} are not those of C^-1, which is square", field="rows")
        self.shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(side) for side in shape)
        if min(self.shape, default=1) < 1:
            raise InvalidParameter(f"shape {self.shape} has a side below 1; give the parameters' shape", field="shape")
        self.steps = rows.shape[0]
        self.step = 0
        self.calibration = calibration
        self._rows = rows
        self._open: Generator[np.ndarray, None, None] | None = None
        self._normals = ReplayableNormals(seed, rows.digest)
        self._slices = blocks(math.prod(self.shape))
        self._kept: dict[tuple[int, int], np.ndarray] | None = None
        if 8 * self.steps * math.prod(self.shape) <= memory_bytes:
            self._kept = {}

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the noise of every step that is left."""
        while self.step < self.steps:
            yield self.next()

    def next(self) -> np.ndarray:
        """Return the noise of this step, float32, and go on to the next.

        Raises:
            InvalidParameter: all n steps were taken, or the row is not one of an inverse strategy matrix.
            ServiceError, ServiceUnreachable: the row did not come.
        """
        self._refuse_past(self.step + 1)
        row = _check_row(self._next_row(), self.step, self.steps)
        out = np.empty(math.prod(self.shape), dtype=np.float32)
        for block, part in enumerate(self._slices):
            out[part] = self.calibration.sigma * self._combine(row, block, part.stop - part.start)
        self.step += 1
        if self.step == self.steps:
            self.close()
        return out.reshape(self.shape)

    def skip(self, steps: int = 1) -> None:
        """Go on without computing the noise of the next `steps` steps, which then must not be released.

        Raises:
            InvalidParameter: fewer than 0 steps, or beyond n.
        """
        if steps < 0:
            raise InvalidParameter(f"steps={steps} would go back, and release the same noise twice", field="steps")
        self._refuse_past(self.step + steps)
        self._move(self.step + steps)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside the seed: plain data, the position and what it belongs to."""
        return {
            "version": _STATE_VERSION,
            "step": self.step,
            "steps": self.steps,
            "shape": list(self.shape),
            "sigma": self.calibration.sigma.hex(),
            "factorization": self._rows.digest,
            "canary": self._normals.canary(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a checkpoint, whose model must be restored with it.

        Raises:
            InvalidParameter: the state is of another seed, factorization, scale, shape or generator of random numbers.
        """
        mine = self.state_dict()
        wrong = [key for key in mine if key != "step" and state.get(key) != mine[key]]
        if wrong:
            theirs, ours = str(state.get(wrong[0]))[:80], str(mine[wrong[0]])[:80]
            raise InvalidParameter(
                f"the checkpoint's {wrong[0]} is {theirs}, here it is {ours}; the noise would not go on where it "
                "stopped: restore seed, factorization and library versions",
                field=wrong[0],
            )
        step = state.get("step")
        if not isinstance(step, int) or not 0 <= step <= self.steps:
            raise InvalidParameter(f"the checkpoint's step {str(step)[:20]} is outside 0..{self.steps}", field="step")
        self._move(step)

    def close(self) -> None:
        """Close the stream of rows; the next step opens it again."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _next_row(self) -> np.ndarray | None:
        if self._open is None:
            self._open = self._rows.iterate(self.step)
        try:
            return next(self._open, None)
        except BaseException:  # a generator that raised is over; the next call opens another at this step
            self.close()
            raise

    def _move(self, step: int) -> None:
        if step != self.step:
            self.close()
        self.step = step

    def _refuse_past(self, step: int) -> None:
        if step > self.steps:
            raise InvalidParameter(
                f"step {step} is past n={self.steps}: no sensitivity covers it; stop, or factor a larger n",
                field="step",
            )

    def _combine(self, row: np.ndarray, block: int, width: int) -> np.ndarray:
        """Return sum_s row[s] z_s for one block; chunks with only zero weights (banded rows) cost nothing."""
        total = np.zeros(width)
        for chunk in range(self.step // _CHUNK + 1):
            weights = np.zeros(_CHUNK)
            given = row[chunk * _CHUNK : (chunk + 1) * _CHUNK]
            weights[: len(given)] = given
            if weights.any():
                total += weights @ self._chunk(chunk, block, width)
        return total

    def _chunk(self, chunk: int, block: int, width: int) -> np.ndarray:
        """Return rows chunk * 16 .. of Z for one block, shape (16, width): kept, or drawn again with equal bits."""
        if self._kept is not None and (chunk, block) in self._kept:
            return self._kept[chunk, block]
        drawn = np.empty((_CHUNK, width))
        for i in range(_CHUNK):
            self._normals.fill(drawn[i], chunk * _CHUNK + i, block)
        if self._kept is not None:
            self._kept[chunk, block] = drawn
        return drawn


def _check_row(row: np.ndarray | None, step: int, steps: int) -> np.ndarray:
    """Refuse a row that cannot be row `step` of the inverse of a lower-triangular matrix with positive diagonal."""
    if row is None or row.shape != (steps,):
        shape = None if row is None else row.shape
        raise InvalidParameter(f"row {step} has shape {shape}, not ({steps},)", field="rows")
    if not np.isfinite(row).all() or row[step] <= 0 or row[step + 1 :].any():
        raise InvalidParameter(
            f"row {step} is not one of C^-1: it must be finite, positive at {step} and zero after it; "
            "pass rows of C_inv, not of C or B",
            field="rows",
        )
    return row
