"""The download of one factor file: resumed by Range, hashed and checked before it gets its name."""

import fcntl
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from factorize.client.cache import FactorCache
from factorize.client.connection import TIMEOUT, Connection, Event, ProgressCallback, ignore
from factorize.client.mirror import Mirror, is_index
from factorize.client.service import Origin, Service, SpecSource, check_answers, spec_of
from factorize.encoding import json_digest
from factorize.errors import CacheUnusable, CorruptObject, InvalidParameter, ServiceUnreachable, StoreUnavailable
from factorize.format.container import local_path
from factorize.format.files import Files, check_is_file, replace_file
from factorize.format.manifest import Manifest, StoredFile, check_file
from factorize.format.signatures import check_signature

ATTEMPTS = 3
"""The whole transfers with wrong bytes after which a download gives up."""

_BUFFER_BYTES = 1 << 18  # A broken connection loses at most this much of its data.


class Held(NamedTuple):
    """A factor file that was verified, its manifest, and where they came from."""

    path: Path
    manifest: Manifest
    origin: Origin


def fetch(
    source: SpecSource,
    *,
    url: str,
    to: str | Path,
    dtype: str | None = None,
    progress: ProgressCallback = ignore,
    timeout: float = TIMEOUT,
    signature: str | Path | None = None,
    public_key: str | Path | None = None,
) -> Path:
    """Download the factor file of a spec or digest; solve it first if the service does not have it.

    The bytes go to `FILE.part`, which a later call resumes, and get their name once length, sha256, the manifest inside
    and every matrix agree with the manifest that answered. Files of a mirror go through the cache of `load`.

    Args:
        source: a spec (JSON text, plain data, `factorize.Spec`), a digest, or a spec digest. Pin the digest in training
            jobs: it names these bytes for ever.
        url: URL of the service, or of a mirror's index (`https://host/path/index.json`).
        to: path to write to; a file there is replaced, unless it already has the right bytes.
        dtype: `float32` for matrices that the service has rounded and certified anew; by default as they were solved.
        progress: called with the events of a running solve, then with `download` events {bytes, total}, and at last
            with `origin` {place, address}, the file's origin.
        timeout: seconds without a byte after which a connection counts as stalled; a download then resumes.
        signature: signature of the file, by OpenSSF Model Signing; a file that it does not sign gets no name.
        public_key: the key that it has to be made with; without a signature, the key of a mirror's index.

    Returns:
        The path written.

    Raises:
        CorruptObject: the bytes are wrong after three transfers, or the manifest answers another question.
        BadSignature: this key signed another file.
        SolveFailed, Cancelled: the solve ended without a result.
        ServiceError, ServiceUnreachable: the request was refused, or no connection brought a new byte for a minute.
        StoreUnavailable: the file cannot be written.
        InvalidParameter: `to` is a folder or a device, or another download writes it now.
    """
    target = local_path(to)
    check_is_file(target)
    if is_index(url):
        service: Service = Mirror(url, public_key=public_key, timeout=timeout)
        public_key = None if signature is None else public_key  # It is the key of the index.
    else:
        service = Service(url, timeout=timeout)
    accept = partial(check_signature, signature=signature, public_key=public_key)
    if isinstance(service, Mirror) and dtype is None:
        try:
            held = find_cached(source, service, kept := FactorCache()) or fetch_cached(source, service, kept, progress)
        except StoreUnavailable as error:
            warnings.warn(f"{error}; loaded factors are not kept", CacheUnusable, stacklevel=2)
        else:
            accept(held.path)
            with _named(target), held.path.open("rb") as file:
                replace_file(target, iter(partial(file.read, _BUFFER_BYTES), b""))
            progress(Event("origin", vars(held.origin)))
            return target
    manifest = service.manifest(source, progress=progress, dtype=dtype)
    download(service, manifest, target, progress=progress, accept=accept)
    progress(Event("origin", vars(service.origin)))
    return target


def find_cached(source: SpecSource, mirror: Mirror | None, kept: FactorCache) -> Held | None:
    """Return the cached factors of a spec or digest, or None.

    Args:
        source: a spec, a digest or a spec digest.
        mirror: a mirror that is first asked for revocations, if nobody has asked it for a day.
        kept: the cache.

    Raises:
        Revoked: this digest was taken back.
        CorruptObject: the remembered digest answers another question.
    """
    if mirror is not None:
        mirror.recheck()
    known = kept.find(asked_digest(source))
    try:
        if known is not None:
            check_answers(known[1], source)
    except CorruptObject as error:
        raise CorruptObject(f"the cache {kept.folder} is damaged, remove it: {error}") from None
    return known and Held(*known, Origin("cache", str(kept.folder)))


def fetch_cached(source: SpecSource, service: Service, kept: FactorCache, progress: ProgressCallback = ignore) -> Held:
    """Return the answer of a service or mirror, and keep it in the cache.

    Raises:
        FactorizeError: see `fetch`.
    """
    manifest = service.manifest(source, progress=progress)
    known = kept.find(manifest.digest)
    if known is None:
        path = kept.path(manifest.digest)
        download(service, manifest, path, progress=progress, wait=True)  # Workers of one machine start together.
        known = path, check_file(path, manifest.digest)
    kept.remember(asked_digest(source), manifest.digest)
    return Held(*known, service.origin)


