"""A stored result that resembles a spec: where the search for its dual weights may start (solvers/warm_start.py).

Nothing depends on what is found but the number of steps. A neighbour is a certified result with the same participation,
epochs and objective, the same kind of workload and nearly its numbers, for another n or another tolerance. Only its
manifest and its dual are read, never its matrices; what is damaged, revoked or of another format is passed over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from factorize.encoding import tensor_digest
from factorize.errors import CorruptObject, FactorizeError
from factorize.format.manifest import StoredFile
from factorize.spec import Spec, parse_spec
from factorize.storage.blobs import blob_key
from factorize.storage.objects import Reader
from factorize.storage.store import Store

SMALLEST = 512
"""Below that n a search is over before a neighbour is found."""

LARGEST_SEARCH = 2048
"""Manifests that are looked at, in the order of their digests; one takes about 0.3 ms."""

_QUICK = 1 << 19  # n x epochs^2: below, sixteen steps with a bidiagonal inverse take less than 0.1 s
_FARTHEST = math.log(4.0)
_SHARPNESS = 10.0  # a relative change of the workload's numbers counts this much more than one of n
_PLACES = np.linspace(0.0, 1.0, 65)
_HEADER_BYTES = 1 << 26


@dataclass(frozen=True)
class Neighbour:
    """The dual of a stored result.

    Attributes:
        digest: names the result.
        spec: what it answers.
        dual: its evidence, by name.
    """

    digest: str
    spec: Spec
    dual: Mapping[str, np.ndarray]


def nearest(spec: Spec, store: Store) -> Neighbour | None:
    """Return the nearest stored result to start from, or None where there is none or it would save nothing.

    Args:
        spec: to be solved, its mechanism named.
        store: where results are kept.
    """
    if not worthwhile(spec):
        return None
    wanted = spec.canonical().document()
    try:
        near = sorted(_within_reach(wanted, store), key=lambda found: (found[0], found[1]["digest"]))
    except FactorizeError:  # the medium fails; whoever publishes the result will say so
        return None
    return next((found for _, manifest in near if (found := _read(manifest, store)) is not None), None)


def worthwhile(spec: Spec) -> bool:
    """Whether the steps saved cost more than the look into the store: for single participation they do not.

    Args:
        spec: to be solved, its mechanism named.
    """
    if not spec.participation.periodic or spec.mechanism.kind != "dense" or spec.workload.endless:
        return False
    n = spec.workload.n
    blocks = n * spec.participation.spread(n).most ** 2
    return n >= SMALLEST and (blocks >= _QUICK or spec.workload.bidiagonal_inverse() is None)


def _within_reach(wanted: Mapping[str, Any], store: Store) -> Iterator[tuple[float, dict[str, Any]]]:
    kind = wanted["workload"]["kind"]
    for manifest in islice(store.items(), LARGEST_SEARCH):
        if manifest["spec"]["workload"]["kind"] != kind:
            continue
        far = distance(wanted, manifest["spec"])
        if far <= _FARTHEST and manifest["dual"] is not None:
            yield far, manifest


def distance(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    """Return how far two canonical specs are from each other; infinite where one says nothing about the other.

    That is the logarithm of the ratio of their n, and ten times the relative differences of their other numbers.
    """
    fixed = ("participation", "mechanism", "optimize_for")
    if any(wanted.get(name) != found.get(name) for name in fixed):
        return math.inf
    sizes = wanted["workload"].get("n"), found["workload"].get("n")
    if not all(isinstance(size, int) for size in sizes):
        return math.inf
    parts = [{key: value for key, value in spec["workload"].items() if key != "n"} for spec in (wanted, found)]
    apart = _apart(parts[0], parts[1]) + _apart(wanted["objective"], found["objective"])
    return abs(math.log(sizes[0] / sizes[1])) + _SHARPNESS * apart


def _apart(a: Any, b: Any) -> float:
    """Relative difference of two values of one name; schedules are compared at the same shares of the whole."""
    if a == b:
        return 0.0
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return math.fsum(_apart(a[key], b[key]) for key in a)
    if _is_schedule(a) and _is_schedule(b):
        a, b = (np.interp(_PLACES, np.linspace(0.0, 1.0, len(part)), part) for part in (a, b))
    elif not (_is_number(a) and _is_number(b)):
        return math.inf
    largest = float(max(np.abs(a).max(), np.abs(b).max()))
    return float(np.abs(a - b).max()) / largest if largest else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_schedule(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) > 1 and all(_is_number(entry) for entry in value)


def _read(manifest: Mapping[str, Any], store: Store) -> Neighbour | None:
    try:
        return Neighbour(manifest["digest"], parse_spec(manifest["spec"]), stored_dual(manifest, store))
    except FactorizeError:
        return None


def stored_dual(manifest: Mapping[str, Any], store: Store) -> dict[str, np.ndarray]:
    """Return the dual of a stored result by name; of the file, only its header and these tensors are read.

    Args:
        manifest: verified, with a dual.
        store: that has it.

    Raises:
        NotFound: the file is missing.
        Revoked: the result was taken back.
        CorruptObject: it is no such file, or the tensors do not hash to what the manifest says.
    """
    file = StoredFile.of(manifest)
    store.revocations.check(file.sha256)
    with store.objects.open(blob_key(file.sha256)) as reader:
        try:
            found = {name.removeprefix("dual."): part for name, part in _tensors(reader, manifest["dual"]["tensors"])}
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise CorruptObject(f"the header of {file.sha256} is damaged: {error}") from None
    if tensor_digest(found.values()) != manifest["dual"]["sha256"]:
        raise CorruptObject(f"the bytes of the dual evidence do not hash to {manifest['dual']['sha256']}")
    return found


def _tensors(reader: Reader, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Read some tensors of a safetensors file; nothing of it has been hashed yet."""
    length = int.from_bytes(reader.read(8, 0), "little")
    if length > _HEADER_BYTES:
        raise ValueError(f"it has {length} bytes")
    header = json.loads(reader.read(length, 8))
    for name in names:
        start, stop = header[name]["data_offsets"]
        size = stop - start
        if size > reader.entry.size:
            raise ValueError(f"{name} has {size} bytes, more than the file")
        array = np.frombuffer(reader.read(size, 8 + length + start), dtype="<f8")
        yield name, array.reshape(header[name]["shape"])
