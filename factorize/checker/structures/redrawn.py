"""Enclosed inverses of recursions that use earlier draws again (structure `redrawn`).

The structure stores K = C^-1: x_i = sum_m direct[m, i] y_{i - m lag} + output_i . s, then s <- decay_i s +
sum_m input[m, i] y_{i - m lag}. It is solved row by row for Y. Column j of Y is off by at most |C| |r_j|, with
R = I - K Y and |C| <= |Y| / (1 - |R|) in Frobenius norms (docs/sensitivity.md, "Rounding").
"""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from factorize.checker.arithmetic.near import UNIT, Around, Columns, Factor, Near, NotEnclosed, share
from factorize.checker.spec.programs import Program
from factorize.checker.structures.base import Reading
from factorize.errors import TooLarge

MAX_N = 16_384
"""The largest n for which columns are solved for."""
_COLUMNS_AT_ONCE = 512
_SLACK = 1 + 2.0**-30  # It covers a few operations on doubles, and sums of `MAX_N` positive ones.
_MAX_NUMBER = 1e100  # A larger number in K is refused, so that products stay in the range of doubles.
_UNDERFLOW = 1e-220  # A few products below the normal range lose less, also after a factor of `_MAX_NUMBER`.
_SQUARE_LOSS = 1e-200  # The norm of a column loses less by the underflow of its squares.


class RedrawnReading(Reading):
    """A C by its inverse: decay, output (n, buffers), input (redraws + 1, n, buffers), direct (redraws + 1, n), lag."""

    signed = True  # Entries may be negative; only the inverse could tell.

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        self.n = self.bandwidth = n
        self._numbers = [parts[name] for name in ("decay", "output", "input", "direct")]
        self.diagonal, self._lag = parts["direct"][0], int(parts["lag"][0])

    @cached_property
    def _whole(self) -> tuple[np.ndarray, np.ndarray, float]:
        """The squared norms of Y's columns, bounds of the norms of I - K Y's columns, and one of C's Frobenius norm."""
        if self.n > MAX_N:
            raise TooLarge(f"columns of a C with redraws are solved for up to n={MAX_N}; got n={self.n}")
        blocks = [np.arange(i, min(i + _COLUMNS_AT_ONCE, self.n)) for i in range(0, self.n, _COLUMNS_AT_ONCE)]
        with np.errstate(all="ignore"):
            parts = [(np.einsum("ij,ij->j", values, values), apart) for values, apart in map(self.solved, blocks)]
            squares, apart = (np.concatenate(part) for part in zip(*parts, strict=True))
            rest, size = (math.sqrt(float(part.sum())) * _SLACK for part in (apart**2, squares))
        if not (rest < 0.5 and size < math.inf):
            raise NotEnclosed(
                f"C^-1 is too ill-conditioned: its product with its computed inverse differs from I by {rest:.3g}"
            )
        return squares, apart, size / (1 - rest) * _SLACK

    def solved(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Solve for some columns of C row by row, with the states of K for the computed Y, so that K Y is known.

        Returns:
            Y, shape (n, k), and upper bounds of the norms of the columns of I - K Y, shape (k,).

        Raises:
            NotEnclosed: numbers leave a safe range.
        """
        decay, output, inputs, direct = self._numbers
        lag = self._lag
        if max(float(np.abs(part).max()) for part in self._numbers) > _MAX_NUMBER or direct[0].min() < 1 / _MAX_NUMBER:
            raise NotEnclosed(f"a number of C^-1 is beyond {_MAX_NUMBER:g}, which doubles do not enclose")
        (n, buffers), most = decay.shape, len(direct)
        order = np.argsort(indices, kind="stable")
        starts = indices[order]
        values, squares = np.zeros((n, len(starts))), np.zeros(len(starts))
        state, lost = np.zeros((2, buffers, len(starts)))
        for i in range(int(starts[0]), n):
            begun = slice(int(np.searchsorted(starts, i, side="right")))
            earlier, held = values[i - lag :: -lag, begun][: most - 1 if i >= lag else 0], state[:, begun]
            feeds, reads = inputs[: len(earlier) + 1, i].T, direct[1 : len(earlier) + 1, i]
            total = (starts[begun] == i) - output[i] @ held - reads @ earlier
            sizes = np.abs(output[i]) @ np.abs(held) + np.abs(reads) @ np.abs(earlier)
            rounded = (buffers + most + 4) * UNIT * (2 * sizes + np.abs(total)) + _UNDERFLOW
            squares[begun] += (np.abs(output[i]) @ lost[:, begun] + rounded) ** 2
            values[i, begun] = total / direct[0, i]
            drawn, kept = np.concatenate([values[i : i + 1, begun], earlier]), decay[i][:, None]
            sizes = np.abs(kept * held) + np.abs(feeds) @ np.abs(drawn)
            lost[:, begun] = (np.abs(kept) * lost[:, begun] + (most + 4) * UNIT * sizes) * _SLACK + _UNDERFLOW
            state[:, begun] = kept * held + feeds @ drawn
        if not (np.isfinite(values).all() and np.isfinite(squares).all()):
            raise NotEnclosed("C has entries beyond doubles, or the inverse that is stored is not finite")
        back = np.argsort(order)
        return values[:, back], np.sqrt(squares[back]) * _SLACK + _SQUARE_LOSS

    def inverse_rows(self) -> Iterator[Around]:
        """Yield the rows of K by the states that an impulse at each column's step has left."""
        decay, output, inputs, direct = self._numbers
        n, buffers = decay.shape
        state, lost = np.zeros((2, buffers, n))
        for i in range(n):
            steps = np.arange(i, -1, -self._lag)[: len(direct)]
            row, off = output[i] @ state, np.abs(output[i]) @ lost
            off += (buffers + 4) * UNIT * (np.abs(output[i]) @ np.abs(state)) + _UNDERFLOW
            row[steps] += direct[: len(steps), i]
            off[steps] += 2 * UNIT * np.abs(row[steps])
            yield Around(row, off * _SLACK)
            kept = decay[i][:, None]
            moved = kept * state
            moved[:, steps] += inputs[: len(steps), i].T
            lost = (np.abs(kept) * lost + 2 * UNIT * (np.abs(kept * state) + np.abs(moved))) * _SLACK + _UNDERFLOW
            state = moved

    def column_norms(self) -> Near:
        """Return the squared norms of the columns."""
        squares, apart, size = self._whole
        return Near(squares, share(3 * float((apart * size / np.sqrt(squares)).max()), roundings=2 * self.n + 16))

    def near_columns(self, indices: np.ndarray) -> Columns:
        """Return some columns."""
        size = self._whole[2]
        with np.errstate(all="ignore"):
            values, apart = self.solved(indices)
        return Columns(values, apart * size * _SLACK)

    def variances(self, program: Program, most: int, scale: np.ndarray | None = None) -> np.ndarray:
        """Return the squared norms of the rows of A K; see `Reading`."""
        if scale is not None:
            raise NotEnclosed("rows of a C^-1 with redraws are followed without factors of columns only")
        if self.n**2 * (self._numbers[0].shape[1] + len(program.statements)) > most:
            raise NotEnclosed(f"rows of C^-1 are followed for {most} units of work, not for n={self.n}")
        ends = np.empty((2, self.n))
        with np.errstate(all="ignore"):
            for i, row in enumerate(program.run(self.inverse_rows(), Factor.of)):
                ends[:, i] = row.squared_norm()
        if not np.isfinite(ends).all():
            raise NotEnclosed("a number of A C^-1 is beyond doubles")
        return ends
