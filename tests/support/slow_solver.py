"""The solver of a pool, made slow: it reports progress until there is a file `<store>/go`, then solves.

Comparisons of a thousand steps or more never end, which costs no processor, as that of a long one does.
"""

from __future__ import annotations

import time
from typing import Any

from factorize.api.questions import registry
from factorize.api.workers.worker_process import Tell
from factorize.factors.solution import Progress
from factorize.storage.medium.location import directory_of

make_ready = registry.make_ready


def solve(request: dict[str, Any], tell: Tell) -> str:
    gate = directory_of(request["store"]) / "go"
    step = 0
    while not gate.exists():
        step += 1
        tell(**vars(Progress(step, 1 / step, None, 0.1 * step)))
        time.sleep(0.1)
    return registry.solve(request, tell)


def compare(request: dict[str, Any], tell: Tell) -> Any:
    while request["request"]["spec"]["workload"]["n"] >= 1000:
        tell(done=0, total=1, mechanism="dense", seconds=0.0)
        time.sleep(0.1)
    return registry.QUESTIONS["compare"](request, tell)


QUESTIONS = registry.QUESTIONS | {"solve": solve, "compare": compare}
