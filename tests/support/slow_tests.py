"""List of slow tests, made from a run: `pytest --seconds REPORT`, and then this with REPORT.

A test function is slow if its cases take 0.2 seconds of processor time together, fixtures included, or wait for
four times as long. The second paragraph of the list is kept as it is: tests that are quick after others, and that would
pay in their place for what a process does once, such as compiling the kernels of a solver.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

LIMIT, WAITING = 0.2, 4
LINE = re.compile(r"^([\d.]+) ([\d.]+) ([^\[\n]+)", re.MULTILINE)
TARGET = Path(__file__).with_name("slow_tests.txt")


def slow(report: str) -> list[str]:
    """Return the functions whose seconds add up to the limit."""
    seconds: dict[str, float] = defaultdict(float)
    for busy, clock, name in LINE.findall(report):
        seconds[name] += max(float(busy), float(clock) / WAITING)
    return sorted(name for name, total in seconds.items() if total >= LIMIT)


if __name__ == "__main__":
    kept = TARGET.read_text().partition("\n\n")[2]
    found = sorted(set(slow(Path(sys.argv[1]).read_text())) - set(kept.split()))
    TARGET.write_text("\n".join(found) + "\n\n" + kept)
