"""Names of matrices, of structures and of their tensors: the contract's words, and what `scaled` may wrap.

Matrices that are built, written and read and the light client go by them, so that none of them writes what another
refuses. What each structure is stored as stands in `tensors.py`. Structures of the exact checker have tables of their
own, which a test compares.
"""

from typing import Literal

MatrixName = Literal["C", "C_inv", "B"]
MATRIX_NAMES: tuple[MatrixName, ...] = ("C", "C_inv", "B")
"""The strategy, the noising matrix and the decoder."""
COLUMN_SCALE = "column_scale"
SCALED = "scaled"
ENDLESS = ("blt", "nu_toeplitz")
"""Structures of a C whose rows have no end."""
ONLY_ENDLESS = ("nu_toeplitz",)
"""Those of them that have no other."""
WRAPPED = (
    "dense",
    "toeplitz",
    "banded_toeplitz",
    "banded",
    "buffered",
    "state_space",
    "blt",
    "inverse_banded_toeplitz",
)
"""Structures that `scaled` may wrap. A tree and redraws have sensitivities of their own, which scales would spoil."""


def tensor_name(matrix: str, suffix: str) -> str:
    """Return a tensor's name: `C` for a dense matrix, `C.coefficients` for a Toeplitz one; `tree.` stands alone."""
    if not suffix:
        return matrix
    return suffix if suffix.startswith("tree.") else f"{matrix}.{suffix}"
