"""Cells of the study of learning rates that were trained, job by job, and what is computed before a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from factorize.training.learning_rate import ADAPTIVE, LIMITS, Limits, best_rate
from papers.leaderboard.rate_jobs import RateJob
from papers.leaderboard.rate_study import DECAYS, NO_PRIVACY, RESULTS, ROWS, cells

CHECKED_RESULTS = RESULTS.with_name("checked.jsonl")
"""The first rows at the stated rates, looked at in the run (`papers.leaderboard.checked_rates`)."""
CALLERS_SHARE, CALLERS_FACTOR = 0.3, 1.25
"""The rate of SGD is multiplied by these where the best one without privacy is known: by a power of the latter over
the stated rate, and by this factor. By least squares over the 43 jobs of SGD and momentum that were there it is the
0.26th power and 1.26; with the check anything near it did about as well. Adam's rate stays, since nothing gained there.
The package was to take it if it brought more of LISTED_JOBS near the best, and no more of them more than 1 point
behind DP-SGD. It brought as many (docs/notes/learning-rates.md).
"""
POINTS_BEYOND = 4.0
"""The points that accuracy is taken to fall for each doubling beyond the rates that were trained."""


@cache
def mean_rate(job: RateJob) -> float:
    """Return the mean of a job's relative rates."""
    return float(job.relative_rates.mean())


@dataclass(frozen=True)
class Cell:
    """A row of a job, trained.

    Attributes:
        numbers: its line of the results.
    """

    numbers: dict[str, Any]

    @cached_property
    def test(self) -> np.ndarray:
        """The test accuracies, shape (rates, seeds)."""
        return np.array(self.numbers["test"])

    @cached_property
    def best(self) -> int:
        """The place of the rate with the best training accuracy."""
        return int(self.curves[0].argmax())

    @property
    def best_rate(self) -> float:
        """The rate with the best training accuracy."""
        return float(self.numbers["rates"][self.best])

    @property
    def accuracy(self) -> float:
        """The mean test accuracy at the best rate."""
        return float(self.test[self.best].mean())

    @cached_property
    def octaves(self) -> np.ndarray:
        """Logarithms to base 2 of the rates."""
        return np.log2(self.numbers["rates"])

    @cached_property
    def curves(self) -> tuple[np.ndarray, np.ndarray]:
        """The mean training and test accuracies."""
        return np.mean(self.numbers["train"], axis=1), self.test.mean(axis=1)

    def lost_at(self, rate: float) -> float:
        """Return the points that a rate loses to the best one; accuracies between two rates are on a line."""
        return self.accuracy - self._between(rate, self.curves[1])

    @cached_property
    def nearby(self) -> tuple[np.ndarray, np.ndarray]:
        """Logarithms of rates, and what is lost about each: half of it there, the rest half a doubling away."""
        grid = np.arange(self.octaves[0] - 3, self.octaves[-1] + 3.1, 0.5)
        points = np.array([self.lost_at(float(2**at)) for at in grid])
        return grid[1:-1], (points[:-2] + 2 * points[1:-1] + points[2:]) / 4

    def better(self, rates: Sequence[float]) -> float:
        """Return the rate with the best training accuracy."""
        return max(rates, key=lambda rate: self._between(rate, self.curves[0]))

    def _between(self, rate: float, accuracies: np.ndarray) -> float:
        at, grid = math.log2(rate), self.octaves
        return float(np.interp(at, grid, accuracies) - POINTS_BEYOND * max(grid[0] - at, at - grid[-1], 0.0))

    def advised(
        self, job: RateJob, limits: Limits = LIMITS, free: float | None = None, *, checked: bool = False
    ) -> float:
        """Return the rate that is advised, for a run with or without the check.

        `free` is the best one without privacy, where the caller knows it.
        """
        own = self.numbers
        last, step = own["sigma"] * own["last"][0], own["sigma"] * own["single"]
        shape = {"steps": job.steps, "average": mean_rate(job), "limits": limits, "checked": checked}
        rate = best_rate(job.optimizer, job.momentum, own["parameters"], last, step, **shape)
        if free is None or job.optimizer in ADAPTIVE:
            return rate
        return rate * CALLERS_FACTOR * (free / rate) ** CALLERS_SHARE

    def noise(self, predictor: str) -> float:
        """Return one of PREDICTORS at the row's sigma."""
        return float(self.numbers["sigma"] * PREDICTORS[predictor](self.numbers))


