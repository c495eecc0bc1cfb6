"""Rows of the catalog: what a list says of a stored result, from its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from factorize.api.stored_forms import form_of
from factorize.encoding import sha256
from factorize.format.labels import describe_spec
from factorize.format.manifest import steps_of

YOUNG = timedelta(minutes=10)
"""Age below which a result that answers no spec may be one whose entry is about to be published."""


def form_name(manifest: Mapping[str, Any]) -> str | None:
    """Return what a form of another result is found by, or None for a result that is no form."""
    key = form_of(manifest)
    return None if key is None else key_name(key)


def key_name(key: tuple[str, tuple[str, ...]]) -> str:
    """Return the name of a form's key, as long as a digest."""
    return sha256(f"{key[0]} {','.join(key[1])}".encode())


def created_of(manifest: Mapping[str, Any]) -> str:
    """Return when a result was stored, to the microsecond in UTC, so that texts sort as times do."""
    time = datetime.fromisoformat(manifest["created"]).astimezone(UTC)
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def is_young(manifest: Mapping[str, Any]) -> bool:
    """Whether a result was stored within the last ten minutes."""
    return datetime.now(UTC) - datetime.fromisoformat(manifest["created"]) < YOUNG


def row_of(manifest: Mapping[str, Any], standing: str) -> dict[str, Any]:
    """Return the row of a result."""
    return {
        "digest": manifest["digest"],
        "spec_digest": manifest["spec_digest"],
        "workload": manifest["spec"]["workload"]["kind"],
        "n": steps_of(manifest),
        "created": created_of(manifest),
        "submitted": manifest["created"],
        "bytes": manifest["files"][0]["bytes"],
        "form": form_name(manifest),
        "summary": describe_spec(manifest["spec"]),
        "standing": standing,
    }


def entry_of_row(row: Any) -> dict[str, Any]:
    """Return the entry of a list that a row makes."""
    return {
        "spec_digest": row.spec_digest,
        "state": "done",
        "progress": None,
        "error": None,
        "submitted": row.submitted,
        "updated": row.submitted,
        "workload": row.workload,
        "digest": row.digest,
        "summary": row.summary,
    }
