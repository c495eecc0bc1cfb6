"""The opening of a factorization, wherever it is: a file, a store, a service, or the cache of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from factorize.client.connection import TIMEOUT
from factorize.client.events import ProgressCallback, ignore
from factorize.factor_file import load as open_file
from factorize.factorization import Factorization

if TYPE_CHECKING:
    from factorize.client.loading import Source


def load(
    source: Source,
    *,
    url: str | None = None,
    store: str | Path | None = None,
    cache: str | Path | None = None,
    progress: ProgressCallback = ignore,
    timeout: float = TIMEOUT,
    matrices: Mapping[str, np.ndarray] | None = None,
) -> Factorization:
    """Return the factorization of a file, spec, digest or URL, its bytes checked against its manifest.

    The certificate is not recomputed; call `verify` for that. `factorize.client.load` takes the same and answers in the
    same words, and leaves C in its file until something needs it: a training job needs neither pydantic nor the memory.

    Args:
        source: a path; a spec (JSON text, plain data, `factorize.Spec`); a digest or spec digest; or the URL of a
            factorization.
        url: of a service, for what the cache does not have.
        store: URL or folder of a store, likewise.
        cache: folder for downloaded files; by default $FACTORIZE_CACHE or the platform's folder for caches.
        progress: called with the events of a running solve and of the download.
        timeout: seconds without a byte after which a connection counts as stalled.
        matrices: numbers of user-supplied workloads by sha256, for specs with workload kind `matrix`.

    Raises:
        FactorizeError: as of `factorize.client.load`.
    """
    from factorize.client.loading import is_path, obtain

    if is_path(source) and not str(source).startswith(("http://", "https://")):
        return open_file(str(source), matrices=matrices)
    path, _ = obtain(source, url=url, store=store, cache=cache, progress=progress, timeout=timeout)
    return open_file(path, matrices=matrices)
