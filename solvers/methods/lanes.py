"""Eight doubles that move together: one entry of a small matrix for eight poles at once.

Small dense algebra (inverses of 16 x 16 or 32 x 32 matrices) leaves the compiler loops too short to vectorise.  The
same algebra for eight poles has no short loops: every number becomes a vector of eight, one register where the machine
has registers of 512 bits, a few of them elsewhere.  `Lanes` is that vector inside compiled code, with the operations
that the kernels use: ``+ - *``, `load`, `store`, `spread`, `total`, `reciprocal`; a number times a vector is spread.

In the recursions of buffered strategies (solvers/buffered/kernels.py) a vector is eight entries of one matrix row.

Entries live in flat float64 arrays, eight consecutive doubles each; offsets count entries, not doubles. `load_at` and
`store_at` find them in the rows of a matrix.

A small matrix, of which eight are multiplied or inverted at a time, is a flat array of `Lanes` entries, row by row:
entry (i, j) of all eight lies at ``i columns + j``.
"""

from typing import Any

import numpy as np

from factorize.numbers.compiling import Kernel
from factorize.solvers.methods.compiled import WIDTH, Array, part


def _operation(name: str) -> Any:
    """Return an operation of `lane_operations`, whatever its arguments: compiled code alone calls it."""

    def compiled(_: object) -> Any:
        from factorize.solvers.methods import lane_operations

        return getattr(lane_operations, name)

    return Kernel(compiled, compiled)


load = _operation("load")
store = _operation("store")
load_at = _operation("load_at")
store_at = _operation("store_at")
spread = _operation("spread")
total = _operation("total")
reciprocal = _operation("reciprocal")


def vectors(entries: int) -> Array:
    """Return a flat array of so many vectors, zero, each in one line of the cache, which halves the time of a load."""
    buffer = np.zeros((entries + 1) * WIDTH)
    start = -(buffer.ctypes.data // 8) % WIDTH
    return buffer[start : start + entries * WIDTH]


@part
def _put(c: Array, at: int, sign: float, value: Any, fresh: bool) -> None:
    store(c, at, sign * value if fresh else load(c, at) + sign * value)


@part
def multiply(
    a: Array,
    ar: int,
    ai: int,
    b: Array,
    br: int,
    bi: int,
    c: Array,
    rows: int,
    columns: int,
    inner: int,
    sign: float,
    fresh: bool,
    lower: bool,
) -> None:
    """``c[i, j] = (c[i, j] +) sign sum_s a[i, s] b[j, s]``, two rows by four columns at a time.

    Args:
        a: left factor.
        ar: its offset from one i to the next.
        ai: its offset from one s to the next.
        b: right factor.
        br: its offset from one j to the next.
        bi: its offset from one s to the next.
        c: result, row by row.
        rows: number of i.
        columns: number of j.
        inner: number of s.
        sign: 1 or -1, or any other factor.
        fresh: whether c is overwritten.
        lower: whether only tiles that reach the lower triangle are wanted.
    """
    for i in range(0, rows, 2):
        pair = i + 1 < rows
        top, bottom = i * ar, (i + 1) * ar if pair else i * ar
        stop = min(columns, i + 2) if lower else columns
        j = 0
        while j + 4 <= columns and j < stop:
            x0, x1, x2, x3 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
            y0, y1, y2, y3 = spread(0.0), spread(0.0), spread(0.0), spread(0.0)
            right = j * br
            for s in range(inner):
                u, v = load(a, top + s * ai), load(a, bottom + s * ai)
                b0, b1 = load(b, right + s * bi), load(b, right + br + s * bi)
                b2, b3 = load(b, right + 2 * br + s * bi), load(b, right + 3 * br + s * bi)
                x0, x1, x2, x3 = x0 + u * b0, x1 + u * b1, x2 + u * b2, x3 + u * b3
                y0, y1, y2, y3 = y0 + v * b0, y1 + v * b1, y2 + v * b2, y3 + v * b3
            at = i * columns + j
            _put(c, at, sign, x0, fresh)
            _put(c, at + 1, sign, x1, fresh)
            _put(c, at + 2, sign, x2, fresh)
            _put(c, at + 3, sign, x3, fresh)
            if pair:
                at += columns
                _put(c, at, sign, y0, fresh)
                _put(c, at + 1, sign, y1, fresh)
                _put(c, at + 2, sign, y2, fresh)
                _put(c, at + 3, sign, y3, fresh)
            j += 4
        while j < stop:
            x0, y0 = spread(0.0), spread(0.0)
            for s in range(inner):
                b0 = load(b, j * br + s * bi)
                x0, y0 = x0 + load(a, top + s * ai) * b0, y0 + load(a, bottom + s * ai) * b0
            _put(c, i * columns + j, sign, x0, fresh)
            if pair:
                _put(c, (i + 1) * columns + j, sign, y0, fresh)
            j += 1


@part
def mirror(a: Array, side: int) -> None:
    """Copy the lower triangle to the upper one."""
    for i in range(side):
        for j in range(i):
            store(a, j * side + i, load(a, i * side + j))


@part
def invert(a: Array, side: int) -> None:
    """``a <- a^-1`` for positive definite a, whole, by sweeping its pivots."""
    for pivot in range(side):
        inverse = reciprocal(load(a, pivot * side + pivot))
        for i in range(side):
            if i == pivot:
                continue
            left = load(a, i * side + pivot) * inverse
            for j in range(i + 1):
                if j != pivot:
                    value = load(a, i * side + j) - left * load(a, pivot * side + j)
                    store(a, i * side + j, value)
                    store(a, j * side + i, value)
        for i in range(side):
            scaled = load(a, i * side + pivot) * inverse
            store(a, i * side + pivot, scaled)
            store(a, pivot * side + i, scaled)
        store(a, pivot * side + pivot, spread(0.0) - inverse)
    for i in range(side * side):
        store(a, i, spread(0.0) - load(a, i))


@part
def from_left(maps: Array, transposed: bool, a: Array, columns: int, stride: int, column: Array) -> None:
    """``a <- diag(maps_e) a`` in place, or with the transposes; maps of shape (k, q, q), a of q k rows."""
    k, q = maps.shape[0], maps.shape[1]
    for e in range(k):
        for j in range(columns):
            for r in range(q):
                store(column, r, load(a, (e * q + r) * stride + j))
            for r in range(q):
                value = spread(0.0)
                for s in range(q):
                    value = value + (maps[e, s, r] if transposed else maps[e, r, s]) * load(column, s)
                store(a, (e * q + r) * stride + j, value)


@part
def from_both(maps: Array, transposed: bool, a: Array, column: Array) -> None:
    """``a <- F a F^T`` for symmetric a with F = diag(maps_e), or ``F^T a F``; whole."""
    k, q = maps.shape[0], maps.shape[1]
    side = q * k
    from_left(maps, transposed, a, side, side, column)
    for i in range(side):
        for e in range(k):
            for r in range(q):
                store(column, r, load(a, i * side + e * q + r))
            for r in range(q):
                value = spread(0.0)
                for s in range(q):
                    value = value + (maps[e, s, r] if transposed else maps[e, r, s]) * load(column, s)
                store(a, i * side + e * q + r, value)