PREDICTORS: dict[str, Callable[[dict[str, Any]], float]] = {
    "weights, all steps": lambda numbers: numbers["mean"][0],
    "weights, last step": lambda numbers: numbers["last"][0],
    "weights, all steps and the last one, in squares": lambda numbers: math.hypot(
        numbers["mean"][0], numbers["last"][0]
    ),
    "weights that lose 1 % a step": lambda numbers: numbers["mean"][DECAYS.index(1e-2)],
    "weights that lose 10 % a step": lambda numbers: numbers["mean"][DECAYS.index(0.1)],
    "single steps": lambda numbers: numbers["single"],
    "weights through Adam itself, over what it moves by a signal": lambda numbers: numbers.get(
        "adam", numbers["mean"][0]
    ),
    "weights, all steps, times the 1/20th power of that of single steps": lambda numbers: (
        numbers["mean"][0] * numbers["single"] ** 0.05
    ),
    "weights, all steps, and 0.03 of single steps, in squares": lambda numbers: math.hypot(
        numbers["mean"][0], 0.03**0.5 * numbers["single"]
    ),
}
"""The predictors: root mean squared noise, at sigma 1."""
ALL_STEPS, LAST_TOO = "weights, all steps", "weights, all steps and the last one, in squares"


@dataclass(frozen=True)
class Trained:
    """One job with its cells.

    Attributes:
        job: the job.
        free: the cell without privacy.
        rows: the other cells, by row.
    """

    job: RateJob
    free: Cell
    rows: dict[str, Cell]

    @property
    def adaptive(self) -> bool:
        """Return whether it divides by second moments."""
        return self.job.optimizer in ADAPTIVE

    @property
    def order(self) -> str:
        """Return the one of PREDICTORS by which `recommend` orders rows."""
        return LAST_TOO if self.job.schedule == "constant" else ALL_STEPS

    @property
    def shares(self) -> np.ndarray:
        """The weight of each row in a fit: 1 over 1 and the points that it is behind the best."""
        found = np.array([cell.accuracy for cell in self.rows.values()])
        return np.asarray(1 / (1 + found.max() - found))

    def rank(self, predictor: str) -> float:
        """Return the rank correlation of little noise with accuracy."""
        found = [(-cell.noise(predictor), cell.accuracy) for cell in self.rows.values()]
        return float(spearmanr(*zip(*found, strict=True))[0])


def trained_jobs(jobs: Sequence[RateJob], path: Path = RESULTS) -> list[Trained]:
    """Return the jobs whose cells are there: that without privacy, and five others at least."""
    found = []
    for document, group in groupby(sorted(cells(path), key=_document), key=_document):
        rows = {cell["row"]: Cell(cell) for cell in group}
        free = rows.pop(NO_PRIVACY, None)
        if free is not None and len(rows) >= 5 and (job := RateJob(**json.loads(document))) in jobs:
            found.append(Trained(job, free, {name: rows[name] for name in ROWS if name in rows}))
    return found


def _document(cell: dict[str, Any]) -> str:
    return json.dumps(cell["job"])


@cache
def checked_accuracies(*, named: bool = False) -> dict[RateJob, float]:
    """Return the mean test accuracy of each job whose first row was trained with the check.

    Args:
        named: at the rate that is stated to a caller who names the best one without privacy.
    """
    lines = [line for line in cells(CHECKED_RESULTS) if ("free" in line) == named]
    return {RateJob(**line["job"]): float(np.mean(line["test"])) for line in lines}
