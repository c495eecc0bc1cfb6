"""The solving worker of a batch, which the kernel kills when n is 5."""

from __future__ import annotations

import os
import signal

from factorize.api.batches.solve_worker import solve
from factorize.api.child_protocol import Document, Tell, serve_each


def sometimes(asked: Document, tell: Tell) -> Document:
    if asked["spec"]["workload"].get("n") == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return solve(asked, tell)


if __name__ == "__main__":
    serve_each(sometimes)
