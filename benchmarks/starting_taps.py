"""The table of taps that searches for balls in bins start from (factorize/solvers/amplified/families.py).

Each entry is the end of a whole search for running sums, in the variables that a search moves. Entries prove nothing:
what is made from them is certified and calibrated like any strategy. `python -m benchmarks.starting_taps` writes the
table; it takes ten minutes.
"""

from __future__ import annotations

import json
from itertools import product

from factorize.solvers.amplified.bins_optimum import search_for
from factorize.solvers.amplified.families import BINS, BUFFERS, DELTA, EPOCHS, EPSILONS, TABLE
from factorize.solvers.problem import Problem, Reporter
from factorize.spec import parse_spec


def entry(buffers: int, bins: int, epochs: int, epsilon: float) -> list[float]:
    """Return the variables of the best buffered Toeplitz strategy found."""
    spec = parse_spec(
        {
            "workload": {"kind": "prefix", "n": bins * epochs},
            "participation": {"kind": "fixed_epochs", "epochs": epochs} if epochs > 1 else {"kind": "single"},
            "mechanism": {"kind": "blt", "buffers": buffers},
            "sampling": {"kind": "balls_in_bins", "epsilon": epsilon, "delta": DELTA},
        }
    ).canonical()
    found = search_for(Problem(spec), Reporter(lambda _: None))
    return [round(float(value), 3) for value in found.variables]


def main() -> None:
    """Write the table that searches read."""
    rows = [json.dumps(entry(*place)) for place in product(BUFFERS, BINS, EPOCHS, EPSILONS)]
    TABLE.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
