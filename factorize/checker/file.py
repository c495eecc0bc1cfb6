"""A factor file from its bytes, read as all others read it."""

from typing import Any, NamedTuple

import numpy as np

from factorize.checker.strategy import Strategy
from factorize.errors import InvalidStrategy
from factorize.format.container import Container
from factorize.format.manifest import Manifest
from factorize.format.reading import evidence_of, matrix_of


class FactorFile(NamedTuple):
    """What a file holds, all digests compared.

    Attributes:
        manifest: the manifest.
        matrices: per matrix of the manifest its tensors by suffix, as doubles, which narrower types are too.
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
            raise InvalidStrategy("C has no last step, and this is proved of one that has; solve for a number n")
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
