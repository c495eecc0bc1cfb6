"""Names of structures: the contract's words, the tensors that each is stored as, and what `scaled` may wrap.

Plain data that needs neither numpy nor a matrix, and the one table: matrices that are built, written and read, the
light client and the exact checker all go by it, so that none of them writes what another refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from factorize.errors import CorruptObject

COLUMN_SCALE = "column_scale"
SCALED = "scaled"

TENSORS: dict[str, tuple[str, ...]] = {
    "dense": ("",),
    "toeplitz": ("coefficients",),
    "banded_toeplitz": ("coefficients",),
    "banded": ("bands",),
    "buffered": ("diagonal", "decay", "input", "output"),
    "state_space": ("diagonal", "transition", "input", "output"),
    "tree": ("tree.nodes", "tree.restart"),
    "blt": ("theta", "omega"),
    "inverse_banded_toeplitz": ("inverse_coefficients",),
    "redrawn": ("decay", "output", "input", "direct", "lag"),
    "nu_toeplitz": ("nu",),
}
"""Suffixes of the tensors of each structure, '' for the matrix itself; `scaled` has those of what it wraps and
`column_scale`."""

BESIDE: dict[str, tuple[str, ...]] = {"tree": ("",)}
"""Suffixes of tensors that a structure may have beside its own."""

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


LARGEST_WHOLE_TREE = 1024
"""Up to this n a file holds a tree as an array too, for readers that have only a safetensors library."""


def tensor_name(matrix: str, suffix: str) -> str:
    """Return a tensor's name: `C` for a dense matrix, `C.coefficients` for a Toeplitz one; `tree.` stands alone."""
    if not suffix:
        return matrix
    return suffix if suffix.startswith("tree.") else f"{matrix}.{suffix}"


class Shaped(Protocol):
    """A tensor, of which only the shape is asked."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""


def wrapped_structure(tensors: Mapping[str, Shaped], n: int) -> str:
    """Return the structure under a scale, told by the tensors that there are: all of them, and no other.

    Args:
        tensors: of a `scaled` matrix, by suffix.
        n: side.

    Raises:
        CorruptObject: no scale, not one for each column, or tensors that are not those of one structure.
    """
    if COLUMN_SCALE not in tensors:
        raise CorruptObject(f"a {SCALED} matrix needs the tensor {COLUMN_SCALE!r}, which the file lacks")
    if tensors[COLUMN_SCALE].shape != (n,):
        raise CorruptObject(f"{COLUMN_SCALE} of a matrix with n={n} cannot have shape {tensors[COLUMN_SCALE].shape}")
    inner = set(tensors) - {COLUMN_SCALE}
    found = [name for name in WRAPPED if set(TENSORS[name]) == inner]
    if not found:
        raise CorruptObject(
            f"the tensors {sorted(inner)[:6]} beside {COLUMN_SCALE} are those of no structure that can be scaled; "
            f"{SCALED} wraps {', '.join(WRAPPED)}"
        )
    if len(found) == 1:
        return found[0]
    return "toeplitz" if tensors["coefficients"].shape == (n,) else "banded_toeplitz"
