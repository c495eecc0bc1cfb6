"""jax_privacy 2.0.0 on the same problems, in an environment of its own, against our certified optimum of the same run.

    python -m benchmarks peer [--cap SECONDS]

The environment is made in build/peer-venv when first needed; pip fetches what jax_privacy asks for. A run of the peer
is one process (benchmarks/peer_script.py) that notes the loss and the clock at each step; a time to a gap is when its
loss first comes within that gap of our certified lower bound. Its compile time is not counted against it.

To be fair to it, it runs on all cores and on one (its small problems are several times faster on one, since its
threads wait for each other), with its own L-BFGS (memory 1) and with a longer memory, which its functions do not offer
but its optimiser does; ratios are against the fastest of these runs. Its banded optimiser stops moving after
three steps with its own L-BFGS (n = 512, 16 bands; jax 0.8.3 and 0.10.2 alike), so it also gets the zoom line search of
optax, with which it converges. Each may take as long as the fastest before
it, the first as long as the cap. A run that meets the clock gives a ratio that is a lower bound. The ratio of CPU
seconds stands beside that of the clock: it depends less on what else runs.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Report, duration
from benchmarks.timing import Solved, solved
from factorize.factors.solution import Solution
from factorize.solvers.problem import Problem
from factorize.spec import Spec

ENVIRONMENT = Path("build") / "peer-venv"
SCRIPT = Path(__file__).with_name("peer_script.py")
VERSION = "2.0.0"
GAPS = (1e-3, 1e-6, 1e-9)
OWN_VARIANT = "own L-BFGS"
VARIANTS: dict[str, dict[str, Any]] = {
    "own L-BFGS, one core": {"cores": 1},
    "memory 10, one core": {"cores": 1, "memory": 10, "linesearch": "backtracking"},
    OWN_VARIANT: {},
    "memory 10": {"memory": 10, "linesearch": "backtracking"},
}
"""The variants of memory 1, 10, 20, 50 and both searches with the fewest CPU seconds to a gap of 1e-9 at n = 256."""
BANDED_VARIANTS: dict[str, dict[str, Any]] = {
    "memory 20, zoom, one core": {"cores": 1, "memory": 20, "linesearch": "zoom"},
    "memory 10, zoom, one core": {"cores": 1, "memory": 10, "linesearch": "zoom"},
    "memory 10, zoom": {"memory": 10, "linesearch": "zoom"},
    "own L-BFGS, one core": {"cores": 1},
}
"""The fastest of memory 1, 5, 10, 20, 50 with zoom and 1, 10 with backtracking: memory 10 and 20 with zoom."""


class PeerMissing(RuntimeError):
    """The environment of the peer could not be made."""


@dataclass(frozen=True)
class Run:
    """One run of the peer.

    Attributes:
        document: what its process wrote.
        lower_bound: our certified bound of the mean loss.
    """

    document: dict[str, Any]
    lower_bound: float

    def gap(self, step: int) -> float:
        """Return how far the loss of a step is above the bound."""
        return self.document["losses"][step] / self.lower_bound - 1

    def seconds(self, step: int) -> float:
        """Return when a step was done, without compiling."""
        return self.document["times"][step] - self.document["compile_seconds"]

    def cpu_seconds(self, step: int) -> float:
        """Return the CPU seconds of all its cores up to a step, without the two steps that compile."""
        return self.document["cpu"][step] - self.document["cpu"][min(1, step)]

    def first_within(self, gap: float) -> int | None:
        """Return the first step within a gap."""
        return next((step for step in range(len(self.document["losses"])) if self.gap(step) <= gap), None)

    def end(self, gap: float | None) -> int | None:
        """Return the first step within a gap, or for None where its own rule stops; None if it did not come so far."""
        return self.document["default_stop"] if gap is None else self.first_within(gap)

    def until(self, step: int | None) -> float:
        """Return when a step was done; for None as long as it ran, or infinite where its loss no longer fell."""
        if step is None and self.document["stalled"]:
            return math.inf
        return self.seconds(self.last if step is None else step)

    @property
    def last(self) -> int:
        """The last step."""
        return len(self.document["losses"]) - 1

    @property
    def cores(self) -> float:
        """Return the cores in use after compiling, on average; fewer than there are where others use them."""
        times, cpu = self.document["times"], self.document["cpu"]
        return (cpu[-1] - cpu[0]) / (times[-1] - times[0]) if len(times) > 1 else math.nan

    @property
    def final_gap(self) -> float:
        """Return the gap of the matrix that came back, its loss recomputed by NumPy."""
        return self.document["final_loss"] / self.lower_bound - 1


def python() -> Path:
    """Return the interpreter of the peer's environment, which is made if needed.

    Raises:
        PeerMissing: pip could not fetch it.
    """
    interpreter = ENVIRONMENT / "bin" / "python"
    probe = f"from importlib.metadata import version; assert version('jax_privacy') == '{VERSION}'"
    if interpreter.exists() and subprocess.run([interpreter, "-c", probe], capture_output=True).returncode == 0:
        return interpreter
    print(f"  making {ENVIRONMENT} with jax_privacy {VERSION} (some minutes)", flush=True)
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    for command in (
        [sys.executable, "-m", "venv", "--clear", ENVIRONMENT],
        [interpreter, "-m", "pip", "install", "--quiet", f"jax_privacy=={VERSION}"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise PeerMissing(f"{' '.join(map(str, command[:4]))} failed: {done.stderr.strip()[-300:]}")
    return interpreter


def run_peer(interpreter: Path, problem: dict[str, Any], lower_bound: float, *, cap: float) -> Run:
    """Run the peer on one problem until its own loss is within the smallest gap of our bound, or for `cap` seconds.

    Args:
        interpreter: interpreter of its environment.
        problem: kind, n, epochs or bands, and its L-BFGS.
        lower_bound: certified, of the mean loss.
        cap: seconds.

    Raises:
        PeerMissing: it ended with an error.
    """
    problem = {**problem, "target": lower_bound * (1 + GAPS[-1]), "cap": cap}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [interpreter, SCRIPT, json.dumps(problem)]
    pin = partial(_pin, problem["cores"]) if "cores" in problem else None
    done = subprocess.run(command, capture_output=True, text=True, env=environment, preexec_fn=pin)
    if done.returncode:
        raise PeerMissing(f"jax_privacy failed on {problem}: {done.stderr.strip()[-300:]}")
    return Run(json.loads(done.stdout.splitlines()[-1]), lower_bound)


def _pin(cores: int) -> None:
    """Keep this process on the last few cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])


