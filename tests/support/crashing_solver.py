"""The solver of a pool, which the kernel kills when n is 5."""

from __future__ import annotations

import os
import signal
from typing import Any

from factorize.api.questions import registry
from factorize.api.workers.worker_process import Tell

make_ready = registry.make_ready


def solve(request: dict[str, Any], tell: Tell) -> str:
    if request["spec"]["workload"].get("n") == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return registry.solve(request, tell)


QUESTIONS = {"solve": solve}
