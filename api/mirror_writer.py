"""The writer of mirrors: the results of a store as static files, with an index, a signature and a page for each.

`factorize.client.mirror` says what a client reads. Blobs and manifests are written first and the index after them, so
that an index names only files that are there. Files that it no longer names are removed afterwards.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from html import escape
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from factorize.api.local import choose
from factorize.api.pictures.views import picture
from factorize.api.terminal.output import describe_manifest
from factorize.client.mirror import FORMAT, INDEX, MirrorIndex, MirrorResult
from factorize.client.service import PATH
from factorize.encoding import canonical_json, is_digest, json_digest, sha256
from factorize.errors import FactorizeError, InvalidParameter, NotFound
from factorize.format.files import replace_file
from factorize.format.labels import describe_spec
from factorize.format.manifest import Manifest
from factorize.format.signatures import signer
from factorize.spec import parse_spec
from factorize.storage.medium.bucket import connect
from factorize.storage.medium.directory import Directory
from factorize.storage.medium.location import MARKER, bucket_of, directory_of, in_bucket
from factorize.storage.objects import Objects
from factorize.storage.records import SpecEntry, name_in, user_matrices
from factorize.storage.revocation import REVOKED
from factorize.storage.store import Store

MAX_DAYS = 366
"""An index is believed until it expires; a longer life would keep a stolen one alive."""
BLOBS, MANIFESTS, PAGES, CONTENTS = "v1/blobs", PATH[1:], "pages", "index.html"


def write_mirror(
    results: Store,
    target: str,
    *,
    private_key: Path | None = None,
    days: int = 30,
    address: str = "https://HOST/PATH",
    remark: Callable[[str], object] = lambda line: None,
) -> MirrorIndex:
    """Write what a store has as static files, in place of an older mirror of it; return the index.

    Args:
        results: the store. Results that answer a matrix of a user's own stay in it.
        target: a folder or the URL of a bucket.
        private_key: signs the index.
        days: days after which the index is no longer believed.
        address: address at which the folder will be served, for the commands on the pages.
        remark: is told of each result that is written.

    Raises:
        InvalidParameter: the target is a store or has files of somebody else, `days` is out of range, or a key that
            cannot be used.
        CorruptObject: what stands there is no mirror.
        MissingExtra: there is a key, and the extra `signing` is not installed.
        StoreUnavailable, OSError: store or target cannot be read or written.
    """
    if not 1 <= days <= MAX_DAYS:
        raise InvalidParameter(f"days={days} must be from 1 to {MAX_DAYS}; renew the mirror more often", field="days")
    sign = None if private_key is None else signer(private_key)  # a wrong key is refused before anything is written
    objects, write = _open(target)
    with suppress(NotFound):
        objects.status(MARKER)
        raise InvalidParameter(f"{target} is a store; give another folder, for a web server", field="TARGET")
    before = 0
    with suppress(NotFound):
        before = MirrorIndex.read(objects.content(INDEX)).sequence
    there = {entry.key: entry.size for folder in (BLOBS, MANIFESTS, PAGES) for entry in objects.list(folder)}
    foreign = [key for key in there if not is_digest(key.rpartition("/")[2].removeprefix(".")[:64])]
    with suppress(NotFound):
        foreign += [] if before else [objects.status(CONTENTS).key]
    if foreign:  # It would be overwritten, or removed as a file that the index no longer names.
        raise InvalidParameter(
            f"{target} has files that no mirror wrote, such as {foreign[0]}; give a folder of its own", field="TARGET"
        )
    mirrored: list[MirrorResult] = []
    specs: dict[str, str] = {}
    named: set[str] = set()
    for manifest in results.items():
        if user_matrices(manifest.spec):
            remark(f"{manifest.digest}  left out: its workload is a matrix of somebody's own")
            continue
        entry, file = SpecEntry.of(manifest), manifest.file
        keys = f"{BLOBS}/{file.sha256}", f"{MANIFESTS}/{manifest.digest}"
        pages = f"{PAGES}/{manifest.digest}.html", f"{PAGES}/{manifest.digest}.png"
        if there.get(keys[0]) != file.bytes or sha256(objects.content(keys[0])) != file.sha256:
            write(keys[0], b"".join(results.blob(file.sha256).read()))
        manifest_text = canonical_json(manifest)
        write(keys[1], manifest_text)
        write(pages[0], _page(manifest, address).encode())
        if pages[1] not in there:
            write(pages[1], _draw(results, manifest))
        named |= {*keys, *pages}
        asked = entry.spec_digest, entry.family, entry.tolerance, entry.converged
        mirrored.append(MirrorResult(manifest.digest, sha256(manifest_text), *asked, file.sha256, file.bytes))
        if results.digest_of(entry.spec_digest) == manifest.digest:
            specs |= dict.fromkeys((entry.spec_digest, *_other_names(manifest)), manifest.digest)
        remark(f"{manifest.digest}  {describe_spec(manifest.spec)}")
    revoked = {name_in(key): results.revocations.find(name_in(key)) for key in results.objects.names(REVOKED)}
    reasons = {one.digest: one.reason for one in revoked.values() if one is not None}
    expires = (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")
    index = MirrorIndex(max(before + 1, int(time.time())), expires, tuple(mirrored), specs, reasons)
    text = canonical_json({"format": FORMAT, "version": 1, **asdict(index)})
    if sign is not None:
        write(f"signatures/{sha256(text)}.sig", _signature(text, sign))
    write(INDEX, text)
    write(CONTENTS, _contents(mirrored, results).encode())
    old = {entry.key for entry in objects.list("signatures")} - {f"signatures/{sha256(text)}.sig"}
    for key in (there.keys() - named) | (old if before else set()):
        objects.delete(key)
    return index


def _signature(text: bytes, sign: Callable[[Path, Path], object]) -> bytes:
    with TemporaryDirectory(prefix="factorize.mirror.") as folder:
        index, signature = Path(folder) / INDEX, Path(folder) / f"{INDEX}.sig"
        index.write_bytes(text)
        sign(index, signature)
        return signature.read_bytes()


def _open(target: str) -> tuple[Objects, Callable[[str, bytes], None]]:
    """Return the medium of a mirror, and a function that puts bytes at a key, in place of what stands there."""
    if in_bucket(target):
        bucket = connect(bucket_of(target))
        return bucket, bucket.write
    root = directory_of(target)

    def write(key: str, data: bytes) -> None:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        replace_file(root / key, [data])

    return Directory(root), write


def _other_names(manifest: Manifest) -> Iterator[str]:
    """Yield the digests of the same spec without the choices made for it: mechanism, workload to optimise for."""
    solved = manifest.spec
    for without in ({"mechanism"}, {"optimize_for"}, {"mechanism", "optimize_for"}):
        with suppress(FactorizeError):
            asked = parse_spec({name: part for name, part in solved.items() if name not in without})
            if without <= solved.keys() and choose(asked).digest == manifest.spec_digest:
                yield json_digest(asked.document())


def _draw(results: Store, manifest: Manifest) -> bytes:
    out = BytesIO()
    picture("overview", [results.load(manifest.digest)], ["C"]).savefig(out, dpi=80, format="png")
    return out.getvalue()


_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:16px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
pre{{overflow:auto;background:#f4f4f4;color:#111;padding:1rem}}img{{max-width:100%}}</style>
<h1>{title}</h1>
"""


