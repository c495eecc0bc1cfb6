"""The example that compares the algorithms: every method trains, at the guarantee that is asked for."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from factorize.privacy import PrivacyTarget

PATH = Path(__file__).parents[1] / "compare_algorithms.py"
_SPEC = importlib.util.spec_from_file_location("compare_algorithms", PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
example = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(example)


@pytest.mark.slow
def test_every_method_learns_at_a_loose_guarantee() -> None:
    """Far above the 10 % of chance, at a rate that suits all of them."""
    model, test = example.load_digits()
    target = PrivacyTarget(epsilon=8.0, delta=1e-5)
    methods = example.methods(model)
    assert len(methods) == 10
    for name, (factors, train) in methods.items():
        found = example.accuracies(model, test, factors, train, target, 1.6, [0])
        assert found[0] > 0.6, name


@pytest.mark.slow
def test_a_run_repeats() -> None:
    model, test = example.load_digits()
    factors, train = example.methods(model)["DP-SRG, true"]
    target = PrivacyTarget(epsilon=8.0, delta=1e-5)
    one, two = (example.accuracies(model, test, factors, train, target, 0.8, [3]) for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_one_run_has_no_standard_error() -> None:
    with pytest.raises(SystemExit, match="2 or more"):
        example.main(["--runs", "1"])


@pytest.mark.slow
def test_runs_as_a_program() -> None:
    environment = {**os.environ, "PYTHONPATH": str(PATH.parents[1])}
    done = subprocess.run([sys.executable, PATH, "--help"], capture_output=True, text=True, check=True, env=environment)
    assert "--epsilon" in done.stdout
