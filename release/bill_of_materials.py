"""The bill of materials: every package that a service is installed with, as CycloneDX 1.6, from the lock alone."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)\s*(?:;\s*([^\\]*?))?\s*\\?")
_HASH = re.compile(r"\s+--hash=sha256:([0-9a-f]{64})\s*\\?")
_NAMESPACE = uuid.UUID("5f1f1f7e-3d0c-5f0e-9a6f-6a1b8a0c7f11")


def components(lock: str) -> list[dict[str, Any]]:
    """Return the components that a lock pins.

    Raises:
        ValueError: a line is neither a pin nor a hash, or a pin has no hash.
    """
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lock.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pin, digest = _PINNED.fullmatch(line), _HASH.fullmatch(line)
        if pin:
            found.append(_component(*pin.groups()))
        elif digest and found:
            files = found[-1]["externalReferences"]
            files.append({**_FILE, "url": found[-1]["purl"], "hashes": [{"alg": "SHA-256", "content": digest[1]}]})
        else:
            raise ValueError(f"line {number} of the lock is neither a pin nor a hash: {line[:80]!r}")
    bare = [component["name"] for component in found if not component["externalReferences"]]
    if bare:
        raise ValueError(f"{', '.join(bare)} have no hash in the lock")
    return found


_FILE = {"type": "distribution", "comment": "one of the files that the lock allows"}


def _component(name: str, version: str, marker: str | None) -> dict[str, Any]:
    plain = re.sub(r"[-_.]+", "-", name).lower()
    purl = f"pkg:pypi/{plain}@{version}"
    found: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": plain, "version": version, "purl": purl}
    if marker:
        found["properties"] = [{"name": "factorize:marker", "value": marker.strip()}]
    return {**found, "externalReferences": []}


def bill(lock: Path, *, version: str, commit: str, second: int) -> dict[str, Any]:
    """Return the document; the same lock and commit give the same document.

    Args:
        lock: the requirements file with hashes.
        version: of factorize.
        commit: that is released.
        second: in which it was made.
    """
    own = f"pkg:pypi/factorize@{version}"
    parts = components(lock.read_text())
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, f'{version} {commit}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(second, UTC).isoformat().replace("+00:00", "Z"),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "factorize",
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [{"name": "factorize:commit", "value": commit}],
            },
        },
        "components": parts,
        "dependencies": [{"ref": own, "dependsOn": [part["bom-ref"] for part in parts]}],
    }