def _page(manifest: Manifest, address: str) -> str:
    """Return the page of one result: picture, certificate, the commands that make and get it, how to cite it."""
    version = str(manifest.solver["version"])
    index = f"{address.removesuffix(INDEX).rstrip('/')}/{INDEX}"
    commands = [
        f"factorize get {manifest.digest} --service {index} --to C.safetensors",
        "factorize verify C.safetensors",
        f"factorize solve '{json.dumps(manifest.spec)}'   # with release {version}, to make it anew",
    ]
    cited = f"factorize {version}, factorization {manifest.digest}, which answers the spec {manifest.spec_digest}"
    parts = {"Certificate": describe_manifest(manifest), "Use": "\n".join(commands), "Cite": cited}
    body = "".join(f"<h2>{name}</h2><pre>{escape(text)}</pre>\n" for name, text in parts.items())
    title = _HEAD.format(title=escape(describe_spec(manifest.spec)))
    drawn = f'<img src="{manifest.digest}.png" alt="C, its inverse and the error of each query">\n'
    file = f"../{BLOBS}/{manifest.file.sha256}"
    links = f'<p><a href="{file}" download="C.safetensors">The file</a> ({manifest.file.bytes} bytes) and '
    return f'{title}{drawn}{body}{links}<a href="../{MANIFESTS}/{manifest.digest}">its manifest</a></p>\n'


def _contents(mirrored: list[MirrorResult], results: Store) -> str:
    """Return the first page, which lists the results."""
    lines = sorted((describe_spec(results.manifest(one.digest).spec), one.digest) for one in mirrored)
    rows = "".join(f'<li><a href="{PAGES}/{name}.html">{escape(text)}</a></li>\n' for text, name in lines)
    return f"{_HEAD.format(title=f'{len(lines)} factorizations')}<ul>\n{rows}</ul>\n"
