"""The examples run, as programs too, and correlated noise is the better of the two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["train_torch", "train_jax"])
def test_trains_privately_on_digits(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FACTORIZE_CACHE": str(tmp_path)}
    command = [sys.executable, ROOT / "examples" / f"{name}.py", "--seed", "1", "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    plain, optimal = (float(found) for found in re.findall(r"test accuracy ([\d.]+)", done.stdout))
    assert optimal > 0.7 and optimal > plain + 0.05
    assert "(2, 1e-05)-differential privacy" in done.stdout


def main(name: str, *arguments: str) -> int:
    """Run an example in this process, which has imported its libraries: for a program that is ten seconds."""
    with warnings.catch_warnings(), mock.patch.object(sys, "path", [str(ROOT / "examples"), *sys.path]):
        warnings.simplefilter("default")  # as in a program
        return int(import_module(name).main(arguments))


def test_balls_in_bins_on_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("train_torch", "--seed", "1", "--epochs", "4", "--sampling", "balls_in_bins") == 0
    said = capsys.readouterr().out
    plain, optimal = (float(found) for found in re.findall(r"test accuracy ([\d.]+)", said))
    assert plain > 0.5 and optimal > 0.7
    assert said.count("balls_in_bins order") == 2 and "become known, epsilon is" in said


def test_a_transformer_that_guards_users(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("train_transformer_jax", "--seed", "1", "--epochs", "2", "--batch-size", "500") == 0
    said = capsys.readouterr().out
    known = [float(found) for found in re.findall(r"noise: ([\d.]+) of the words known", said)]
    assert len(known) == 2 and min(known) > 0.02 and said.count("differential privacy per user") == 2


@pytest.mark.parametrize("name", ["train_torch", "train_jax"])
def test_no_service(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(name, "--service", "http://127.0.0.1:1") == 3
    assert "factorize serve" in capsys.readouterr().err
