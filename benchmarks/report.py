"""What every benchmark prints and writes: the machine, rows with seconds and a ratio, goals met or missed."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path("build") / "bench"
_GEMM = 2048


@dataclass(frozen=True)
class Goal:
    """A number that should stay on one side of a limit.

    Attributes:
        name: what is measured, with its unit.
        value: what was measured, or the side of it that is known (see `bound`).
        limit: where the goal lies.
        at_least: whether the value should reach the limit rather than stay below it.
        bound: whether the true value may be larger: what it is compared with was stopped by the clock.
    """

    name: str
    value: float
    limit: float
    at_least: bool = False
    bound: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where the clock ended the run before that was decided."""
        reached = self.value >= self.limit if self.at_least else self.value <= self.limit
        return None if self.bound and not reached else reached

    @property
    def text(self) -> str:
        """The goal and its verdict: by what factor it is missed, or surpassed."""
        factor = self.value / self.limit if self.at_least else self.limit / self.value
        missing = 1 / factor if factor > 0 else math.inf
        verdict = {
            True: f"met, {factor:.3g} times over",
            False: f"MISSED by a factor {missing:.4g}",
            None: f"open: the other side was stopped by the clock, {missing:.3g} times too early to tell",
        }[self.met]
        return f"goal {self.name} {'>=' if self.at_least else '<='} {self.limit:g}: {verdict}"

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "met": self.met}


def at_most(name: str, value: float, limit: float) -> Goal:
    """A number that should not exceed a limit."""
    return Goal(name, value, limit)


def at_least(name: str, value: float, limit: float, *, bound: bool = False) -> Goal:
    """A number that should reach a limit."""
    return Goal(name, value, limit, at_least=True, bound=bound)


@dataclass(frozen=True)
class Machine:
    """Where the numbers were measured; DGEMM is measured when this is made.

    Attributes:
        model: of the processor.
        cores: that this process may use.
        load: averages over 1, 5 and 15 minutes before the first benchmark.
        dgemm_seconds: of one float64 product of side `dgemm_side`, on all cores, the best of a few.
        dgemm_side: its side.
        gflops: the rate of that.
        versions: of Python, NumPy and numba.
    """

    model: str
    cores: int
    load: tuple[float, float, float]
    dgemm_seconds: float
    dgemm_side: int
    gflops: float
    versions: dict[str, str]

    @classmethod
    def measured(cls, *, side: int = _GEMM) -> Machine:
        """Measure this machine."""
        load = os.getloadavg()
        seconds = dgemm(side)
        versions = {"python": platform.python_version()}
        versions |= {name: str(import_module(name).__version__) for name in ("numpy", "numba")}
        return cls(_model(), _cores(), load, seconds, side, 2e-9 * side**3 / seconds, versions)

    @property
    def text(self) -> str:
        """One paragraph."""
        load = ", ".join(f"{value:.1f}" for value in self.load)
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.cores} cores, {self.model}; load {load}; DGEMM n={self.dgemm_side}: {self.dgemm_seconds:.3f} s, "
            f"{self.gflops:.0f} GFLOP/s; {versions}"
        )


def dgemm(side: int, *, repeats: int = 4) -> float:
    """Seconds of one float64 matrix product, the smallest of a few."""
    a = np.random.default_rng(0).standard_normal((side, side))
    out, best = np.empty_like(a), math.inf
    for _ in range(repeats):
        began = time.perf_counter()
        np.matmul(a, a, out=out)
        best = min(best, time.perf_counter() - began)
    return best


def _model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Report:
    """Prints the rows of one benchmark as they come and keeps them for its JSON file.

    Args:
        name: of the benchmark.
        machine: where it runs.
        quick: small sizes only, to see that all runs; such numbers say nothing about speed.
        full: the sizes that take minutes or much memory too.
    """

    def __init__(self, name: str, machine: Machine, *, quick: bool = False, full: bool = False) -> None:
        self.name, self.machine, self.quick, self.full = name, machine, quick, full
        self.rows: list[dict[str, Any]] = []
        self._before: dict[str, tuple[int, float]] = {}

    def heading(self, text: str) -> None:
        """Print and keep what the next rows are."""
        print(f"\n{text}")
        self.rows.append({"heading": text})

    def row(
        self,
        problem: str,
        *,
        seconds: float,
        ratio: float,
        of: str,
        note: str = "",
        goals: Sequence[Goal] = (),
        series: tuple[str, int] | None = None,
        **more: Any,
    ) -> None:
        """Print one row and keep it.

        Args:
            problem: what was solved.
            seconds: how long it took.
            ratio: against something measured in the same run.
            of: what the ratio is: `DGEMM(2048)`, `x jax_privacy`.
            note: a few words more: the gap that was reached, memory.
            goals: judged beside it.
            series: (name, n): the growth exponent since the last row of that name is printed.
            more: kept in the JSON file only.
        """
        exponent = None if series is None else self._exponent(*series, seconds)
        grown = "" if exponent is None else f"  n^{exponent:.2f}"
        print(f"  {problem:<46}{duration(seconds):>10}  {ratio:>10.4g} {of}{grown}{'  ' if note else ''}{note}")
        for goal in goals:
            print(f"      {goal.text}", flush=True)
        self.rows.append(
            {"problem": problem, "seconds": seconds, "ratio": ratio, "ratio_of": of, "exponent": exponent}
            | {"note": note, "goals": [goal.document() for goal in goals], **more}
        )

    def dgemms(self, seconds: float) -> dict[str, Any]:
        """The arguments `ratio` and `of` of a row that is compared with the matrix product of this run."""
        return {"ratio": seconds / self.machine.dgemm_seconds, "of": f"DGEMM({self.machine.dgemm_side})"}

    def remark(self, text: str) -> None:
        """Print and keep a sentence."""
        print(f"  {text}", flush=True)
        self.rows.append({"remark": text})

    def write(self, folder: Path = FOLDER) -> Path:
        """Write the rows as `<name>.json` into a folder; returns the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        document = {"benchmark": self.name, "date": date.today().isoformat(), "quick": self.quick}
        document |= {"machine": asdict(self.machine), "rows": self.rows}
        path.write_text(json.dumps({**document, "load_after": os.getloadavg()}, indent=1) + "\n")
        return path

    def missed(self) -> list[str]:
        """The goals that were not reached, each with its row."""
        return [
            f"{row['problem']}: {goal['name']} is {goal['value']:.3g}, goal {goal['limit']:g}"
            for row in self.rows
            for goal in row.get("goals", ())
            if goal["met"] is False
        ]

    def _exponent(self, name: str, n: int, seconds: float) -> float | None:
        before, self._before[name] = self._before.get(name), (n, seconds)
        return None if before is None else math.log(seconds / before[1]) / math.log(n / before[0])


def duration(seconds: float) -> str:
    """Seconds with a fitting unit."""
    return f"{1e3 * seconds:.2f} ms" if seconds < 0.1 else f"{seconds:.3g} s"
