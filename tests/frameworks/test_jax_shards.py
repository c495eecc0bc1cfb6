"""Noise in JAX over eight devices: the bits of one device, no device with more than its part, none twice the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import sharded_jax


def found() -> dict[str, Any]:
    """What a process with eight host devices finds; it compiles for more than a minute."""
    script = Path(sharded_jax.__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])}
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_eight_devices_make_the_noise_of_one() -> None:
    """One test, so that no two processes of a run compile the same."""
    kinds = found()
    assert set(kinds) >= {"buffered", "redrawn", "dense"}
    for name in ("buffered", "redrawn", "dense"):
        kind = kinds[name]
        assert kind["same bits"], name  # under jit
        # Each makes its part, and next to nothing is exchanged.
        assert not kind["collectives"] and not kind["whole leaves"], name
        assert kind["mapped"] < 1e-6 < kind["spread"], name  # inside shard_map, to the last rounding
        assert "same noise for its own shard" in kind["refusal"], name  # inside shard_map without specs
    explicit = kinds["explicit"]
    assert explicit["same bits"] and not explicit["collectives"] and explicit["job"] < 1e-5
    assert kinds["buffered"]["buffers"] == [9, 36, 15, 36]  # 3 vectors of 24/8, 3 x 8/2, 5 and 16 x 6/8 entries
    equal, unjitted, differing = kinds["differing"]
    assert equal == "not refused" and "runs without jit, where JAX goes on after a device's refusal" in unjitted
    assert "whole on several devices, which hold different ones" in differing and "psum" in differing
