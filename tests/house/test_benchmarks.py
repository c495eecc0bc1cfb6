"""The benchmarks run at tiny sizes; speed is not tested, and no other library is fetched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.single import apart

ROOT = Path(__file__).parents[2]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_quick_runs_print_rows_and_write_them(tmp_path: Path) -> None:
    done = run("toeplitz", "--quick", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "GFLOP/s" in done.stdout.splitlines()[0]
    document = json.loads((tmp_path / "build" / "bench" / "toeplitz.json").read_text())
    assert document["machine"]["cores"] >= 1
    assert set(document["machine"]["versions"]) == {"python", "numpy", "numba"}
    (row,) = (row for row in document["rows"] if "problem" in row)
    assert row["seconds"] > 0 and row["ratio"] > 0 and row["problem"] in done.stdout
    assert (row["problem"], row["exponent"]) == ("Toeplitz optimum, n=256", None)


def test_the_search_needs_no_square_array() -> None:
    n = 8192
    found = apart("prefix", n)
    assert found["gap"] <= 1e-9
    assert found["peak_bytes"] < 8 * n * n / 2
