"""`factorize ls`, `show`: the results in the store, and one of them as it was solved."""

from contextlib import suppress
from typing import Annotated

import typer

from factorize.api.terminal.output import Explain, Shown, Target, describe_gap, describe_manifest, explained, option
from factorize.api.terminal.sources import full_digest, open_results, open_target
from factorize.api.terminal.spec_command import is_name
from factorize.encoding import JsonObject
from factorize.errors import StoreError
from factorize.format.container import local_path
from factorize.format.labels import describe_part
from factorize.format.manifest import Manifest, certified
from factorize.storage.records import MANIFESTS, name_in
from factorize.storage.revocation import REVOKED
from factorize.storage.store import Store

SHOWN_DIGITS = 12


def ls(
    workload: Annotated[str | None, option(metavar="KIND", help="Only this kind of workload.")] = None,
    n: Annotated[int | None, option(help="Only those with so many steps.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Results to list at most.")] = 50,
    store: str | None = None,
) -> Shown:
    """List the results of the store, newest first; every command takes a digest by its first characters."""
    results = open_results(store, create=False)
    count, manifests = _newest(results, workload, n, limit)
    items = [_item(manifest) for manifest in manifests]
    lines = [f"{item['digest'][:SHOWN_DIGITS]}  {item['created'][:16]}  {item['text']}" for item in items]
    if count > len(items):
        lines.append(f"and {count - len(items)} more; --limit shows more")
    none = f"the store {results.url} " + ("is empty" if workload is None and n is None else "has no such result")
    document = {"store": results.url, "count": count, "items": items}
    return document, "\n".join(lines) or none


def _newest(results: Store, workload: str | None, n: int | None, limit: int) -> tuple[int, list[Manifest]]:
    """Return how many results there are, and the manifests of the newest; all are read where only some are wanted."""
    if workload is not None or n is not None:
        matching = sorted(results.items(workload=workload, n=n), key=lambda one: str(one["created"]), reverse=True)
        return len(matching), matching[:limit]
    revoked = set(map(name_in, results.objects.names(REVOKED)))
    entries = [entry for entry in results.objects.list(MANIFESTS) if name_in(entry.key) not in revoked]
    entries.sort(key=lambda entry: entry.modified, reverse=True)
    sound: list[Manifest] = []
    for entry in entries:
        with suppress(StoreError):  # it is damaged, or has gone meanwhile
            sound.append(results.manifest(name_in(entry.key)))
        if len(sound) == limit:
            break
    return len(entries), sound


def _item(manifest: Manifest) -> JsonObject:
    spec, certificate = manifest.spec, manifest.certificate
    parts = ", ".join(describe_part(spec[name]) for name in ("workload", "participation", "mechanism"))
    return {
        "digest": manifest.digest,
        "spec_digest": manifest.spec_digest,
        "created": manifest.created,
        "bytes": manifest.file.bytes,
        "spec": spec,
        "loss": certificate["loss"],
        "relative_gap": certificate["relative_gap"],
        "converged": certificate["converged"],
        "text": f"{parts}: {describe_gap(certificate)}",
    }


def show(target: Target, store: str | None = None, explain: Explain = False) -> Shown:
    """Show a result: its spec, its digests, its certificate and what is stored of it."""
    if is_name(target):  # its matrices are not read
        results = open_results(store, create=False)
        manifest = results.manifest(full_digest(target, results))
        size = manifest.file.bytes
    else:
        manifest, size = certified(open_target(target, store)).manifest, local_path(target).stat().st_size
    solver = manifest.solver
    matrices = {name: manifest.matrix(name) for name in manifest.names}
    kept = ", ".join(f"{name} ({one.structure}, {one.dtype})" for name, one in matrices.items())
    when = f" {manifest.created}" if "created" in manifest else ""
    text = (
        f"{describe_manifest(manifest)}\n"
        f"solved       {when} by factorize {solver['version']}, in {solver['seconds']:.3g} s\n"
        f"matrices      {kept}, {size} bytes"
    )
    return manifest, explained(text) if explain else text
