"""The terms of the bound over banded matrices, in class_bounds.py's notation: by bands, and by dense algebra."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from factorize.numbers.rounding import UNIT
from factorize.structures.banded import BandedMatrix
from factorize.workloads.forms import BidiagonalInverse

ENTRY_ERROR = 1e-11
LARGEST_RATIO = 0.5
CALM_RATIO = 0.1  # costs as little as Delta there
_MARGIN = 1e-12  # above the rounding of sums of positive terms
_SMALLEST_EIGENVALUE = 2.0**-40
_SMALLEST_PIVOT = 1e-10


def lower_rows(strategy: BandedMatrix, bands: int) -> np.ndarray:
    """C[i, i - d] at [i, d], shape (n, bands)."""
    rows = np.zeros((strategy.n, bands))
    for d in range(strategy.bandwidth()):
        rows[d:, d] = strategy.bands[d, : strategy.n - d]
    return rows


def lower_gram(rows: np.ndarray) -> np.ndarray:
    """X[i, i - d] at [i, d]."""
    from factorize.certificate.lower_bounds.band_recurrences import gram

    out = np.zeros_like(rows)
    gram(rows, out)
    return out


def relative_rounding(rows: np.ndarray, gram: np.ndarray) -> float | None:
    """Relative error of f, or None for an X that is numerically singular."""
    from factorize.structures.kernels.banded import band_cholesky

    n, bands = rows.shape
    least = 0.25
    while least > _SMALLEST_EIGENVALUE:
        shifted = gram[::-1].copy()  # by columns, of X read backwards, which has the same eigenvalues
        shifted[:, 0] -= least + 64 * bands * UNIT * gram[:, 0].max()
        if not band_cholesky(shifted):
            least /= 4
            continue
        down, across = np.zeros(n), np.zeros(n)
        for d in range(bands):
            magnitude = np.abs(rows[d:, d])
            across[d:] += magnitude
            down[: n - d] += magnitude
        norm = float(np.sqrt(across.max() * down.max()))
        return 2 * (bands + 2) * UNIT * norm / least**0.5
    return None


def terms_by_bands(
    rows: np.ndarray, gram: np.ndarray, inverse: BidiagonalInverse, loss: float
) -> tuple[float, float] | None:
    """Return g and the magnitude in O(n bands^2)."""
    from factorize.certificate.lower_bounds import band_recurrences

    p, q = np.ascontiguousarray(inverse.p), np.ascontiguousarray(inverse.q)
    change = np.zeros_like(rows)
    band_recurrences.decoder_gram(rows, p, q, change)
    if not (np.isfinite(change).all() and (change[:, 0] > 0).all()):
        return None
    scale, traced = np.sqrt(change[:, 0]), _product(change, gram)
    entry = _entry_error(traced, loss)
    change[:, 0] = 0.0  # E
    summed = 2 * sum(float(np.abs(change[:, d]).sum()) for d in range(1, change.shape[1]))
    magnitude = _magnitude(scale, summed, rows.shape[1], entry, traced, loss)
    within = np.zeros(len(rows))
    band_recurrences.inner_magnitude(gram, p, q, scale, within)

    def pairs(x: np.ndarray, marked: np.ndarray) -> np.ndarray:
        out = np.zeros(len(rows))
        band_recurrences.dominated(change, entry, scale, x, marked, out)
        return out

    added, eta = _added(scale, within, pairs)
    change[:, 0] = -added
    moved = float(np.sqrt(band_recurrences.moved_square(rows, change, gram, p, q)))
    return _excess(moved, scale, entry * (2 * rows.shape[1] - 1), loss, within, eta), magnitude


Pairs = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From x and marks of steps to sum_k (|E_ik| + its error) x_k over the pairs with a marked step, for each step i."""


def _added(scale: np.ndarray, within: np.ndarray, pairs: Pairs) -> tuple[np.ndarray, float]:
    """Return the diagonal Delta and eta.

    Args:
        scale: roots s of W's diagonal.
        within: |W^-1| s.
        pairs: products with parts of |E|.
    """
    ratio = pairs(within, np.ones(len(scale), dtype=bool)) / scale
    near = bool((ratio <= LARGEST_RATIO).all())
    marked = ~(ratio <= (LARGEST_RATIO if near else CALM_RATIO))
    added = pairs(np.ones(len(scale)), marked) * (1 + _MARGIN)
    return added, float(ratio[~marked].max(initial=0.0))


