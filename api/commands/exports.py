"""`factorize get`, `mirror`, `sign`, `plot`: what leaves the store: a file, static pages, a signature, a picture."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from factorize.api.local import choose, in_form, keep
from factorize.api.mirror_writer import MAX_DAYS, write_mirror
from factorize.api.pictures.views import picture
from factorize.api.terminal.output import (
    PublicKey,
    Shown,
    SignatureFile,
    ToFile,
    argument,
    describe_manifest,
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
from factorize.errors import InvalidParameter, NotFound
from factorize.factors.factor_file import load
from factorize.format.manifest import Manifest
from factorize.format.signatures import check_signature
from factorize.format.signatures import sign as signed


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
