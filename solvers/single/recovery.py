"""The recovery of a strategy from dual weights: a lower-triangular C whose Gram matrix is the optimal X, or near it."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from factorize.errors import SolveFailed
from factorize.solvers.single.ascent import AscentPoint, singular

_RANK = 1e-13  # of the largest singular value: below that one is as good as zero
RIDGES = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)


def recover(at: AscentPoint, tolerance: float) -> tuple[np.ndarray, float]:
    """Return lower-triangular C with unit columns and C^T C near X, shape (n, n), and its loss.

    First X with its diagonal scaled to 1. Where T is singular, or nearly, X is too; then its diagonal is only lowered
    to 1, either everywhere by one factor or entry by entry, filled up to 1 where it is below, and given a ridge of
    growing size: whatever is added to X lowers the loss, so the ridge costs no more than its size. The first within
    half the tolerance is taken, else the one with the smallest loss.

    Raises:
        SolveFailed: no candidate could be inverted, or the singular values did not converge.
    """
    enough = at.lower * (1 + 0.5 * tolerance)
    return best_of(_candidates(at), partial(loss_of, at.target), enough)


def best_of(
    roots: Iterator[np.ndarray], loss: Callable[[np.ndarray], float], enough: float
) -> tuple[np.ndarray, float]:
    """Return the strategy of the smallest loss, shape (n, n), and its loss, by the QL factors of some matrices.

    Args:
        roots: with the Gram matrices to try, the best bet first.
        loss: of a strategy, infinite where it cannot be inverted.
        enough: a loss that is small enough to try no further.

    Raises:
        SolveFailed: no candidate could be inverted.
    """
    best, lowest = None, np.inf
    for root in roots:
        strategy = ql_factor(root)
        value = loss(strategy)
        if value < lowest:
            best, lowest = strategy, value
        if lowest <= enough:
            break
    if best is None:
        raise SolveFailed(
            "no invertible strategy was found in double precision; rescale the workload so that its entries lie near 1"
        )
    return best, lowest


def _candidates(at: AscentPoint) -> Iterator[np.ndarray]:
    """Yield matrices whose Gram matrix is X, or X with more on its diagonal."""
    yield np.sqrt(at.s)[:, None] * at.q.T / np.sqrt(at.v)
    root = _root_of_rank(at)
    x = np.einsum("ai,ai->i", root, root)
    for ridge in RIDGES[1:]:
        for top in (x.max(), np.maximum(x, 1.0)):
            yield filled(root, x, top, ridge)


def filled(root: np.ndarray, x: np.ndarray, top: np.ndarray | float, ridge: float) -> np.ndarray:
    """Return a root of X with its diagonal x divided by `top`, then filled up to 1, with a ridge."""
    return np.vstack([root / np.sqrt(top), np.diag(np.sqrt(np.maximum(1 - x / top, 0.0) + ridge))])


def _root_of_rank(at: AscentPoint) -> np.ndarray:
    """Return a root of X without what rounding makes of singular values of zero, shape (rank, n).

    Its rows are u^T T / sqrt(s), u a left singular vector of T D, so that no weight near zero divides.
    """
    u, s, _ = singular(at.target * np.sqrt(at.v))
    rank = int((s > _RANK * s[0]).sum())
    root: np.ndarray = (u[:, :rank].T @ at.target) / np.sqrt(s[:rank, None])
    return root


def ql_factor(root: np.ndarray) -> np.ndarray:
    """Return lower-triangular C with unit columns: the QL factor of a matrix, each column divided by its norm.

    Args:
        root: shape (r, n); rows are added as zeros where r < n.
    """
    r, n = root.shape
    if r < n:
        root = np.vstack([root, np.zeros((n - r, n))])
    lower = np.tril(triangle(root[:, ::-1])[::-1, ::-1])
    lower *= np.where(np.diagonal(lower) < 0, -1.0, 1.0)[:, None]
    norms = np.sqrt(np.einsum("ij,ij->j", lower, lower))
    return np.ascontiguousarray(lower / np.where(norms > 0, norms, 1.0)) + 0.0  # no -0.0 above the diagonal


def triangle(matrix: np.ndarray) -> np.ndarray:
    """Return the upper-triangular R of a QR decomposition."""
    upper: np.ndarray = np.linalg.qr(matrix, mode="r")  # type: ignore[assignment]  # numpy's stub ignores the mode
    return upper


def loss_of(target: np.ndarray, strategy: np.ndarray) -> float:
    """Return ||T C^-1||_F^2, or infinity where C cannot be inverted in double precision."""
    return float(row_losses(target, strategy).sum())


def row_losses(target: np.ndarray, strategy: np.ndarray) -> np.ndarray:
    """Return the squared norms of the rows of T C^-1, or infinity where C cannot be inverted in double precision."""
    from scipy.linalg import solve_triangular

    if (np.diagonal(strategy) <= 0).any():
        return np.array([np.inf])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        decoder = solve_triangular(strategy, target.T, trans="T", lower=True, check_finite=False)
        losses = np.einsum("ai,ai->i", decoder, decoder)
    return np.where(np.isfinite(losses), losses, np.inf)
