"""A mirror: results of a store as static files behind any web server, found by an index and checked to the last byte.

The files lie where a service answers: `v1/blobs/<sha256>`, `v1/factorizations/<digest>`. The index names them, with
what was revoked, a sequence number and an expiry, under one signature. A client remembers the highest sequence that it
saw, so that a mirror can show it neither yesterday's index nor hide a revocation, as with package repositories.
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
from factorize.client.service import PATH, PATIENCE, Origin, Service, SpecSource, check_answers, spec_bytes
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
from factorize.signatures import check_signature

INDEX = "index.json"
FORMAT = "factorize-mirror"
VARIABLE = "FACTORIZE_MIRROR"
"""Environment variable with the address of an index, where results are looked for before they are solved."""
KEY_VARIABLE = "FACTORIZE_MIRROR_KEY"
"""Environment variable that names the public key of its signature, PEM."""
MAX_INDEX_BYTES = 1 << 26
"""Some 200,000 results; what is longer is no index that anybody downloads for one of them."""
MAX_SIGNATURE_BYTES = 1 << 16
"""A signature over one file by a key has 1.3 kB."""
MAX_UNASKED_SECONDS = 86_400.0
"""A day without a look at the index, after which a result from the cache may have been revoked long ago."""
_FIRST_LOOK_SECONDS = 5.0  # of patience with a mirror that nothing depends on


@dataclass(frozen=True)
class MirrorResult:
    """One result that a mirror has.

    Attributes:
        digest: of its manifest.
        manifest: sha256 of the manifest's text, which has parts that no digest covers.
        spec_digest: of the spec that it answers.
        family: the same without the tolerance.
        tolerance: that was asked for.
        converged: whether it was met.
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
    """What a mirror says that it has.

    Attributes:
        sequence: grows with each index.
        expires: when it is no longer to be believed, ISO 8601.
        results: what it has.
        specs: digest of the answer by digest of the spec, of specs with the mechanism `auto` too.
        revoked: reason by digest, of results that were taken back.
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
            CorruptObject: it is none.
        """
        try:
            document: Any = read_json(text, limit=MAX_INDEX_BYTES)
            if type(document) is not dict or "format" not in document:
                raise ValueError("it names no format")
            if (document.pop("format"), document.pop("version")) != (FORMAT, 1):
                raise ValueError("another format, or of a later release")
            results = tuple(MirrorResult(**one) for one in document.pop("results"))
            index = cls(results=results, **document)
            if type(index.sequence) is not int or not 0 < index.sequence < 1 << 53:
                raise ValueError(f"the sequence {index.sequence!r} is no positive integer")
            datetime.fromisoformat(index.expires).astimezone(UTC)
            for name in (*index.specs, *index.specs.values(), *index.revoked):
                check_digest(name)
        except (FactorizeError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            message = f"{INDEX} is no index of a mirror: {str(error)[:200]}; give the address of one that `factorize "
            raise CorruptObject(f"{message}mirror` wrote, or use another mirror") from None
        return index

    def find(self, source: SpecSource) -> MirrorResult | None:
        """Return what answers a digest or a spec: exactly this one, else the nearest of smaller tolerance.

        One that has not met its tolerance went as far as its solver goes: no solve to a larger one is better.

        Raises:
            Revoked: the only answer was taken back.
        """
        if is_digest(source):
            name, family, tolerance = str(source), "", 0.0
        else:
            from factorize.spec import parse_spec  # needs pydantic; jobs that pin a digest do not

            asked = parse_spec(spec_bytes(source)).document()
            name, tolerance = json_digest(asked), float(asked.pop("tolerance"))
            family = json_digest(asked)
        digest = self.specs.get(name, name)
        if digest in self.revoked:
            reason = self.revoked[digest]
            message = f"the result {digest} was revoked: {reason}; solve its spec anew"
            raise Revoked(message, digest=digest, reason=str(reason))
        sound = [one for one in self.results if one.digest not in self.revoked]
        exact = next((one for one in sound if one.digest == digest), None)
        tighter = [one for one in sound if one.family == family and one.tolerance < tolerance]
        return exact or max(tighter, key=lambda one: (one.converged, one.tolerance), default=None)


class Mirror(Service):
    """A mirror by the address of its index, as a service that answers with what it has and solves nothing.

    Args:
        url: `https://host/path/index.json`.
        public_key: of the index's signature; without one, digests alone are checked, and whoever writes to the mirror
            decides what it has.
        cache: remembers the sequence numbers.
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
        """Of what it answers."""
        return Origin("mirror", f"{self.connection.url}/{INDEX}")

    def recheck(self) -> None:
        """Read the index if nobody has for a day, so that what it revokes leaves the cache; warn where that fails."""
        memory = self._memory("plain" if self._key is None else "signed")
        looks = [look.stat().st_mtime for look in memory.glob("*")]
        if looks and max(looks) < time.time() - MAX_UNASKED_SECONDS:
            try:
                self.index()
            except (ServiceError, StoreError) as error:
                message = (
                    f"nobody knows whether results in the cache were revoked since {time.ctime(max(looks))}: {error}"
                )
                warnings.warn(message, CacheUnusable, stacklevel=3)

    def index(self) -> MirrorIndex:
        """Return the index, verified, in time and not older than one that was seen.

        Raises:
            CorruptObject: it is none, has expired, or is older than one that was seen.
            BadSignature: it was not signed with the key.
            MissingExtra: there is a key, and the extra `signing` is not installed.
            ServiceError, ServiceUnreachable: there is no index, or nothing answered.
        """
        text = self._get(INDEX, MAX_INDEX_BYTES)
        name = sha256(text)
        if self._key is not None:
            from tempfile import TemporaryDirectory  # which loads lzma

            with TemporaryDirectory(prefix="factorize.mirror.") as folder:
                held, signature = Path(folder) / INDEX, Path(folder) / f"{INDEX}.sig"
                held.write_bytes(text)
                try:
                    signature.write_bytes(self._get(f"signatures/{name}.sig", MAX_SIGNATURE_BYTES))
                except ServiceError as error:
                    if error.status != 404:
                        raise
                    message = f"{self.connection.url} has no signature of its index; use another mirror"
                    raise BadSignature(message) from None
                check_signature(held, signature, self._key)
        index = MirrorIndex.read(text)
        url = self.connection.url
        if datetime.fromisoformat(index.expires).astimezone(UTC) <= datetime.now(UTC):
            raise CorruptObject(
                f"the index of {url} expired on {index.expires}: somebody may be showing an old one. Its owner renews "
                "it by `factorize mirror`; use another mirror or a service until then"
            )
        memory, verified = self._memory("plain" if self._key is None else "signed"), self._memory("signed")
        if self._key is None and verified.exists():
            raise InvalidParameter(
                f"the index of {url} was verified with a key before; give public_key= again (or {KEY_VARIABLE}), or "
                f"remove {verified}",
                field="public_key",
            )
        highest = max((int(one.name) for one in memory.glob("*") if one.name.isdecimal()), default=0)
        if index.sequence < highest:
            raise CorruptObject(
                f"the index of {url} has the sequence {index.sequence}, and {highest} was seen before: it is an old "
                f"one, which may hide what was revoked. Use another mirror; if its owner began anew, remove {memory}"
            )
        before = (memory / str(highest)).read_text(errors="replace") if index.sequence == highest else name
        if before != name and is_digest(before):  # else a damaged note, which is written anew
            raise CorruptObject(
                f"{url} showed another index with the sequence {highest} before; use another mirror, or ask its owner"
            )
        try:
            memory.mkdir(parents=True, exist_ok=True)
            self._cache.publish(memory / str(index.sequence), [name.encode("ascii")])  # of the time of this look
            for digest, reason in index.revoked.items():
                self._cache.revoke(digest, str(reason))
        except (OSError, StoreUnavailable) as error:
            message = f"{error}; that this mirror shows an old index, or has revoked a result, would not be noticed"
            warnings.warn(message, CacheUnusable, stacklevel=2)
        self._index = index
        return index

    def manifest(
        self, source: SpecSource, *, progress: ProgressCallback = ignore, dtype: str | None = None
    ) -> Manifest:
        """Return the checked manifest of what answers a spec or digest.

        Raises:
            NotFound: the mirror has no answer.
            Revoked: it was taken back.
            CorruptObject, BadSignature, ServiceError, ServiceUnreachable: see `index`, `Service.manifest`.
        """
        listed = (self._index or self.patiently(self.index)).find(source)
        if listed is None:
            raise NotFound(f"the mirror {self.connection.url} has no answer to this; solve it, or ask a service")
        text = self.patiently(partial(self._get, f"{PATH[1:]}/{listed.digest}", MAX_INDEX_BYTES))
        if sha256(text) != listed.manifest:
            raise CorruptObject(f"{self.connection.url} sent another manifest of {listed.digest} than its index names")
        manifest = Manifest.check(read_json(text, limit=MAX_INDEX_BYTES))
        file = manifest.file
        if (manifest.digest, file.sha256, file.bytes) != (listed.digest, listed.file, listed.bytes):
            raise CorruptObject(f"the index of {self.connection.url} contradicts the manifest {manifest.digest}")
        check_answers(manifest, source)
        if dtype not in (None, manifest.matrix("C").dtype):
            message = f"the mirror has C in {manifest.matrix('C').dtype}, and rounds nothing; leave dtype out"
            raise InvalidParameter(message, field="dtype")
        return manifest

    def _memory(self, kind: str) -> Path:
        """Return the folder that has a file for each sequence that was seen, of the time of the last look."""
        return self._cache.folder / "mirrors" / sha256(f"{self.connection.url} {kind}".encode())

    def _get(self, path: str, limit: int) -> bytes:
        with self.connection.send("GET", f"/{path}", headers={"Accept-Encoding": "identity"}) as reply:
            text = reply.body(limit)
        if len(text) > limit:
            raise CorruptObject(f"{self.connection.url}/{path} has more than {limit} bytes; it is not used")
        return text


def is_index(url: str | None) -> bool:
    """Whether an address is that of a mirror's index."""
    return url is not None and url.rstrip("/").endswith(f"/{INDEX}")


def service_at(
    url: str, *, timeout: float = TIMEOUT, public_key: str | Path | None = None, cache: FactorCache | None = None
) -> Service:
    """Return what is at an address: a mirror where its path ends in `/index.json`, else a service.

    Raises:
        InvalidParameter: see `Service`.
    """
    if is_index(url):
        return Mirror(url, public_key=public_key, cache=cache, timeout=timeout)
    return Service(url, timeout=timeout)


def mirror_of_environment(cache: FactorCache | None = None) -> Mirror | None:
    """Return the mirror of `FACTORIZE_MIRROR`, whose index is signed with the key of `FACTORIZE_MIRROR_KEY`, if set.

    Raises:
        InvalidParameter: it is no address of an index.
    """
    url = os.environ.get(VARIABLE)
    if not url:
        return None
    if not is_index(url):
        raise InvalidParameter(f"{VARIABLE} is {url[:80]!r}; give the address of an {INDEX}", field=VARIABLE)
    return Mirror(url, public_key=os.environ.get(KEY_VARIABLE) or None, cache=cache, patience=_FIRST_LOOK_SECONDS)
