"""A solve in a process of its own.

It reads one JSON line `{"spec": ..., "store": ...}` from stdin, solves, certifies, writes the file, has it checked by
yet another process (api/proof.py), and publishes it in the store; nothing is visible there before. On stdout it says
how far it is and how it ended (api/jobs/supervisor.py has the protocol).
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import IO, Any

from factorize.errors import FactorizeError


def main() -> int:
    """Solve what stdin asks for; the exit status is 0 where it is stored."""
    request = json.loads(sys.stdin.readline())
    with _own_stdout() as out:
        try:
            digest = solve(request["spec"], request["store"], out)
        except FactorizeError as error:
            return _failed(out, error.slug, str(error))
        except MemoryError as error:
            return _failed(out, "MemoryError", str(error))
        _say(out, {"event": "done", "digest": digest})
    return 0


def solve(document: dict[str, Any], url: str, out: IO[str]) -> str:
    """Solve a spec and store the answer.

    Args:
        document: the canonical spec.
        url: where the store is.
        out: takes the progress lines.

    Returns:
        The digest of what is stored.

    Raises:
        FactorizeError: nothing was stored.
    """
    from factorize import solvers
    from factorize.api.proof import prove
    from factorize.solution import Progress
    from factorize.spec import parse_spec
    from factorize.storage.neighbours import nearest
    from factorize.storage.store import open_store

    def report(progress: Progress) -> None:
        _say(out, {"event": "progress", **vars(progress)})

    store = open_store(url)
    spec = store.bind(parse_spec(document))
    found = solvers.solve(spec, progress=report, warm_start=nearest(spec, store))
    digest: str = store.put(found, check=partial(prove, store=store.url))["digest"]
    return digest


def _own_stdout() -> IO[str]:
    """Return the pipe to the supervisor, and let whatever a library prints go to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    return out


def _say(out: IO[str], event: dict[str, Any]) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()


def _failed(out: IO[str], kind: str, message: str) -> int:
    _say(out, {"event": "failed", "error": {"type": kind, "message": message}})
    return 1


if __name__ == "__main__":
    sys.exit(main())
