"""The cost of correlated noise beside independent noise: time and memory of one step of 10^7 parameters.

    python -m benchmarks noise

Each structure takes turns with numpy's own `default_rng().standard_normal` of the same size in float64, on one thread,
so that what else runs on the machine falls on both. Memory is the peak that numpy asks for between two steps and in one
(tracemalloc), in vectors of one float32 per parameter. jax_privacy 2.0.0 makes the same kinds of noise, float32 as by
its default, beside its own `jax.random.normal`, on as many cores as it likes; its compile time is not counted.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer import PeerMissing, python
from benchmarks.report import Report
from benchmarks.timing import claimed
from factorize.factors.sensitivity import Sensitivity
from factorize.noise.generator import NoiseGenerator
from factorize.noise.source import noise_source
from factorize.privacy import PrivacyTarget, calibrate
from factorize.solvers import choose
from factorize.spec import parse_spec
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix
from factorize.structures.toeplitz import BltMatrix

STEPS = 128
ROUNDS = 11
SCRIPT = Path(__file__).with_name("noise_peer_script.py")
DECAYS = (0.999, 0.99, 0.95, 0.8, 0.5, 0.2)
SCALES = (0.01, 0.02, 0.05, 0.08, 0.1, 0.1)


def strategies() -> dict[str, Matrix]:
    """Return one of each kind that a step of constant cost is claimed for; the numbers do not change the time."""
    spec = {"workload": {"kind": "prefix", "n": STEPS}, "mechanism": {"kind": "buffered_linear", "buffers": 6}}
    bands = np.ones((6, STEPS)) / np.arange(1, 7)[:, None]
    for d in range(1, 6):
        bands[d, -d:] = 0
    return {
        "buffered_linear, 6 buffers": claimed(choose(parse_spec(spec))).strategy,
        "blt, 6 buffers": BltMatrix(np.array(DECAYS), np.array(SCALES), STEPS),
        "banded, 6 bands": BandedMatrix(bands),
    }


def run(report: Report) -> None:
    """Print a row for each structure, both precisions, and for the peer."""
    size = 10**5 if report.quick else 10**7
    report.heading(f"One step of {size:.0e} parameters, one thread")
    for name, strategy in strategies().items():
        for precision in ("float32", "float64"):
            generator = _generator(strategy, size, precision=precision)
            noise, alone = _turns(generator, size)
            generator.close()
            ratio = statistics.median(a / b for a, b in zip(noise, alone, strict=True))
            vectors = _peak(strategy, size, precision) / (4 * size)
            report.row(
                f"{name}, {precision} state",
                seconds=statistics.median(noise),
                ratio=ratio,
                of=f"of drawing {size:.0e} normals alone",
                note=f"best {min(noise):.3f} s, alone {statistics.median(alone):.3f} s; {vectors:.2f} vectors",
                times=noise,
                alone=alone,
                vectors=vectors,
            )
    _cryptographic(report, size)
    if not report.quick:
        _peer(report, size)


def _generator(strategy: Matrix, size: int, **options: Any) -> NoiseGenerator:
    source = noise_source(strategy.structure, strategy.tensors(), strategy.n, "")
    scale = calibrate(Sensitivity(1.0, "exact", "benchmark", {"kind": "single"}), PrivacyTarget(mu=1.0))
    return NoiseGenerator(source, scale, size, seed=1 << 64, **options)


def _turns(generator: NoiseGenerator, size: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each step, and of drawing alone next to it; the first of each is left out."""
    out, plain = np.empty(size, np.float32), np.empty(size)
    normals = np.random.default_rng(1)
    pairs = [
        (_seconds(lambda: generator.next(out)), _seconds(lambda: normals.standard_normal(out=plain)))
        for _ in range(ROUNDS + 1)
    ]
    noise, alone = zip(*pairs[1:], strict=True)
    return list(noise), list(alone)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _peak(strategy: Matrix, size: int, precision: str) -> int:
    """Return the bytes that a generator takes for its state, scratch and one row of noise."""
    tracemalloc.start()
    try:
        generator = _generator(strategy, size, precision=precision)
        generator.next()
        generator.close()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _cryptographic(report: Report, size: int) -> None:
    generator = _generator(BltMatrix(np.array(DECAYS), np.array(SCALES), STEPS), size, generator="shake128")
    plain = np.empty(size)
    noise = min(_seconds(generator.next) for _ in range(2))
    generator.close()
    alone = min(_seconds(lambda: np.random.default_rng(1).standard_normal(out=plain)) for _ in range(2))
    of = f"of drawing {size:.0e} normals alone"
    report.row("blt, 6 buffers, cryptographic normals", seconds=noise, ratio=noise / alone, of=of)


def _peer(report: Report, size: int) -> None:
    try:
        interpreter = python()
    except PeerMissing as missing:
        report.remark(f"jax_privacy was not measured: {missing}")
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    question = json.dumps({"size": size, "rounds": ROUNDS, "decays": DECAYS, "scales": SCALES})
    done = subprocess.run([interpreter, SCRIPT, question], capture_output=True, text=True, env=environment)
    if done.returncode:
        report.remark(f"jax_privacy was not measured: {done.stderr.strip()[-300:]}")
        return
    answer = json.loads(done.stdout.splitlines()[-1])
    report.heading(f"jax_privacy {answer['version']} (jax {answer['jax']}, {answer['device']})")
    alone = statistics.median(answer["alone"])
    for name, times in answer["noise"].items():
        seconds = statistics.median(times)
        of = "of its own jax.random.normal alone"
        report.row(name, seconds=seconds, ratio=seconds / alone, of=of, note=f"alone {alone:.3f} s", times=times)
