"""`python -m tests.simulation.branches [--count N]`: which branches of the product's rooms do runs of the simulation take?

Prints each line from which a branch was not taken, with the real test of what only real things take; 95 % of the rest
are asked. Needs `pip install coverage`, which nothing else here does.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import coverage

from tests.simulation.hashes import fix_hashes

ROOMS = (
    *(
        "api/jobs/engine.py",
        "api/jobs/followed_jobs.py",
        "api/jobs/ledger.py",
        "api/jobs/solve_job.py",
        "api/jobs/one_solve.py",
        "api/jobs/dask_solves.py",
    ),
    *("api/jobs/audit_log.py", "api/jobs/database.py", "api/access/holdings.py", "api/access/key_register.py"),
    *("factorize/storage/*.py", "factorize/storage/medium/*.py", "api/catalog.py"),
)
LEAST_PERCENT = 95.0
ELSEWHERE = {
    'if parsed.get_backend_name() != "sqlite":': "tests/api/jobs/test_ledger.py on PostgreSQL",
    'if engine.dialect.name == "sqlite":': "tests/api/jobs/test_ledger.py on PostgreSQL",
    'if connection.dialect.name == "postgresql":': "tests/api/jobs/test_audit_log.py on PostgreSQL",
    'if engine.dialect.name == "postgresql":': "tests/api/jobs/test_growing_schema.py on PostgreSQL",
    "if version != SCHEMA_VERSION:": "tests/api/jobs/test_growing_schema.py",
    "if version and not FIRST_VERSION <= version < SCHEMA_VERSION:": "tests/api/jobs/test_growing_schema.py",
    "for column in (column for column in table.columns if column.name not in present):": "tests/api/jobs/test_growing_schema.py",
    "if version:": "tests/api/jobs/test_growing_schema.py",
    "if strangers := tables & set(metadata.tables):": "tests/api/jobs/test_growing_schema.py",
    'if not database or database == ":memory:":': "tests/api/jobs/test_ledger.py",
    "if not busy or time.monotonic() > end:": "processes that open a new file at once, tests/api/jobs/test_ledger.py",
    "if self._settled is not None:": "tests/api/jobs/test_engine.py",
    "if parts[:3] != _here():": "tests/api/jobs/test_engine.py, with processes",
    "if wait(running, END_SECONDS).not_done:": "a worker that does not end: `benchmarks.soak kills`",
    'if url.startswith("s3://"):': "tests/factorize/storage/test_bucket.py on an S3 server",
    "if not path.is_dir():": "tests/factorize/format/test_files.py on a real folder",
    "if FULL_SYNC is None:": "tests/factorize/format/test_files.py on a real folder",
    "if target.exists() and not target.is_file():": "commands that write a file, on a real folder",
    "if error.errno:  # a full disk names no file": "commands that write a file, on a real folder",
    "if kind in NETWORK_FILE_SYSTEMS:": "tests/api/jobs/test_growing_schema.py",
    "if self._medium is not None:  # before the change stands: a copy of the ledger may not know it": "tests/api/access/test_key_register.py",
}  # fmt: skip
"""Lines with branches that only real things take, and what runs those."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.branches", description=__doc__)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    measured = coverage.Coverage(
        data_file=None, branch=True, include=list(ROOMS), concurrency=["greenlet", "thread"], config_file=False
    )
    measured.start()
    from tests.simulation.__main__ import KEPT, failure_of, one
    from tests.simulation.run import read_plan

    for path in KEPT:
        if (broken := failure_of(read_plan(path.read_text()))) is not None:
            print(f"{path.stem} FAILED: {broken}")
    for seed in range(asked.first, asked.first + asked.count):
        if (broken := one(seed)[-1]) is not None:
            print(f"seed {seed} FAILED\n{broken}")
    measured.stop()
    taken = possible = elsewhere = 0
    for path in sorted(measured.get_data().measured_files()):
        text, analysis = Path(path).read_text().splitlines(), measured._analyze(path)
        taken, possible = taken + analysis.numbers.n_executed_branches, possible + analysis.numbers.n_branches
        for line, targets in sorted(analysis.missing_branch_arcs().items()):
            code, goes = text[line - 1].strip(), ", ".join("the end" if to < 0 else str(to) for to in targets)
            elsewhere += len(targets) * (code in ELSEWHERE)
            print(f"{Path(path).name}:{line} -> {goes}: {code}: {ELSEWHERE.get(code, 'NOT TAKEN')}")
    percent = 100.0 * taken / (possible - elsewhere)
    print(
        f"{asked.count} seeds and what was kept take {taken} of {possible} branches; {elsewhere} others only real things take: {percent:.1f} %"
    )
    return percent < LEAST_PERCENT


if __name__ == "__main__":
    fix_hashes("tests.simulation.branches")
    sys.exit(main())
