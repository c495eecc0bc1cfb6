"""A mirror: results of a store as static files behind any web server, found by an index and checked to the last byte.

The files have the addresses of a service: `v1/blobs/<sha256>`, `v1/factorizations/<digest>`. The index names them, with
revocations, a sequence number and an expiry, under one signature. A client remembers the highest sequence that it saw.
So a mirror can neither show it yesterday's index nor hide a revocation, as with package repositories.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from factorize.client.cache import FactorCache
from factorize.client.connection import TIMEOUT, ProgressCallback, ignore
from factorize.client.service import PATH, PATIENCE, Origin, Service, SpecSource, check_answers, spec_of
from factorize.encoding import check_digest, is_digest, json_digest, read_json, sha256
from factorize.errors import (
    BadSignature,
    CacheUnusable,
    CorruptObject,
    FactorizeError,
    InvalidParameter,
    NotFound,
    Revoked,
    ServiceError,
    StoreError,
    StoreUnavailable,
)
from factorize.format.manifest import Manifest
from factorize.format.signatures import check_signature

INDEX = "index.json"
FORMAT = "factorize-mirror"
VARIABLE = "FACTORIZE_MIRROR"
"""The environment variable with the address of an index, in which results are looked up before they are solved."""
KEY_VARIABLE = "FACTORIZE_MIRROR_KEY"
"""The environment variable that names the public key of its signature, PEM."""
MAX_INDEX_BYTES = 1 << 26
"""The largest index, with about 200,000 results; nobody would download a longer one for a single result."""
MAX_SIGNATURE_BYTES = 1 << 16
"""The largest signature; one by a key over one file has 1.3 kB."""
MAX_UNASKED_SECONDS = 86_400.0
"""The seconds without a look at the index, a day, after which the cache asks again for revocations."""
_FIRST_LOOK_SECONDS = 5.0  # The seconds that a mirror has to respond where no answer depends on it.


@dataclass(frozen=True)
class MirrorResult:
    """One result that a mirror has.

    Attributes:
        digest: digest of its manifest.
        manifest: sha256 of the manifest's text, which has parts that no digest covers.
        spec_digest: digest of the spec that it answers.
        family: digest of that spec without the tolerance.
        tolerance: the tolerance that was asked for.
        converged: whether the tolerance was met.
        file: sha256 of its file.
        bytes: length of its file.
    """

    digest: str
    manifest: str
    spec_digest: str
    family: str
    tolerance: float
    converged: bool
    file: str
    bytes: int


@dataclass(frozen=True)
class MirrorIndex:
    """The index of a mirror.

    Attributes:
        sequence: number that grows with each index.
        expires: time at which clients stop believing it, ISO 8601.
        results: the results that the mirror has.
        specs: digest of the answer by digest of the spec, also for specs with the mechanism `auto`.
        revoked: reason by digest, for results that were revoked.
    """

    sequence: int
    expires: str
    results: tuple[MirrorResult, ...]
    specs: Mapping[str, str]
    revoked: Mapping[str, str]

    @classmethod
    def read(cls, text: bytes) -> MirrorIndex:
        """Return the index of a text.

        Raises:
            CorruptObject: the text is no index.
        """
        try:
            document: Any = read_json(text, limit=MAX_INDEX_BYTES)
            if type(document) is not dict or "format" not in document:
                raise ValueError("it does not name its format")
            if (document.pop("format"), document.pop("version")) != (FORMAT, 1):
                raise ValueError("it has another format, or one of a later release")
            results = tuple(MirrorResult(**one) for one in document.pop("results"))
            index = cls(results=results, **document)
            if type(index.sequence) is not int or not 0 < index.sequence < 1 << 53:
                raise ValueError(f"the sequence {index.sequence!r} is not a positive integer")
            datetime.fromisoformat(index.expires).astimezone(UTC)
            for name in (*index.specs, *index.specs.values(), *index.revoked):
                check_digest(name)
        except (FactorizeError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            message = (
                f"{INDEX} is not the index of a mirror: {str(error)[:200]}; give the address of one that `factorize "
            )
            raise CorruptObject(f"{message}mirror` wrote, or use another mirror") from None
        return index

    def find(self, source: SpecSource) -> MirrorResult | None:
        """Return the result for a digest or a spec: exactly this one, else the nearest of smaller tolerance.

        A result that missed its tolerance is as good as its solver gets, so a solve to a larger one is no better.

        Raises:
            Revoked: the only answer was taken back.
        """
        spec = spec_of(source)
        if spec is None:
            name, family, tolerance = str(source), "", 0.0
        else:
            asked = spec.document()
            name, tolerance = json_digest(asked), float(asked.pop("tolerance"))
            family = json_digest(asked)
        digest = self.specs.get(name, name)
        if digest in self.revoked:
            reason = self.revoked[digest]
            message = f"the result {digest} was revoked: {reason}; solve its spec again"
            raise Revoked(message, digest=digest, reason=str(reason))
        sound = [one for one in self.results if one.digest not in self.revoked]
        exact = next((one for one in sound if one.digest == digest), None)
        tighter = [one for one in sound if one.family == family and one.tolerance < tolerance]
        return exact or max(tighter, key=lambda one: (one.converged, one.tolerance), default=None)


class Mirror(Service):
    """A mirror by the address of its index, as a service that answers from its files and solves nothing.

    Args:
        url: `https://host/path/index.json`.
        public_key: public key of the index's signature; without one, only digests are checked, and whoever writes to
            the mirror decides what it has.
        cache: the cache, which remembers the sequence numbers.
        timeout: seconds without a byte after which a connection counts as broken.
        patience: see `Service`.
    """

    def __init__(
        self,
        url: str,
        *,
        public_key: str | Path | None = None,
        cache: FactorCache | None = None,
        timeout: float = TIMEOUT,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(url.rstrip("/").removesuffix(f"/{INDEX}"), timeout=timeout, patience=patience, mirror=True)
        self._key, self._cache = public_key, FactorCache() if cache is None else cache
        self._index: MirrorIndex | None = None

    @property
    def origin(self) -> Origin:
        """The origin of its answers."""
        return Origin("mirror", f"{self.connection.url}/{INDEX}")

    def recheck(self) -> None:
        """Read the index if nobody has for a day, so that revoked results leave the cache; warn where that fails."""
        memory = self._memory("plain" if self._key is None else "signed")
        looks = [look.stat().st_mtime for look in memory.glob("*")]
        # A look in the future is from before the clock was set back, and says nothing of today.
        if looks and all(abs(time.time() - look) > MAX_UNASKED_SECONDS for look in looks):
            try:
                self.index()
            except (ServiceError, StoreError) as error:
                message = f"results in the cache may have been revoked since {time.ctime(max(looks))}: {error}"
                warnings.warn(message, CacheUnusable, stacklevel=3)

    def index(self) -> MirrorIndex:
        """Return the index, verified, in time and not older than one that was seen.

        Raises:
            CorruptObject: the file is no index, has expired, or is older than one that was seen.
            BadSignature: it was not signed with the key.
            MissingExtra: there is a key, and the extra `signing` is not installed.
            ServiceError, ServiceUnreachable: there is no index, or nothing answered.
        """
        text = self._get(INDEX, MAX_INDEX_BYTES)
        name = sha256(text)
        if self._key is not None:
            from tempfile import TemporaryDirectory  # It loads lzma.

            with TemporaryDirectory(prefix="factorize.mirror.") as folder:
                held, signature = Path(folder) / INDEX, Path(folder) / f"{INDEX}.sig"
                held.write_bytes(text)
                try:
                    signature.write_bytes(self._get(f"signatures/{name}.sig", MAX_SIGNATURE_BYTES))
                except ServiceError as error:
                    if error.status != 404:
                        raise
                    message = f"{self.connection.url} does not sign its index; use another mirror"
                    raise BadSignature(message) from None
                check_signature(held, signature, self._key)
        index = MirrorIndex.read(text)
        url = self.connection.url
        if datetime.fromisoformat(index.expires).astimezone(UTC) <= datetime.now(UTC):
            raise CorruptObject(
                f"the index of {url} expired on {index.expires}, so it may be an old one; use another mirror or a "
                "service until its owner renews it by `factorize mirror`"
            )
        memory, verified = self._memory("plain" if self._key is None else "signed"), self._memory("signed")
        if self._key is None and verified.exists():
            raise InvalidParameter(
                f"you verified the index of {url} with a key before; give public_key= again (or {KEY_VARIABLE}), or "
                f"remove {verified}",
                field="public_key",
            )
        highest = max((int(one.name) for one in memory.glob("*") if one.name.isdecimal()), default=0)
        if index.sequence < highest:
            raise CorruptObject(
                f"the index of {url} has the sequence {index.sequence}, but you have seen {highest}: it is an old "
                f"one, which may hide revocations. Use another mirror; if its owner began anew, remove {memory}"
            )
        before = (memory / str(highest)).read_text(errors="replace") if index.sequence == highest else name
        if before != name and is_digest(before):  # A damaged note is written anew.
            raise CorruptObject(
                f"{url} showed another index with the sequence {highest} before; use another mirror, or ask its owner"
            )
        try:
            memory.mkdir(parents=True, exist_ok=True)
            self._cache.publish(memory / str(index.sequence), [name.encode("ascii")])  # Its time is that of this look.
            for digest, reason in index.revoked.items():
                self._cache.revoke(digest, str(reason))
        except (OSError, StoreUnavailable) as error:
            message = f"{error}; until then you would not notice an old index, or a result that this mirror has revoked"
            warnings.warn(message, CacheUnusable, stacklevel=2)
        self._index = index
        return index

    def manifest(
        self, source: SpecSource, *, progress: ProgressCallback = ignore, dtype: str | None = None
    ) -> Manifest:
        """Return the checked manifest of the answer to a spec or digest.

        Raises:
            NotFound: the mirror has no answer.
            Revoked: the answer was taken back.
            CorruptObject, BadSignature, ServiceError, ServiceUnreachable: see `index`, `Service.manifest`.
        """
        listed = (self._index or self.patiently(self.index)).find(source)
        if listed is None:
            raise NotFound(f"the mirror {self.connection.url} does not have this result; solve it, or ask a service")
        text = self.patiently(partial(self._get, f"{PATH[1:]}/{listed.digest}", MAX_INDEX_BYTES))
        if sha256(text) != listed.manifest:
            raise CorruptObject(
                f"{self.connection.url} sent a manifest of {listed.digest} that its index does not name; use another "
                "mirror"
            )
        manifest = Manifest.check(read_json(text, limit=MAX_INDEX_BYTES))
        file = manifest.file
        if (manifest.digest, file.sha256, file.bytes) != (listed.digest, listed.file, listed.bytes):
            raise CorruptObject(
                f"the index of {self.connection.url} contradicts the manifest {manifest.digest}; use another mirror"
            )
        check_answers(manifest, source)
        if dtype not in (None, manifest.matrix("C").dtype):
            message = f"the mirror has C in {manifest.matrix('C').dtype} and cannot round it; leave dtype out"
            raise InvalidParameter(message, field="dtype")
        return manifest

    def _memory(self, kind: str) -> Path:
        """Return the folder with a file for each sequence that was seen, whose time is that of the last look."""
        return self._cache.folder / "mirrors" / sha256(f"{self.connection.url} {kind}".encode())

    def _get(self, path: str, limit: int) -> bytes:
        with self.connection.send("GET", f"/{path}", headers={"Accept-Encoding": "identity"}) as reply:
            text = reply.body(limit)
        if len(text) > limit:
            raise CorruptObject(f"{self.connection.url}/{path} has more than {limit} bytes; it is not used")
        return text


def is_index(url: str | None) -> bool:
    """Return whether an address is that of a mirror's index."""
    return isinstance(url, str) and url.rstrip("/").endswith(f"/{INDEX}")


def mirror_of_environment(cache: FactorCache | None = None) -> Mirror | None:
    """Return the mirror of `FACTORIZE_MIRROR`, whose index is signed with the key of `FACTORIZE_MIRROR_KEY`, if set.

    Raises:
        InvalidParameter: the value is no address of an index.
    """
    url = os.environ.get(VARIABLE)
    if not url:
        return None
    if not is_index(url):
        raise InvalidParameter(f"{VARIABLE} is {url[:80]!r}; give the address of an {INDEX}", field=VARIABLE)
    return Mirror(url, public_key=os.environ.get(KEY_VARIABLE) or None, cache=cache, patience=_FIRST_LOOK_SECONDS)
