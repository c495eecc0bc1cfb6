"""The manifest: its fields, the parts that its digest covers, and the checks before a reader believes the rest.

The one way from bytes to tensors, which loading, the light client and the store use, is here, too. It checks every byte
that is used. The module stays light: a training job reads manifests without the packages that parse specs.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from factorize.encoding import JsonObject, canonical_json, check_digest, json_digest, read_json, tensor_digest
from factorize.errors import CorruptObject, FactorizeError, InvalidParameter, InvalidStrategy, UnsupportedProblem
from factorize.format.claims import Sensitivity, check_fields
from factorize.format.container import Container
from factorize.format.description import check_description, named_tensors
from factorize.format.tensors import MatrixName, check_tensors

SCHEMA = 1
ENDLESS_STEPS = 10**15 - 1
"""The number that stands for the steps of a strategy whose rows have no end: the largest integer of a document."""
_FIELDS = {"schema", "spec", "spec_digest", "digest", "matrices", "dual", "certificate", "solver"}
_SPEC = {"workload", "participation", "objective", "mechanism", "tolerance"}
_SOLVER = {"version", "seconds", "environment", "outcome", "iterations", "optimized_for", "asymptotic", "cast_from"}
_MAX_MANIFEST_BYTES = 1 << 30
_MAX_BRACKETS = 1 << 20
"""The most opening brackets in a manifest, whose long lists are of numbers: to count more of them takes a minute."""
_VOLATILE_FIELDS = ("digest", "files", "created")
_VOLATILE_SOLVER_FIELDS = ("seconds", "environment")


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of a manifest, over all but its volatile parts."""
    lasting = {key: value for key, value in manifest.items() if key not in _VOLATILE_FIELDS}
    solver = lasting.get("solver", {})
    lasting["solver"] = {key: value for key, value in solver.items() if key not in _VOLATILE_SOLVER_FIELDS}
    return json_digest(lasting)


@dataclass(frozen=True)
class StoredFile:
    """One file of a manifest.

    Attributes:
        sha256: digest of the whole file, which is its address.
        bytes: its length.
    """

    sha256: str
    bytes: int


class MatrixEntry(NamedTuple):
    """The entry of a manifest for one matrix.

    Attributes:
        structure: the contract's name of the structure.
        shape: both sides, None without end.
        dtype: type in which the numbers are stored.
        tensors: names of the tensors in the file.
        sha256: digest of the tensors' bytes.
        bytes: length of the tensors.
    """

    structure: str
    shape: list[int | None]
    dtype: str
    tensors: list[str]
    sha256: str
    bytes: int


