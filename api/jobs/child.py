"""A solve in a process of its own.

It is asked `{"spec": ..., "store": ...}` (api/child_protocol.py), solves, certifies, writes the file, has it checked by
yet another process (api/proof.py), and publishes it in the store; nothing is visible there before. The digest that it
names at the end is that of what it stored.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from factorize.api.child_protocol import Document, Tell, serve

if TYPE_CHECKING:
    from factorize.storage.incoming import Check

_log = logging.getLogger(__name__)


def main() -> int:
    """Solve what stdin asks for; the exit status is 0 where it is stored."""
    return serve(solve)


def solve(asked: Document, tell: Tell, *, check: Check | None = None) -> Document:
    """Solve a canonical spec and store the answer.

    Args:
        asked: the request.
        tell: told how far it is.
        check: has the last word on the written file; by default the proof in a process of its own.

    Raises:
        FactorizeError: nothing was stored.
    """
    from factorize import solvers
    from factorize.api.proof import prove
    from factorize.api.stages import Stages
    from factorize.solution import Progress
    from factorize.spec import parse_spec
    from factorize.storage.store import open_store

    def report(progress: Progress) -> None:
        tell(**vars(progress))

    store = open_store(asked["store"])
    stages = Stages(report, check or partial(prove, store=store.url))
    spec = store.bind(parse_spec(asked["spec"]))
    _log.info("the child solves", extra={"about": {"pid": os.getpid(), "mechanism": spec.mechanism.kind}})
    found = solvers.solve(spec, progress=stages.step)
    digest = store.put(found, check=stages.check)["digest"]
    _log.info("the result is stored", extra={"about": {"digest": digest}})
    return {"digest": digest, "timings": stages.timings()}


if __name__ == "__main__":
    sys.exit(main())
