"""Feasible strategies for fixed epochs from any Gram matrix: diagonal within the classes, class traces 1.

Arrays are in class order (correlation_blocks.py) unless said otherwise; k is the number of epochs.
"""

from collections.abc import Callable, Iterator

import numpy as np

_RIDGES = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)


def masked(gram: np.ndarray, k: int) -> np.ndarray:
    """Return the matrix with its entries within classes set to zero off the diagonal, and class traces scaled to 1.

    Near the optimum this costs only the square of what it changes.
    """
    out, diagonal = _with_diagonal_blocks(gram, k, lambda blocks: np.einsum("jss->js", blocks))
    scale = np.repeat(1 / np.sqrt(np.maximum(diagonal.sum(axis=1), 1e-300)), k)
    return out * scale * scale[:, None]


def dominating(gram: np.ndarray, k: int) -> np.ndarray:
    """Return a feasible matrix above X / c, with c the largest class sum of absolute values (proof of F.2)."""
    b = len(gram) // k
    classes = np.arange(b)
    top = float(np.abs(gram.reshape(b, k, b, k)[classes, :, classes, :]).sum(axis=(1, 2)).max())
    out, diagonal = _with_diagonal_blocks(gram / top, k, lambda blocks: np.abs(blocks).sum(axis=2))
    spare = np.repeat((1 - diagonal.sum(axis=1)) / k, k)
    return out + np.diag(np.maximum(spare, 0.0))


def candidates(gram: np.ndarray, k: int) -> Iterator[np.ndarray]:
    """Yield feasible matrices near X, the best bet first; ridges help where X is singular."""
    for base in (gram, dominating(gram, k)):
        for ridge in _RIDGES:
            yield masked(base + ridge / k * np.eye(len(base)), k)


def strategy_of(gram: np.ndarray, order: np.ndarray) -> np.ndarray | None:
    """Return C by Cholesky from the end (D.4), in the original order of steps, or None if X is not definite.

    Args:
        gram: X, shape (n, n).
        order: step of each index, shape (n,).
    """
    in_steps = np.empty_like(gram)
    in_steps[np.ix_(order, order)] = gram
    try:
        lower = np.linalg.cholesky(in_steps[::-1, ::-1])
    except np.linalg.LinAlgError:
        return None
    return np.ascontiguousarray(lower.T[::-1, ::-1])


def _with_diagonal_blocks(
    gram: np.ndarray, k: int, diagonal_of: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    b = len(gram) // k
    classes = np.arange(b)
    out = np.array(gram).reshape(b, k, b, k)
    diagonal = diagonal_of(out[classes, :, classes, :])
    out[classes, :, classes, :] = diagonal[:, :, None] * np.eye(k)
    return out.reshape(b * k, b * k), diagonal
