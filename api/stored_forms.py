"""Stored files that hold the C of a result with further matrices beside it, or in another type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def form_of(manifest: Mapping[str, Any]) -> Key | None:
    """Return the key of a result that is a form of another, or None for one that is not."""
    matrices, origin = manifest["matrices"], manifest["solver"].get("cast_from")
    names = tuple(name for name in MATRIX_NAMES if name in matrices)
    if len(names) > 1:
        return matrices_key(manifest, names)
    return None if origin is None else type_key(origin, matrices["C"]["dtype"])


class StoredForms:
    """The forms in a store, by key. For one thread at a time.

    Args:
        store: the store.
        known: finds the digest of a form in a catalog; without one, the store is read when a form is first asked for.
    """

    def __init__(self, store: Store, known: Callable[[Key], str | None] | None = None) -> None:
        self._store = store
        self._known = known
        self._digests: dict[Key, str] | None = None if known is None else {}

    def get(self, key: Key) -> str | None:
        """Return the digest of a form, or None; the file may be gone by now."""
        found = self._remembered().get(key)
        return self._known(key) if found is None and self._known is not None else found

    def add(self, key: Key, digest: str) -> None:
        """Remember a form that has just been stored."""
        self._remembered()[key] = digest

    def _remembered(self) -> dict[Key, str]:
        if self._digests is None:
            keys = ((form_of(manifest), manifest["digest"]) for manifest in self._store.items())
            self._digests = {key: digest for key, digest in keys if key is not None}
        return self._digests
