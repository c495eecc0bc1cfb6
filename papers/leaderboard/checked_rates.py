"""The stated rates with a check in the run: `python -m papers.leaderboard.checked_rates [--mnist FOLDER]`.

The first row of every job of `papers.leaderboard.rate_study` is trained at the rate that is stated for it, and
looked at after a fifth of the steps, as `factorize.training.rate_check` does; a constant rate leaves the mean of the
weights of the last quarter. Every job is one line of a JSON file.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factorize.training.learning_rate import ADAPTIVE, CHECKED, noise_moved
from papers.leaderboard.rate_predictors import CHECKED_RESULTS, Trained, Verdict, trained_jobs
from papers.leaderboard.rate_study import CLIP_NORM, HELD_OUT, NEWEST, SEEN, SOLVED, cells, factors_of, runs_of


def checked(one: Trained, row: str, mnist: Path | None) -> dict[str, Any]:
    """Train a row at the rate that is stated for it, with the check, and return the job's line."""
    job, cell = one.job, one.rows[row]
    rate, sigma, factors = cell.advised(job), cell.numbers["sigma"], factors_of(job, row, SOLVED)
    steps, second = int(CHECKED * job.steps), 0.999 if job.optimizer in ADAPTIVE else None
    rates, size = rate * job.relative_rates[:steps], cell.numbers["parameters"]
    decay = job.weight_decay if job.optimizer == "adamw" else 0.0
    noise = noise_moved(factors.strategy, sigma / CLIP_NORM, size, rates, job.momentum, second, decay)
    _, test = runs_of(job, row, factors, sigma, mnist)(np.array([rate]), (steps, np.array([noise])))
    return {"job": asdict(job), "row": row, "rate": rate, "test": np.round(test[:, 0], 2).tolist()}


def main() -> None:
    """Train the jobs that the file does not have yet."""
    parser = argparse.ArgumentParser(prog="python -m papers.leaderboard.checked_rates", description=__doc__)
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="folder of MNIST's four IDX files, .gz or not")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    there = [line["job"] for line in cells(CHECKED_RESULTS)]
    for one in trained_jobs(NEWEST + HELD_OUT + SEEN):
        if asdict(one.job) in there or ("mnist" in one.job.data and asked.mnist is None):
            continue
        line = checked(one, Verdict.of(one).first, asked.mnist)
        with CHECKED_RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    main()
