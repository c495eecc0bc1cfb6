"""A comparison in a process of its own, and the same for the command line.

Reads one JSON line `{"spec": {"request": ..., "to": path}, "store": ...}` from stdin, writes the table to the path and
says on stdout how far it is and how it ended (api/jobs/supervisor.py has the protocol; the digest is that of the
table's bytes). Nothing is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from factorize.api.comparing.compare_request import CompareRequest, read_request
from factorize.encoding import canonical_json
from factorize.errors import FactorizeError
from factorize.storage.store import Store

Report = Callable[[int, int, str, float], None]
"""Told mechanisms done, their total, the one that runs, and seconds since the beginning."""


def comparison(request: CompareRequest, store: Store | None, report: Report) -> dict[str, Any]:
    """Return the table as plain data.

    Args:
        request: what is asked.
        store: where a user's matrices are, if there is one.
        report: see `Report`; what it raises ends the comparison.

    Raises:
        FactorizeError: from `solvers.compare`.
    """
    from factorize.privacy import PrivacyTarget
    from factorize.solvers.comparing.compare import CompareProgress, Sampling, compare

    def tell(progress: CompareProgress) -> None:
        report(progress.done, progress.total, progress.mechanism, progress.seconds)

    spec = request.spec
    privacy = sampling = None
    if request.epsilon is not None:
        privacy = PrivacyTarget(epsilon=request.epsilon, delta=request.delta)
    if request.dataset_size is not None and request.batch_size is not None:
        sampling = Sampling(request.dataset_size, request.batch_size)
    table = compare(
        spec if store is None else store.bind(spec),
        buffers=request.buffers,
        bytes_per_parameter=request.bytes_per_parameter,
        privacy=privacy,
        sampling=sampling,
        samplings=request.samplings,
        progress=tell,
        most_seconds=request.max_seconds,
    )
    return table.to_dict()


def main() -> int:
    """Compare what stdin asks for; the exit status is 0 where the table was written."""
    from factorize.storage.store import open_store

    asked = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever a library prints is no line of the protocol

    def say(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    def report(done: int, _total: int, _mechanism: str, seconds: float) -> None:
        say({"event": "progress", "iteration": done, "seconds": seconds})

    try:
        request = read_request(asked["spec"]["request"])
        table = canonical_json(comparison(request, open_store(asked["store"]), report))
        Path(asked["spec"]["to"]).write_bytes(table)
    except (FactorizeError, MemoryError) as error:
        kind = error.slug if isinstance(error, FactorizeError) else "MemoryError"
        say({"event": "failed", "error": {"type": kind, "message": str(error)}})
        return 1
    say({"event": "done", "digest": hashlib.sha256(table).hexdigest()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
