"""Loading: a verified file from what a training job knows of a factorization (file, spec, digest, URL, store)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from factorize.client.cache import FactorCache
from factorize.client.connection import TIMEOUT
from factorize.client.download import download
from factorize.client.events import ProgressCallback, ignore
from factorize.client.service import PATH, Service, SpecSource, check_answers, spec_bytes
from factorize.encoding import is_digest, json_digest
from factorize.errors import InvalidParameter, NotFound
from factorize.format.reading import check_file

Source = SpecSource | Path
"""A file (`Path`, or text that is neither JSON, digest nor URL), a spec, a digest, or the URL of a factorization."""


def obtain(
    source: Source,
    *,
    url: str | None = None,
    store: str | Path | None = None,
    cache: str | Path | None = None,
    progress: ProgressCallback = ignore,
    timeout: float = TIMEOUT,
) -> tuple[Path, dict[str, Any]]:
    """Return a verified file and its manifest; see `factorize.client.load`."""
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        url, source = split_url(source)
    if is_path(source):
        path = Path(str(source))
        return path, check_file(path)
    assert not isinstance(source, Path)  # is_path
    kept = FactorCache(cache)
    asked = _asked_digest(source)
    found = kept.find(asked)
    if found is None and store is not None:
        found = _from_store(source, store, kept, required=url is None)
    if found is None:
        if url is None:
            raise InvalidParameter(
                f"{asked} is not in the cache {kept.folder}; give the url= of a service or a store=", field="source"
            )
        found = _from_service(source, Service(url, timeout=timeout), kept, progress)
    check_answers(found[1], source)
    kept.remember(asked, found[1]["digest"])
    return found


def is_path(source: object) -> bool:
    """Whether a source names a file: a `Path`, or text that is neither JSON nor a digest."""
    if isinstance(source, str):
        return not is_digest(source) and not source.lstrip().startswith("{")
    return isinstance(source, Path)


def split_url(url: str) -> tuple[str, str]:
    """Return the service's URL and the digest of the URL of a factorization.

    Raises:
        InvalidParameter: it is not one.
    """
    base, found, digest = url.partition(f"{PATH}/")
    if not found or not is_digest(digest):
        raise InvalidParameter(
            f"{url[:120]!r} does not end in {PATH}/<digest>; give a spec or digest, and the service as url=",
            field="source",
        )
    return base, digest


def _asked_digest(source: SpecSource) -> str:
    """Return the digest itself, or the digest of the spec as it was asked, `auto` and all."""
    if is_digest(source):
        return str(source)
    from factorize.spec import parse_spec  # needs pydantic; jobs that pin a digest do not

    return json_digest(parse_spec(spec_bytes(source)).document())


def _from_service(
    source: SpecSource, service: Service, kept: FactorCache, progress: ProgressCallback
) -> tuple[Path, dict[str, Any]]:
    manifest = service.manifest(source, progress=progress)
    found = kept.find(manifest["digest"])
    if found is not None:
        return found
    path = kept.path(manifest["digest"])
    download(service, manifest, path, progress=progress, wait=True)  # the workers of one machine start together
    return path, check_file(path, manifest["digest"])


def _from_store(
    source: SpecSource, store: str | Path, kept: FactorCache, *, required: bool
) -> tuple[Path, dict[str, Any]] | None:
    """Copy the file out of a store, which hashes what it gives."""
    from factorize.spec import parse_spec
    from factorize.storage.store import open_store

    opened = open_store(store, create=False)
    if is_digest(source):
        name: str | None = str(source)
    else:
        spec = parse_spec(spec_bytes(source))
        name = None if spec.mechanism.kind == "auto" else opened.find(spec)
    try:
        if name is None:
            raise NotFound(f"the store {store} has no answer to this spec; name its mechanism, or give a url=")
        manifest = opened.manifest(name)
    except NotFound:
        if required:
            raise
        return None
    blob = opened.blob(manifest["files"][0]["sha256"])
    path = kept.path(manifest["digest"])
    kept.publish(path, blob.read())
    return path, check_file(path, manifest["digest"])
