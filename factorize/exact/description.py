"""A manifest's description of its tensors, written down here once more: names, sizes, types, and who takes part.

The other readers go by `factorize/format`, with which this shares nothing; a test lets both read changed files.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from factorize.errors import CorruptObject
from factorize.exact.participation import check_canonical
from factorize.exact.structures import ENDLESS_READINGS, READINGS

SCALE = "column_scale"
TREE = READINGS["tree"].parts
LARGEST_STORED_TREE = 1024
_EVIDENCE = {"weights", "row_weights", "factors", "class_column", "class_signs"}
_FIELDS = {"structure", "shape", "dtype", "tensors", "sha256", "bytes"}
_CLAIM = {"encoder_sensitivity"}
_LOSSES = {"total_squared", "mean_squared", "rmse", "max_error", "last_iterate", "objective"}
_HEX = set(string.digits + "abcdef")


def check_description(manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest that names tensors, sizes or participations in any way but the format's.

    Raises:
        CorruptObject: with what is wrong.
        KeyError, TypeError, AttributeError: a part of it is missing or of another type.
    """
    workload = manifest["spec"]["workload"]
    m, n = workload["shape"] if workload["kind"] == "matrix" else (workload["n"], workload["n"])
    endless = (m, n) == ("unbounded", "unbounded")
    if not endless and not (_counts(m) and _counts(n)):
        raise CorruptObject(f"the spec states {m!r} rows and {n!r} steps")
    matrices = manifest["matrices"]
    if "C" not in matrices or not set(matrices) <= ({"C"} if endless else {"C", "C_inv", "B"}):
        raise CorruptObject(f"the matrices are {sorted(matrices)[:4]}; C has to be there, C_inv and B may")
    for name, entry in matrices.items():
        _check_entry(name, entry, [None, None] if endless else [m if name == "B" else n, n])
    _check_evidence(manifest["dual"])
    check_canonical(manifest["spec"]["participation"], None if endless else n)
    _check_claim(manifest["certificate"]["sensitivity"])
    _check_same(manifest["certificate"]["sensitivity"]["participation"], manifest["spec"]["participation"])
    _check_certificate(manifest["certificate"])


def part_of(matrix: str, tensor: str) -> str:
    """Return which part of a matrix a tensor is.

    Raises:
        CorruptObject: its name is not one of a part of it.
    """
    if tensor == matrix:
        return ""
    head, dot, rest = tensor.partition(".")
    if matrix == "C" and head == "tree" and tensor in TREE:
        return tensor
    if head != matrix or not dot or not rest or rest in TREE:
        raise CorruptObject(f"{tensor[:60]!r} is not the name of a part of {matrix}, or two are the same part")
    return rest


def check_parts(structure: str, parts: Mapping[str, np.ndarray], n: int | None) -> None:
    """Refuse numbers and shapes of C that the format does not allow, where a strategy matrix could have them.

    Raises:
        CorruptObject: with what is wrong.
    """
    scale, none = parts.get(SCALE), np.empty(0)
    if scale is not None and not ((scale >= 1e-60) & (scale <= 1e60)).all():
        raise CorruptObject("a factor of a column is not positive, or not in [1e-60, 1e60]")
    if structure == "tree" and ("" in parts) != (n is not None and n <= LARGEST_STORED_TREE):
        raise CorruptObject(f"a tree is stored whole too exactly where n <= {LARGEST_STORED_TREE}")
    axes = {name: part.ndim for name, part in parts.items()}
    if axes.get("transition", 3) < 3 or axes.get("decay", 2) != 2:
        raise CorruptObject("a transition or a decay has another shape than its structure")
    decays, scales, column = (parts.get(name, none) for name in ("theta", "omega", "inverse_coefficients"))
    if (decays < 0).any() or (scales < 0).any() or (np.diff(np.sort(decays, axis=None)) < 2.0**-43).any():
        raise CorruptObject("decays and scales of a blt are not negative, and no two decays are the same to 2^-43")
    if n is None and sum(Fraction(w) / (1 + Fraction(t)) for t, w in zip(decays.flat, scales.flat, strict=False)) >= 1:
        raise CorruptObject("C(-1) is not positive, so that the noise of a blt without end would grow")
    if ((column < 0) & (column > -1e-100)).any():
        raise CorruptObject("the inverse's column holds a number between -1e-100 and 0")


