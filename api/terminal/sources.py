"""Sources that commands are given: specs as text, results as files or digests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from factorize.api.form import read_names
from factorize.api.pictures.factorization_plot import check_format
from factorize.api.settings import NoOwnStore, load_settings
from factorize.api.terminal.output import remark
from factorize.api.terminal.spec_command import is_name
from factorize.api.terminal.targets import check_target, write_whole
from factorize.encoding import MAX_JSON_BYTES, is_digest
from factorize.errors import InvalidParameter, NotFound, StoreUnavailable
from factorize.factors.factor_file import load
from factorize.factors.factorization import Factorization
from factorize.format.container import check_is_regular, local_path
from factorize.format.manifest import Manifest
from factorize.format.tensors import MatrixName
from factorize.spec import Spec, parse_spec
from factorize.storage.records import user_matrices
from factorize.storage.store import Store, open_store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SPEC_BYTES = 1 << 20


def open_results(url: str | None, *, create: bool, check: Callable[[Store], object] = lambda _store: None) -> Store:
    """Open the store of the option, of the settings, or the user's own.

    Args:
        url: what `--store` says, or None.
        create: whether a store that does not exist is made.
        check: raises StoreUnavailable where the store does not serve.

    Raises:
        NotFound: there is no store, and none is to be made.
        InvalidParameter: it cannot be opened; NoOwnStore where nobody named it.
    """
    settings = load_settings(store=url)
    try:
        store = open_store(settings.store, create=create)
        check(store)
        return store
    except StoreUnavailable as error:
        text = f"the store {settings.store} cannot be opened: {error}"
        if "store" in settings.model_fields_set:
            raise InvalidParameter(text, field="store") from None
        raise NoOwnStore(f"{text}; name a store with --store or FACTORIZE_STORE", field="store") from None


def existing_results(url: str | None) -> Store | None:
    """Return the store, or None where there is none, or where the user's own cannot be opened."""
    with suppress(NotFound, NoOwnStore):
        return open_results(url, create=False)
    return None


def results_to_fill(url: str | None, answer: Spec | None = None) -> Store | None:
    """Open the store, and make it; None, with a warning, where the user's own cannot be used: the answer needs none.

    Args:
        url: see `open_results`.
        answer: what is asked; a store that has its answer need not be writable.

    Raises:
        InvalidParameter: it was named, and cannot be used.
    """

    def check(store: Store) -> None:
        if answer is None or store.find(answer) is None:
            store.check_writable()

    try:
        return open_results(url, create=True, check=check)
    except NoOwnStore as error:
        remark(f"warning: the answer could not be kept: {error}")
        return None


def read_spec_text(source: str) -> bytes:
    """Return the JSON text of a spec that is given inline, as a path, or on stdin.

    Raises:
        InvalidParameter: neither, or too long.
        OSError: the file cannot be read.
    """
    if source.lstrip().startswith("{"):
        return source.encode("utf-8", "surrogatepass")
    if source == "-":
        return _limited(sys.stdin.buffer.read(MAX_SPEC_BYTES + 1), "stdin")
    path = local_path(source)
    if not path.exists() and not source.strip():
        raise InvalidParameter("the spec is empty; give a path, '-' or JSON that starts with '{'", field="SPEC")
    with path.open("rb") as file:
        return _limited(file.read(MAX_SPEC_BYTES + 1), source)


def read_start(path: Path) -> bytes:
    """Return what the strict reader of JSON takes of a file, and one byte more, which it refuses."""
    with path.open("rb") as file:
        return file.read(MAX_JSON_BYTES + 1)


def _limited(text: bytes, name: str) -> bytes:
    if len(text) > MAX_SPEC_BYTES:
        raise InvalidParameter(f"{name} is longer than {MAX_SPEC_BYTES} bytes, the limit of a spec", field="SPEC")
    return text


def read_spec(source: str) -> Spec:
    """Return the canonical spec of an argument; see `read_spec_text`."""
    return parse_spec(read_spec_text(source))


def parse_matrices(text: str | None) -> list[MatrixName]:
    """Return the names in a `--matrices` list, C where there is none; see `read_names`."""
    return list(read_names((text or "C").replace(" ", "")))


def full_digest(text: str, results: Store) -> str:
    """Return the digest, or spec digest, that a text is or begins.

    Raises:
        NotFound: nothing in the store begins so.
        InvalidParameter: several do, and not of one result.
    """
    if is_digest(text):
        return text
    names = results.index.beginning(text)
    if not names:
        raise NotFound(f"the store {results.url} has no digest that begins with {text}; `factorize ls` lists its own")
    if len(names) > 1:
        shown = ", ".join(name[: len(text) + 6] for name in names[:4])
        raise InvalidParameter(f"{text} begins {len(names)} digests, {shown}; give more digits", field="target")
    return names[0]


def open_target(target: str, store: str | None) -> Factorization:
    """Open a factor file, or a stored result by digest or spec digest; every byte is compared with its digest.

    The beginning of a digest does, where one alone begins so.

    A user's matrix is not part of a factor file; it is read from the store.

    Raises:
        NotFound: no such digest in the store, or a user's matrix is not there.
        CorruptObject: the bytes are damaged.
        OSError: the file cannot be read.
    """
    if is_name(target):
        results = open_results(store, create=False)
        return results.load(full_digest(target, results))
    path = local_path(target)
    check_is_regular(path)
    with path.open("rb"):
        pass  # a missing or forbidden file is the system's error, in the system's words
    loaded = load(path)
    spec = loaded.manifest.spec
    if not user_matrices(spec):
        return loaded
    try:
        numbers = open_results(store, create=False).matrices.named_by(spec)
    except NotFound as error:
        raise NotFound(
            f"{path} is for a matrix of your own, whose numbers are not in the file: {error}; name the store that has "
            "them with --store"
        ) from None
    return load(path, matrices=numbers)


def check_picture(path: Path | None) -> None:
    """Refuse a picture that cannot be drawn: its suffix is no format, or its file cannot be written."""
    if path is not None:
        check_format(path)
        check_target(path)


def save_picture(figure: Figure, path: Path) -> None:
    """Write a picture, whole or not at all."""
    with write_whole(path) as part:
        figure.savefig(part, dpi=130)


def copy_stored(results: Store, manifest: Manifest, path: Path, accept: Callable[[Path], object] | None = None) -> None:
    """Write a result's factor file, byte for byte the stored one, whole or not at all.

    Args:
        results: the store.
        manifest: manifest of the result.
        path: the file to write.
        accept: is called with the whole file before it gets its name, and raises where it may not.

    Raises:
        CorruptObject: the stored bytes are damaged.
        OSError: the file cannot be written.
    """
    with write_whole(path) as part:
        with part.open("wb") as file:
            for chunk in results.blob(manifest.file.sha256).read():
                file.write(chunk)
        if accept is not None:
            accept(part)


@contextmanager
def file_of(target: str, store: str | None) -> Iterator[Path]:
    """Give the path of a file that is named, or of a copy of a stored result's.

    Args:
        target: path or digest.
        store: what `--store` says.
    """
    if not is_name(target):
        check_is_regular(path := local_path(target))
        yield path
        return
    results = open_results(store, create=False)
    with TemporaryDirectory(prefix="factorize.") as folder:
        path = Path(folder) / "factors.safetensors"
        copy_stored(results, results.manifest(full_digest(target, results)), path)
        yield path
