"""Matrices as named tensors, and back: the structures of the file format."""

from collections.abc import Callable, Mapping
from typing import overload

import numpy as np

from factorize.encoding import tensor_digest
from factorize.errors import CorruptObject
from factorize.format.names import COLUMN_SCALE, SCALED, tensor_name
from factorize.format.tensors import wrapped_structure
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
"""Structures of n x n matrices, by the contract's name."""

ENDLESS_BUILDERS: dict[str, Callable[[Mapping[str, np.ndarray]], EndlessMatrix]] = {
    "blt": lambda parts: EndlessBlt(parts["theta"], parts["omega"]),
    "nu_toeplitz": lambda parts: EndlessNuToeplitz(parts["nu"]),
}
"""Structures without a last row."""


def _buffered(parts: Mapping[str, np.ndarray], middle: str) -> Matrix:
    return BufferedMatrix(parts["diagonal"], parts[middle], parts["input"], parts["output"])


@overload
def build_matrix(structure: str, parts: Mapping[str, np.ndarray], n: int) -> Matrix: ...
@overload
def build_matrix(structure: str, parts: Mapping[str, np.ndarray], n: int | None) -> AnyStrategy: ...
def build_matrix(structure: str, parts: Mapping[str, np.ndarray], n: int | None) -> AnyStrategy:
    """Return the matrix that tensors of a structure describe.

    Args:
        structure: the contract's name.
        parts: tensors by suffix ('' for a dense matrix).
        n: side, or None for rows without end.

    Raises:
        CorruptObject: unknown structure, or a tensor is missing.
        InvalidStrategy: the numbers do not make an invertible lower-triangular matrix.
    """
    known = ENDLESS_BUILDERS if n is None else BUILDERS
    if structure not in known:
        raise CorruptObject(f"structure {structure[:40]!r} is none of {', '.join(sorted(known))}; update factorize")
    try:
        return ENDLESS_BUILDERS[structure](parts) if n is None else BUILDERS[structure](parts, n)
    except KeyError as missing:
        raise CorruptObject(f"a {structure} matrix needs the tensor {missing}, which the file lacks") from None


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
