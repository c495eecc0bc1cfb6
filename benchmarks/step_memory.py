"""Memory and time of a private step in torch beside Opacus's: all of 10^7 parameters trained, and adapters of 10^5.

    python -m benchmarks.step_memory

Each row is a process of its own, on one thread of a CPU: ten linear layers of 1000 x 1000, plain, or frozen with
adapters of rank 5; four steps of 16 examples by SGD in float32. Memory is the process's peak (VmHWM) less what it held
before the private optimizer was made, with model and data, so that what is compiled is a part of it; also what of it
are pages of programs' files, which processes share and the kernel takes back. Seconds are the processor's, in the
median step after the first. Linux alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

from factorize import parse_spec
from factorize.adapters.gradients.example_gradients import ExampleGradients
from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.factors import Factors
from factorize.solvers import solve

SEED, STEPS, EXAMPLES, LAYERS, RANK = (1 << 100) + 9, 4, 16, 10, 5
MECHANISMS: dict[str, dict[str, Any]] = {
    "Opacus": {"kind": "identity"},  # Opacus does not use it: all rows begin with what a solve leaves of the heap
    "identity": {"kind": "identity"},
    "identity, streamed": {"kind": "identity"},
    "8 vectors": {"kind": "banded_square_root", "bands": 9},
}


class Adapted(torch.nn.Module):
    """A frozen layer, and a product of two thin ones beside it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = torch.nn.Linear(width, width, bias=False).requires_grad_(False)
        self.down, self.up = torch.nn.Linear(width, RANK, bias=False), torch.nn.Linear(RANK, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add both."""
        return self.base(x) + self.up(self.down(x))


def made(sgd: torch.optim.SGD, factors: Factors | None) -> Any:
    """Return the optimizer of a row, Opacus's own without factors."""
    if factors is None:
        return DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=EXAMPLES)
    return CorrelatedOptimizer(sgd, factors, factors.calibrate(mu=1.0, divisor=EXAMPLES), seed=SEED)


def measured(name: str, *, adapters: bool, width: int, dtype: torch.dtype) -> dict[str, float]:
    """Return the peak in bytes, and the processor's seconds of a step, in this process."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    kind = Adapted if adapters else lambda side: torch.nn.Linear(side, side, bias=False)
    plain = torch.nn.Sequential(*(kind(width) for _ in range(LAYERS))).to(dtype)
    model = ExampleGradients(plain, mode="streamed") if name.endswith("streamed") else GradSampleModule(plain)
    mechanism, data = MECHANISMS[name], torch.randn(STEPS, EXAMPLES, width).to(dtype)
    spec = {"workload": {"kind": "prefix", "n": 16}, "mechanism": mechanism}
    factors = solve(parse_spec(spec))
    sgd = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    times: list[float] = []
    Path("/proc/self/clear_refs").write_text("5")  # this begins the peak anew
    before, optimizer = [_status("VmRSS"), _status("RssFile")], made(sgd, None if name == "Opacus" else factors)
    for x in data:
        began = time.process_time()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.process_time() - began)
    found = {"bytes": _status("VmHWM") - before[0], "of files": _status("RssFile") - before[1]}
    return found | {"seconds": statistics.median(times[1:])}


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each optimizer and model, or the numbers of one of them."""
    parser = argparse.ArgumentParser(description="Memory and time of a private step beside Opacus's.")
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--row", choices=MECHANISMS, help="measure one here, and print JSON")
    parser.add_argument("--adapters", action="store_true")
    asked = parser.parse_args(arguments)
    if asked.row:
        dtype = getattr(torch, asked.dtype)
        print(json.dumps(measured(asked.row, adapters=asked.adapters, width=asked.width, dtype=dtype)))
        return 0
    for adapters in (False, True):
        print(f"{LAYERS} layers of {asked.width} x {asked.width}, {'adapters' if adapters else 'all'} trained")
        for name in MECHANISMS:
            command = [sys.executable, "-m", "benchmarks.step_memory", "--row", name, "--width", str(asked.width)]
            command += ["--dtype", asked.dtype, *(["--adapters"] if adapters else [])]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            found = json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
            memory, files = (found[key] / 1e6 for key in ("bytes", "of files"))
            print(f"  {name}: {memory:.0f} MB, {files:.0f} of files, {found['seconds']:.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
