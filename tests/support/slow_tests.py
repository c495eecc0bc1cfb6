"""List of slow tests, made from a run: `python tests/support/slow_tests.py REPORT`, of `pytest --durations=0`.

A test function is slow if its cases take half a second or more together, fixtures included.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

LIMIT = 0.5
LINE = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +([^\[\n]+?)(?:\[.*)?$", re.MULTILINE)
TARGET = Path(__file__).with_name("slow_tests.txt")


def slow(report: str) -> list[str]:
    """Return the functions whose durations add up to the limit."""
    seconds: dict[str, float] = defaultdict(float)
    for duration, name in LINE.findall(report):
        seconds[name.strip()] += float(duration)
    return sorted(name for name, total in seconds.items() if total >= LIMIT)


if __name__ == "__main__":
    TARGET.write_text("\n".join(slow(Path(sys.argv[1]).read_text())) + "\n")
