"""Revocation: every address of a revoked result answers with the reason, and the result stays where it is.

A claim can turn out to be wrong after it was published. Its digest must then never be given out again, neither by name
nor as the answer to its spec, and callers have to learn why. Each revocation is a sealed record under two keys, the
digest of the manifest and the sha256 of the file, so that every address is looked up by its own name alone.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

from factorize.encoding import check_digest
from factorize.errors import CorruptObject, InvalidParameter, NotFound, Revoked
from factorize.format.manifest import Manifest
from factorize.storage.objects import Objects
from factorize.storage.records import now, seal, unseal

REVOKED = "revoked"
MAX_REASON = 1000


@dataclass(frozen=True, slots=True)
class Revocation:
    """The revocation of one result.

    Attributes:
        digest: digest of its manifest.
        file: sha256 of its file.
        spec_digest: digest of the spec that it answered.
        reason: the reason, in the operator's words.
        revoked: time of the revocation, ISO 8601.
        strategy: sha256 of its C's tensors.
    """

    digest: str
    file: str
    spec_digest: str
    reason: str
    revoked: str
    strategy: str

    @property
    def keys(self) -> tuple[str, str]:
        """The two keys of the revocation, below the digest and below the file's sha256."""
        return revocation_key(self.digest), revocation_key(self.file)

    @property
    def claim(self) -> tuple[str, str]:
        """The revoked claim: the spec and the C that answered it."""
        return self.spec_digest, self.strategy

    def reaches(self, manifest: Manifest) -> bool:
        """Return whether a result has the same claim as this one, or was rounded from it."""
        return self.claim == claim_of(manifest) or self.digest == manifest.cast_from

    def error(self, way_out: str = "post its spec again") -> Revoked:
        """Return the error for requests of the result, or for solves that end with it again."""
        message = f"the result {self.digest} was revoked on {self.revoked}: {self.reason}; {way_out}"
        return Revoked(message, digest=self.digest, reason=self.reason)


class Revocations:
    """The revocations of one store.

    Args:
        objects: the medium.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def add(self, manifest: Manifest, reason: str) -> Revocation:
        """Revoke a result and return the revocation, the existing one or a new one."""
        try:
            revocation = self.read(revocation_key(manifest.digest))
        except (NotFound, CorruptObject):
            names = manifest.digest, manifest.file.sha256, manifest.spec_digest
            revocation = Revocation(*names, reason, now(), _strategy(manifest))
        self.record(revocation)
        return revocation

    def record(self, revocation: Revocation) -> None:
        """Publish a revocation at its two places, unless sound ones are there."""
        sealed = seal(asdict(revocation))
        self._objects.publish(*((key, sealed, partial(self.sound, key)) for key in revocation.keys))

    def find(self, name: str) -> Revocation | None:
        """Return the revocation of a digest, or of the file of that sha256, or None.

        A damaged record still revokes, since a flipped bit must not lift a revocation.
        """
        try:
            return self.read(revocation_key(name))
        except NotFound:
            return None
        except CorruptObject:
            reason = "its record is damaged, so the reason is lost; run fsck"
            return Revocation(name, name, "", reason, "an unknown day", "")

    def read(self, key: str) -> Revocation:
        """Return the revocation at a key.

        Raises:
            NotFound: there is no revocation.
            CorruptObject: it is damaged, or does not belong to its key.
        """
        record = unseal(self._objects.content(key), key)
        try:
            revocation = Revocation(**record)
            placed = key in revocation.keys
        except (TypeError, InvalidParameter) as error:
            raise CorruptObject(f"{key} is not a revocation: {error}") from None
        if not placed:
            raise CorruptObject(f"{key} is the revocation of another result, {revocation.digest}")
        return revocation

    def reaching(self, manifest: Manifest) -> Revocation | None:
        """Return the revocation that covers a result, its own or that of one with the same claim, or None.

        A put asks this about a result that is not stored yet, one that stores C_inv beside a revoked C, say.
        """
        own = self.find(manifest.digest)
        if own is not None:
            return own
        for entry in self._objects.list(REVOKED):
            with suppress(NotFound, CorruptObject):
                standing = self.read(entry.key)
                if standing.reaches(manifest):
                    return standing
        return None

    def sound(self, key: str) -> bool:
        """Return whether there is an undamaged revocation at a key."""
        with suppress(NotFound, CorruptObject):
            self.read(key)
            return True
        return False

    def check(self, name: str) -> None:
        """Raise Revoked where a digest, or the file of that sha256, was taken back."""
        revocation = self.find(name)
        if revocation is not None:
            raise revocation.error()


def revocation_key(name: str) -> str:
    """Return the key of a revocation."""
    return f"{REVOKED}/{check_digest(name)[:2]}/{name}.json"


def check_reason(reason: str) -> str:
    """Return a reason without surrounding blanks.

    Raises:
        InvalidParameter: the reason is empty, too long, or has control characters.
    """
    text = reason.strip()
    if not 0 < len(text) <= MAX_REASON or not text.isprintable():
        message = (
            f"a reason must be one line of 1 to {MAX_REASON} printable characters; say what is wrong with the result"
        )
        raise InvalidParameter(message, field="reason")
    return text


def claim_of(manifest: Manifest) -> tuple[str, str]:
    """Return the spec that a result answers, and the sha256 of its C's tensors."""
    return manifest.spec_digest, _strategy(manifest)


def _strategy(manifest: Manifest) -> str:
    return manifest.matrix("C").sha256
