"""A worker that does what it is told: answers, refuses, prints, crashes or sleeps."""

from __future__ import annotations

import os
import time

from factorize.api.child_protocol import Document, Tell, serve_each
from factorize.errors import UnsupportedProblem


def do(asked: Document, tell: Tell) -> Document:
    match asked["do"]:
        case "refuse":
            raise UnsupportedProblem("no such thing")
        case "crash":
            os.write(2, b"out of luck\n")
            os.abort()
        case "sleep":
            time.sleep(600)
    print("noise of a library")
    tell(iteration=1)
    return {"pid": os.getpid(), "echo": asked}


if __name__ == "__main__":
    serve_each(do)