def compare(
    report: Report,
    interpreter: Path,
    title: str,
    spec: dict[str, Any],
    problem: dict[str, Any],
    *,
    cap: float,
    variants: Sequence[str] = tuple(VARIANTS),
    solve: Callable[[Spec], Solution] | None = None,
) -> str:
    """Solve one problem by both and print a row for each way of stopping.

    Args:
        report: the report that takes the rows.
        interpreter: interpreter of the peer's environment.
        title: title of the problem.
        spec: our spec.
        problem: the peer's problem.
        cap: seconds for each of its runs.
        variants: ways to run it.
        solve: our side, if not the whole solver of the mechanism.

    Returns:
        The variant that was the fastest to the smallest gap.
    """
    ours = solved(spec, solve=solve)
    report.row(
        f"{title}: ours",
        seconds=ours.claim.seconds,
        **report.dgemms(ours.claim.seconds),
        note=f"CPU {duration(ours.claim.cpu_seconds)}, gap {ours.gap:.1e}, C written out; "
        f"first call {duration(ours.claim.first)}, certificate {duration(ours.certifying)}",
        times=ours.claim.times,
        lower_bound=ours.lower_bound,
    )
    runs: list[Run] = []
    for name in variants:
        fastest = _fastest(runs, GAPS[-1])
        longest = cap if fastest is None else min(cap, 1.1 * fastest.until(fastest.first_within(GAPS[-1])))
        runs.append(
            run_peer(interpreter, problem | (VARIANTS | BANDED_VARIANTS)[name], _peer_units(ours, problem), cap=longest)
        )
        _rows(report, f"{title}: {name}", ours, runs[-1])
    for gap in (None, GAPS[-1]):
        fastest = _fastest(runs, gap)
        if fastest is not None:
            way = "default stop" if gap is None else f"gap {gap:.0e}"
            _row(report, f"{title}: fastest, {way}", ours, fastest, fastest.end(gap))
    fastest = _fastest(runs, GAPS[-1])
    return OWN_VARIANT if fastest is None else variants[runs.index(fastest)]


