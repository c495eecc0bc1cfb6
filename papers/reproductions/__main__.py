"""Run reproductions of the five papers: `python -m papers.reproductions [NAME ...] [--quick] [--mnist FOLDER] ...`.

Prints published beside reproduced numbers with standard errors, and whether each agrees; writes build/papers/NAME.json
and pictures. The exit code is 0 also where something differs: the last lines say what.
papers/pages/reproductions.md explains.
"""

from __future__ import annotations

import argparse
import inspect
import time
from importlib import import_module
from pathlib import Path

from papers.reproductions.comparison import FOLDER, Comparison

NAMES = tuple(
    sorted(
        path.stem
        for path in Path(__file__).parent.glob("*.py")
        if path.stem not in ("__main__", "comparison") and "\ndef run(" in path.read_text()
    )
)

DATA = {"mnist": "FOLDER", "npz": "FILE"}
"""The options that name the user's data, as the reproductions' `run` takes them."""


def main() -> None:
    """Run those that are named, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m papers.reproductions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="small sizes and scikit-learn's digits: whether all runs")
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="folder of MNIST's four IDX files, .gz or not")
    parser.add_argument("--npz", type=Path, metavar="FILE", help="x_train, y_train, x_test, y_test (nu_figure4)")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER", help="for JSON files and pictures")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(NAMES)
    if unknown:
        parser.error(f"no reproduction {', '.join(sorted(unknown))}; use {', '.join(NAMES)}")
    different = []
    for name in asked.names or NAMES:
        module = import_module(f"papers.reproductions.{name}")
        comparison = Comparison(name, module.TITLE, quick=asked.quick, folder=asked.out)
        given = {one: getattr(asked, one) for one in DATA if one in inspect.signature(module.run).parameters}
        if given and not any(given.values()) and not asked.quick:
            options = " or ".join(f"--{one} {DATA[one]}" for one in given)
            comparison.remark(f"not run: it needs {options} (papers/pages/reproductions.md says how to get the files)")
            continue
        began = time.perf_counter()
        module.run(comparison, **given)
        different += [f"{name}: {text}" for text in comparison.differences if not asked.quick]
        print(f"  {time.perf_counter() - began:.0f} s, written to {comparison.write()}", flush=True)
    print("\nNot as published:" if different else "\nNothing differs from what is published.")
    for text in different:
        print(f"  {text}")


if __name__ == "__main__":
    main()
