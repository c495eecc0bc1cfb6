"""The store's small documents: manifests and spec entries, each one line of JSON that carries its own sha256.

The digest of a manifest does not cover its volatile parts (files, time, environment), and a spec entry has no digest of
its own; the seal `{"record": ..., "sha256": ...}` covers every byte of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from factorize.encoding import canonical_json, check_digest, json_digest, read_json
from factorize.errors import CorruptObject, FactorizeError
from factorize.format.manifest import Manifest
from factorize.storage.objects import Record

MAX_RECORD_BYTES = 1 << 30
SPECS = "specs"
FAMILIES = "families"
MANIFESTS = "manifests"


@dataclass(frozen=True, slots=True)
class SpecEntry:
    """The entry of a spec, which names the factorization that answers it.

    Attributes:
        spec_digest: digest of the spec.
        family: digest of the spec without the tolerance.
        tolerance: the tolerance that was asked for.
        converged: whether the tolerance was met.
        digest: digest of the answer.
    """

    spec_digest: str
    family: str
    tolerance: float
    converged: bool
    digest: str

    @classmethod
    def of(cls, manifest: Manifest) -> SpecEntry:
        """Return the entry that a manifest makes for its own spec."""
        spec = manifest.spec
        converged = manifest.certificate["converged"]
        return cls(manifest.spec_digest, family_digest(spec), spec["tolerance"], converged, manifest.digest)

    @property
    def keys(self) -> tuple[str, str]:
        """The two keys of the entry, below its family and below its own digest."""
        return family_key(self.family, self.spec_digest), spec_key(self.spec_digest)

    def records(self, sound: Callable[[str], bool]) -> list[Record]:
        """Return the records to publish for it; `sound` says whether there is a sound entry at a key."""
        sealed = seal(asdict(self))
        return [(key, sealed, partial(sound, key)) for key in self.keys]


@dataclass(frozen=True, slots=True)
class StoredResult:
    """The remembered part of a sound manifest, so small that 10^5 of them fit into 100 MB.

    Attributes:
        spec_digest: digest of the spec that it answers.
        entry: hash of its spec entry.
        file: sha256 of its file.
        matrices: sha256 of the users' matrices that its spec names.
        order: its place among the answers to its spec; see `answer_order`.
    """

    spec_digest: str
    entry: int
    file: str
    matrices: tuple[str, ...]
    order: tuple[bool, str, int, str]

    @classmethod
    def of(cls, manifest: Manifest) -> StoredResult:
        """Return the remembered part of a manifest."""
        matrices = tuple(sha256 for sha256, _ in user_matrices(manifest.spec))
        entry, file = hash(SpecEntry.of(manifest)), manifest.file.sha256
        return cls(manifest.spec_digest, entry, file, matrices, answer_order(manifest))

    @property
    def blobs(self) -> tuple[str, ...]:
        """The sha256 of its file and of the matrices."""
        return self.file, *self.matrices


def family_digest(spec: Mapping[str, object]) -> str:
    """Return the sha256 of a canonical spec document without its tolerance."""
    return json_digest({name: value for name, value in spec.items() if name != "tolerance"})


def spec_key(spec_digest: str) -> str:
    """Return the key of a spec's entry."""
    return f"{SPECS}/{check_digest(spec_digest)[:2]}/{spec_digest}.json"


def family_folder(family: str) -> str:
    """Return the folder of a family's entries."""
    return f"{FAMILIES}/{check_digest(family)[:2]}/{family}"


def family_key(family: str, spec_digest: str) -> str:
    """Return the key of a spec's entry below its family."""
    return f"{family_folder(family)}/{check_digest(spec_digest)}.json"


def manifest_key(digest: str) -> str:
    """Return the key of a manifest."""
    return f"{MANIFESTS}/{check_digest(digest)[:2]}/{digest}.json"


def name_in(key: str) -> str:
    """Return the digest at the end of a key."""
    return PurePosixPath(key).stem


def seal(record: Mapping[str, object]) -> bytes:
    """Return the bytes of a record with their own sha256."""
    return canonical_json({"record": record, "sha256": json_digest(record)})


def unseal(text: bytes, name: str) -> dict[str, Any]:
    """Return the record of a sealed text.

    Args:
        text: the bytes.
        name: their name in the message.

    Raises:
        CorruptObject: a bit of it has changed.
    """
    try:
        sealed = read_json(text, limit=MAX_RECORD_BYTES)
        record = sealed["record"]
        intact = isinstance(record, dict) and seal(record) == text
    except (FactorizeError, LookupError, TypeError, ValueError) as error:
        raise CorruptObject(f"{name} is damaged: {error}; run fsck --repair") from None
    if not intact:
        raise CorruptObject(f"{name} is damaged: it does not hash to its own sha256; run fsck --repair")
    return record


def read_manifest(text: bytes, digest: str) -> Manifest:
    """Return a manifest from its stored bytes.

    Raises:
        CorruptObject: it is damaged, has another digest, or names no file.
    """
    name = f"the manifest {digest}"
    record = unseal(text, name)
    try:
        manifest = Manifest.check(record)
        _ = manifest.file  # It raises for a manifest without one.
        answers = SpecEntry.of(manifest).digest == digest
    except CorruptObject as error:
        raise CorruptObject(f"{name} is damaged: {error}; run fsck --repair") from None
    except (LookupError, TypeError) as error:
        raise CorruptObject(f"{name} is not one of this format: {type(error).__name__}: {error}") from None
    if not answers:
        raise CorruptObject(f"{name} is stored as another manifest, {manifest.digest}; run fsck --repair")
    return manifest


def read_entry(text: bytes, name: str) -> SpecEntry:
    """Return a spec entry from its stored bytes.

    Raises:
        CorruptObject: it is damaged, or no entry.
    """
    record = unseal(text, name)
    try:
        return SpecEntry(**record)
    except TypeError as error:
        raise CorruptObject(f"{name} is not a spec entry: {error}") from None


def lasting(manifest: Manifest) -> Manifest:
    """Return a manifest as it is in the file, without the fields that only the store knows."""
    return Manifest({name: value for name, value in manifest.items() if name not in ("files", "created")})


def user_matrices(spec: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """Return the digest and the shape of every user's matrix that a canonical spec document names."""
    workloads = [spec["workload"], spec.get("optimize_for") or {}]
    return [(entry["sha256"], entry["shape"]) for entry in workloads if entry.get("kind") == "matrix"]


def now() -> str:
    """Return the time of a record: ISO 8601, to the second, with its zone."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def answer_order(manifest: Manifest) -> tuple[bool, str, int, str]:
    """Return the sorting key of the answers to one spec, of which the first is given out.

    The earliest answer is first, but rounded ones come after all others, since both may have been stored in the same
    second.
    """
    rounded = manifest.cast_from is not None
    return rounded, str(manifest.get("created")), len(manifest.names), manifest.digest