class Manifest(JsonObject):
    """The description of a factor file as plain data for JSON, which code reads by properties and never changes.

    `check` and `read` make one from the data of others, `sealed` from data of this process.
    """

    @classmethod
    def check(cls, document: Mapping[str, object]) -> Manifest:
        """Return a manifest; raise CorruptObject unless its schema is known, and its digests and fields agree."""
        try:
            if type(document["schema"]) is not int or document["schema"] != SCHEMA:
                raise CorruptObject(
                    f"schema {document['schema']!r} is not {SCHEMA}; use a release of factorize that reads it"
                )
            if manifest_digest(document) != document["digest"]:
                raise CorruptObject("the manifest does not hash to its own digest; get it again")
            if json_digest(document["spec"]) != document["spec_digest"]:
                raise CorruptObject("the manifest's spec does not hash to its spec digest")
            check_fields("the manifest", document, _FIELDS, {"files", "created"})
            # The parser of specs checks their contents.
            check_fields("the spec", document["spec"], _SPEC, {"optimize_for", "sampling"})
            check_fields("the manifest's solver", document["solver"], {"mechanism"}, _SOLVER)
            check_description(document)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise CorruptObject(f"not a manifest: {type(error).__name__}: {str(error)[:200]}") from None
        return cls(document)

    @classmethod
    def read(cls, container: Container) -> Manifest:
        """Return a file's manifest, as `check` does; raise CorruptObject unless it names exactly the file's tensors."""
        text = container.manifest_text
        if (opening := text.count("[") + text.count("{")) > _MAX_BRACKETS:
            raise CorruptObject(f"not a factor file: the manifest has {opening} brackets, more than {_MAX_BRACKETS}")
        try:
            document = read_json(text, limit=_MAX_MANIFEST_BYTES)
        except FactorizeError as error:
            raise CorruptObject(f"not a factor file: the manifest is not JSON: {str(error)[:200]}") from None
        if not isinstance(document, dict):
            raise CorruptObject("not a factor file: the manifest is not an object")
        manifest = cls.check(document)
        check_named(manifest, container.names)
        return manifest

    @classmethod
    def sealed(cls, document: Mapping[str, object]) -> Manifest:
        """Return a manifest of data from this process, as it reads back from JSON, with its digest."""
        return cls(json.loads(canonical_json({**document, "digest": manifest_digest(document)})))

    @property
    def digest(self) -> str:
        """The name of the bytes for ever."""
        return str(self["digest"])

    @property
    def spec_digest(self) -> str:
        """The name of the spec that was asked for."""
        return str(self["spec_digest"])

    @property
    def spec(self) -> JsonObject:
        """The canonical spec."""
        return dict(self["spec"])

    @property
    def certificate(self) -> JsonObject:
        """The certificate, in the contract's JSON form."""
        return dict(self["certificate"])

    @property
    def solver(self) -> JsonObject:
        """The origin of C: mechanism, version, outcome, and `cast_from` for a rounded one."""
        return dict(self["solver"])

    @property
    def cast_from(self) -> str | None:
        """The digest of the result that this one was rounded from."""
        return self.solver.get("cast_from")

    @property
    def created(self) -> str:
        """The time at which it was stored, which only a store's manifest has."""
        return str(self["created"])

    @property
    def proof(self) -> JsonObject:
        """The checks of the file before it was stored, which only a store's manifest has."""
        return dict(self["files"][0].get("proof", {}))

    @property
    def names(self) -> list[str]:
        """The names of the matrices in the file."""
        return list(self["matrices"])

    def matrix(self, name: str) -> MatrixEntry:
        """Return the entry of one matrix."""
        return MatrixEntry(*(self["matrices"][name][field] for field in MatrixEntry._fields))

    @property
    def steps(self) -> int:
        """The number of steps, n; `ENDLESS_STEPS` where the shape of C states none."""
        steps = self["matrices"]["C"]["shape"][1]
        return ENDLESS_STEPS if steps is None else int(steps)

    def shape(self, matrix: MatrixName) -> tuple[int, int]:
        """Return the shape of a matrix: n x n, or for the decoder as many rows as the workload has outputs.

        Raises:
            UnsupportedProblem: the matrix has rows without end.
        """
        n = self.steps
        if n == ENDLESS_STEPS:
            raise UnsupportedProblem(
                f"{matrix} has no last row, since n is 'unbounded'; take noise, or a range of rows: "
                f"factors.rows({matrix!r}, 0, 100)",
                field="matrix",
            )
        return int(self["spec"]["workload"].get("shape", [n])[0]) if matrix == "B" else n, n

    @property
    def file(self) -> StoredFile:
        """The file of the matrices; reading it raises CorruptObject unless it is named by sha256 and length."""
        try:
            entry = self["files"][0]
            length = entry["bytes"]
            digest = check_digest(entry["sha256"], what="sha256")
        except (KeyError, TypeError, IndexError, InvalidParameter):
            raise CorruptObject(
                "the manifest does not name its file by sha256 and bytes, so nothing can be checked"
            ) from None
        if type(length) is not int or length <= 0:
            raise CorruptObject(f"the manifest states a file of {str(length)[:20]} bytes; the length is an integer > 0")
        return StoredFile(digest, length)


def check_named(manifest: Mapping[str, object], names: Iterable[str]) -> None:
    """Raise CorruptObject unless a manifest names these tensors, each once, and no other."""
    named, there = named_tensors(manifest), list(names)
    if sorted(named) != sorted(there):
        odd = sorted(set(named) ^ set(there))[:3]
        raise CorruptObject(f"the manifest and the file do not have the same tensors: {odd}; it is not a factor file")


