"""The image's own step, on this machine: what it compiles is all that a container needs.

Two specs of the list take seconds; with WHOLE_WARM=1 it takes all of it, and then a spec of each family.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from factorize.api.warm import SPECS

ROOT = Path(__file__).parents[2]
WHOLE = "WHOLE_WARM" in os.environ

_EPOCHS = {"kind": "fixed_epochs", "epochs": 4}
_MECHANISMS: tuple[dict[str, Any], ...] = (
    {"kind": "banded", "bands": 5},
    {"kind": "buffered_linear", "buffers": 3},
    {"kind": "blt", "buffers": 3},
    {"kind": "tree", "decoder": "honaker_full"},
    {"kind": "toeplitz"},
    {"kind": "banded_inverse_square_root", "bands": 5},
    {"kind": "square_root"},
)
FAMILIES = [
    *({"workload": {"kind": "prefix", "n": n}} for n in (40, 144, 700)),
    *({"workload": {"kind": "prefix", "n": n}, "participation": _EPOCHS} for n in (40, 320)),
    {"workload": {"kind": "prefix", "n": 144}, "participation": {"kind": "min_sep", "min_sep": 16}},
    {"workload": {"kind": "prefix", "n": 144}, "objective": {"kind": "max"}},
    *({"workload": {"kind": "momentum", "n": n, "momentum": 0.5}} for n in (144, 700)),
    {"workload": {"kind": "momentum", "n": 320, "momentum": 0.5}, "participation": _EPOCHS},
    {"workload": {"kind": "momentum", "n": 144, "momentum": 0.5, "nesterov": True}},
    {"workload": {"kind": "srg", "n": 144, "momentum": 0.5, "decay": 0.2}},
    {"workload": {"kind": "schedule", "n": 144, "learning_rates": {"kind": "cosine", "final": 0.1}}},
    *({"workload": {"kind": "prefix", "n": 40}, "mechanism": mechanism} for mechanism in _MECHANISMS),
]
PART = [
    {"workload": {"kind": "prefix", "n": 12}, "mechanism": {"kind": "toeplitz"}},
    {"workload": {"kind": "prefix", "n": 130}},
]
OF_PART = [
    {"workload": {"kind": "prefix", "n": 40}, "mechanism": {"kind": "toeplitz"}},
    {"workload": {"kind": "prefix", "n": 700}},
]

WARM = "import json, sys; from factorize.api.warm import warm; warm(json.loads(sys.argv[1]))"
SOLVE = """
import json, sys
from factorize.api.local import obtain
from factorize.spec import parse_spec
from factorize.storage.store import open_store

store = open_store(sys.argv[1])
for document in json.loads(sys.argv[2]):
    obtain(parse_spec(document), store, progress=lambda _step: None)
"""


@pytest.mark.timeout(1800)
def test_a_container_compiles_nothing(tmp_path: Path) -> None:
    warmed, families = (list(SPECS), FAMILIES) if WHOLE else (PART, OF_PART)
    assert all(spec in SPECS for spec in warmed)
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    (step,) = (line.removeprefix("RUN ") for line in lines if line.startswith("RUN ") and "factorize.api.warm" in line)
    here = {
        "/opt/factorize/kernels": shlex.quote(str(tmp_path / "kernels")),
        "/opt/factorize/bin/python": shlex.quote(sys.executable),
        "-m factorize.api.warm": shlex.join(["-c", WARM, json.dumps(warmed)]),
    }
    for there, part in here.items():
        assert step.count(there) == 1
        step = step.replace(there, part)
    subprocess.run(["sh", "-c", step], check=True, env={**os.environ, "CPU": "generic"}, cwd=tmp_path)
    kernels = _files(tmp_path / "kernels")
    names = dict(word.split("=") for line in lines if line.startswith("ENV ") for word in line.split()[1:])
    settings = {name: text for name, text in names.items() if name.startswith("NUMBA_CPU_")}
    env = {**os.environ, **settings, "NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    solve = [sys.executable, "-P", "-c", SOLVE, str(tmp_path / "store"), json.dumps(families)]
    subprocess.run(solve, check=True, env=env, cwd=tmp_path)
    assert kernels and _files(tmp_path / "kernels") == kernels


def _files(folder: Path) -> dict[str, int]:
    """Return the compiled files and their times: numba writes one for each kernel and kind of arguments."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*.nbc")}
