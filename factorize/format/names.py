"""Names of structures: the contract's words, the tensors that each is stored as, and what `scaled` may wrap.

Plain data that needs neither numpy nor a matrix. Matrices that are built, written and read and the light client go by
it, so that none of them writes what another refuses. The exact checker has a table of its own, which a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from factorize.errors import CorruptObject

COLUMN_SCALE = "column_scale"
SCALED = "scaled"

Shape = tuple[str | int, ...]

SHAPES: dict[str, dict[str, Shape]] = {
    "dense": {"": ("n", "n")},
    "toeplitz": {"coefficients": ("n",)},
    "banded_toeplitz": {"coefficients": ("bands",)},
    "banded": {"bands": ("bands", "n")},
    "buffered": {"diagonal": ("n",), "decay": ("n", "m"), "input": ("n", "m"), "output": ("n", "m")},
    "state_space": {"diagonal": ("n",), "transition": ("n", "m", "m"), "input": ("n", "m"), "output": ("n", "m")},
    "tree": {"tree.nodes": ("levels", "n"), "tree.restart": (1,), "": ("n", "n")},
    "blt": {"theta": ("m",), "omega": ("m",)},
    "inverse_banded_toeplitz": {"inverse_coefficients": ("bands",)},
    "redrawn": {
        "decay": ("n", "m"),
        "output": ("n", "m"),
        "input": ("draws", "n", "m"),
        "direct": ("draws", "n"),
        "lag": (1,),
    },
    "nu_toeplitz": {"nu": (1,)},
}
"""Shape of each tensor by suffix, '' for the matrix itself: n is the number of steps, every other letter is at least 1
and the same wherever it stands."""
BLOCKS: Shape = ("n", "groups", "states", "states")
"""The other shape of `transition`, block diagonal, with m = groups x states."""

BESIDE: dict[str, tuple[str, ...]] = {"tree": ("",)}
"""Suffixes of tensors that a structure may have beside its own."""

TENSORS = {
    structure: tuple(suffix for suffix in shapes if suffix not in BESIDE.get(structure, ()))
    for structure, shapes in SHAPES.items()
}
"""Suffixes of the tensors of each structure; `scaled` has those of what it wraps and `column_scale`."""

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
