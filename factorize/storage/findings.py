"""Findings of a check of a store, and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

KINDS = {
    "damaged": "an object does not hash to its name or to its own sha256, is not what its place says, or is no file",
    "missing": "a manifest's file, a user's matrix that its spec names, or a revocation's second record is not there",
    "dangling": "a spec entry names a manifest that is missing or damaged",
    "unreadable": "an object cannot be read: permissions, or the disk",
    "unindexed": "a spec entry is missing that a manifest calls for",
    "revoked": "a result that the operator has taken back",
    "orphan": "nothing names it: a matrix that no spec uses yet, a later answer to a spec, or what a crash left",
    "temporary": "a file on its way in, or what a crash left of one",
    "foreign": "a file that is none of the store's",
}
ERRORS = frozenset(list(KINDS)[:4])


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: one of `KINDS`.
        key: where.
        message: what is wrong and what to do.
        action: what repair did: `quarantined`, `removed`, `rebuilt`, or None.
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
