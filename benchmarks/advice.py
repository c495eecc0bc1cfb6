"""How soon advice is good: the row that is recommended after few processor seconds, beside that of a long run.

`python -m benchmarks.advice` prints a line for each job: the error of the row at each budget over the least that any
run has found (results/advice.json, which it lowers where it finds less), the processor seconds that it took (compiling
and loading kernels left out), and which mechanism it is; then how many jobs are within 1 and 3 % at each budget.
`--load N` keeps N processes busy meanwhile, which should change nothing but the clock; `--jobs 0:5` takes a part of the
list.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from factorize.api.questions.advice import advise
from factorize.api.questions.training_job import RecommendRequest, read_job
from factorize.numbers.processor_time import process_seconds

COSINE = {"kind": "cosine"}
MOMENTUM = {"kind": "momentum", "momentum": 0.9}
WARM = {"kind": "schedule", "learning_rates": {"kind": "warmup_cosine", "warmup": 50}}
FIXED = ["fixed"]
LEAST_ERRORS = Path(__file__).with_name("results") / "advice.json"

JOBS: tuple[dict[str, Any], ...] = (
    {"examples": 50_000, "batch_size": 512, "epochs": 10, "epsilon": 3.0},
    {"examples": 60_000, "batch_size": 600, "epochs": 10, "epsilon": 2.0},
    {"examples": 50_000, "batch_size": 500, "epochs": 5, "epsilon": 3.0},
    {"examples": 50_000, "batch_size": 500, "epochs": 5, "epsilon": 8.0, "samplings": FIXED},
    {"examples": 60_000, "batch_size": 300, "epochs": 4, "epsilon": 1.0},
    {"examples": 60_000, "batch_size": 300, "epochs": 4, "epsilon": 8.0, "memory": [1]},
    {"examples": 100_000, "batch_size": 100, "epochs": 1, "epsilon": 2.0},
    {"examples": 100_000, "batch_size": 100, "epochs": 2, "epsilon": 4.0},
    {"examples": 100_000, "batch_size": 100, "epochs": 1, "epsilon": 8.0, "samplings": FIXED},
    {"examples": 20_000, "batch_size": 312, "epochs": 16, "epsilon": 2.0},
    {"examples": 20_000, "batch_size": 312, "epochs": 16, "epsilon": 8.0, "memory": [8]},
    {"examples": 20_000, "batch_size": 312, "epochs": 16, "epsilon": 0.5},
    {
        "examples": 50_000,
        "batch_size": 512,
        "epochs": 10,
        "epsilon": 3.0,
        "workload": {**MOMENTUM, "learning_rates": COSINE},
    },
    {
        "examples": 50_000,
        "batch_size": 500,
        "epochs": 1,
        "epsilon": 3.0,
        "workload": {**MOMENTUM, "learning_rates": COSINE},
    },
    {
        "examples": 50_000,
        "batch_size": 500,
        "epochs": 5,
        "epsilon": 3.0,
        "memory": [1],
        "workload": {"kind": "momentum", "momentum": 0.95, "learning_rates": COSINE},
    },
    {"examples": 50_000, "batch_size": 500, "epochs": 5, "epsilon": 3.0, "workload": WARM},
    {"examples": 50_000, "batch_size": 500, "epochs": 5, "epsilon": 3.0, "workload": WARM, "samplings": FIXED},
    {
        "examples": 8_000,
        "batch_size": 250,
        "epochs": 8,
        "epsilon": 4.0,
        "workload": {"kind": "schedule", "learning_rates": COSINE},
    },
    {"examples": 8_000, "batch_size": 250, "epochs": 8, "epsilon": 1.0, "memory": [2]},
    {"examples": 3_200, "batch_size": 100, "epochs": 4, "epsilon": 2.0, "workload": MOMENTUM},
    {
        "examples": 3_200,
        "batch_size": 100,
        "epochs": 20,
        "epsilon": 6.0,
        "objective": {"kind": "lambda_tau", "tau": 640},
    },
    {"examples": 60_000, "batch_size": 1000, "epochs": 30, "epsilon": 3.0},
    *(
        {"examples": bins * 100, "batch_size": 100, "epochs": epochs, "epsilon": epsilon}
        for bins, epochs in ((16, 4), (16, 32), (50, 2), (50, 12), (200, 1), (200, 6))
        for epsilon in (1.0, 4.0, 10.0)
    ),
    *(
        {"examples": bins * 100, "batch_size": 100, "epochs": epochs, "epsilon": 4.0, **more}
        for bins, epochs in ((30, 3), (80, 8))
        for more in (
            {"workload": {**MOMENTUM, "learning_rates": COSINE}},
            {"workload": {"kind": "schedule", "learning_rates": COSINE}},
            {"workload": {"kind": "momentum", "momentum": 0.95}, "memory": [1]},
            {"workload": WARM, "memory": [2]},
            {"samplings": FIXED, "memory": [2]},
            {"samplings": FIXED, "workload": MOMENTUM},
            {"objective": {"kind": "lambda_tau", "tau": 60}},
        )
    ),
    {"examples": 100_000, "batch_size": 100, "epochs": 1, "epsilon": 1.0},
    {"examples": 100_000, "batch_size": 100, "epochs": 1, "epsilon": 6.0, "memory": [1]},
    {"examples": 100_000, "batch_size": 100, "epochs": 2, "epsilon": 1.0},
    {"examples": 100_000, "batch_size": 100, "epochs": 2, "epsilon": 8.0, "memory": [1]},
    {"examples": 100_000, "batch_size": 100, "epochs": 2, "epsilon": 3.0, "samplings": FIXED},
    {"examples": 40_000, "batch_size": 100, "epochs": 4, "epsilon": 2.0},
)


def answer(job: dict[str, Any], seconds: float) -> tuple[float, str, float]:
    """Return the root of the recommended row's objective, its mechanism, and the processor seconds that it took."""
    began = process_seconds()
    read = read_job({"delta": 1e-6, **job, "seconds": seconds}, RecommendRequest)
    found = advise(read, lambda *_: None)
    return (
        found["row"]["objective_at_privacy"] ** 0.5,
        f"{found['mechanism']} {found['sampling']}",
        process_seconds() - began,
    )


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", default="3,10,60")
    options.add_argument("--load", type=int, default=0)
    options.add_argument("--jobs", default=":")
    asked = options.parse_args()
    budgets = [float(text) for text in asked.seconds.split(",")]
    first, _, stop = asked.jobs.partition(":")
    for more in ({}, {"samplings": FIXED}):
        answer({"examples": 800, "batch_size": 100, "epochs": 2, "epsilon": 2.0, **more}, 3.0)
    least: list[float] = json.loads(LEAST_ERRORS.read_text())
    over: dict[float, list[float]] = {seconds: [] for seconds in budgets}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(asked.load)]
    try:
        for place in range(len(JOBS))[int(first or 0) : int(stop or len(JOBS))]:
            rows = [answer(JOBS[place], seconds) for seconds in budgets]
            least[place] = min(least[place], *(float(f"{error:.5g}") for error, _, _ in rows))
            for seconds, (error, _, _) in zip(budgets, rows, strict=True):
                over[seconds].append(error / least[place])
            ratios = "  ".join(
                f"{seconds:g} s: {error / least[place]:.4f} ({spent:.1f})"
                for seconds, (error, _, spent) in zip(budgets, rows, strict=True)
            )
            print(f"{place:>2} {ratios}  {rows[-1][0]:.5g}  {rows[0][1]} | {rows[-1][1]}  {JOBS[place]}", flush=True)
    finally:
        for process in busy:
            process.kill()
    for seconds, ratio in over.items():
        near = [sum(one <= 1 + most for one in ratio) for most in (0.01, 0.03)]
        print(f"{seconds:g} s: {near[0]} of {len(ratio)} within 1 %, {near[1]} within 3 %, farthest {max(ratio):.4f}")
    LEAST_ERRORS.write_text("[\n" + ",\n".join(map(str, least)) + "\n]\n")


if __name__ == "__main__":
    main()
