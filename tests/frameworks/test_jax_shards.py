"""Noise in JAX over eight devices: the bits of one device, no device with more than its part, none twice the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sharded_jax


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What a process with eight host devices found."""
    script = Path(sharded_jax.__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])}
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", ["buffered", "redrawn", "dense"])
class TestEightDevices:
    def test_have_the_bits_of_one_under_jit(self, found, name):
        assert found[name]["same bits"]

    def test_make_their_own_parts_and_exchange_nothing(self, found, name):
        assert not found[name]["collectives"] and not found[name]["whole leaves"]
        if name == "buffered":
            assert found[name]["buffers"] == [9, 36, 15, 36]  # 3 vectors of 24/8, 3 x 8/2, 5 and 16 x 6/8 entries

    def test_inside_shard_map_to_the_last_rounding(self, found, name):
        assert found[name]["mapped"] < 1e-6 < found[name]["spread"]

    def test_inside_shard_map_without_specs_are_refused(self, found, name):
        assert "same noise for its own shard" in found[name]["refusal"]
