"""Run the benchmarks: `python -m benchmarks [NAME ...] [--quick | --full] [--cap SECONDS] [--to FOLDER]`.

Prints the machine, then rows with absolute seconds and a ratio against something measured in the same run; writes
build/bench/NAME.json, from which `python -m benchmarks.page` makes the page. `--against FOLDER` prints, at the end, the
rows whose ratio is 1.25 times that of an earlier run or more.
"""

from __future__ import annotations

import argparse
import inspect
import io
import os
import sys
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.report import FOLDER, Machine, Report, slower

NAMES = tuple(
    name
    for name in (
        "single",
        "epochs",
        "banded",
        "toeplitz",
        "scale",
        "amplified",
        "forged_claims",
        "service",
        "path",
        "noise",
        "rows",
        "peer",
    )
    if find_spec(f"benchmarks.{name}")
)
FETCHING_NAMES = ("peer",)
"""Benchmarks that fetch other libraries; a quick run leaves them out unless they are named."""
LONG_NAMES = ("scale",)
"""Benchmarks that take an hour or more; a run leaves them out unless they are named or it is quick."""


class Tee(io.StringIO):
    """Text that is shown and kept."""

    def __init__(self, shown: Any) -> None:
        super().__init__()
        self._shown = shown

    def write(self, text: str) -> int:
        """Show and keep."""
        self._shown.write(text)
        self._shown.flush()
        return super().write(text)


def run(name: str, report: Report, cap: float | None) -> None:
    """Run one benchmark: its `run(report)`, or its `main()`, whose lines are kept as remarks."""
    module = import_module(f"benchmarks.{name}")
    if hasattr(module, "run"):
        more = {} if cap is None or "cap" not in inspect.signature(module.run).parameters else {"cap": cap}
        module.run(report, **more)
        return
    if report.quick:
        report.remark("has no quick form")
        return
    with redirect_stdout(Tee(sys.stdout)) as text:
        module.main()
    report.rows += [{"remark": line} for line in text.getvalue().splitlines()]


def main() -> None:
    """Run those that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all but scale if none is named"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: to see that all runs, not how fast")
    parser.add_argument("--full", action="store_true", help="also n = 10^7")
    parser.add_argument("--cap", type=float, help="seconds for each run of the peer")
    parser.add_argument("--to", type=Path, default=FOLDER, help=f"folder of the JSON files, {FOLDER} by default")
    parser.add_argument("--against", type=Path, help="folder of the JSON files of an earlier run, to be compared with")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; use {', '.join(NAMES)}")
    machine = Machine.measured(side=256 if asked.quick else 2048)
    print(machine.text)
    usual = [name for name in NAMES if name not in (FETCHING_NAMES if asked.quick else LONG_NAMES)]
    for name in asked.names or usual:
        print(f"\n=== {name} (load {os.getloadavg()[0]:.1f})", flush=True)
        report = Report(name, machine, quick=asked.quick, full=asked.full)
        run(name, report, asked.cap)
        path = report.write(asked.to)
        print(f"  written to {path}", flush=True)
        for text in () if asked.against is None else slower(asked.against / path.name, report.rows):
            print(f"  slower: {text}")


if __name__ == "__main__":
    main()
