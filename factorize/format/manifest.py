"""The manifest's own rules: which parts its digest covers, and what a reader checks before believing the rest.

Light on purpose: a training job reads manifests without the packages that parse specs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from factorize.encoding import check_digest, json_digest
from factorize.errors import CorruptObject, InvalidParameter, UnsupportedProblem
from factorize.format.certificates import check_fields
from factorize.format.description import check_description
from factorize.format.names import MatrixName

SCHEMA = 1
ENDLESS = 10**15 - 1
"""Steps of a strategy whose rows have no end, where a number is needed: the largest integer of a document."""
_FIELDS = {"schema", "spec", "spec_digest", "digest", "matrices", "dual", "certificate", "solver"}
_SPEC = {"workload", "participation", "objective", "mechanism", "tolerance"}
_SOLVER = {"version", "seconds", "environment", "outcome", "iterations", "optimized_for", "asymptotic", "cast_from"}
_VOLATILE = ("digest", "files", "created")
_VOLATILE_SOLVER = ("seconds", "environment")


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of a manifest: over all of it but the volatile parts."""
    lasting = {key: value for key, value in manifest.items() if key not in _VOLATILE}
    solver = lasting.get("solver", {})
    lasting["solver"] = {key: value for key, value in solver.items() if key not in _VOLATILE_SOLVER}
    return json_digest(lasting)


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Raise CorruptObject unless a manifest has the known schema and its own digests, and is as the format allows."""
    try:
        if type(manifest["schema"]) is not int or manifest["schema"] != SCHEMA:
            raise CorruptObject(f"schema {manifest['schema']!r} is not {SCHEMA}; use a release that knows it")
        if manifest_digest(manifest) != manifest["digest"]:
            raise CorruptObject("the manifest does not hash to its own digest; get it again")
        if json_digest(manifest["spec"]) != manifest["spec_digest"]:
            raise CorruptObject("the manifest's spec does not hash to its spec digest")
        check_fields("the manifest", manifest, _FIELDS, {"files", "created"})
        check_fields("the spec", manifest["spec"], _SPEC, {"optimize_for", "sampling"})  # its parts: by their parser
        check_fields("the manifest's solver", manifest["solver"], {"mechanism"}, _SOLVER)
        check_description(manifest)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise CorruptObject(f"not a manifest: {type(error).__name__}: {str(error)[:200]}") from None


def steps_of(manifest: Mapping[str, Any]) -> int:
    """Return the number of steps, `ENDLESS` where the shape of C states none."""
    steps = manifest["matrices"]["C"]["shape"][1]
    return ENDLESS if steps is None else int(steps)


def shape_of(manifest: Mapping[str, Any], matrix: MatrixName) -> tuple[int, int]:
    """Return the shape of a matrix: n x n, or for the decoder as many rows as the workload has outputs.

    Raises:
        UnsupportedProblem: the matrix has rows without end.
    """
    n = steps_of(manifest)
    if n == ENDLESS:
        raise UnsupportedProblem(
            f"{matrix} has rows without end, and so no last row; take noise, or a range of rows: "
            f"factors.rows({matrix!r}, 0, 100)",
            field="matrix",
        )
    return int(manifest["spec"]["workload"].get("shape", [n])[0]) if matrix == "B" else n, n


@dataclass(frozen=True)
class StoredFile:
    """One file of a manifest.

    Attributes:
        sha256: of the whole file; its address.
        bytes: its length.
    """

    sha256: str
    bytes: int

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> StoredFile:
        """Return the file of the matrices; raise CorruptObject unless the manifest names it by sha256 and length."""
        try:
            entry = manifest["files"][0]
            length = entry["bytes"]
            digest = check_digest(entry["sha256"], what="sha256")
        except (KeyError, TypeError, IndexError, InvalidParameter):
            raise CorruptObject("the manifest names no file by sha256 and bytes, so nothing can be checked") from None
        if type(length) is not int or length <= 0:
            raise CorruptObject(f"the manifest states a file of {str(length)[:20]} bytes; the length is an integer > 0")
        return cls(digest, length)
