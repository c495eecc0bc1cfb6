"""A JAX job on two processes: the bits of one, and no process that trains alone with the noise of the others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax_processes
from ports import free_ports


def found(world: int, folder: Path) -> list[dict[str, Any]]:
    """Return what each of `world` processes printed."""
    folder.mkdir()
    script, (port,) = Path(jax_processes.__file__), free_ports(1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), *sys.path])}
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(port), str(rank), str(world), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    told = [process.communicate() for process in started]
    assert all(process.returncode == 0 for process in started), "\n".join(error for _, error in told)
    return [json.loads(out.splitlines()[-1]) for out, _ in told]


def test_two_processes_train_as_one_and_none_alone(tmp_path: Path) -> None:
    (alone,), both = found(1, tmp_path / "one"), found(2, tmp_path / "two")
    assert [each["devices"] for each in (alone, *both)] == [2, 4, 4]
    assert all(each["weights"] == alone["weights"] for each in both)
    assert alone["alone"] == ["not refused"] * 2 and alone["differing"] == "not refused"
    assert [each["state"] == "not refused" for each in (alone, *both)] == [True, True, False]
    assert "on the first process (jax.process_index() == 0), and load it on all" in both[1]["state"]
    assert all(each["receipt"] == ["not refused"] * 2 for each in (alone, *both)), "the first process writes it"
    assert json.loads((tmp_path / "two" / "receipt.json").read_text())["model"]["of"] == "tensors"
    for each in both:
        assert "differ on the 2 processes" in each["differing"], "seeds that each process has drawn"
        for field, told in zip(("parameters", "data"), each["alone"], strict=True):
            assert re.match(rf"2 processes train together .*but the {field} are on devices of this one", told), told
