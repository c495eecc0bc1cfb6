"""Structure in a strategy that came as numbers: its noise needs the state of the structure, and not every row."""

import numpy as np

from factorize.errors import InvalidStrategy
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import BltMatrix, ToeplitzMatrix

MAX_BUFFERS = 8
"""Published BLTs have two to six buffers; more are not told apart in double precision."""
MAX_DEVIATION = 2.0**-36
"""Of a coefficient, relative: what powers of a decay lose in a few thousand steps of double precision, and no more."""
MIN_STEPS = 16
"""Steps below which there is nothing to save, and a few numbers are a BLT by chance."""
_WINDOW = 48  # rows of the Hankel matrix; buffers are told apart within them
_CORRECTIONS = 6


def recognised(matrix: Matrix) -> Matrix:
    """Return the matrix in a structure with less state: a dense one of few bands, exactly; a Toeplitz one as a BLT.

    The coefficients of the BLT are within 2^-36 of the given ones, each of its own size; it is another matrix with
    a sensitivity of its own.
    """
    if isinstance(matrix, DenseMatrix) and 4 * matrix.bandwidth() <= matrix.n >= MIN_STEPS:
        bands = np.zeros((matrix.bandwidth(), matrix.n))
        for d, band in enumerate(bands):
            band[: matrix.n - d] = np.diagonal(matrix.array, -d)
        return BandedMatrix(bands)
    if isinstance(matrix, ToeplitzMatrix) and len(matrix.column) == matrix.n >= MIN_STEPS and matrix.column[0] == 1.0:
        return blt_of(matrix.column) or matrix
    return matrix


def blt_of(column: np.ndarray) -> BltMatrix | None:
    """Return the BLT of the fewest buffers with this first column, shape (n,), that begins with 1; or None.

    Reference: Roy, Kailath, ESPRIT (1989), for the decays; Gauss-Newton on relative errors for what it rounds.
    """
    tail, n = column[1:], len(column)
    if not (tail > 0).all() or (np.diff(tail) > 0).any():
        return None
    rows = min(_WINDOW, n // 2)
    basis = np.linalg.svd(np.lib.stride_tricks.sliding_window_view(tail, n - rows)[:rows], full_matrices=False)[0]
    for buffers in range(1, min(MAX_BUFFERS, rows - 1) + 1):
        shift = np.linalg.lstsq(basis[:-1, :buffers], basis[1:, :buffers], rcond=None)[0]
        theta = np.linalg.eigvals(shift)
        if not np.isreal(theta).all():
            continue
        theta = np.clip(np.sort(theta.real)[::-1], 0.0, 1.0)
        omega = np.linalg.lstsq(_powers(theta, n) / tail[:, None], np.ones(n - 1), rcond=None)[0]
        for _ in range(_CORRECTIONS):
            powers = _powers(theta, n)
            errors = powers @ omega / tail - 1
            if (np.abs(errors) <= MAX_DEVIATION).all():
                try:
                    return BltMatrix(theta, omega, n)
                except InvalidStrategy:
                    break
            slopes = np.arange(n - 1)[:, None] * np.vstack([np.zeros(buffers), powers[:-1]]) * omega
            step = np.linalg.lstsq(np.hstack([powers, slopes]) / tail[:, None], -errors, rcond=None)[0]
            omega, theta = omega + step[:buffers], np.clip(theta + step[buffers:], 0.0, 1.0)
    return None


def _powers(theta: np.ndarray, n: int) -> np.ndarray:
    """Return theta_r^t, shape (n - 1, buffers)."""
    return np.vstack([np.ones(len(theta)), np.cumprod(np.tile(theta, (n - 2, 1)), axis=0)])
