"""`python library/make.py`: writes specs.jsonl, the factors that people need, the cheapest first.

`make library` solves what a store does not have yet, and mirrors it. The list is in the repository, so that two people
who build the library ask for the same specs, by the same digests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from factorize.solvers import choose, estimate
from factorize.spec import parse_spec

Document = dict[str, Any]
HERE = Path(__file__).parent
COSINE = {"kind": "cosine", "final": 0.0}


def workloads(n: int) -> list[Document]:
    """Running sums, and momentum 0.9 with a cosine, of as many steps."""
    return [
        {"kind": "prefix", "n": n},
        {"kind": "momentum", "n": n, "momentum": 0.9, "learning_rates": COSINE},
    ]


def specs() -> Iterator[Document]:
    """Yield the specs, those of one kind together."""
    for n in (512, 1024, 2048, 4096, 10_000):
        for workload in workloads(n):
            yield {"workload": workload, "mechanism": {"kind": "buffered_linear", "buffers": 4}}
        yield {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "square_root"}}
        for buffers in (2, 4):
            yield {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "blt", "buffers": buffers}}
    for n, epochs in (
        (512, 4),
        (512, 8),
        (1000, 10),
        (1024, 4),
        (1024, 8),
        (1024, 16),
        (2000, 20),
        (2048, 8),
        (4096, 16),
    ):
        several = {"kind": "fixed_epochs", "epochs": epochs}
        for workload in workloads(n):
            for buffers in (1, 2, 4, 8) if n <= 1024 else (4,):
                mechanism = {"kind": "buffered_linear", "buffers": buffers}
                yield {"workload": workload, "participation": several, "mechanism": mechanism}
        if n <= 512:
            yield {"workload": {"kind": "prefix", "n": n}, "participation": several, "mechanism": {"kind": "dense"}}
        prefix = {"workload": {"kind": "prefix", "n": n}, "participation": several}
        yield prefix | {"mechanism": {"kind": "banded_square_root", "bands": 8}}
        yield prefix | {"mechanism": {"kind": "blt", "buffers": 2}}
    for n, epochs in ((512, 1), (1024, 1), (2048, 1), (4096, 1), (512, 8), (1000, 10), (1024, 8), (2000, 20)):
        for workload in ({"kind": "prefix", "n": n}, {"kind": "momentum", "n": n, "momentum": 0.9}):
            # Of constant momentum in one epoch a BLT with scaled columns has three quarters of the loss.
            scaled = workload["kind"] == "momentum" and epochs == 1
            blt = {"kind": "blt", "buffers": 4, "normalization": "columns"}
            yield {
                "workload": workload,
                "participation": {"kind": "fixed_epochs", "epochs": epochs} if epochs > 1 else {"kind": "single"},
                "objective": {"kind": "lambda_tau", "tau": n},  # the last step counts where the rate is constant
                "mechanism": blt if scaled else {"kind": "buffered_linear", "buffers": 4},
            }
    for n, apart, times in ((1000, 100, 10), (2000, 400, 5), (2000, 485, 3), (2000, 1000, 2), (4000, 200, 8)):
        apart_by = {"kind": "min_sep", "min_sep": apart, "max_participations": times}
        prefix = {"workload": {"kind": "prefix", "n": n}, "participation": apart_by}
        for bands in (4, 8, 16, 32):
            yield prefix | {"mechanism": {"kind": "banded_toeplitz", "bands": bands}}
        for buffers in (2, 4):
            yield prefix | {"mechanism": {"kind": "blt", "buffers": buffers}}
    for n in (512, 1024):
        adam = {"kind": "adam", "n": n, "beta": 0.9}
        yield {"workload": adam, "mechanism": {"kind": "buffered_linear", "buffers": 4}}
        for mechanism in ({"kind": "blt", "buffers": 2}, {"kind": "toeplitz"}):
            for epsilon, delta in ((2, 1e-6), (8, 1e-5)):
                yield {
                    "workload": {"kind": "prefix", "n": n},
                    "participation": {"kind": "fixed_epochs", "epochs": 8},
                    "mechanism": {**mechanism, "normalization": "fitted"},
                    "sampling": {"kind": "balls_in_bins", "epsilon": epsilon, "delta": delta},
                }


def cost(document: Document) -> float:
    """Return the seconds that a solve is estimated to take."""
    return estimate(choose(parse_spec(document))).seconds


if __name__ == "__main__":
    ordered = sorted(specs(), key=cost)
    (HERE / "specs.jsonl").write_text("".join(json.dumps(one, sort_keys=True) + "\n" for one in ordered))
    print(f"{len(ordered)} specs, {sum(map(cost, ordered)):.0f} s estimated")
