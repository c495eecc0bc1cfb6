"""Matrices as a manifest may describe them: names, shapes, types and n, and nothing else.

All readers of factor files use this one description. It does not need the packages that parse specs.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from factorize.encoding import canonical_json, is_digest
from factorize.errors import CorruptObject
from factorize.format.claims import check_certificate, check_claim, check_fields
from factorize.format.tensors import (
    COLUMN_SCALE,
    ENDLESS_ONLY_STRUCTURES,
    ENDLESS_STRUCTURES,
    INNER_STRUCTURES,
    MATRIX_NAMES,
    SCALED,
    SHAPES,
    tensor_name,
)
from factorize.numbers.scalars import MAX_STEPS
from factorize.participation import is_canonical

DTYPES = ("float64", "float32")
"""The types in which matrices are stored; the numbers of a file are certified as they are, in either type."""
ENDLESS_SIDE = "unbounded"
"""The text that stands for a side of a shape that has no end."""
DERIVED_STRUCTURES = ("dense", "toeplitz")
"""The structures of a stored C_inv or B."""
EVIDENCE = ("weights", "row_weights", "factors", "patterns")
"""The tensors of the lower bounds' evidence, each under `dual.`."""
_ENTRY = {"structure", "shape", "dtype", "tensors", "sha256", "bytes"}
_CLAIM = "encoder_sensitivity"


class Sides(NamedTuple):
    """The sizes of a factorization.

    Attributes:
        rows: number of rows of A and of B; None without end.
        n: number of steps; None without end.
    """

    rows: int | None
    n: int | None

    def of(self, name: str) -> tuple[int | None, int | None]:
        """Return the shape of one of the matrices."""
        return (self.rows if name == "B" else self.n, self.n)


def sides_of(spec: Mapping[str, Any]) -> Sides:
    """Return the sizes that a spec asks for; raise CorruptObject where it states none."""
    workload = spec["workload"]
    shape = workload["shape"] if workload["kind"] == "matrix" else [workload["n"], workload["n"]]
    if shape == [ENDLESS_SIDE, ENDLESS_SIDE]:
        return Sides(None, None)
    sides = shape if isinstance(shape, list) and len(shape) == 2 else [0]
    if not all(type(side) is int and 1 <= side <= MAX_STEPS for side in sides):
        raise CorruptObject(
            f"the spec states the size {str(shape)[:60]}, not a number of steps from 1 to {MAX_STEPS:,}"
        )
    return Sides(*shape)


def check_description(manifest: Mapping[str, Any]) -> None:
    """Raise CorruptObject unless a manifest names matrices and evidence as the format allows, of the spec's size."""
    sides = sides_of(manifest["spec"])
    check_participation(manifest["spec"]["participation"], sides.n)
    check_claim(manifest)
    check_certificate(manifest["certificate"])
    matrices = manifest["matrices"]
    if not isinstance(matrices, dict) or "C" not in matrices or not set(matrices) <= set(MATRIX_NAMES):
        raise CorruptObject(f"the matrices are {sorted(matrices)[:4]}; C is required, C_inv and B are optional")
    for name, entry in matrices.items():
        _check_entry(name, entry, sides)
    if sides.n is None and len(matrices) > 1:
        raise CorruptObject("C_inv and B of a strategy without a last step cannot be stored")
    _check_evidence(manifest["dual"])


def named_tensors(manifest: Mapping[str, Any]) -> list[str]:
    """Return the names of all tensors that a manifest names."""
    entries = [*manifest["matrices"].values(), manifest["dual"] or {"tensors": []}]
    return [name for entry in entries for name in entry["tensors"]]