def terms_dense(whole: np.ndarray, target: np.ndarray, b: int, loss: float) -> tuple[float, float] | None:
    """Return g and the magnitude by dense algebra, for a target of full column rank once its zero columns are left out.

    A zero column costs nothing: the block of Y^-1 over the others is at least the inverse of that block of Y. So the
    bound is that of the block of X, whose loss may be smaller than f: g contains the difference.
    """
    kept = np.asarray(target.any(axis=0))
    gram = (whole.T @ whole)[np.ix_(kept, kept)]
    triangle: np.ndarray = np.linalg.qr(target[:, kept], mode="r")  # type: ignore[assignment]  # the stub ignores mode
    pivots = np.abs(np.diagonal(triangle))
    if len(pivots) < len(gram) or pivots.min() <= _SMALLEST_PIVOT * pivots.max():
        return None
    decoder = np.linalg.solve(gram, target[:, kept].T).T
    weights = decoder.T @ decoder
    root = np.linalg.solve(triangle.T, gram).T  # X R^-1
    scale = np.sqrt(np.diagonal(weights))
    steps = np.flatnonzero(kept)
    near = np.abs(steps[:, None] - steps) < b
    traced = float(np.vdot(weights, gram))
    entry = _entry_error(traced, loss)
    error = np.where(near, weights, 0.0) - np.diag(scale**2)
    magnitude = _magnitude(scale, float(np.abs(error).sum()), b, entry, traced, loss)
    spread = (np.abs(error) + entry * np.outer(scale, scale)) * near * ~np.eye(len(steps), dtype=bool)
    within = np.abs(root @ root.T) @ scale
    either = np.logical_or.outer
    added, eta = _added(scale, within, lambda x, marked: (spread * either(marked, marked)) @ x)
    factor = np.linalg.cholesky(gram)
    norm = float(np.linalg.norm(factor.T @ (error - np.diag(added)) @ root))
    missing = 0.0 if kept.all() else max(loss - traced, 0.0) + ENTRY_ERROR * loss
    return _excess(norm, scale, entry * (2 * b - 1), loss, within, eta) + missing, magnitude


def _excess(norm: float, scale: np.ndarray, entry_norm: float, loss: float, within: np.ndarray, eta: float) -> float:
    """Return g from its norm, with the errors of W's entries added.

    With W's error D^1/2 N D^1/2, D its diagonal: |C D^1/2| is the root of f, |N| at most `entry_norm`, and the norm of
    D^1/2 X M^-1 X D^1/2, like eta, is bounded by the largest ratio of |A| x to x (Collatz and Wielandt).

    Args:
        norm: |C P X M^-1/2|_F.
        scale: roots of W's diagonal.
        entry_norm: bound on |N|.
        loss: f.
        within: |W^-1| times `scale`.
        eta: as above.
    """
    spread = float((scale * within).max())
    excess = 0.25 * (1 - eta) ** -1.5 * (norm + entry_norm * (loss * spread) ** 0.5) ** 2
    return excess if np.isfinite(excess) else np.inf


def _magnitude(scale: np.ndarray, summed: float, b: int, entry: float, traced: float, loss: float) -> float:
    """Return sum |W_ij| in the band, from above.

    Where the block that is left without zero columns has a smaller loss than the whole, so has the numerator.

    Args:
        scale: roots of W's diagonal.
        summed: sum |E_ij|.
        b: number of bands.
        entry: allowance for an entry.
        traced: tr(W X), the loss of the block.
        loss: f.
    """
    trace = float(scale @ scale)
    return (trace * (1 + (2 * b - 1) * entry) + summed) * max(1.0, loss / traced) ** 2 * (1 + _MARGIN)


def _product(weights: np.ndarray, gram: np.ndarray) -> float:
    """Return tr(W X); both halves of bands by rows, the diagonal first."""
    traced = float(np.vdot(weights[:, 0], gram[:, 0]))
    return traced + 2 * sum(float(weights[:, d] @ gram[:, d]) for d in range(1, weights.shape[1]))


def _entry_error(traced: float, loss: float) -> float:
    """Return the allowance for an entry of W."""
    return max(ENTRY_ERROR, 16 * abs(traced / loss - 1))
