"""`factorize ls`, `show`, `get`, `plot`: the results in the store, one as it was solved, its file, its picture."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from factorize.api.local import choose, in_form, keep
from factorize.api.mirror_writer import MAX_DAYS, write_mirror
from factorize.api.pictures.views import picture
from factorize.api.terminal.output import (
    Explain,
    PublicKey,
    Shown,
    SignatureFile,
    Target,
    ToFile,
    argument,
    describe_gap,
    describe_manifest,
    explained,
    option,
    remark,
)
from factorize.api.terminal.progress import display, show_event
from factorize.api.terminal.sources import (
    check_picture,
    copy_stored,
    file_of,
    full_digest,
    open_results,
    open_target,
    parse_matrices,
    read_spec,
    read_spec_text,
    save_picture,
)
from factorize.api.terminal.spec_command import is_name
from factorize.client import fetch
from factorize.client import load as load_from
from factorize.client.connection import Event
from factorize.client.mirror import KEY_VARIABLE, VARIABLE, is_index, mirror_of_environment
from factorize.client.service import Origin
from factorize.encoding import JsonObject, is_digest
from factorize.errors import InvalidParameter, NotFound, StoreError
from factorize.factors.factor_file import load
from factorize.format.container import local_path
from factorize.format.labels import describe_part
from factorize.format.manifest import Manifest, certified
from factorize.format.signatures import check_signature
from factorize.format.signatures import sign as signed
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
    document = {"store": results.url, "count": count, "items": items}
    return document, "\n".join(lines) or f"the store {results.url} is empty"


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


def get(
    source: Annotated[
        str, argument(metavar="SPEC|DIGEST", help="A path, '-', inline JSON, or the digest or spec digest of a result.")
    ],
    to: ToFile,
    service: str | None = None,
    dtype: Annotated[
        str | None,
        option(
            metavar="float64|float32",
            help="Type of the file's matrices; float32 is rounded and certified anew where the result is stored.",
        ),
    ] = None,
    signature: SignatureFile = None,
    public_key: PublicKey = None,
    store: str | None = None,
) -> Shown:
    """Write a factor file: downloaded from a service, resumed where it was cut, and checked before it gets its name.

    A service solves a spec that it does not know. Without --service the file comes from the store, or from the mirror
    that FACTORIZE_MIRROR names. A mirror has the address of its index.json, whose signature is that of --public-key.
    """
    accept = partial(check_signature, signature=signature, public_key=public_key)
    key: str | Path | None = public_key
    last: dict[str, JsonObject] = {}
    if service is None:
        try:
            manifest, origin = _from_store(source, to, store, dtype, accept)
        except NotFound:
            if mirror_of_environment() is None:
                raise
            service = os.environ[VARIABLE]
            key = os.environ.get(KEY_VARIABLE) or None
    if service is not None:
        if is_name(source) and not is_digest(source):
            raise InvalidParameter(f"{source} is part of a digest; give {service} all 64 digits", field="source")
        named = source if is_digest(source) else read_spec_text(source)
        with display(service) as shown:

            def hear(event: Event) -> None:
                show_event(shown, event)
                last[event.kind] = event.data

            fetch(named, url=service, to=to, dtype=dtype, progress=hear, signature=signature, public_key=key)
        manifest, origin = load(to).manifest, Origin(**last["origin"])
    text = f"{describe_manifest(manifest)}\nfile          {to} ({origin})"
    document = {**manifest, "origin": vars(origin)}
    signed = None if signature is None and is_index(service) else accept(to)
    if signed is None:
        return document, text
    return {**document, "signature": signed.document()}, f"{text}\nsigned        {signed}"


def _from_store(
    source: str, to: Path, store: str | None, dtype: str | None, accept: Callable[[Path], object]
) -> tuple[Manifest, Origin]:
    results = open_results(store, create=False)
    if is_name(source):
        digest = full_digest(source, results)
    else:
        chosen = choose(read_spec(source))
        known = results.find(chosen)
        if known is None:
            raise NotFound(
                f"the store has no result for the spec {chosen.digest}; run `factorize solve` first, or name a "
                "service with --service"
            )
        digest = known
    manifest = results.manifest(digest)
    if dtype is not None:
        manifest = keep(in_form(results.load(digest), (), dtype), results)
    copy_stored(results, manifest, to, accept)
    return manifest, Origin("store", results.url)


def mirror(
    source: Annotated[str, argument(metavar="STORE", help="The store: a folder or a bucket.")],
    target: Annotated[str, argument(metavar="TARGET", help="Where the files go: a folder or a bucket.")],
    private_key: Annotated[
        Path | None, option(metavar="KEY.pem", help="Signs the index: P-256, P-384 or P-521, no password.")
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=MAX_DAYS, help="After which readers no longer believe the index.")
    ] = 30,
    address: Annotated[
        str, typer.Option(metavar="URL", help="Where it will be served, for the commands on its pages.")
    ] = "https://HOST/PATH",
) -> Shown:
    """Write a store as static files that any web server shows: results, index, revocations, a page for each.

    Any web server, bucket or hub shows them, and `load`, `get` and `solve` take the address of index.json. Do it again
    after each change, and before --days have passed: readers refuse an index that has expired or is an older one.
    """
    index = write_mirror(
        open_results(source, create=False), target, private_key=private_key, days=days, address=address, remark=remark
    )
    document = {"target": target, "sequence": index.sequence, "expires": index.expires, "results": len(index.results)}
    document |= {"revoked": len(index.revoked), "signed": private_key is not None}
    text = f"{target}: {len(index.results)} results, {len(index.revoked)} revoked, to be renewed before {index.expires}"
    return document, text


def sign(
    target: Annotated[str, argument(metavar="FILE|DIGEST", help="A file, or the digest of a stored result.")],
    private_key: Annotated[Path, option(metavar="KEY.pem", help="P-256, P-384 or P-521, no password.")],
    to: Annotated[Path | None, option(metavar="FILE.sig", help="The signature. Default: FILE.sig.")] = None,
    store: str | None = None,
) -> Shown:
    """Sign a factor file or a receipt with a key of yours: a bundle of OpenSSF Model Signing, made offline."""
    if to is None and is_name(target):
        raise InvalidParameter("a stored result has no file to put its signature next to; give --to", field="to")
    with file_of(target, store) as path:
        written = signed(path, private_key=private_key, to=to)
    return {"file": target, "signature": str(written)}, f"{written}: signature of {target}"


def plot(
    targets: Annotated[list[str], argument(metavar="FILE|DIGEST...", help="Factor files or stored results.")],
    to: ToFile,
    view: Annotated[str, typer.Option(help="overview, matrices, coefficients or memory.")] = "overview",
    matrices: Annotated[str, typer.Option(metavar="C,C_inv,B", help="Matrices that --view matrices shows.")] = "C,B",
    service: str | None = None,
    store: str | None = None,
) -> Shown:
    """Draw results (.png, .pdf or .svg): one overview, or several beside each other.

    The overview has C, C^-1 and the error of each query against the bound; `matrices` heatmaps, `coefficients` the
    noise over time and frequency, `memory` the loss against vectors of state.
    """
    check_picture(to)
    shown = parse_matrices(matrices)
    strangers = [] if service is None else [target for target in targets if not is_digest(target)]
    if strangers:
        raise InvalidParameter(f"{strangers[0]} is not a digest, by which a service finds results", field="service")
    if service is None:
        factorizations = [open_target(target, store) for target in targets]
    else:
        factorizations = [load_from(target, url=service).opened() for target in targets]
    save_picture(picture(view, factorizations, shown), to)
    digests = [factorization.digest for factorization in factorizations]
    document = {"file": str(to), "digest": digests[0], "digests": digests, "view": view}
    return document, f"{to}: picture of {', '.join(digests)}"
