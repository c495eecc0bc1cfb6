"""Factors that a training job holds: a checked manifest, and C in its file or at a service until it is needed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, get_args

import numpy as np

from factorize.client.cache import FactorCache
from factorize.client.connection import TIMEOUT, ProgressCallback, ignore
from factorize.client.download import Held, asked_digest, fetch_cached, find_cached
from factorize.client.mirror import VARIABLE, Mirror, is_index, mirror_of_environment
from factorize.client.received_rows import received
from factorize.client.service import PATH, Origin, Service, SpecSource, check_answers, spec_of
from factorize.encoding import is_digest
from factorize.errors import (
    CacheUnusable,
    CorruptObject,
    InvalidParameter,
    NotFound,
    Revoked,
    ServiceError,
    ServiceUnreachable,
)
from factorize.factors import Factors
from factorize.format.claims import Sensitivity
from factorize.format.container import Container, local_path
from factorize.format.keywords import MechanismKind, WorkloadKind
from factorize.format.manifest import Manifest, check_file, matrix_parts
from factorize.format.signatures import Signature, check_signature
from factorize.format.tensors import MatrixName

if TYPE_CHECKING:
    from factorize.factors.factorization import Factorization


NAMES = frozenset((*get_args(MechanismKind), *get_args(WorkloadKind)))
"""The names of mechanisms and workloads, which people may write in place of a spec by mistake."""
Source = SpecSource | os.PathLike[str]
"""A file (`Path`, or text that is neither JSON, digest nor URL), a spec, a digest, or the URL of a factorization."""


class HeldFactors(Factors):
    """Factors by their manifest, their file, and the service that has the file.

    C stays where it is, so a training job needs neither pydantic nor the memory.

    Args:
        manifest: the manifest, checked against the request (`load`, `Service.manifest`).
        path: a verified file of the manifest.
        service: the service that has its rows or its file; used where there is no path.
        cache: folder for a file that has to be fetched.
        signature: the verified signature of the file.
        origin: the origin of the file.

    Attributes:
        origin: the origin of the file, or None for a file that was named by its path.
        signature: the signature of the file, if one was verified.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        path: Path | None = None,
        service: Service | None = None,
        cache: str | Path | None = None,
        signature: Signature | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.origin = service.origin if origin is None and service is not None else origin
        self._service, self._path, self._cache, self.signature = service, path, cache, signature
        self.manifest = manifest
        Sensitivity.of(manifest)  # It raises for a manifest without one.

    def path(self) -> Path:
        """Return a verified file of the factors, fetched into the cache where there is none yet.

        Raises:
            FactorizeError: see `fetch`.
        """
        if self._path is None:
            assert self._service is not None
            way = self._service.connection
            fetched = load(self.digest, url=way.url, cache=self._cache, timeout=way.timeout)
            self._path = fetched.path()
        return self._path

    def _read(self, matrix: MatrixName, start: int, stop: int) -> np.ndarray:
        """Return rows, computed from the file's C, or from the service where there is no file."""
        if self._path is None and self._service is not None:
            return received(self._service, self.manifest, matrix, start, stop)
        return self._opened.rows(matrix, start, stop)

    @cached_property
    def _opened(self) -> Factorization:
        return self.opened()

    def strategy_tensors(self) -> dict[str, np.ndarray]:
        """Return the tensors of C by suffix ('' for a dense one), as doubles, read from the file and checked.

        Raises:
            CorruptObject: the file no longer fits the manifest.
        """
        return matrix_parts(Container(self.path()), self.manifest, "C")

    def opened(self, *, matrices: Mapping[str, np.ndarray] | None = None) -> Factorization:
        """Return the factorization with C in memory, to recompute its certificate, or to change its form.

        It needs pydantic, as does a calibration that counts on sampling.

        Args:
            matrices: numbers of user-supplied workloads by sha256, for specs with workload kind `matrix`.

        Raises:
            CorruptObject: the file now holds another factorization.
        """
        from factorize.factors.factor_file import load as open_file

        factorization = open_file(self.path(), matrices=matrices)
        if factorization.digest != self.digest:
            raise CorruptObject(f"{self.path()} now contains {factorization.digest}, not {self.digest}; do not use it")
        return factorization


