"""The best Toeplitz strategy beside the square root, the best nu and the optimum over all matrices.

Single participation, mean error of the prefix workload; total squared error in the table. Seconds are the smallest of
three runs of the Toeplitz solver alone (tolerance 1e-9), without certificate and dual bound.

    python -m benchmarks.toeplitz [largest n]
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
from scipy.optimize import minimize_scalar

from benchmarks.report import Report
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.strategy import Strategy
from factorize.checker.utility import Utility
from factorize.numbers.blas_threads import one_blas_thread
from factorize.solvers.formulas.closed_form import noising_coefficients, strategy_coefficients
from factorize.solvers.methods.projected_gradient import Slope
from factorize.solvers.problem import Problem, Reporter
from factorize.solvers.single.bidiagonal import Bidiagonal
from factorize.solvers.single.newton import maximise
from factorize.solvers.toeplitz import toeplitz_optimum as toeplitz
from factorize.spec import parse_spec
from factorize.structures.toeplitz import ToeplitzMatrix

SIZES = (256, 2048, 16_384, 131_072, 1_000_000)
MAX_N_DENSE = 131_072
REPEATS = 3


def nu_loss(n: int, nu: float) -> float:
    """Return the total squared error of nu-Toeplitz noise on the prefix workload."""
    decoder = np.cumsum(noising_coefficients(n, nu))
    column = strategy_coefficients(n, nu)
    return float(np.arange(n, 0, -1) @ decoder**2) * float(column @ column)


def best_nu(n: int) -> tuple[float, float]:
    """Return n nu and the loss of the best nu, searched between 0.1 / n and 10 / n."""
    found = minimize_scalar(
        lambda log_nu: nu_loss(n, math.exp(log_nu)),
        bounds=(math.log(0.1 / n), math.log(min(10 / n, 0.9))),
        method="bounded",
    )
    return n * math.exp(found.x), float(found.fun)


def optimum(n: int, participation: dict[str, object] | None = None) -> tuple[Slope, float]:
    """Return the Toeplitz optimum and the smallest time of a few runs."""
    spec = parse_spec(
        {
            "workload": {"kind": "prefix", "n": n},
            "participation": participation or {"kind": "single"},
            "mechanism": {"kind": "toeplitz"},
        }
    )
    problem, seconds, best = Problem(spec), math.inf, None
    for _ in range(REPEATS):
        with one_blas_thread(0):  # solves run in the same way
            began = time.perf_counter()
            error = toeplitz.error_form(problem)
            found = [
                toeplitz.optimise(n, error, kind, 1e-9, Reporter(lambda _step: None)).best
                for kind in toeplitz.classes(problem)
            ]
            seconds = min(seconds, time.perf_counter() - began)
        best = min(found, key=lambda minimum: minimum.value)
    assert best is not None
    return best, seconds


def class_gap(n: int, found: Slope) -> str:
    """Return the proven distance to the best Toeplitz matrix, or a dash where n is too large for the bound."""
    spec = parse_spec({"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "toeplitz"}})
    strategy = ToeplitzMatrix(found.x / found.x[0], n)
    try:
        bound = Utility(spec.document(), Strategy(strategy.structure, strategy.tensors(), n), {}, {}).class_bound
    except NotEnclosed:
        return "-"
    return f"{math.exp(found.value) / bound.objective - 1:.1e}"


def table(sizes: tuple[int, ...]) -> dict[int, float]:
    """Print the table; returns the seconds of each n."""
    times: dict[int, float] = {}
    print("Toeplitz strategies, prefix workload, single participation: total squared error")
    print(
        f"{'n':>9}{'square root':>15}{'best nu / sqrt':>16}{'n nu':>7}{'Toeplitz':>18}{'class gap':>11}"
        f"{'/ all matrices':>16}{'seconds':>10}{'exponent':>10}"
    )
    before: tuple[int, float] | None = None
    for n in sizes:
        root = nu_loss(n, 0.0)
        place, nu = best_nu(n)
        found, seconds = optimum(n)
        loss = n * math.exp(found.value)
        ratio = "-"
        if n <= MAX_N_DENSE:
            ratio = f"{loss / maximise(Bidiagonal(np.ones(n), np.ones(n)), tolerance=1e-8).best.lower_bound:.5f}"
        exponent = f"{math.log(seconds / before[1]) / math.log(n / before[0]):.2f}" if before else "-"
        before = n, seconds
        times[n] = seconds
        print(
            f"{n:9d}{root:15.3f}{nu / root:16.4f}{place:7.3f}{loss:18.6f}{class_gap(n, found):>11}{ratio:>16}"
            f"{seconds:10.3f}{exponent:>10}",
            flush=True,
        )
    return times


def epochs_table(sizes: tuple[int, ...]) -> None:
    print("\nFour epochs in fixed order, coefficients that do not increase: total squared error")
    print(f"{'n':>9}{'Toeplitz':>18}{'bands used / b':>16}{'seconds':>10}")
    for n in (size for size in sizes if size <= MAX_N_DENSE):
        found, seconds = optimum(n, {"kind": "fixed_epochs", "epochs": 4})
        bands = int(np.flatnonzero(found.x)[-1]) + 1
        print(f"{n:9d}{n * math.exp(found.value):18.6f}{bands / (n / 4):16.3f}{seconds:10.3f}", flush=True)


def run(report: Report) -> None:
    """Print the tables."""
    times = table(SIZES[:1] if report.quick else SIZES)
    if not report.quick:
        epochs_table(SIZES)
    report.heading("Toeplitz optimum, smallest of three runs")
    for n, seconds in times.items():
        report.row(f"Toeplitz optimum, n={n}", seconds=seconds, **report.dgemms(seconds), series=("all", n))


def main(largest: int = SIZES[-1]) -> None:
    """Print the tables up to a size."""
    sizes = tuple(n for n in SIZES if n <= largest)
    table(sizes)
    epochs_table(sizes)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
