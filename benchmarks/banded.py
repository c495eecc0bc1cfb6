"""The banded optimum of the prefix sum under min_sep: seconds, evaluations and the certified gap within the class.

Sizes grow along n = 32 x bands, so that an evaluation grows eightfold from row to row. Seconds are the smallest of a
few runs, from the spec to the strategy, the class bound that ends the search included; CPU seconds are those of the
same run, which on a busy machine say more. The gap is recomputed by the certificate's code, outside the timing.
A second table keeps n and doubles the bands, and the bands and doubles n: what preconditioning has left of the growth.
Goals: n=512 within 0.068 s (200 times faster than the 13.6 s of jax_privacy 2.0 to 1e-9 on a quiet two-core machine),
n=2048 within 2 s.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.report import Report, duration
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.strategy import Strategy
from factorize.checker.utility import Utility
from factorize.numbers.blas_threads import one_blas_thread
from factorize.numbers.state_space import StateSpace
from factorize.solvers.banded.banded_optimum import recursion, start
from factorize.solvers.banded.gram_descent import GramDescent, GramPoint, Landscape
from factorize.solvers.methods.search import End
from factorize.solvers.problem import Problem, Reporter
from factorize.spec import Spec, parse_spec

BANDS = (4, 8, 16, 32, 64, 128)  # sizes at n = 2048
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)  # sizes at 16 bands
SIZES = ((256, 8), (512, 16), (1024, 32), (2048, 64))
_REPEATS = 5


@dataclass(frozen=True)
class Row:
    """One size.

    Attributes:
        n: steps.
        bands: diagonals, and min_sep.
        seconds: smallest of the runs.
        cpu: CPU seconds of that run.
        steps: steps of the descent.
        evaluations: evaluations of the loss and its gradient.
        gap: certified, within the class.
        loss: total squared error.
    """

    n: int
    bands: int
    seconds: float
    cpu: float
    steps: int
    evaluations: int
    gap: float
    loss: float

    @property
    def text(self) -> str:
        """Return one line."""
        return (
            f"n={self.n:5d} bands={self.bands:3d}  {self.seconds:8.4f} s  cpu {self.cpu:8.4f} s  "
            f"steps {self.steps:3d}  evaluations {self.evaluations:4d}  class gap {self.gap:.2e}  "
            f"loss {self.loss:.9g}"
        )


def spec_of(n: int, bands: int) -> Spec:
    return parse_spec(
        {
            "workload": {"kind": "prefix", "n": n},
            "participation": {"kind": "min_sep", "min_sep": bands},
            "mechanism": {"kind": "banded", "bands": bands},
            "tolerance": 1e-9,
        }
    )


def descend(problem: Problem, target: StateSpace, bands: int) -> tuple[Landscape, End[GramPoint]]:
    landscape = Landscape(target, problem.n, bands)
    first = start(problem, landscape, Reporter(lambda _step: None))
    return landscape, GramDescent(landscape, first).descend(problem.tolerance, lambda _step, _left: None)


def measure(n: int, bands: int, repeats: int = _REPEATS) -> Row:
    spec = spec_of(n, bands)
    best, found = (math.inf, math.inf), None
    for _ in range(repeats):
        problem = Problem(spec)
        with one_blas_thread(0):  # solves run in the same way
            began, cpu = time.perf_counter(), time.process_time()
            found = descend(problem, recursion(problem), bands)
            best = min(best, (time.perf_counter() - began, time.process_time() - cpu))
    assert found is not None
    landscape, end = found
    strategy = landscape.strategy(end.best)
    state = spec.workload.state_space()
    assert state is not None
    total = float(strategy.decoder_errors(state).sum())
    count = -(-n // bands)
    try:
        bound = Utility(spec.document(), Strategy("banded", strategy.tensors(), n), {}, {}).class_bound.objective
    except NotEnclosed:
        bound = 0.0
    gap = count * total / n / bound - 1 if bound else math.inf
    return Row(n, bands, *best, end.steps, landscape.evaluations, gap, count * total)


def exponent(before: float, after: float) -> float:
    return math.log2(after / before)


def growth(name: str, sizes: Sequence[tuple[int, int]]) -> str:
    """Return a line with the evaluations at each size and the exponent that fits them best.

    Args:
        name: what doubles from each size to the next.
        sizes: n and bands.
    """
    counts = [measure(n, bands, repeats=1).evaluations for n, bands in sizes]
    slope = float(np.polyfit(np.arange(len(counts)), np.log2(counts), 1)[0])
    each = ", ".join(f"{n}/{bands}: {count}" for (n, bands), count in zip(sizes, counts, strict=True))
    return f"evaluations to a certified 1e-9 by n/bands: {each}; about {name}^{slope:.2f}"


def growths(*, quick: bool = False) -> list[str]:
    """Return the lines for bands, for n, and for both."""
    cut = slice(0, 2) if quick else slice(None)
    n = 128 if quick else 2048
    return [
        growth("bands", [(n, bands) for bands in BANDS[cut]]),
        growth("n", [(length, 16) for length in LENGTHS[cut]]),
        growth("bands", SIZES[cut]),
    ]


def run(report: Report) -> None:
    """Print the rows of the report."""
    measure(64, 4)  # this compiles
    report.heading("Banded optimum of the prefix sum under min_sep, smallest of a few runs, class gap certified apart")
    for n, bands in ((64, 4), (128, 4)) if report.quick else SIZES:
        row = measure(n, bands)
        report.row(
            f"banded, n={n}, bands={bands}",
            seconds=row.seconds,
            **report.dgemms(row.seconds),
            note=f"CPU {duration(row.cpu)}, class gap {row.gap:.1e}, {row.evaluations} evaluations",
            series=("banded", n),
            cpu_seconds=row.cpu,
            loss=row.loss,
        )
    for line in growths(quick=report.quick):
        report.remark(line)


def main() -> None:
    measure(64, 4)  # this compiles
    rows = []
    for n, bands in SIZES:
        rows.append(measure(n, bands))
        print(rows[-1].text, flush=True)
    for before, after in zip(rows, rows[1:], strict=False):
        print(
            f"growth n={before.n} -> {after.n} (evaluation 8 times dearer): seconds ~ n^"
            f"{exponent(before.seconds, after.seconds):.2f}, cpu ~ n^{exponent(before.cpu, after.cpu):.2f}, "
            f"evaluations ~ bands^{exponent(before.evaluations, after.evaluations):.2f}"
        )
    print(*growths(), sep="\n")


if __name__ == "__main__":
    main()
