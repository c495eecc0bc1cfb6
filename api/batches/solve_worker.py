"""The solving worker of a batch: solves one small spec after the other and writes each file where it is told.

It is asked `{"spec", "store", "path"}` (api/child_protocol.py). It publishes nothing: the file is checked by the
proving worker (proof_worker.py) and gets its name in a group (api/batches/lanes.py).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from factorize import solvers
from factorize.api.child_protocol import Document, Tell, serve_each
from factorize.errors import StoreUnavailable
from factorize.spec import parse_spec
from factorize.storage.medium.files import Files
from factorize.storage.store import Store, open_store


def solve(asked: Document, _tell: Tell) -> Document:
    """Solve a canonical spec and write its factor file.

    Raises:
        FactorizeError: there is no file.
    """
    store = _store(asked["store"])
    spec = store.bind(parse_spec(asked["spec"]))
    found = solvers.solve(spec)
    try:
        Files().produce(Path(asked["path"]), found.save)
    except OSError as error:
        raise StoreUnavailable(f"{asked['path']}: {error}; free space and try again") from None
    return {"digest": found.digest}


@cache
def _store(url: str) -> Store:
    return open_store(url, create=False)


if __name__ == "__main__":
    serve_each(solve)