def asked_digest(source: SpecSource) -> str:
    """Return the digest itself, or the digest of the spec as it was asked for, also with `auto`."""
    spec = spec_of(source)
    return str(source) if spec is None else json_digest(spec.document())


def download(
    service: Service,
    manifest: Manifest,
    target: Path,
    *,
    progress: ProgressCallback = ignore,
    wait: bool = False,
    accept: Callable[[Path], object] = Path,
) -> None:
    """Download the file of a manifest that was checked; see `fetch`.

    Args:
        service: the service that has the file.
        manifest: the manifest, with length and sha256 of the file.
        target: path to write to.
        progress: called with `download` events.
        wait: whether to wait for another process that writes the same file, rather than refuse.
        accept: called with the whole file before it gets its name; raises `CorruptObject` to refuse it.
    """
    stored = manifest.file
    if _has(target, stored):
        accept(target)
        return
    part = target.with_name(target.name + ".part")
    with _named(target), _exclusive(part, wait=wait) as file:
        if wait and _has(target, stored):
            part.unlink()
            return
        try:
            _fill(service, stored, file, progress)
            file.flush()
            check_file(part, manifest.digest)
            accept(part)
        except CorruptObject:
            part.unlink()  # There is nothing to resume from.
            raise
        os.fsync(file.fileno())
        os.replace(part, target)
        Files().sync_directory(target.parent)


@contextmanager
def _named(target: Path) -> Iterator[None]:
    """Turn an OSError into one that names the file; errors of the network have become ServiceUnreachable."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise StoreUnavailable(f"{target} cannot be written: {reason}; free space or name another file") from error


def _fill(service: Service, stored: StoredFile, file: BinaryIO, progress: ProgressCallback) -> None:
    """Bring a part file to the stored length and sha256, whatever it holds."""
    for _ in range(ATTEMPTS):
        if file.seek(0, os.SEEK_END) > stored.bytes:
            file.truncate(0)
        while file.seek(0, os.SEEK_END) < stored.bytes:
            service.patiently(partial(_transfer, service.connection, stored, file, progress))
        if _sha256(file) == stored.sha256:
            return
        file.truncate(0)
    raise CorruptObject(
        f"{service.connection.url} sent {ATTEMPTS} times {stored.bytes} bytes that do not hash to {stored.sha256}; a "
        "proxy between it and this machine may change them"
    )


def _transfer(connection: Connection, stored: StoredFile, file: BinaryIO, progress: ProgressCallback) -> None:
    """Append to the part file the data of one connection, which has to bring a byte, or all where it begins anew."""
    position = file.seek(0, os.SEEK_END)
    headers = {"Accept-Encoding": "identity"}
    if position:
        headers["Range"] = f"bytes={position}-"  # without If-Range: a mirror's web server has ETags of its own
    with connection.send("GET", f"/v1/blobs/{stored.sha256}", headers=headers) as reply:
        first = position if reply.status == 206 else 0
        expected = f"bytes {first}-{stored.bytes - 1}/{stored.bytes}"
        if reply.status not in (200, 206) or (reply.status == 206 and reply.header("Content-Range") != expected):
            raise ServiceUnreachable(f"{reply.url} sent another range than the one asked for ({expected})")
        if reply.length != stored.bytes - first:
            raise ServiceUnreachable(f"{reply.url} announced {reply.length} bytes, not {stored.bytes - first}")
        if first < position:
            file.truncate(0)
            file.seek(0)
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        while (left := stored.bytes - file.tell()) > 0:
            try:
                count = reply.readinto(buffer[: min(left, _BUFFER_BYTES)])
                if not count:
                    raise ServiceUnreachable(f"the connection was cut {left} bytes before the end of {stored.sha256}")
            except ServiceUnreachable:
                if file.tell() <= first or first < position:  # a server that begins anew each time may never end
                    raise
                return
            file.write(buffer[:count])
            progress(Event("download", {"bytes": file.tell(), "total": stored.bytes}))


def _has(path: Path, stored: StoredFile) -> bool:
    """Return whether the file is there already, byte for byte."""
    try:
        with path.open("rb") as file:
            return file.seek(0, os.SEEK_END) == stored.bytes and _sha256(file) == stored.sha256
    except FileNotFoundError:
        return False


def _sha256(file: Any) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _exclusive(part: Path, *, wait: bool) -> Iterator[BinaryIO]:
    """Open a part file for this process alone."""
    while True:
        with open(part, "a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                mine = os.path.samestat(os.fstat(file.fileno()), part.stat())
            except (BlockingIOError, FileNotFoundError):
                mine = False
            if mine:
                yield file
                return
        if not wait:  # It is locked, or its writer renamed it before the lock.
            raise InvalidParameter(f"another download is writing {part} now; wait for it", field="to")
