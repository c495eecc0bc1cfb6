"""The child process of one solve, made slow: it reports progress until there is a file `<store>/go`, then solves."""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit


def main() -> None:
    request = json.loads(sys.stdin.readline())
    gate = Path(urlsplit(request["store"]).path) / "go"
    step = 0
    while not gate.exists():
        step += 1
        event = {
            "event": "progress",
            "iteration": step,
            "relative_gap": 1 / step,
            "class_gap": None,
            "seconds": 0.1 * step,
        }
        print(json.dumps(event), flush=True)
        time.sleep(0.1)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    os.lseek(0, 0, os.SEEK_SET)
    sys.stdin = os.fdopen(os.dup(0))
    runpy.run_module("factorize.api.jobs.child", run_name="__main__")


main()
