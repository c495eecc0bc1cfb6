"""`factorize get`: a factor file from a service or from the store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from factorize.api.terminal.options import Output, ServiceUrl, StoreUrl, ToFile, argument, option
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.progress import display, show_event
from factorize.api.terminal.sources import (
    copy_stored,
    full_digest,
    is_name,
    open_results,
    read_spec,
    read_spec_text,
    service_url,
)
from factorize.api.terminal.text import describe_manifest
from factorize.encoding import is_digest
from factorize.errors import NotFound

if TYPE_CHECKING:
    from factorize.storage.store import Store

Source = Annotated[
    str, argument(metavar="SPEC|DIGEST", help="A path, '-', inline JSON, or the digest or spec digest of a result.")
]
Dtype = Annotated[
    str | None,
    option(
        "--dtype",
        metavar="float64|float32",
        help="Type of the file's matrices; float32 is rounded and certified anew where the result is stored.",
    ),
]


def get(
    source: Source,
    to: ToFile,
    service: ServiceUrl = None,
    dtype: Dtype = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Write a factor file: downloaded from a service, resumed where it was cut, and checked before it gets its name.

    A service solves a spec that it does not know. Without --service the file comes from the store and has to be there.
    """
    manifest = (
        _from_store(source, to, store, dtype)
        if service is None
        else _from_service(source, to, service_url(service, store), dtype)
    )
    emit(output, manifest, f"{describe_manifest(manifest)}\nfile          {to}")


def _from_service(source: str, to: Path, url: str, dtype: str | None) -> dict[str, Any]:
    from factorize.client import fetch
    from factorize.factor_file import load

    wanted = source if is_digest(source) else read_spec_text(source)
    with display() as shown:
        shown.start(url)
        fetch(wanted, url=url, to=to, dtype=dtype, progress=partial(show_event, shown))
        shown.finish("")
    return load(to).manifest


def _from_store(source: str, to: Path, store: str | None, dtype: str | None) -> dict[str, Any]:
    results = open_results(store, create=False)
    digest = full_digest(source, results) if is_name(source) else _digest_of(source, results)
    manifest = results.manifest(digest)
    if dtype is not None:
        from factorize.api.proof import prove
        from factorize.rounded import cast

        manifest = results.put(cast(results.load(digest), dtype), check=partial(prove, store=results.url))
    copy_stored(results, manifest, to)
    return manifest


def _digest_of(source: str, results: Store) -> str:
    from factorize.api.local import plan

    planned = plan(read_spec(source), results)
    if planned.known is None:
        raise NotFound(
            f"the store has no result for the spec {planned.spec.digest}; run `factorize solve` first, or name a "
            "service with --service"
        )
    return planned.known
