"""Single participation: the certified optimum in O(n) per pole, with and without a dense C, up to n = 10^7.

    python -m benchmarks single [--full]

A solve is the search for the dual weights and both bounds, to a certified gap of 1e-9, from the arrays of the workload;
medians in this process up to n = 2048. Larger ones run in processes of their own, so that the peak of the memory
is theirs; the second call counts where there is one. The certificate of the stored matrices is timed apart.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report, dgemm, duration
from benchmarks.timing import Timed, solved, timed
from factorize.solvers import choose
from factorize.solvers.methods.search import End
from factorize.solvers.single.newton import PolePoint, Structure, maximise
from factorize.spec import Spec, parse_spec

TOLERANCE = 1e-9
MAX_N_REPEATED = 10_000_000 // 2
"""Above this many steps the child makes one call only."""


def workloads(n: int) -> dict[str, dict[str, Any]]:
    """Return the three workloads of the table."""
    cooldown = {"kind": "linear_cooldown", "steps": max(1, n // 4), "final": 0.05}
    return {
        "prefix": {"kind": "prefix", "n": n},
        "cosine": {"kind": "schedule", "n": n, "learning_rates": {"kind": "cosine_to_last"}},
        "momentum 0.95 + cooldown": {"kind": "momentum", "n": n, "momentum": 0.95, "learning_rates": cooldown},
    }


def spec_of(workload: dict[str, Any], mechanism: str = "dense") -> Spec:
    """Return a canonical spec of single participation."""
    document = {"workload": workload, "mechanism": {"kind": mechanism}, "tolerance": TOLERANCE}
    return choose(parse_spec(document))


def structure_of(name: str, n: int) -> Structure:
    """Return what the solver works on, from O(n) arrays; a prefix of any length, beyond what a spec may ask for."""
    if name == "prefix":
        from factorize.solvers.single.bidiagonal import Bidiagonal

        return Bidiagonal(np.ones(n), np.ones(n))
    from factorize.solvers.single import few_states

    spec = spec_of(workloads(n)[name])
    structure = few_states.structure_of(spec.workload, spec)
    assert structure is not None
    return structure


def search(name: str, n: int) -> Timed[End[PolePoint]]:
    """Time the search for the optimum of one workload."""
    structure = structure_of(name, n)
    repeats = 0 if n > MAX_N_REPEATED else 9 if n <= 20_000 else 2
    return timed(lambda: maximise(structure, tolerance=TOLERANCE), repeats, max_seconds=20.0)


def apart(name: str, n: int) -> dict[str, Any]:
    """Run `search` in a process of its own, with its peak memory."""
    command = [sys.executable, "-m", "benchmarks.single", name, str(n)]
    root = Path(__file__).parents[1]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout)


def _child(name: str, n: int) -> None:
    search(name, min(n, 512))  # this imports and compiles
    before = _peak()
    found = search(name, n)
    document = {
        "seconds": found.seconds,
        "times": found.times,
        "cpu_seconds": found.cpu_seconds,
        "gap": found.result.gap,
        "lower_bound": found.result.best.lower_bound,
        "steps": found.result.steps,
        "poles": len(found.result.best.poles.nodes),
        "peak_bytes": _peak(),
        "peak_bytes_before": before,
    }
    print(json.dumps(document))


def _peak() -> int:
    """Return the peak resident bytes of this process, not of the one that started it, as getrusage does on Linux."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(report: Report) -> None:
    """Print all tables."""
    sizes = (128, 256) if report.quick else (512, 1024, 2048)
    report.heading("Single participation: the search to a certified gap of 1e-9, in this process, no n x n array")
    for name in workloads(2):
        for n in sizes:
            _searched(report, name, n)
    report.heading("With a dense C, and its certificate apart")
    for n in sizes:
        _dense(report, n)
    report.heading("Large n, in a process of its own: time and peak memory, no dense C")
    large = (16_384, 131_072, 1_000_000, *((10_000_000,) if report.full else ()))
    for n in (512,) if report.quick else large:
        for name in list(workloads(2))[: None if n == 16_384 else 1]:
            _apart(report, name, n)
    report.heading("The program as the literature writes it, by CVXPY and SCS, beside ours")
    for n in (8, 16) if report.quick else (16, 32, 64):
        _conic(report, n)


def _searched(report: Report, name: str, n: int) -> None:
    found = search(name, n)
    report.row(
        f"{name}, n={n}: search",
        seconds=found.seconds,
        **report.dgemms(found.seconds),
        note=f"{found.text}, gap {found.result.gap:.1e}, {found.result.steps} steps",
        series=(name, n),
        lower_bound=found.result.best.lower_bound,
        times=found.times,
        cpu_seconds=found.cpu_seconds,
    )


def _dense(report: Report, n: int) -> None:
    """Report search, streaming factor and C, against a matrix product of that size timed right after."""
    ours = solved({"workload": workloads(n)["prefix"], "mechanism": {"kind": "dense"}, "tolerance": TOLERANCE})
    product, seconds = dgemm(n), ours.claim.seconds
    report.row(
        f"prefix, n={n}: search and dense C",
        seconds=seconds,
        ratio=seconds / product,
        of=f"DGEMM({n})",
        note=f"{ours.claim.text}, certificate {duration(ours.certifying)} more, gap {ours.gap:.1e}",
        series=("dense C", n),
        times=ours.claim.times,
        certificate_seconds=ours.certifying,
    )


def _apart(report: Report, name: str, n: int) -> None:
    found = apart(name, n)
    report.row(
        f"{name}, n={n}: search",
        seconds=found["seconds"],
        **report.dgemms(found["seconds"]),
        note=f"best {duration(min(found['times']))}, CPU {duration(found['cpu_seconds'])}, gap {found['gap']:.1e}, "
        f"peak {found['peak_bytes'] / 2**20:.0f} MiB",
        series=(f"{name} apart", n),
        **{key: value for key, value in found.items() if key not in ("seconds",)},
    )


def _conic(report: Report, n: int) -> None:
    workload = workloads(n)["prefix"]
    ours = solved({"workload": workload, "mechanism": {"kind": "dense"}, "tolerance": TOLERANCE})
    theirs = solved({"workload": workload, "mechanism": {"kind": "semidefinite"}, "tolerance": 1e-6}, repeats=1)
    report.row(
        f"prefix, n={n}: ours, the path of a spec",
        seconds=ours.claim.seconds,
        **report.dgemms(ours.claim.seconds),
        note=ours.claim.text,
        times=ours.claim.times,
    )
    found = search("prefix", n)
    report.row(
        f"prefix, n={n}: ours, search in O(n)",
        seconds=found.seconds,
        **report.dgemms(found.seconds),
        note=f"{found.text}, gap {found.result.gap:.1e}",
    )
    report.row(
        f"prefix, n={n}: CVXPY + SCS",
        seconds=theirs.claim.seconds,
        ratio=theirs.claim.seconds / ours.claim.seconds,
        of="x our time",
        note=f"gap {theirs.gap:.1e} once repaired by us, ours {ours.gap:.1e}",
    )


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]))
