"""The stated rates with a check in the run: `python -m papers.leaderboard.checked_rates [--mnist FOLDER]`.

The first row of every job of `papers.leaderboard.rate_study` is trained at the rate that is stated for it, and
checked in the run by `factorize.training.rate_check`; those of LISTED_JOBS and DRAWN_JOBS that have no
Adam once more, at the rate that is stated to a caller who names the best one without privacy. Every run is one line of
a JSON file.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from factorize.training.learning_rate import ADAPTIVE
from factorize.training.rate_check import ArrayRateCheck
from papers.leaderboard.rate_jobs import DRAWN_JOBS, HELD_OUT_JOBS, JUDGED_LISTS, LISTED_JOBS, NEWEST_JOBS, SEEN_JOBS
from papers.leaderboard.rate_predictors import Verdict
from papers.leaderboard.rate_study import CLIP_NORM, FACTORS_FOLDER, cells, factors_of, runs_of
from papers.leaderboard.trained_jobs import CHECKED_RESULTS, Trained, trained_jobs


def checked(one: Trained, row: str, mnist: Path | None, free: float | None) -> dict[str, Any]:
    """Train a row at the rate that is stated for it, with the check, and return the run's line.

    Args:
        one: the job.
        row: row of the job.
        mnist: folder of MNIST's files.
        free: the rate without privacy that the caller names, if any.
    """
    job, cell = one.job, one.rows[row]
    rate = cell.advised(job, free=free, checked=free is None)
    sigma, factors = cell.numbers["sigma"], factors_of(job, row, FACTORS_FOLDER)
    second, decay = (0.999, job.weight_decay) if job.optimizer in ADAPTIVE else (None, 0.0)
    moments = (job.momentum, second, decay if job.optimizer == "adamw" else 0.0)
    run = runs_of(job, row, factors, sigma, mnist)
    _, test = run(np.array([rate]), lambda weights: ArrayRateCheck(factors, sigma / CLIP_NORM, [weights], *moments))
    named = {} if free is None else {"free": free}
    return {"job": asdict(job), "row": row, **named, "rate": rate, "test": np.round(test[:, 0], 2).tolist()}


def main() -> None:
    """Train the jobs that the file does not have yet."""
    parser = argparse.ArgumentParser(prog="python -m papers.leaderboard.checked_rates", description=__doc__)
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="folder of MNIST's four IDX files, .gz or not")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    there = [(line["job"], line.get("free")) for line in cells(CHECKED_RESULTS)]
    for one in trained_jobs(sum(JUDGED_LISTS, []) + NEWEST_JOBS + HELD_OUT_JOBS + SEEN_JOBS):
        if "mnist" in one.job.data and asked.mnist is None:
            continue
        for free in (None, one.free.best_rate) if one.job in LISTED_JOBS + DRAWN_JOBS and not one.adaptive else (None,):
            if (asdict(one.job), free) in there:
                continue
            line = checked(one, Verdict.of(one).first, asked.mnist, free)
            with CHECKED_RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
