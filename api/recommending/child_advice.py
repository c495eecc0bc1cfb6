"""Advice in a process of its own, for the service: the comparison, and what follows from it for the training job.

It is asked `{"spec": {"request": ..., "to": path}, "store": ...}` (api/child_protocol.py), says how far it is, writes
the advice with its table to the path and names its digest. Nothing is stored.
"""

from __future__ import annotations

import sys

from factorize.api.child_protocol import Document, Tell, serve, written
from factorize.api.recommending.advice import advice_of, request_of, table_of
from factorize.api.recommending.recommend_request import read_job


def advise_beside(asked: Document, tell: Tell) -> Document:
    """Write the advice for a training job; `table` is the comparison that it rests on.

    Raises:
        FactorizeError: nothing was written.
    """

    def report(done: int, total: int, mechanism: str, seconds: float) -> None:
        tell(iteration=done, total=total, mechanism=mechanism, seconds=seconds)

    given = asked["spec"]
    job = read_job(given["request"])
    notes, request = request_of(job)
    table = table_of(request, None, report)
    return written(given["to"], {**advice_of(job, table, notes), "table": table})


def main() -> int:
    """Answer what stdin asks for; see `serve`."""
    return serve(advise_beside)


if __name__ == "__main__":
    sys.exit(main())
