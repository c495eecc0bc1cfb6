"""A factor file from its bytes, read as all others read it; and a matrix of anybody's."""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np

from factorize.checker.strategy import Strategy
from factorize.errors import CorruptObject, InvalidStrategy
from factorize.format.container import Container
from factorize.format.reading import evidence_of, matrix_of, read_manifest


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
    manifest = read_manifest(container)
    tensors = {name: container.lying(name) for name in container.names}
    matrices = {name: matrix_of(manifest, name, tensors) for name in manifest["matrices"]}
    return FactorFile(manifest, matrices, evidence_of(manifest, tensors))


def read_array(path: Path, name: str = "C") -> np.ndarray:
    """Return a matrix of numbers from a `.npy` file (never unpickled) or a `.safetensors` file, as doubles.

    Args:
        path: the file.
        name: the tensor to take where a safetensors file holds more than one.

    Raises:
        CorruptObject: damaged, or neither format.
        InvalidStrategy: not one matrix of numbers that doubles hold exactly.
        OSError: the file cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    kind = ".npy" if path.suffix == ".npy" else "safetensors"
    try:
        if kind == ".npy":  # not np.load, which opens zip archives too
            with path.open("rb") as stream:
                tensors = {name: np.lib.format.read_array(stream, allow_pickle=False)}
        else:
            tensors = load(path.read_bytes())
    except (SafetensorError, ValueError, EOFError, SyntaxError, TokenError, TypeError, KeyError, RecursionError) as why:
        raise CorruptObject(f"{path} is not a {kind} file of plain numbers: {why}") from None
    if name not in tensors and len(tensors) != 1:
        raise InvalidStrategy(f"{path} holds the tensors {sorted(tensors)[:5]} and none of them is named {name!r}")
    array = tensors[name] if name in tensors else next(iter(tensors.values()))
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InvalidStrategy(f"{path} holds an array of {array.dtype} with shape {array.shape}; give one real matrix")
    doubles = array.astype(np.float64)
    if not np.isfinite(doubles).all() or (doubles.astype(array.dtype) != array).any():
        raise InvalidStrategy(f"{path} holds NaN, infinity or integers above 2^53; give finite doubles")
    return doubles
