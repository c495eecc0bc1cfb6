"""The exact checker's power: 1,000 files of each of twelve kinds that are wrong, 1,000 that are true, and its seconds.

The wrong files and the truth about them (by enumeration, in integers) are those of the tests, with other seeds. Goals:
all of the wrong ones rejected, all of the true ones accepted; n = 1024 in 8 epochs checked within 10 s.
"""

from __future__ import annotations

import itertools
import time
from importlib import import_module

from benchmarks.report import Report, at_least, at_most
from factorize.errors import FactorizeError
from factorize.exact import check_factor_file

CASES, QUICK = 1000, 10
SEED = 2026
EPOCHS = {"kind": "fixed_epochs", "epochs": 8}


def rejected(data: bytes) -> bool:
    """Whether the checker refuses a file or finds that a claim fails."""
    try:
        return not check_factor_file(data).supported
    except FactorizeError:
        return True


def run(report: Report) -> None:
    """Count, and time one file of the size that people use."""
    mutations, files = import_module("exact_mutations"), import_module("exact_files")
    count = QUICK if report.quick else CASES
    for name in mutations.MUTATIONS:
        began = time.process_time()
        found = sum(rejected(case.data) for case in itertools.islice(mutations.spoilt(name, SEED), count))
        seconds = time.process_time() - began
        goals = [at_least(f"rejected of {count}", found, count)]
        report.row(name, seconds=seconds, ratio=found / count, of="the wrong files, rejected", goals=goals)
    began = time.process_time()
    found = sum(not rejected(data) for data in itertools.islice(mutations.valid(SEED), count))
    goals = [at_least(f"accepted of {count}", found, count)]
    seconds = time.process_time() - began
    report.row("nothing wrong", seconds=seconds, ratio=found / count, of="the true files, accepted", goals=goals)
    _time(report, files)


def _time(report: Report, files: object) -> None:
    from factorize import parse_spec, solvers

    n = 128 if report.quick else 1024
    spec = parse_spec({"workload": {"kind": "prefix", "n": n}, "participation": EPOCHS, "tolerance": 1e-6})
    data = files.sealed(*files.parts(solvers.solve(spec)))  # type: ignore[attr-defined]  # a module of the tests
    began = time.perf_counter()
    supported = check_factor_file(data).supported
    seconds = time.perf_counter() - began
    goals = [at_most("seconds of the exact check", seconds, 10.0)]
    report.row(f"n={n}, 8 epochs", seconds=seconds, ratio=float(supported), of="the claims, supported", goals=goals)
