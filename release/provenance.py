"""The provenance statement: which commit and locks the files of a release were built from (in-toto, SLSA 1.0)."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BUILD_TYPE = "urn:factorize:make-release:1"


def digest_of(path: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def statement(files: Sequence[Path], *, commit: str, second: int, inputs: Sequence[Path]) -> dict[str, Any]:
    """Return the statement. It is not signed: whoever releases signs it, and anyone can build the files again.

    Args:
        files: what is released.
        commit: that they were built from.
        second: in which it was made, which the files carry.
        inputs: locks and settings of the build.
    """
    import setuptools

    sources = [{"uri": "git+commit", "digest": {"gitCommit": commit}}]
    sources += [{"name": path.name, "digest": {"sha256": digest_of(path)}} for path in inputs]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": digest_of(path)}} for path in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"commit": commit, "SOURCE_DATE_EPOCH": second},
                "internalParameters": {"python": platform.python_version(), "setuptools": setuptools.__version__},
                "resolvedDependencies": sources,
            },
            "runDetails": {"builder": {"id": "make release"}},
        },
    }
