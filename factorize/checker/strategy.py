"""Reading of a factor file from its bytes, as every reader does it, and of C from its tensors.

C is a reading of its structure together with the factors of its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from factorize.checker.arithmetic.near import UNIT, Columns, Near, share
from factorize.checker.structures import READINGS
from factorize.errors import InvalidStrategy
from factorize.format.container import Container
from factorize.format.manifest import Manifest, evidence_of, matrix_of
from factorize.format.tensors import COLUMN_SCALE, check_strategy_tensors

if TYPE_CHECKING:
    from factorize.checker.arithmetic.balls import Balls

MAX_N_COMPUTED = 2048
"""The largest n of a whole matrix whose entries are computed."""
_SCALING_UNDERFLOW = 2.0**-1000  # The columns' factors lose less by underflow.


class Strategy:
    """The matrix C as exact numbers: a reading of its structure, and a factor for each column where there are factors.

    Args:
        structure: name of the structure.
        parts: tensors by suffix, as the file format lists them for the structure.
        n: side.

    Attributes:
        structure: the name of the structure; for a scaled matrix, that of the matrix that is scaled.
        reading: C without the factors of its columns.
        scale: the factors, shape (n,), or None.
        parts: the tensors.

    Raises:
        CorruptObject: the tensors do not make that structure.
        InvalidStrategy: C is not finite, not lower-triangular bit by bit, or its diagonal is not positive.
    """

    def __init__(self, structure: str, parts: Mapping[str, np.ndarray], n: int) -> None:
        self.n, self.parts = n, parts
        self.scale = parts.get(COLUMN_SCALE)
        self.structure = check_strategy_tensors(structure, parts, n)
        self.reading = READINGS[self.structure](parts, n)

    @property
    def doubles(self) -> np.ndarray | None:
        """The whole of C as doubles, shape (n, n), where entries are stored and columns have no factors; else None."""
        return self.reading.doubles if self.scale is None else None

    @property
    def toeplitz(self) -> Balls | None:
        """The first column, if C is Toeplitz entry for entry; else None."""
        return self.reading.series if self.scale is None else None

    @property
    def bandwidth(self) -> int:
        """The number of diagonals up to the last that is not all zero, with the main one."""
        return self.reading.bandwidth

    @cached_property
    def column_norms(self) -> Near:
        """The squared norms of the columns."""
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
        columns = self.reading.near_columns(indices)
        if self.scale is None:
            return columns
        values = columns.values * self.scale[indices]
        lost = UNIT * np.sqrt(np.einsum("ij,ij->j", values, values)) + columns.far * self.scale[indices]
        return Columns(values, lost * (1 + 2.0**-20) + _SCALING_UNDERFLOW)


class FactorFile(NamedTuple):
    """The content of a factor file, with all digests compared.

    Attributes:
        manifest: the manifest.
        matrices: tensors of each matrix of the manifest by suffix, as doubles, also where narrower types are stored.
        dual: the evidence for the lower bound, by name without `dual.`.
    """

    manifest: dict[str, Any]
    matrices: dict[str, dict[str, np.ndarray]]
    dual: dict[str, np.ndarray]

    @property
    def steps(self) -> int | None:
        """The side of C, or None where the spec has no last step."""
        endless = self.manifest["spec"]["workload"].get("n") == "unbounded"
        return None if endless else int(self.manifest["matrices"]["C"]["shape"][1])

    def strategy(self) -> Strategy:
        """Read C.

        Raises:
            CorruptObject, InvalidStrategy: see `Strategy`; or C has no last step.
        """
        if self.steps is None:
            raise InvalidStrategy("C has no last step, and this needs one; solve for a number n")
        return Strategy(self.manifest["matrices"]["C"]["structure"], self.matrices["C"], self.steps)


def read_factor_file(data: bytes) -> FactorFile:
    """Decode a factor file and compare every digest that its manifest states.

    Raises:
        CorruptObject: a byte is not accounted for, or bytes and manifest disagree.
    """
    container = Container(data)
    manifest = Manifest.read(container)
    tensors = {name: container.lying(name) for name in container.names}
    matrices = {name: matrix_of(manifest, name, tensors) for name in manifest["matrices"]}
    return FactorFile(manifest, matrices, evidence_of(manifest, tensors))