def _check_entry(name: str, entry: Mapping[str, Any], shape: list[Any]) -> None:
    extra = set(entry) - _FIELDS
    if not _FIELDS <= set(entry) or not extra <= (_CLAIM if name == "B" else set()):
        raise CorruptObject(f"{name} is described by {sorted(entry)[:8]}")
    stated = entry["shape"]
    if type(stated) is not list or [repr(side) for side in stated] != [repr(side) for side in shape]:
        raise CorruptObject(f"{name} is stated to have shape {str(stated)[:60]}; the spec's n asks for {shape}")
    if entry["dtype"] not in ("float64", "float32"):
        raise CorruptObject(f"{name} is not stored as {str(entry['dtype'])[:20]!r}, the type that was certified")
    if not _counts(entry["bytes"]):
        raise CorruptObject(f"{name} does not have the number of bytes that the manifest states")
    _check_parts(name, entry, endless=shape[1] is None, square=shape[0] == shape[1])
    _check_sha256(entry["sha256"])


def _check_parts(name: str, entry: Mapping[str, Any], *, endless: bool, square: bool) -> None:
    structure, tensors = entry["structure"], entry["tensors"]
    if type(tensors) is not list:  # the letters of "C" are names too
        raise CorruptObject(f"the tensors of {name} are {str(tensors)[:60]!r}, no list of names")
    if name != "C":
        allowed = structure == "dense" or (structure == "toeplitz" and square)
    elif endless:
        allowed = structure in ENDLESS_READINGS
    else:
        allowed = structure == "scaled" or structure in READINGS
    if not allowed:
        raise CorruptObject(f"this checker knows no structure {str(structure)[:40]!r} of {name}")
    found = [part_of(name, tensor) for tensor in tensors]
    if len(set(found)) < len(found):
        raise CorruptObject(f"two tensors of {name} are the same part of it: {sorted(tensors)[:4]}")
    if structure == "scaled":
        inner = {reading.parts | {SCALE} for reading in READINGS.values() if reading.scalable}
        right = frozenset(found) in inner
    else:
        own = (ENDLESS_READINGS if endless else READINGS)[structure].parts
        right = set(found) - ({""} if structure == "tree" else set()) == own
    if not right:
        beside = " beside column_scale are not those of one structure" if structure == "scaled" else " are not its own"
        raise CorruptObject(f"a {structure} matrix has no tensors {sorted(tensors)[:6]}, which{beside}")


def _check_certificate(stated: Mapping[str, Any]) -> None:
    """Refuse a certificate whose other claims are not all there, as numbers, texts and a truth value."""
    losses, bounds = stated["loss"], [stated["lower_bound"], stated["class_lower_bound"]]
    records = [losses, stated["residual"], *(bound for bound in bounds if bound is not None)]
    if any(type(record) is not dict for record in records) or set(losses) != _LOSSES:
        raise CorruptObject(f"the certificate's losses are not {', '.join(sorted(_LOSSES))}, or a claim is no object")
    open_numbers = [*losses.values(), stated["relative_gap"]]
    numbers = [found for found in open_numbers if found is not None] + [stated["residual"]["max_abs"]]
    numbers += [bound["objective"] for bound in bounds if bound is not None]
    texts = [bound["rule"] for bound in bounds if bound is not None] + stated["warnings"]
    if not all(type(found) in (int, float) and -np.inf < found < np.inf for found in numbers):
        raise CorruptObject(f"a claim of the certificate is no finite number: {str(numbers)[:200]}")
    if type(stated["warnings"]) is not list or not all(type(text) is str for text in texts):
        raise CorruptObject("a rule or a warning of the certificate is no text")
    if type(stated["converged"]) is not bool:
        raise CorruptObject(f"the certificate's converged is {str(stated['converged'])[:40]!r}, neither true nor false")


def _check_evidence(entry: Mapping[str, Any] | None) -> None:
    if entry is None:
        return
    names = entry["tensors"]
    if set(entry) != {"tensors", "sha256"} or type(names) is not list or not names:
        raise CorruptObject(f"the evidence is described by {sorted(entry)[:4]}")
    if len(set(names)) < len(names) or not {f"dual.{known}" for known in _EVIDENCE} >= set(names):
        raise CorruptObject(f"the evidence has the tensors {sorted(names)[:4]}, which no lower bound is known to take")
    _check_sha256(entry["sha256"])


def _check_claim(claim: Mapping[str, Any]) -> None:
    value = float.fromhex(claim["hex"])
    if claim["hex"] != value.hex() or type(claim["value"]) not in (int, float) or type(claim["rule"]) is not str:
        raise CorruptObject("the sensitivity is not stated as a number, its exact form and a rule")


def _check_same(stated: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """The participation of the claim is the spec's, types included; another kind is refuted as a claim."""
    if any(type(value) is not type(asked[name]) for name, value in stated.items() if name in asked):
        raise CorruptObject(f"the sensitivity is stated for {str(dict(stated))[:80]}, with numbers of another type")


def _check_sha256(text: str) -> None:
    if type(text) is not str or len(text) != 64 or not set(text) <= _HEX:
        raise CorruptObject(f"{str(text)[:70]!r} is no sha256")


def _counts(number: object) -> bool:
    return type(number) is int and number >= 1
