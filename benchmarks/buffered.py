"""Few time-varying buffers beside the optimum over all matrices, the best Toeplitz matrix and the square root.

Mean error. Tables hold loss / optimum - 1, where the optimum is the dual's lower bound: single participation for the
prefix workload (seconds are of one run of the solver, dual included, without certificate) and for momentum, fixed
epochs for the prefix workload, both as certified.

    python -m benchmarks.buffered [--full]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import numpy as np

from factorize import solvers
from factorize.solvers.buffered.buffered_optimum import optimise
from factorize.solvers.formulas.closed_form import strategy_coefficients
from factorize.solvers.problem import Problem, Reporter
from factorize.solvers.single.bidiagonal import Bidiagonal
from factorize.solvers.single.newton import maximise
from factorize.solvers.toeplitz import toeplitz_optimum as toeplitz
from factorize.spec import parse_spec
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import ToeplitzMatrix

SIZES = (256, 1024, 2048)
BUFFERS = (2, 3, 4, 5, 6, 8, 10)
MAX_N = 1_000_000
MOMENTUM_BUFFERS = (1, 2, 3, 4, 6, 8)
EPOCHS = ((4, 128), (8, 64))
STATES = (1, 2, 4, 8)
QUIET = Reporter(lambda _step: None)


def lower_bound(n: int) -> float:
    """Return the dual's bound on the total squared error."""
    return maximise(Bidiagonal(np.ones(n), np.ones(n)), tolerance=1e-9).best.lower_bound


def toeplitz_loss(n: int) -> float:
    """Return the total squared error of the best Toeplitz matrix."""
    problem = Problem(parse_spec({"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "toeplitz"}}))
    error = toeplitz.error_form(problem)
    found = [toeplitz.optimise(n, error, kind, 1e-9, QUIET).best for kind in toeplitz.classes(problem)]
    return n * float(np.exp(min(minimum.value for minimum in found)))


def normalised_root_loss(n: int) -> float:
    """Return the total squared error of the square root with its columns scaled to one norm, O(n^2 log n)."""
    root = ToeplitzMatrix(strategy_coefficients(n, 0.0), n)
    strategy = ColumnScaled(root, 1.0 / np.sqrt(root.column_norms_squared()))
    total, step = 0.0, max(1, 2**22 // n)
    for start in range(0, n, step):
        rows = np.tri(min(step, n - start), n, start)
        total += float((strategy.right_solve(rows) ** 2).sum())
    return total


def table(n: int, buffers: tuple[int, ...]) -> None:
    """Print one size."""
    bound = lower_bound(n)
    print(f"\nn = {n}: best Toeplitz {toeplitz_loss(n) / bound - 1:.2%}", end="")
    if n <= SIZES[-1]:
        print(f", normalised square root {normalised_root_loss(n) / bound - 1:.2%}", end="")
    print(f" above the optimum\n{'buffers':>8}{'optimised':>12}{'seconds':>9}")
    for count in buffers:
        began = time.perf_counter()
        found = optimise(np.ones(n), np.r_[0.0, np.ones(n - 1)], count, 1e-9, QUIET)
        seconds = time.perf_counter() - began
        print(f"{count:8d}{found.end.best.value:12.1e}{seconds:9.1f}", flush=True)


def certified(document: Mapping[str, object], buffers: int, **parameters: int) -> str:
    """Return the certified distance to the optimum and what kind of sensitivity it rests on."""
    mechanism = {"kind": "buffered_linear", "buffers": buffers, **parameters}
    certificate = solvers.solve(parse_spec({**document, "mechanism": mechanism})).certificate
    return f"{certificate.relative_gap:.2e} ({certificate.sensitivity.kind})"


def momentum_table() -> None:
    """Print the projected optimum of momentum."""
    print("\nmomentum")
    for n in (512, 2048):
        for momentum in (0.9, 0.95):
            workload = {"kind": "momentum", "n": n, "momentum": momentum}
            for buffers in MOMENTUM_BUFFERS:
                gap = certified({"workload": workload}, buffers)
                print(f"n = {n}, momentum {momentum}, {buffers} states: {gap}", flush=True)


def epochs_table() -> None:
    """Print fixed epochs."""
    print("\nfixed epochs")
    for epochs, length in EPOCHS:
        n = epochs * length
        document = {
            "workload": {"kind": "prefix", "n": n},
            "participation": {"kind": "fixed_epochs", "epochs": epochs},
        }
        for states in STATES:
            for redraws in (0, epochs - 1):
                gap = certified(document, states, redraws=redraws)
                print(f"(k, b) = ({epochs}, {length}), {states} states, {redraws} redraws: {gap}", flush=True)


def main(full: bool = False) -> None:
    """Print the tables; with `full` also n = 10^6, which takes minutes."""
    optimise(np.ones(64), np.r_[0.0, np.ones(63)], 2, 1e-3, QUIET)  # this compiles
    for n in SIZES:
        table(n, BUFFERS)
    momentum_table()
    epochs_table()
    if full:
        table(MAX_N, (8,))


if __name__ == "__main__":
    main("--full" in sys.argv[1:])
