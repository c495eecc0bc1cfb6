"""The examples run as programs, and correlated noise is the better of the two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["train_torch", "train_jax"])
def test_trains_privately_on_digits(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FACTORIZE_CACHE": str(tmp_path)}
    command = [sys.executable, ROOT / "examples" / f"{name}.py", "--seed", "1", "--epochs", "6"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    plain, optimal = (float(found) for found in re.findall(r"test accuracy ([\d.]+)", done.stdout))
    assert optimal > 0.7 and optimal > plain + 0.05
    assert "(2, 1e-05)-differential privacy" in done.stdout


def test_balls_in_bins_on_digits(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FACTORIZE_CACHE": str(tmp_path)}
    command = [sys.executable, ROOT / "examples" / "train_torch.py", "--seed", "1", "--epochs", "4"]
    done = subprocess.run(
        [*command, "--sampling", "balls_in_bins"], capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    plain, optimal = (float(found) for found in re.findall(r"test accuracy ([\d.]+)", done.stdout))
    assert plain > 0.5 and optimal > 0.7
    assert done.stdout.count("balls_in_bins order") == 2 and "become known, epsilon is" in done.stdout


@pytest.mark.parametrize("name", ["train_torch", "train_jax"])
def test_no_service(name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, ROOT / "examples" / f"{name}.py", "--url", "http://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 3 and "factorize serve" in done.stderr
