"""How Python hashes texts in a run of the simulation."""

from __future__ import annotations

import os
import sys


def fix_hashes(program: str) -> None:
    """Start a program again unless texts are hashed by a fixed key: the order of sets is a part of each run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", program, *sys.argv[1:]])
