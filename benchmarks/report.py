"""The report of a benchmark: the machine, and rows with seconds and a ratio against something of the same run."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path("build") / "bench"
_GEMM_SIDE = 2048


@dataclass(frozen=True)
class Machine:
    """The machine on which the numbers were measured; DGEMM is measured when this is made.

    Attributes:
        model: model of the processor.
        cores: cores that this process may use.
        load: averages over 1, 5 and 15 minutes before the first benchmark.
        dgemm_seconds: seconds of one float64 product of side `dgemm_side`, on all cores, the best of a few.
        dgemm_side: its side.
        gflops: the rate of that.
        versions: versions of Python, NumPy and numba.
    """

    model: str
    cores: int
    load: tuple[float, float, float]
    dgemm_seconds: float
    dgemm_side: int
    gflops: float
    versions: dict[str, str]

    @classmethod
    def measured(cls, *, side: int = _GEMM_SIDE) -> Machine:
        """Measure this machine."""
        load = os.getloadavg()
        seconds = dgemm(side)
        versions = {"python": platform.python_version()}
        versions |= {name: str(import_module(name).__version__) for name in ("numpy", "numba")}
        return cls(_model(), _cores(), load, seconds, side, 2e-9 * side**3 / seconds, versions)

    @property
    def text(self) -> str:
        """Return one paragraph."""
        load = ", ".join(f"{value:.1f}" for value in self.load)
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return (
            f"{self.cores} cores, {self.model}; load {load}; DGEMM n={self.dgemm_side}: {self.dgemm_seconds:.3f} s, "
            f"{self.gflops:.0f} GFLOP/s; {versions}"
        )


def dgemm(side: int, *, repeats: int = 4) -> float:
    """Return the seconds of one float64 matrix product, the smallest of a few."""
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
        name: name of the benchmark.
        machine: the machine that it runs on.
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
            series: (name, n): the growth exponent since the last row of that name is printed.
            more: kept in the JSON file only.
        """
        exponent = None if series is None else self._exponent(*series, seconds)
        grown = "" if exponent is None else f"  n^{exponent:.2f}"
        print(
            f"  {problem:<46}{duration(seconds):>10}  {ratio:>10.4g} {of}{grown}{'  ' if note else ''}{note}",
            flush=True,
        )
        self.rows.append(
            {"problem": problem, "seconds": seconds, "ratio": ratio, "ratio_of": of, "exponent": exponent}
            | {"note": note, **more}
        )

    def dgemms(self, seconds: float) -> dict[str, Any]:
        """Return the arguments `ratio` and `of` of a row that is compared with the matrix product of this run."""
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

    def _exponent(self, name: str, n: int, seconds: float) -> float | None:
        before, self._before[name] = self._before.get(name), (n, seconds)
        return None if before is None else math.log(seconds / before[1]) / math.log(n / before[0])


def slower(earlier: Path, rows: Sequence[dict[str, Any]], *, factor: float = 1.25) -> Iterator[str]:
    """Yield the rows whose ratio is that many times the ratio in the file of an earlier run, or more."""
    before = {row["problem"]: row for row in json.loads(earlier.read_text())["rows"] if "problem" in row}
    for row in rows:
        old = before.get(row.get("problem", ""))
        if old is not None and old["ratio_of"] == row["ratio_of"] and row["ratio"] >= factor * old["ratio"]:
            yield f"{row['problem']}: {row['ratio']:.3g} {row['ratio_of']}, {old['ratio']:.3g} before"


def duration(seconds: float) -> str:
    """Return seconds with a fitting unit."""
    return f"{1e3 * seconds:.2f} ms" if seconds < 0.1 else f"{seconds:.3g} s"
