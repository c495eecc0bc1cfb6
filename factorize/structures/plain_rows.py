"""Products of rows with C and C^-1 in numpy alone, for a training image without numba: the sweeps of `kernels`.

Each function has the name of its structure and of the compiled one, takes the same arrays, and goes through the steps
one by one, all rows of the block at once. The numbers agree to rounding; a step takes microseconds in place of
nanoseconds.
"""

from __future__ import annotations

import numpy as np

_GROUPS = "rga,gab->rgb"


def solve_banded(columns: np.ndarray, block: np.ndarray, out: np.ndarray) -> None:
    """Write y with y C = block, shape (r, n); columns[j, d] = C[j + d, j], shape (n, bands)."""
    n, bands = columns.shape
    for j in _backwards(block, out):
        last = min(bands, n - j)
        known = out[:, j + 1 : j + last] @ columns[j, 1:last]
        out[:, j] = (block[:, j] - known) / columns[j, 0]


def divide_blt(theta: np.ndarray, omega: np.ndarray, block: np.ndarray, out: np.ndarray) -> None:
    """Write each row of `block`, read as a series, over that of C, shape (r, n)."""
    state = np.zeros((len(block), len(theta)))
    for t in range(block.shape[1]):
        out[:, t] = block[:, t] - state @ omega
        state = state * theta + out[:, t, None]


def multiply_blt(theta: np.ndarray, omega: np.ndarray, block: np.ndarray, out: np.ndarray) -> None:
    """Write each row of `block`, read as a series, times that of C, shape (r, n)."""
    state = np.zeros((len(block), len(theta)))
    for t in range(block.shape[1]):
        out[:, t] = block[:, t] + state @ omega
        state = state * theta + block[:, t, None]


def fill_buffered(
    diagonal: np.ndarray, transition: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, start: int, out: np.ndarray
) -> None:
    """Write rows start, start + 1, ... of X, shape (r, n); arrays as in `kernels.buffered`."""
    stop = start + len(out)
    out[...] = 0.0
    carried = np.zeros((len(out), *inputs.shape[1:]))
    for j in range(stop - 1, -1, -1):
        if j + 1 < stop:
            first = max(0, j + 1 - start)  # rows above have no entry in column j yet
            carried[first:] = np.einsum(_GROUPS, carried[first:], transition[j + 1])
            out[first:, j] = np.einsum("rga,ga->r", carried[first:], inputs[j])
        if j >= start:
            out[j - start, j] = diagonal[j]
            carried[j - start] = outputs[j]


def solve_buffered(
    diagonal: np.ndarray,
    transition: np.ndarray,
    inputs: np.ndarray,
    outputs: np.ndarray,
    block: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write y with y X = block, shape (r, n); arrays as in `kernels.buffered`."""
    carried = np.zeros((len(block), *inputs.shape[1:]))
    for j in _backwards(block, out):
        out[:, j] = (block[:, j] - np.einsum("rga,ga->r", carried, inputs[j])) / diagonal[j]
        carried = np.einsum(_GROUPS, carried + out[:, j, None, None] * outputs[j], transition[j])


def solve_redrawn(
    decay: np.ndarray,
    output: np.ndarray,
    inputs: np.ndarray,
    direct: np.ndarray,
    lag: int,
    block: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write v K for each row v of `block`, shape (r, n); arrays as in `kernels.redrawn`."""
    carried = np.zeros((len(block), decay.shape[1]))
    for i in _backwards(block, out):
        v = block[:, i]
        for m in range(min(len(direct), i // lag + 1)):
            out[:, i - m * lag] += v * direct[m, i] + carried @ inputs[m, i]
        carried = carried * decay[i] + v[:, None] * output[i]


def multiply_redrawn(
    decay: np.ndarray,
    output: np.ndarray,
    inputs: np.ndarray,
    direct: np.ndarray,
    lag: int,
    block: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write v C for each row v of `block`, shape (r, n): z with z K = v."""
    steps = _backwards(block, out)
    out[...] = block
    carried = np.zeros((len(block), decay.shape[1]))
    for i in steps:
        z = (out[:, i] - carried @ inputs[0, i]) / direct[0, i]
        out[:, i] = z
        for m in range(1, min(len(direct), i // lag + 1)):
            out[:, i - m * lag] -= z * direct[m, i] + carried @ inputs[m, i]
        carried = carried * decay[i] + z[:, None] * output[i]


def solve_tree(nodes: np.ndarray, restart: int, block: np.ndarray, out: np.ndarray) -> None:
    """Write y with y C = block, shape (r, n); nodes and restart as in `kernels.tree`."""
    levels = len(nodes) - 1
    sums = np.zeros((len(block), levels))
    bits = 1 << np.arange(levels)
    for i in _backwards(block, out):
        p = i % restart
        if p == restart - 1:
            sums[...] = 0.0
        sums[:, : _trailing_ones(p)] = 0.0
        right = (p & bits) != 0
        out[:, i] = (block[:, i] - sums[:, ~right].sum(axis=1)) / nodes[0, i]
        sums[:, right] += out[:, i, None] * nodes[1:, i][right]


def _backwards(block: np.ndarray, out: np.ndarray) -> range:
    """Return the columns from the last one used to the first, and write zeros: columns after it give nothing."""
    out[...] = 0.0
    used = np.flatnonzero(block.any(axis=0))
    return range(int(used[-1]) if used.size else -1, -1, -1)


def _trailing_ones(p: int) -> int:
    return (~p & p + 1).bit_length() - 1
