"""A stored factorization in another form, made in a process of its own: with further matrices, or in another type.

It is asked `{"spec": {"digest": ..., "matrices": [...], "dtype": ...}, "store": ...}` (api/child_protocol.py), makes
the form, certifies and stores it, and names its digest.
"""

from __future__ import annotations

import sys
from functools import partial

from factorize.api.child_protocol import Document, Tell, serve


def expand(asked: Document, _tell: Tell) -> Document:
    """Store one more form of a factorization.

    Raises:
        FactorizeError: nothing was stored.
    """
    from factorize.api.proof import prove
    from factorize.rounded import cast
    from factorize.storage.store import open_store

    given, store = asked["spec"], open_store(asked["store"])
    base = store.load(given["digest"])
    form = base.with_matrices(given["matrices"]) if given["dtype"] is None else cast(base, given["dtype"])
    return {"digest": store.put(form, check=partial(prove, store=store.url))["digest"]}


def main() -> int:
    """Make what stdin asks for; see `serve`."""
    return serve(expand)


if __name__ == "__main__":
    sys.exit(main())
