"""A worker that does what it is told: answers, refuses, prints, allocates, wears out, crashes or sleeps."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from typing import Any

from factorize.api.workers.worker_process import Tell
from factorize.errors import InvalidSpec, UnsupportedProblem, Violation


def make_ready() -> None:
    """Do nothing: nothing is needed."""


def do(request: dict[str, Any], tell: Tell) -> dict[str, Any]:
    for step in range(request.get("steps", 0)):
        tell(iteration=step)
    match request["do"]:
        case "refuse":
            raise UnsupportedProblem("no such thing", field="mechanism")
        case "refuse spec":
            raise InvalidSpec([Violation("/workload/n", "must be positive")])
        case "refuse memory":
            raise MemoryError("3 GiB")
        case "crash":
            os.write(2, b"out of luck\n")
            os.abort()
        case "divide":
            print(1 / 0)
        case "signal":
            os.kill(os.getpid(), request["number"])
            time.sleep(600)
        case "exit":
            os._exit(request["status"])
        case "allocate":
            bytearray(request["mib"] << 20)
        case "wear":
            sys.modules["__main__"].MAX_BYTES = 0
        case "flood":
            for _ in range(200):
                sys.stdout.write("y" * 100_000)
        case "child":
            child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
            tell(iteration=child.pid)
            time.sleep(600)
        case "sleep":
            time.sleep(600)
        case "hold":  # it keeps the interpreter's lock
            tell(iteration=os.getpid())
            ctypes.PyDLL(None).sleep(600)
    print("noise of a library")
    return {"pid": os.getpid(), "echo": request, "environment": dict(os.environ)}


QUESTIONS = {"do": do}
