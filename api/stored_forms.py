"""Stored files that hold the C of a result with further matrices beside it, or in another type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from factorize.factorization import MATRIX_NAMES
from factorize.storage.store import Store

Key = tuple[str, tuple[str, ...]]
"""What it is made from, and the names of its matrices."""


def matrices_key(manifest: Mapping[str, Any], names: Sequence[str]) -> Key:
    """Return the key of a result's C with further matrices: they share the spec and the bytes of C."""
    return f"{manifest['spec_digest']} {manifest['matrices']['C']['sha256']}", tuple(names)


def type_key(digest: str, dtype: str) -> Key:
    """Return the key of a result's C alone in another type."""
    return f"{digest} as {dtype}", ("C",)


class StoredForms:
    """An index of the store by key, read when it is first needed. For one thread at a time.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._digests: dict[Key, str] | None = None

    def get(self, key: Key) -> str | None:
        """Return the digest of a form, or None; the file may be gone by now."""
        return self._known().get(key)

    def add(self, key: Key, digest: str) -> None:
        """Remember a form that has just been stored."""
        self._known()[key] = digest

    def _known(self) -> dict[Key, str]:
        if self._digests is None:
            self._digests = {}
            for manifest in self._store.items():
                matrices, origin = manifest["matrices"], manifest["solver"].get("cast_from")
                names = tuple(name for name in MATRIX_NAMES if name in matrices)
                if len(names) > 1:
                    self._digests[matrices_key(manifest, names)] = manifest["digest"]
                elif origin is not None:
                    self._digests[type_key(origin, matrices["C"]["dtype"])] = manifest["digest"]
        return self._digests
