"""Processes that stay for the tests to come, so that no test has to answer for them: shared servers, workers, the prover."""

from __future__ import annotations

import psutil

from factorize.api.proof import prover
from factorize.api.workers.pool import Pool

SHARED: set[int] = set()
POOLS: list[Pool] = []


def own_children() -> list[psutil.Process]:
    """Children of this process that are none of the shared ones."""
    workers = [worker for pool in POOLS for pair in pool._pairs for worker in (pair.solver, pair.prover)]
    shared = SHARED | {worker.pid for worker in (*workers, prover())}
    return [process for process in psutil.Process().children() if process.pid not in shared]
