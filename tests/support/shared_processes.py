"""Processes that stay for the tests to come, so that no test has to answer for them: shared servers, the nursery."""

from __future__ import annotations

import psutil

from factorize.api.processes.nursery import NURSERY_OF_THIS_PROCESS

SHARED: set[int] = set()


def own_children() -> list[psutil.Process]:
    """Children of this process that are none of the shared ones; the nursery stays for the next child."""
    shared = SHARED | {NURSERY_OF_THIS_PROCESS.pid}
    return [process for process in psutil.Process().children() if process.pid not in shared]
