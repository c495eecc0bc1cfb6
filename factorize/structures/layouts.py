"""Matrices as named tensors, and back: the structures of the file format.

A strategy that came as numbers gets the structure that fits it. Its noise then needs the state of that structure, and
not all earlier rows.
"""

from collections.abc import Callable, Mapping
from typing import overload

import numpy as np

from factorize.encoding import tensor_digest
from factorize.errors import CorruptObject, InvalidStrategy
from factorize.format.tensors import COLUMN_SCALE, SCALED, tensor_name, wrapped_structure
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix
from factorize.structures.buffered import BufferedMatrix
from factorize.structures.dense import DenseMatrix
from factorize.structures.endless import AnyStrategy, EndlessBlt, EndlessMatrix, EndlessNuToeplitz
from factorize.structures.redrawn import RedrawnMatrix
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import BltMatrix, InverseBandedToeplitz, ToeplitzMatrix
from factorize.structures.tree import TreeMatrix

BUILDERS: dict[str, Callable[[Mapping[str, np.ndarray], int], Matrix]] = {
    "dense": lambda parts, n: DenseMatrix(parts[""]),
    "toeplitz": lambda parts, n: ToeplitzMatrix(parts["coefficients"], n),
    "banded_toeplitz": lambda parts, n: ToeplitzMatrix(parts["coefficients"], n),
    "banded": lambda parts, n: BandedMatrix(parts["bands"]),
    "buffered": lambda parts, n: _buffered(parts, "decay"),
    "state_space": lambda parts, n: _buffered(parts, "transition"),
    "tree": lambda parts, n: TreeMatrix(parts["tree.nodes"], parts["tree.restart"]),
    "blt": lambda parts, n: BltMatrix(parts["theta"], parts["omega"], n),
    "inverse_banded_toeplitz": lambda parts, n: InverseBandedToeplitz(parts["inverse_coefficients"], n),
    "redrawn": lambda parts, n: RedrawnMatrix(*(parts[name] for name in ("decay", "output", "input", "direct", "lag"))),
    SCALED: lambda parts, n: ColumnScaled(build_matrix(wrapped_structure(parts, n), parts, n), parts[COLUMN_SCALE]),
}
"""The builders of n x n matrices, by the contract's name of the structure."""

ENDLESS_BUILDERS: dict[str, Callable[[Mapping[str, np.ndarray]], EndlessMatrix]] = {
    "blt": lambda parts: EndlessBlt(parts["theta"], parts["omega"]),
    "nu_toeplitz": lambda parts: EndlessNuToeplitz(parts["nu"]),
}
"""The builders of strategies without a last row, by the contract's name of the structure."""


def _buffered(parts: Mapping[str, np.ndarray], middle: str) -> Matrix:
    return BufferedMatrix(parts["diagonal"], parts[middle], parts["input"], parts["output"])


@overload
def build_matrix(structure: str, parts: Mapping[str, np.ndarray], n: int) -> Matrix: ...
@overload
def build_matrix(structure: str, parts: Mapping[str, np.ndarray], n: int | None) -> AnyStrategy: ...
def build_matrix(structure: str, parts: Mapping[str, np.ndarray], n: int | None) -> AnyStrategy:
    """Return the matrix that tensors of a structure describe.

    Args:
        structure: the contract's name of the structure.
        parts: tensors by suffix ('' for a dense matrix).
        n: side, or None for rows without end.

    Raises:
        CorruptObject: the structure is unknown, or a tensor is missing.
        InvalidStrategy: the numbers do not make an invertible lower-triangular matrix.
    """
    known = ENDLESS_BUILDERS if n is None else BUILDERS
    if structure not in known:
        raise CorruptObject(f"structure {structure[:40]!r} is not one of {', '.join(sorted(known))}; update factorize")
    try:
        return ENDLESS_BUILDERS[structure](parts) if n is None else BUILDERS[structure](parts, n)
    except KeyError as missing:
        raise CorruptObject(f"the file lacks the tensor {missing}, which a {structure} matrix needs") from None


def describe(
    matrix_name: str, structure: str, tensors: Mapping[str, np.ndarray], shape: tuple[int | None, int | None]
) -> dict[str, object]:
    """Return the manifest's entry of one matrix; the digest is over the tensors' raw bytes in the order listed."""
    arrays = list(tensors.values())
    return {
        "structure": structure,
        "shape": list(shape),
        "dtype": arrays[0].dtype.name,
        "tensors": [tensor_name(matrix_name, suffix) for suffix in tensors],
        "sha256": tensor_digest(arrays),
        "bytes": int(sum(array.nbytes for array in arrays)),
    }


MAX_BUFFERS = 8
"""The most buffers: published BLTs have two to six, and double precision cannot tell more apart."""
MAX_DEVIATION = 2.0**-36
"""The largest relative deviation of a coefficient, which powers of a decay lose in a few thousand steps."""
MIN_STEPS = 16
"""The fewest steps: below, there is nothing to save, and a few numbers are a BLT by chance."""
_WINDOW = 48  # The rows of the Hankel matrix, enough to tell the buffers apart.
_CORRECTIONS = 6  # The steps of Gauss-Newton.


def recognised(matrix: Matrix) -> Matrix:
    """Return the matrix in a structure with less state: few bands exactly as such, or a Toeplitz matrix as a BLT.

    The coefficients of the BLT differ from the given ones by at most 2^-36 of themselves. So it is another matrix, with
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

    Reference: Roy, Kailath, ESPRIT (1989), for the decays; Gauss-Newton on relative errors corrects its rounding.
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