def _check_entry(name: str, entry: Mapping[str, object], sides: Sides) -> None:
    allowed = _ENTRY | ({_CLAIM} if name == "B" else set())
    if not isinstance(entry, dict) or not _ENTRY <= set(entry) or not set(entry) <= allowed:
        raise CorruptObject(f"{name} has the fields {sorted(entry)[:8]}; it must have {', '.join(sorted(_ENTRY))}")
    stated, wanted = entry["shape"], list(sides.of(name))
    if canonical_json(stated) != canonical_json(wanted):  # Here 3.0 is not 3.
        raise CorruptObject(f"{name} is stated to have shape {str(stated)[:60]}, but the spec asks for {wanted}")
    if entry["dtype"] not in DTYPES:
        stated = str(entry["dtype"])[:20]
        raise CorruptObject(f"{name} has the unknown dtype {stated!r}; it must be one of {', '.join(DTYPES)}")
    structure, known = entry["structure"], structures(name, sides)
    if structure not in known:
        raise CorruptObject(
            f"structure {str(structure)[:40]!r} of {name} is not one of {', '.join(known)}; update factorize"
        )
    _check_names(name, entry["tensors"], [[tensor_name(name, s) for s in parts] for parts in suffixes(structure)])
    if type(entry["bytes"]) is not int or entry["bytes"] < 1:
        raise CorruptObject(f"{name} is stated to have {str(entry['bytes'])[:20]} bytes")
    _check_sha256(name, entry)
    if _CLAIM in entry:
        claim = check_fields(f"B's {_CLAIM}", entry[_CLAIM], {"value", "hex", "kind"})
        value, written = claim["value"], claim["hex"]
        if type(value) is not float or not value > 0 or not isinstance(written, str) or written != value.hex():
            raise CorruptObject(f"B's {_CLAIM} is stated as {str(written)[:40]!r} and {str(value)[:40]}")


def structures(name: str, sides: Sides) -> tuple[str, ...]:
    """Return the structures that a matrix may have."""
    if name != "C":
        return DERIVED_STRUCTURES if name == "C_inv" or sides.rows == sides.n else DERIVED_STRUCTURES[:1]
    if sides.n is None:
        return ENDLESS_STRUCTURES
    return (*(structure for structure in SHAPES if structure not in ENDLESS_ONLY_STRUCTURES), SCALED)


def suffixes(structure: str) -> list[tuple[str, ...]]:
    """Return the sets of suffixes of the tensors that a structure may be stored as."""
    if structure == SCALED:
        return [(*SHAPES[inner], COLUMN_SCALE) for inner in INNER_STRUCTURES]
    return [tuple(SHAPES[structure])]


def _check_names(name: str, given: object, allowed: list[list[str]]) -> None:
    if not isinstance(given, list) or not all(isinstance(tensor, str) for tensor in given):
        raise CorruptObject(f"the tensors of {name} are not a list of names")
    if given not in allowed:  # In another order a digest could name two matrices, whose tensors have other shapes.
        raise CorruptObject(f"the tensors of {name} are {str(given)[:120]}, but its structure has {allowed[0]}")


def _check_evidence(entry: Mapping[str, object] | None) -> None:
    if entry is None:
        return
    if not isinstance(entry, dict) or set(entry) != {"tensors", "sha256"}:
        raise CorruptObject(f"the evidence is described by {sorted(entry)[:8]}; it has tensors and sha256")
    names, known = entry["tensors"], {f"dual.{name}" for name in EVIDENCE}
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise CorruptObject("the tensors of the evidence are not a list of names")
    if not set(names) <= known or len(set(names)) < len(names):
        raise CorruptObject(f"the evidence has the tensors {str(names)[:120]}; known are {', '.join(sorted(known))}")
    _check_sha256("the evidence", entry)


def _check_sha256(name: str, entry: Mapping[str, object]) -> None:
    if not is_digest(entry["sha256"]):
        raise CorruptObject(f"{name} has the sha256 {str(entry['sha256'])[:70]!r}")


def check_participation(given: Mapping[str, object], n: int | None) -> None:
    """Raise CorruptObject unless a participation is in canonical form, so that all readers read it alike."""
    if not (isinstance(given, dict) and is_canonical(given, n)):
        raise CorruptObject(f"{str(given)[:120]} is not a participation of n={ENDLESS_SIDE if n is None else n} steps")
