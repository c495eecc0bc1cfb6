"""Processes that stay for the tests to come, so that no test has to answer for them: shared servers, the prover."""

from __future__ import annotations

import psutil

from factorize.api.proof import prover

SHARED: set[int] = set()


def own_children() -> list[psutil.Process]:
    """Children of this process that are none of the shared ones; the prover stays for the next proof."""
    shared = SHARED | {prover().pid}
    return [process for process in psutil.Process().children() if process.pid not in shared]