def _fastest(runs: list[Run], gap: float | None) -> Run | None:
    """Return the run that was first at a gap or its own stop, or that the clock ended before it could prove slower."""
    return min(
        (run for run in runs if run.until(run.end(gap)) < math.inf),
        key=lambda run: run.until(run.end(gap)),
        default=None,
    )


def _peer_units(ours: Solved, problem: dict[str, Any]) -> float:
    """Return our bound of the mean loss; for banded matrices the peer states the loss of one participation."""
    participations = -(-problem["n"] // problem["bands"]) if problem["kind"] == "banded" else 1
    return ours.lower_bound / participations


def _rows(report: Report, title: str, ours: Solved, peer: Run) -> None:
    _row(report, f"{title}, default stop", ours, peer, peer.document["default_stop"])
    for gap in GAPS:
        step = peer.first_within(gap)
        _row(report, f"{title}, gap {gap:.0e}", ours, peer, step)
        if step is None:
            break
    report.remark(
        f"{title}: compiled in {duration(peer.document['compile_seconds'])}, not counted; used {peer.cores:.1f} cores; "
        f"the matrix it returned is {peer.final_gap:.1e} above our bound"
    )
    report.rows[-1] |= {key: peer.document[key] for key in ("problem", "versions", "times", "losses")}


def _row(report: Report, title: str, ours: Solved, peer: Run, step: int | None) -> None:
    at = peer.last if step is None else step
    seconds = max(peer.seconds(at), 0.0)
    ratio, cpu_ratio = seconds / ours.claim.seconds, peer.cpu_seconds(at) / ours.claim.cpu_seconds
    report.row(
        title if step is not None else f"{title} not reached",
        seconds=seconds,
        ratio=ratio,
        of="x our time" if step is not None else "x our time or more",
        note=f"in CPU time {cpu_ratio:.3g} x; gap {peer.gap(at):.1e}, {at} steps",
        cpu_ratio=cpu_ratio,
        bound=step is None,
    )


def run(report: Report, *, cap: float = 300.0) -> None:
    """Run all comparisons."""
    try:
        interpreter = python()
        report.heading("jax_privacy, prefix sums, single participation")
        fastest = OWN_VARIANT
        for n in (64,) if report.quick else (128, 256, 512, 1024):
            # Where each run takes minutes, the peer runs as it comes, and as it was the fastest at half the size.
            fastest = compare(
                report,
                interpreter,
                f"prefix n={n}",
                {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "dense"}, "tolerance": 1e-9},
                {"kind": "dense", "n": n},
                cap=min(cap, 10.0) if report.quick else cap,
                variants=tuple(dict.fromkeys((fastest, OWN_VARIANT))) if n >= 1024 else tuple(VARIANTS),
            )
        _epochs(report, interpreter, cap)
        _banded(report, interpreter, cap)
    except PeerMissing as error:
        report.remark(f"jax_privacy was not measured: {error}")


def _epochs(report: Report, interpreter: Path, cap: float) -> None:
    report.heading("jax_privacy, prefix sums, fixed epochs")
    n, k = (64, 4) if report.quick else (512, 8)
    compare(
        report,
        interpreter,
        f"epochs k={k}, n={n}",
        {
            "workload": {"kind": "prefix", "n": n},
            "participation": {"kind": "fixed_epochs", "epochs": k},
            "mechanism": {"kind": "dense"},
            "tolerance": 1e-9,
        },
        {"kind": "dense", "n": n, "epochs": k},
        cap=min(cap, 10.0) if report.quick else cap,
    )


def _banded(report: Report, interpreter: Path, cap: float) -> None:
    from factorize.solvers.banded.banded_optimum import (
        solve as search,  # the peer does not give the bound over all matrices
    )

    report.heading("jax_privacy, prefix sums, banded (its default stop: 100 steps)")
    n, b = (64, 4) if report.quick else (512, 16)
    compare(
        report,
        interpreter,
        f"banded b={b}, n={n}",
        {
            "workload": {"kind": "prefix", "n": n},
            "participation": {"kind": "min_sep", "min_sep": b},
            "mechanism": {"kind": "banded", "bands": b},
            "tolerance": 1e-9,
        },
        {"kind": "banded", "n": n, "bands": b},
        cap=min(cap, 10.0) if report.quick else cap,
        variants=tuple(BANDED_VARIANTS),
        solve=lambda spec: search(Problem(spec), lambda _step: None),
    )
