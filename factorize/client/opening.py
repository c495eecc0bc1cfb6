"""The opening of a factorization, wherever it is: a file, a store, a service, or the cache of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

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
    matrices: Mapping[str, np.ndarray] | None = None,
) -> Factorization:
    """Return the factorization of a file, spec, digest or URL, its bytes checked against its manifest.

    The certificate is not recomputed; call `verify` for that. In a training job `factorize.client.load` is lighter.

    Args:
        source: a path; a spec (JSON text, plain data, `factorize.Spec`); a digest or spec digest; or the URL of a
            factorization.
        url: of a service, for what the cache does not have.
        store: URL or folder of a store, likewise.
        cache: folder for downloaded files; by default $FACTORIZE_CACHE or the platform's folder for caches.
        matrices: numbers of user-supplied workloads by sha256, for specs with workload kind `matrix`.

    Raises:
        See `factorize.client.load`.
    """
    from factorize.client.loading import is_path, obtain

    if is_path(source) and not str(source).startswith(("http://", "https://")):
        return open_file(str(source), matrices=matrices)
    path, _ = obtain(source, url=url, store=store, cache=cache)
    return open_file(path, matrices=matrices)
