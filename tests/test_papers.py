"""The reproductions run at small sizes, and judge agreement rightly; published numbers are compared by the full runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    return import_module("benchmarks.papers.comparison")


def test_agreement_is_within_tolerance_and_three_errors(comparison: Any) -> None:
    assert comparison.Row("a", 1.0, 1.05, tolerance=0.05 + 1e-12).agrees is True
    assert comparison.Row("a", 1.0, 1.05, error=0.02).agrees is True
    assert comparison.Row("a", 1.0, 1.07, error=0.02).agrees is False
    assert comparison.Row("a", None, 1.07).agrees is None
    assert comparison.mean_and_error([1.0, 3.0]) == (2.0, 1.0)
    assert comparison.mean_and_error([4.0]) == (4.0, 0.0)


def test_what_differs_is_listed(comparison: Any, tmp_path: Path) -> None:
    found = comparison.Comparison("x", "X", folder=tmp_path)
    found.row("far", 1.0, 2.0)
    found.row("near", 1.0, 1.0)
    found.claim("up", True)
    found.claim("down", False)
    assert found.differences == ["far", "down"]
    assert json.loads(found.write().read_text())["rows"][0]["agrees"] is False


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.papers", *arguments, "--out", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.mark.parametrize(
    "name", ["chess", "correlated_quadratic", "nu_figure1", "nu_figure2", "nu_figure3", "matrices"]
)
def test_a_small_run_prints_and_writes(name: str, tmp_path: Path) -> None:
    done = run(name, "--quick", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    document = json.loads((tmp_path / f"{name}.json").read_text())
    assert document["quick"] and document["rows"] and document["claims"]


@pytest.mark.parametrize("name", ["nu_tables", "peers_golden"])
def test_tables_hold_at_small_sizes(name: str, tmp_path: Path) -> None:
    done = run(name, "--quick", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / f"{name}.json").read_text())
    assert document["rows"] and all(claim["holds"] for claim in document["claims"])


def test_names_are_checked_and_data_is_asked_for(tmp_path: Path) -> None:
    refused = run("colours", folder=tmp_path)
    assert refused.returncode == 2 and "no reproduction colours" in refused.stderr
