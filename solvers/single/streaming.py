"""The optimal strategy from a recurrence with finitely many buffers, as a dense matrix.

The optimum of single participation is a sum over poles, so below the diagonal it factors through m states:

    X[i, k] = h[i] . R[i] R[i-1] ... R[k+1] g[k]   (i > k),      X[k, k] = h[k] . g[k].

Its lower-triangular factor, ``X = C^T C``, has the same transitions and inputs.  Backwards from ``P = 0``:

    delta^2 = h . g - g . P g,   eta = (h - P g) / delta,   P <- R^T (eta eta^T + P) R
    C[i, i] = delta[i],          C[i, k] = eta[i] . R[i] ... R[k+1] g[k]

in O(n m^2) time and O(n m) memory.  R is diagonal (one state per pole) or block diagonal (s states per pole).

Unlike the sweeps that found X this recursion subtracts, so nothing about C is taken on trust: its columns are
divided by their norms, and whoever certifies C has to start from the stored tensors.
"""

import math
from dataclasses import dataclass

import numpy as np

from factorize.solvers.methods.compiled import Array

_MARGIN = 2.0**-40  # columns are scaled below 1 by more than the recursion and the dense product round
_BLOCK_ROWS = 64  # the rows of a product


@dataclass(frozen=True)
class Generators:
    """``X[i, k] = outputs[i] . transition[i] ... transition[k+1] inputs[k]`` for i >= k.

    Attributes:
        transition: shape (n, poles, s, s), block diagonal over the poles; ``transition[0]`` is ignored.
        inputs: shape (n, poles, s).
        outputs: shape (n, poles, s).
    """

    transition: Array
    inputs: Array
    outputs: Array


def streaming_factor(x: Generators) -> Array:
    """Return C with ``C^T C`` proportional, column by column, to X, shape (n, n).

    Returns:
        The factor, its columns scaled to a norm of ``1 - 2^-40`` up to rounding.

    Raises:
        FloatingPointError: if rounding makes a pivot ``delta^2`` non-positive.
    """
    diagonal, outputs = _riccati(x)
    scale = (1.0 - _MARGIN) / np.sqrt((x.inputs * x.outputs).sum(axis=(1, 2)))
    return _dense(diagonal * scale, Generators(x.transition, x.inputs * scale[:, None, None], outputs))


def _dense(diagonal: Array, below: Generators) -> Array:
    """Return C of its diagonal and what is below: all blocks on the diagonal together, then a product for each row."""
    n, count, s = below.inputs.shape
    transition, inputs, outputs = (_in_blocks(a) for a in (below.transition, below.inputs, below.outputs))
    blocks, m = len(inputs), count * s
    inner, states = np.zeros((blocks, _BLOCK_ROWS, _BLOCK_ROWS)), np.zeros((blocks, count, s, _BLOCK_ROWS))
    across, rows = np.tile(np.eye(s), (blocks, count, 1, 1)), np.empty((blocks, _BLOCK_ROWS, m))
    for i in range(_BLOCK_ROWS):  # the states that columns of the block have after row i, and its rows by those before
        read = outputs[:, i].reshape(blocks, 1, m)
        states[..., :i] = _times(transition[:, i], states[..., :i])
        inner[:, i, :i] = (read @ states.reshape(blocks, m, _BLOCK_ROWS)[..., :i])[:, 0]
        states[..., i] = inputs[:, i]
        across = _times(transition[:, i], across)
        rows[:, i] = _times(outputs[:, i, :, None, :], across).reshape(blocks, m)
    c, carried = np.zeros((n, n)), np.empty((count, s, n))
    for block, first in enumerate(range(0, n, _BLOCK_ROWS)):
        last = min(first + _BLOCK_ROWS, n)
        before, size = carried[..., :first], last - first
        c[first:last, :first] = rows[block, :size] @ carried.reshape(m, n)[:, :first]
        c[first:last, first:last] = inner[block, :size, :size]
        before[:] = _times(across[block], before)
        carried[..., first:last] = states[block, ..., :size]
    c[np.diag_indices(n)] = diagonal
    return c


def _in_blocks(array: Array) -> Array:
    """Return the steps by blocks, shape (blocks, steps of a block, ...), zeros after the last."""
    n = len(array)
    padded = np.zeros((-(-n // _BLOCK_ROWS) * _BLOCK_ROWS, *array.shape[1:]))
    padded[:n] = array
    return padded.reshape(-1, _BLOCK_ROWS, *array.shape[1:])


def _times(left: Array, right: Array) -> Array:
    """Return products of matrices whose inner dimension is s, one per pole."""
    return np.asarray(left * right if left.shape[-1] == 1 else left @ right)


def _riccati(x: Generators) -> tuple[Array, Array]:
    """Return delta, shape (n,), and eta, shape (n, poles, s).

    Raises:
        FloatingPointError: a pivot ``delta^2`` is not positive.
    """
    n, count, s = x.inputs.shape
    inputs, targets = x.inputs.reshape(n, -1), x.outputs.reshape(n, -1)
    gram, diagonal, eta = np.zeros((count * s, count * s)), np.empty(n), np.empty_like(targets)
    for i in range(n - 1, -1, -1):
        now = targets[i] - gram @ inputs[i]
        square = float(now @ inputs[i])
        if not square > 0.0:
            raise FloatingPointError(f"the pivot of step {i} is lost to rounding; the workload is numerically singular")
        diagonal[i] = math.sqrt(square)
        now /= diagonal[i]
        eta[i] = now
        gram += now[:, None] * now
        if s == 1:
            follow = x.transition[i, :, 0, 0]
            gram *= follow[:, None] * follow
        else:
            back = x.transition[i].transpose(0, 2, 1)
            half = (back @ gram.reshape(count, s, -1)).reshape(count * s, -1)
            gram = (back @ half.T.reshape(count, s, -1)).reshape(count * s, -1)
    return diagonal, eta.reshape(n, count, s)