def matrix_of(manifest: Mapping[str, Any], name: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return one matrix's tensors by suffix ('' for a dense one), as doubles, in the order that the manifest lists.

    Args:
        manifest: the checked manifest.
        name: C, C_inv or B.
        tensors: the stored tensors, by their names in the file.

    Raises:
        CorruptObject: a type, length or digest differs from the manifest, or the tensors make no such matrix.
    """
    entry = manifest["matrices"][name]
    arrays = {tensor: tensors[tensor] for tensor in entry["tensors"]}
    if any(array.dtype != np.dtype(entry["dtype"]) for array in arrays.values()):
        raise CorruptObject(f"{name} is not stored as {entry['dtype']!r}")
    if sum(array.nbytes for array in arrays.values()) != entry["bytes"]:
        raise CorruptObject(f"{name} does not have the {entry['bytes']} bytes that the manifest states")
    if tensor_digest(arrays.values()) != entry["sha256"]:
        raise CorruptObject(f"the bytes of {name} do not hash to {entry['sha256']}; download the file again")
    parts = {
        tensor.removeprefix(name).removeprefix("."): array.astype(np.float64, copy=False)
        for tensor, array in arrays.items()
    }
    try:
        check_tensors(name, entry["structure"], parts, tuple(entry["shape"]))
    except InvalidStrategy as error:
        raise CorruptObject(f"{name} is not a valid {entry['structure']} matrix: {error}") from None
    return parts


def evidence_of(manifest: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the evidence by name without `dual.`; raise CorruptObject unless it is finite and hashes as stated."""
    entry = manifest["dual"]
    if entry is None:
        return {}
    arrays = {name.removeprefix("dual."): tensors[name] for name in entry["tensors"]}
    if any(array.dtype != np.float64 or not np.isfinite(array).all() for array in arrays.values()):
        raise CorruptObject("the dual evidence must be finite numbers in float64")
    if tensor_digest(arrays.values()) != entry["sha256"]:
        raise CorruptObject(f"the bytes of the dual evidence do not hash to {entry['sha256']}")
    return arrays


def check_file(path: str | Path, digest: str | None = None) -> Manifest:
    """Return the manifest of a file after checking all of it, and its digest if one is given.

    Raises:
        CorruptObject: the file breaks the format, or has another digest.
        FileNotFoundError: there is no file.
    """
    container = Container(path)
    manifest = Manifest.read(container)
    if digest is not None and manifest["digest"] != digest:
        raise CorruptObject(f"{path} contains {manifest['digest']}, not {digest}; do not use it")
    for name in manifest["matrices"]:
        matrix_parts(container, manifest, name)
    names = [] if manifest["dual"] is None else manifest["dual"]["tensors"]
    evidence_of(manifest, {name: container.read(name) for name in names})
    return manifest


def matrix_parts(container: Container, manifest: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
    """Read one matrix's tensors; see `matrix_of`."""
    entry = manifest["matrices"][name]
    return matrix_of(manifest, name, {tensor: container.read(tensor) for tensor in entry["tensors"]})


class CertifiedFactors(ABC):
    """A strategy C and the sensitivity that was certified for it; `factorize.Factors` does all that rests on these.

    Attributes:
        manifest: the checked manifest: the spec, the matrices and the certificate.
    """

    manifest: Manifest

    @property
    @abstractmethod
    def sensitivity(self) -> Sensitivity:
        """The certified sensitivity, with kind, rule and participation, compared with that of C."""

    @abstractmethod
    def opened(self) -> Any:
        """Return the `factorize.Factorization` with C in memory."""

    @abstractmethod
    def strategy_tensors(self) -> Mapping[str, np.ndarray]:
        """Return the tensors of C by suffix ('' for a dense one), as doubles."""

    @property
    def digest(self) -> str:
        """The name of these bytes for ever, which jobs pin."""
        return self.manifest.digest

    @property
    def spec_digest(self) -> str:
        """The name of the spec that was asked for."""
        return self.manifest.spec_digest

    @property
    def structure(self) -> str:
        """The contract's name of the structure of C."""
        return self.manifest.matrix("C").structure

    @property
    def dtype(self) -> str:
        """The type in which C is stored; in memory its numbers are doubles."""
        return self.manifest.matrix("C").dtype

    @property
    def steps(self) -> int:
        """The number of steps, n; 10^15 - 1 where the rows have no end."""
        return self.manifest.steps


def certified(given: object) -> CertifiedFactors:
    """Return a factorization or factors whose certificate states as much as C has.

    Raises:
        InvalidParameter: it is anything else.
        CorruptObject: C has a larger sensitivity than the certificate states.
    """
    if not isinstance(given, CertifiedFactors):
        message = f"this {type(given).__name__} is not a factorization; pass what load or solve returned"
        raise InvalidParameter(message, field="factors")
    _ = given.sensitivity  # It raises for a certificate that states too little.
    return given
