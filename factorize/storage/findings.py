"""Findings of a check of a store, and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

KINDS = {
    "damaged-blob": "a blob does not hash to its name",
    "truncated-blob": "a blob is shorter than its manifest says",
    "extended-blob": "a blob is longer than its manifest says",
    "damaged-manifest": "a manifest does not hash to its name, or is not one",
    "missing-blob": "a manifest names a file that is missing or damaged",
    "missing-matrix": "a manifest's spec names a user's matrix that is missing or damaged",
    "damaged-entry": "a spec entry does not hash to its own sha256, or is not one",
    "dangling-entry": "a spec entry names a manifest that is missing or damaged",
    "wrong-entry": "a spec entry disagrees with its place or with the manifest that it names",
    "damaged-revocation": "a revocation does not hash to its own sha256, or is not one; it goes on revoking",
    "missing-revocation": "a revocation stands under one of its two names only, or not for all that it reaches",
    "not-a-file": "a symbolic link or something else stands where an object should be",
    "unreadable": "an object cannot be read: permissions, or the disk",
    "revoked": "a result that the operator has taken back",
    "orphan-blob": "no manifest names this blob: a matrix that no spec uses yet, or what a crash left",
    "orphan-manifest": "no spec entry names this manifest: a later answer to a spec, found by its own digest",
    "unindexed": "a spec entry is missing that a manifest calls for",
    "temporary": "a file on its way in, or what a crash left of one",
    "writable": "an object has write permission",
    "foreign": "a file that is none of the store's",
}
ERRORS = frozenset(list(KINDS)[:13])


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: one of `KINDS`.
        key: where.
        message: what is wrong and what to do.
        action: what repair did: `quarantined`, `removed`, `rebuilt`, `protected`, or None.
    """

    kind: str
    key: str
    message: str
    action: str | None = None

    @property
    def error(self) -> bool:
        """Whether it harms: something cannot be served, or is not what it says."""
        return self.kind in ERRORS


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a check found.

    Attributes:
        findings: everything, by key.
        objects: how many blobs, manifests and entries were read.
        bytes: how many bytes of them.
        seconds: how long it took.
    """

    findings: tuple[Finding, ...]
    objects: int
    bytes: int
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether no finding is an error that is still there."""
        return not any(finding.error and finding.action is None for finding in self.findings)

    def document(self) -> dict[str, Any]:
        """Return plain JSON data."""
        findings = [{**asdict(finding), "error": finding.error} for finding in self.findings]
        figures = {"objects": self.objects, "bytes": self.bytes, "seconds": self.seconds}
        return {"clean": self.clean, **figures, "findings": findings}


def blob_kind(size: int, stated: int | None) -> str:
    """What to call a blob that does not hash to its name."""
    if stated is not None and size < stated:
        return "truncated-blob"
    if stated is not None and size > stated:
        return "extended-blob"
    return "damaged-blob"
