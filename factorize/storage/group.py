"""A group of results that are published together: as durable as one by one, with a few waits for the medium in all.

`Store.put` waits for the medium four times for one result: for its files, and for the folders after each of three
steps. A group does the same for all of its results at each step: all files are synced, then all
factor files get their names, then all manifests, then all entries by family, then all entries by spec; after each of
these four steps the folders are synced. So at any moment what is visible only names what is there, and is whole; a
crash leaves some results of the group published, and the others not. A result counts as stored after the last step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from factorize.encoding import read_json
from factorize.errors import CorruptObject, FactorizeError
from factorize.format.container import Container
from factorize.format.reading import read_manifest
from factorize.storage.blobs import blob_key
from factorize.storage.incoming import describe
from factorize.storage.medium.location import MARKER
from factorize.storage.objects import Staged
from factorize.storage.publication import Publisher, Step
from factorize.storage.records import MAX_RECORD_BYTES, SpecEntry, manifest_key, now, seal
from factorize.storage.store import Store


@dataclass(frozen=True)
class CheckedFile:
    """A factor file in the store's `tmp/` that a checker has read and passed.

    Attributes:
        staged: the file.
        proof: what the checker answered: `digest` and `sha256` of what it has read, and what it has checked.
    """

    staged: Staged
    proof: Mapping[str, Any]


Outcome = dict[str, Any] | Exception


class Group:
    """Publishes results together.

    Args:
        store: where.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._publisher = Publisher(store.objects)

    def publish(self, files: Sequence[CheckedFile]) -> list[Outcome]:
        """Publish files; returns the manifest of each, or why it was not stored.

        What is wrong with one file leaves the others alone. Where the medium refuses a step, the files are published
        one by one, so that each gets its own reason.
        """
        try:
            return self._together(files)
        except (FactorizeError, OSError) as error:
            return [error] if len(files) == 1 else [self.publish([one])[0] for one in files]

    def _together(self, files: Sequence[CheckedFile]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        with ExitStack() as opened, self._store.objects.lock(MARKER, exclusive=False):
            steps: tuple[list[Step], ...] = ([], [], [], [])
            for one in files:
                try:
                    manifest = self._manifest_of(one)
                except (FactorizeError, OSError) as error:
                    outcomes.append(error)
                    continue
                outcomes.append(manifest)
                for step, item in zip(steps, self._items(one, manifest, opened), strict=True):
                    step.append(item)
            self._store.objects.sync_all([staged for step in steps for _, staged, _ in step])
            for at, step in enumerate(steps):
                self._publisher.settle_all(step)
                if at == 1:
                    self._fall_with_others(outcomes)
        return [self._stored(found) if isinstance(found, dict) else found for found in outcomes]

    def _manifest_of(self, one: CheckedFile) -> dict[str, Any]:
        """Return the manifest of a file as the store keeps it, once the file is what was checked and is allowed.

        Raises:
            CorruptObject: the bytes are not those that were checked.
            Revoked: they were taken back.
            NotFound: the numbers of a user's matrix are gone.
        """
        with one.staged.open() as reader:
            file = describe(reader)
        proof = dict(one.proof)
        inner = read_manifest(Container(one.staged.path))
        if (proof.pop("sha256"), proof.pop("digest")) != (file["sha256"], inner["digest"]):
            raise CorruptObject(f"{one.staged.path} is not what was checked; check memory and disk, and try again")
        revocation = self._store.revocations.reaching(inner)
        if revocation is not None:
            raise revocation.error()
        self._store.matrices.named_by(inner["spec"])
        return {**inner, "files": [{**file, "proof": proof}], "created": now()}

    def _items(self, one: CheckedFile, manifest: Mapping[str, Any], opened: ExitStack) -> Iterator[Step]:
        """Return key, staged file and test of what may stand there already, of each of the four objects."""
        digest, sha256 = manifest["digest"], manifest["files"][0]["sha256"]
        yield blob_key(sha256), one.staged, partial(self._store.blobs.sound, sha256)
        yield manifest_key(digest), self._written(seal(manifest), opened), partial(self._store.intact, digest)
        entry = SpecEntry.of(manifest)
        for key in entry.keys:
            yield key, self._written(entry.sealed(), opened), partial(self._store.index.sound, key)

    def _written(self, data: bytes, opened: ExitStack) -> Staged:
        staged = opened.enter_context(self._store.objects.stage())
        staged.write(data)
        return staged

    def _fall_with_others(self, outcomes: Sequence[Outcome]) -> None:
        for found in outcomes:
            if isinstance(found, dict):
                self._store.fall_with_others(found)

    def _stored(self, manifest: Mapping[str, Any]) -> Outcome:
        """Return the manifest that stands in the store now."""
        try:
            stored: dict[str, Any] = read_json(self._store.manifest_bytes(manifest["digest"]), limit=MAX_RECORD_BYTES)
        except FactorizeError as error:
            return error
        return stored