def load(
    source: Source,
    *,
    url: str | None = None,
    store: str | Path | None = None,
    cache: str | Path | None = None,
    progress: ProgressCallback = ignore,
    timeout: float = TIMEOUT,
    signature: str | Path | None = None,
    public_key: str | Path | None = None,
) -> HeldFactors:
    """Return the factors of a file, spec, digest or URL: rows, sensitivity, calibration and noise.

    A digest is looked for in the cache, then in the store, then asked of the service or mirror, by default that of
    $FACTORIZE_MIRROR; a spec likewise, and only a service solves a new one. The result has been verified
    byte for byte, and its spec compared with the one asked for.

    Args:
        source: a path; a spec (JSON text, plain data, `factorize.Spec`); a digest or spec digest; or a URL
            `http://host/v1/factorizations/<digest>`. Pin the digest in training jobs: it names the bytes for ever.
        url: URL of a service, or of a mirror's index (`https://host/path/index.json`).
        store: URL or folder of a store.
        cache: folder for downloaded files; by default $FACTORIZE_CACHE or the platform's folder for caches.
        progress: called with the events of a running solve and of the download.
        timeout: seconds without a byte after which a connection counts as stalled.
        signature: signature of the file, by OpenSSF Model Signing; `HeldFactors.signature` says what was verified.
        public_key: the key that it has to be made with; without a signature, the key of a mirror's index.

    Raises:
        InvalidParameter: neither `url` nor `store` is given, and the cache has no answer.
        NotFound: the store does not have the factors.
        CorruptObject: the bytes are wrong, or answer another question.
        BadSignature: this key signed another file.
        SolveFailed, Cancelled, ServiceError, ServiceUnreachable: see `fetch`.
        FileNotFoundError: there is no such file.
    """
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        url, separator, source = source.partition(f"{PATH}/")
        if not separator or not is_digest(source):
            raise InvalidParameter(
                f"{(url + separator + source)[:120]!r} does not end in {PATH}/<digest>; give a spec or digest, and the "
                "service as url=",
                field="source",
            )
    if _is_path(source):
        path = local_path(source)
        if path.suffix in (".npy", ".npz") or path.name.endswith("tensor_pb"):
            message = f"{path} has numbers without a certificate; make one with factorize.certify(path, spec)"
            raise InvalidParameter(message, field="source")
        if source in NAMES and not path.exists():
            message = (
                f"there is no file {path}, and its name alone is not a spec; give a whole one, factorize.Spec.of("
                '"prefix", n=2048, mechanism="blt", buffers=2) for example, or "auto" in a training job'
            )
            raise InvalidParameter(message, field="source")
        return HeldFactors(check_file(path), path=path, signature=check_signature(path, signature, public_key))
    assert not isinstance(source, os.PathLike)  # `_is_path` has handled paths.
    kept = FactorCache(cache)
    if is_index(url):
        mirror: Mirror | None = Mirror(str(url), public_key=public_key, cache=kept, timeout=timeout)
    else:
        mirror = None if url is not None else mirror_of_environment(kept)
    known = find_cached(source, mirror, kept)
    if known is None:
        digest = asked_digest(source)
        kept.path(digest)  # It refuses a named folder that cannot be written before any request.
        if store is not None:
            known = _from_store(source, store, kept, required=url is None and mirror is None)
        if known is None:
            service = mirror if url is None else mirror or Service(url, timeout=timeout)
            if service is None:
                raise InvalidParameter(
                    f"{digest} is not in the cache {kept.folder}; give the url= of a service or mirror, or a store=",
                    field="source",
                )
            known = fetch_cached(source, service, kept, progress)
    path, manifest, origin = known
    if signature is None and is_index(url):
        public_key = None  # It is the key of the index.
    return HeldFactors(manifest, path=path, signature=check_signature(path, signature, public_key), origin=origin)


def connect(
    source: SpecSource,
    *,
    url: str,
    cache: str | Path | None = None,
    progress: ProgressCallback = ignore,
    timeout: float = TIMEOUT,
) -> HeldFactors:
    """Ask a service for a spec or digest, and wait for a solve if one is needed; download nothing yet.

    Raises:
        FactorizeError: see `Service.manifest`.
    """
    service = Service(url, timeout=timeout)
    return HeldFactors(service.manifest(source, progress=progress), service=service, cache=cache)


def _is_path(source: object) -> TypeGuard[str | bytes | os.PathLike[str]]:
    """Return whether a source names a file: a path, or text or bytes that are neither JSON nor a digest."""
    if isinstance(source, (str, bytes)):
        text = os.fsdecode(source)
        return not is_digest(text) and not text.lstrip().startswith("{")
    return isinstance(source, os.PathLike)


def look_first() -> Callable[[SpecSource], Held | None]:
    """Return a function that finds a spec in the cache or at the mirror of $FACTORIZE_MIRROR.

    Every solver of specs calls it first. It warns of a mirror that is away, which it then asks no more, and of an
    answer that was revoked, since the spec can still be solved. It raises CorruptObject or BadSignature for a mirror's
    data that fail a check.
    """
    kept = FactorCache()
    mirror = mirror_of_environment(kept)

    def look(spec: SpecSource) -> Held | None:
        nonlocal mirror
        if mirror is None:
            return None
        try:
            return find_cached(spec, mirror, kept) or fetch_cached(spec, mirror, kept)
        except NotFound:
            return None
        except (Revoked, ServiceError) as error:
            warnings.warn(f"{VARIABLE}: {error}; solving on this machine instead", CacheUnusable, stacklevel=2)
            if isinstance(error, ServiceUnreachable):
                mirror = None
            return None

    return look


def _from_store(source: SpecSource, store: str | Path, kept: FactorCache, *, required: bool) -> Held | None:
    """Copy the file out of a store, which hashes the bytes that it returns."""
    from factorize.storage.store import open_store

    opened, spec = open_store(store, create=False), spec_of(source)
    name = str(source) if spec is None else opened.find(spec) if spec.mechanism.named else None
    try:
        if name is None:
            raise NotFound(f"the store {store} does not have this spec; name its mechanism, or give a url=")
        manifest = opened.manifest(name)
    except NotFound:
        if required:
            raise
        return None
    blob = opened.blob(manifest.file.sha256)
    check_answers(manifest, source)
    path = kept.path(manifest.digest)
    kept.publish(path, blob.read())
    kept.remember(asked_digest(source), manifest.digest)
    return Held(path, check_file(path, manifest.digest), Origin("store", opened.url))
