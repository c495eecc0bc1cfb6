"""The solver of a pool, made slow: it reports progress until there is a file `<store>/go`, then solves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from factorize.api.questions import registry
from factorize.api.workers.worker_process import Tell
from factorize.solution import Progress

make_ready = registry.make_ready


def solve(request: dict[str, Any], tell: Tell) -> str:
    gate = Path(urlsplit(request["store"]).path) / "go"
    step = 0
    while not gate.exists():
        step += 1
        tell(**vars(Progress(step, 1 / step, None, 0.1 * step)))
        time.sleep(0.1)
    return registry.solve(request, tell)


QUESTIONS = registry.QUESTIONS | {"solve": solve}
