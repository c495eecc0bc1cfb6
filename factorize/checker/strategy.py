"""A strategy matrix from its tensors: a reading of its structure, beside the factors of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from factorize.checker.arithmetic.near import UNIT, Columns, Near, share
from factorize.checker.structures import READINGS
from factorize.checker.structures.base import LARGEST_WHOLE
from factorize.errors import CorruptObject, InvalidStrategy
from factorize.format.names import COLUMN_SCALE

if TYPE_CHECKING:
    from factorize.checker.arithmetic.balls import Balls

__all__ = ["LARGEST_WHOLE", "Strategy"]
_ROOT_TINY = 2.0**-1000  # more than what underflows where columns have factors


class Strategy:
    """C as exact numbers: a reading of its structure, and a factor for each column where there are factors.

    Args:
        structure: name of the structure.
        parts: tensors by suffix, as the file format lists them for the structure.
        n: side.

    Attributes:
        structure: the name; of a scaled matrix, that of what is scaled.
        reading: C without the factors of its columns.
        scale: these, shape (n,), or None.

    Raises:
        CorruptObject: the tensors do not make that structure.
        InvalidStrategy: not finite, not lower-triangular bit by bit, or a diagonal that is not positive.
    """

    def __init__(self, structure: str, parts: Mapping[str, np.ndarray], n: int) -> None:
        self.n = n
        self.scale: np.ndarray | None = None
        parts = dict(parts)
        if not all(np.isfinite(part).all() for part in parts.values()):
            raise InvalidStrategy("C holds NaN or infinity")
        if structure == "scaled":
            self.scale = _factors(parts.pop(COLUMN_SCALE, np.empty(0)), n)
            structure = _inner_structure(parts, n)
        if structure not in READINGS:
            raise CorruptObject(f"this checker knows no structure {structure[:40]!r}")
        self.structure = structure
        try:
            self.reading = READINGS[structure].read(parts, n)
        except KeyError as missing:
            raise CorruptObject(f"a {structure} matrix needs the tensor {missing}, which the file lacks") from None
        if parts:
            raise CorruptObject(f"a {structure} matrix has no tensors {sorted(parts)}")
        self.reading.check()
        if (self.reading.diagonal <= 0).any() or (self.scale is not None and (self.scale <= 0).any()):
            raise InvalidStrategy("the diagonal of C is not positive")

    @property
    def doubles(self) -> np.ndarray | None:
        """All of C as doubles, where entries are stored and columns have no factors; shape (n, n)."""
        return self.reading.doubles if self.scale is None else None

    @property
    def toeplitz(self) -> Balls | None:
        """The first column, if C is Toeplitz entry for entry."""
        return self.reading.series if self.scale is None else None

    @property
    def bandwidth(self) -> int:
        """Diagonals up to the last one that is not all zero, the main one included."""
        return self.reading.bandwidth

    @cached_property
    def column_norms(self) -> Near:
        """Squared norms of the columns."""
        diagonal = self.reading.diagonal
        if self.bandwidth == 1 and self.scale is None and (diagonal == 1).all():
            return Near(np.ones(self.n), 0.0)
        norms = self.reading.column_norms()
        return norms if self.scale is None else Near(norms.values * self.scale**2, share(norms.off, roundings=3))

    def near_columns(self, indices: np.ndarray) -> Columns:
        """Return some columns in doubles.

        Raises:
            TooLarge, NotEnclosed: see `Reading.near_columns`.
        """
        found = self.reading.near_columns(indices)
        if self.scale is None:
            return found
        values = found.values * self.scale[indices]
        lost = UNIT * np.sqrt(np.einsum("ij,ij->j", values, values)) + found.far * self.scale[indices]
        return Columns(values, lost * (1 + 2.0**-20) + _ROOT_TINY)


def _factors(array: np.ndarray, n: int) -> np.ndarray:
    if array.shape != (n,):
        raise CorruptObject(f"a tensor of C has shape {array.shape}; the spec's n asks for {(n,)}")
    return array


def _inner_structure(parts: Mapping[str, np.ndarray], n: int) -> str:
    """The structure whose tensors these are, all of them and no other."""
    found = [name for name, kind in READINGS.items() if kind.scalable and kind.parts == set(parts)]
    if not found:
        raise CorruptObject(f"the tensors {sorted(parts)[:6]} beside {COLUMN_SCALE} are not those of one structure")
    if len(found) == 1:
        return found[0]
    return "toeplitz" if parts["coefficients"].shape == (n,) else "banded_toeplitz"
