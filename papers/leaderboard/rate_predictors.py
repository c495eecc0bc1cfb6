"""What predicts accuracy and the best rate: `python -m papers.leaderboard.rate_predictors`, from the study's results.

Nothing is trained. Cells of one job are ranked by errors that are computed before the run; the limits of
`factorize.training.learning_rate` are fitted to the accuracies at all rates, by leaving out one job at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.stats import spearmanr

from factorize.training.learning_rate import ADAPTIVE, PLAIN, SECOND_MOMENTS, Limits, best_rate
from papers.leaderboard.rate_study import DECAYS, FREE, HELD_OUT, RESULTS, ROWS, SEEN, RateJob, cells

SECRET = [name for name, (_, sampling) in ROWS.items() if sampling != "fixed"]
INDEPENDENT = [name for name in ROWS if name.startswith("independent")]
BEYOND = 4.0
"""Points that accuracy is taken to fall for each doubling beyond the rates that were trained."""
WORST = 6.0
"""Points that a rate costs at most in a fit, so that one cell decides nothing."""
PREDICTORS: dict[str, Callable[[dict[str, Any]], float]] = {
    "weights, all steps": lambda cell: cell["mean"][0],
    "weights, last step": lambda cell: cell["last"][0],
    "weights that lose 1 % a step": lambda cell: cell["mean"][DECAYS.index(1e-2)],
    "weights that lose 10 % a step": lambda cell: cell["mean"][DECAYS.index(0.1)],
    "single steps": lambda cell: cell["single"],
}
"""Root mean squared noise, at sigma 1."""


@dataclass(frozen=True)
class Trained:
    """One job with its cells.

    Attributes:
        job: the job.
        free: the cell without privacy.
        rows: the other cells, by row.
    """

    job: RateJob
    free: dict[str, Any]
    rows: dict[str, dict[str, Any]]

    @property
    def adaptive(self) -> bool:
        """Whether it divides by second moments."""
        return self.job.optimizer in ADAPTIVE

    def accuracies(self, seeds: slice = slice(None)) -> np.ndarray:
        """Return the mean test accuracy of each row at its best rate."""
        return np.array([accuracy(cell, seeds).mean() for cell in self.rows.values()])

    def noise(self, predictor: str) -> np.ndarray:
        """Return a predictor of each row."""
        return np.array([cell["sigma"] * PREDICTORS[predictor](cell) for cell in self.rows.values()])

    def chosen(self, among: Sequence[str]) -> str:
        """Return the row of the least noise of weights over all steps."""
        there = [name for name in self.rows if name in among]
        return min(there, key=lambda name: self.rows[name]["sigma"] * self.rows[name]["mean"][0])


def best_of(cell: dict[str, Any]) -> int:
    """Return the place of the rate with the best training accuracy."""
    return int(np.mean(cell["train"], axis=1).argmax())


def accuracy(cell: dict[str, Any], seeds: slice = slice(None)) -> np.ndarray:
    """Return the test accuracy of each seed at the best rate."""
    return np.array(cell["test"][best_of(cell)])[seeds]


def lost_at(cell: dict[str, Any], rate: float) -> float:
    """Return the points that a rate loses to the best one; accuracies between two rates are on a line."""
    at, rates, test = math.log2(rate), np.log2(cell["rates"]), np.mean(cell["test"], axis=1)
    beyond = max(rates[0] - at, at - rates[-1], 0.0)
    return float(test[best_of(cell)] - np.interp(at, rates, test) + BEYOND * beyond)


def rate_of(one: Trained, cell: dict[str, Any], limits: Limits | None = None) -> float:
    """Return the rate that is advised for a cell."""
    noise = (cell["sigma"] * cell["mean"][0], cell["sigma"] * cell["single"])
    return best_rate(one.job.optimizer, one.job.momentum, cell["parameters"], *noise, limits)


def trained_jobs(jobs: Sequence[RateJob], path: Path = RESULTS) -> list[Trained]:
    """Return the jobs whose cells are there: that without privacy, and five others at least."""
    found = []
    for document, group in groupby(sorted(cells(path), key=_document), key=_document):
        rows = {cell["row"]: cell for cell in group}
        free = rows.pop(FREE, None)
        if free is not None and len(rows) >= 5 and (job := RateJob(**json.loads(document))) in jobs:
            found.append(Trained(job, free, {name: rows[name] for name in ROWS if name in rows}))
    return found


def _document(cell: dict[str, Any]) -> str:
    return json.dumps(cell["job"])


def fitted(found: Sequence[Trained], begin: Limits, tries: int = 400) -> Limits:
    """Return limits whose rates lose least, on average over all cells; those that are infinite or zero stay so."""
    free = [name for name, value in begin._asdict().items() if 0 < value < math.inf]
    first = np.log([getattr(begin, name) for name in free])

    def lost(logs: np.ndarray) -> float:
        limits = begin._replace(**dict(zip(free, np.exp(logs).tolist(), strict=True)))
        every = (lost_at(cell, rate_of(one, cell, limits)) for one in found for cell in one.rows.values())
        return float(np.mean([min(value, WORST) for value in every]) + 1e-3 * np.square(logs - first).sum())

    values = np.exp(minimize(lost, first, method="Nelder-Mead", options={"maxiter": tries}).x)
    return begin._replace(**dict(zip(free, values.tolist(), strict=True)))


def left_out(found: Sequence[Trained], begin: Limits) -> tuple[Limits, list[float]]:
    """Return the limits fitted to all jobs, and what is lost in each cell by those fitted to the other jobs."""
    best, lost = fitted(found, begin), []
    for one in found:
        limits = fitted([other for other in found if other is not one], best, 150)
        lost += [lost_at(cell, rate_of(one, cell, limits)) for cell in one.rows.values()]
    return best, lost


def octaves(found: Sequence[Trained], limits: Limits | None = None) -> np.ndarray:
    """Return how many doublings each advised rate is above the best one."""
    pairs = [(rate_of(one, cell, limits), cell["rates"][best_of(cell)]) for one in found for cell in one.rows.values()]
    return np.log2([advised / best for advised, best in pairs])


def ranks_of(found: Sequence[Trained], predictor: str) -> np.ndarray:
    """Return, for each job, the rank correlation of little noise with accuracy."""
    return np.array([-spearmanr(one.noise(predictor), one.accuracies())[0] for one in found])


@dataclass(frozen=True)
class Verdict:
    """What the row of the least noise is worth in one job; accuracies in percent, each row at its best rate.

    Attributes:
        one: the job.
        first: the row of the least noise.
        best: the most accurate one.
        reached: accuracy of the first at the rate that is advised.
        own: its accuracy at its best rate.
        most: accuracy of the best.
        error: standard error of the difference of the two.
        dp_sgd: the better one of independent noise with secret batches.
        public: the better one of the rows without a secret.
    """

    one: Trained
    first: str
    best: str
    reached: float
    own: float
    most: float
    error: float
    dp_sgd: float
    public: float

    @classmethod
    def of(cls, one: Trained) -> Verdict:
        """Judge a job."""
        found = dict(zip(one.rows, one.accuracies().tolist(), strict=True))
        first, best = one.chosen(list(one.rows)), max(found, key=lambda name: found[name])
        pair = [accuracy(one.rows[name]) for name in (first, best)]
        error = math.sqrt(sum(float(values.var(ddof=1)) / len(values) for values in pair))
        reached = found[first] - lost_at(one.rows[first], rate_of(one, one.rows[first]))
        dp_sgd = max(found[name] for name in INDEPENDENT if name in SECRET and name in found)
        public = max(found[name] for name in found if name not in SECRET)
        return cls(one, first, best, reached, found[first], found[best], error, dp_sgd, public)

    def near(self, accuracy: float) -> bool:
        """Return whether an accuracy is within 0.3 points or two errors of the best one."""
        return self.most - accuracy <= max(0.3, 2 * self.error)

    def line(self) -> str:
        """Return a line of a table."""
        numbers = (self.reached, self.own, self.most, self.error, self.dp_sgd, self.public)
        shown = [f"{value:.2f}" for value in (*numbers, accuracy(self.one.free).mean())]
        return (
            f"| {' '.join(map(str, vars(self.one.job).values()))} | {self.first} | {self.best} | {' | '.join(shown)} |"
        )


def counts(found: Sequence[Verdict]) -> str:
    """Return how often the first row is near the best, and ahead of DP-SGD."""
    large = [one for one in found if one.one.job.epsilon >= 4]
    return (
        f"of {len(found)} jobs the first row is near the best in {sum(one.near(one.own) for one in found)} at its best "
        f"rate and in {sum(one.near(one.reached) for one in found)} at the advised rate, at most 1 point behind DP-SGD "
        f"in {sum(one.reached >= one.dp_sgd - 1 for one in found)} and ahead in "
        f"{sum(one.reached > one.dp_sgd for one in found)}; a public order is ahead of DP-SGD with secret batches in "
        f"{sum(one.public > one.dp_sgd for one in found)}, at epsilon 4 and more in "
        f"{sum(one.public > one.dp_sgd for one in large)} of {len(large)}"
    )


def report(path: Path = RESULTS) -> str:
    """Return the tables."""
    seen, unseen, lines = trained_jobs(SEEN, path), trained_jobs(HELD_OUT, path), []
    for title, adaptive, limits in (("SGD and momentum", False, PLAIN), ("Adam and AdamW", True, SECOND_MOMENTS)):
        own = [one for one in seen if one.adaptive == adaptive]
        lines += [f"\n{title}: {len(own)} jobs, {sum(len(one.rows) for one in own)} cells"]
        for predictor in PREDICTORS:
            ranks = ranks_of(own, predictor)
            error = ranks.std(ddof=1) / math.sqrt(len(ranks))
            lines.append(f"  noise of {predictor}: rank correlation {ranks.mean():.2f} +- {error:.2f}")
        halves = [spearmanr(one.accuracies(slice(0, 2)), one.accuracies(slice(2, 4)))[0] for one in own]
        lines.append(f"  accuracies of two seeds with those of two others: {np.mean(halves):.2f}")
        best, lost = left_out(own, limits)
        spread = float(np.exp2(np.quantile(np.abs(octaves(own)), 2 / 3)))
        lines.append(f"  fitted {best}; two thirds of rates within a factor of {spread:.2f}")
        lines.append(
            f"  jobs left out: a rate loses {np.mean(lost):.2f} points, {np.mean(np.array(lost) <= 0.3):.0%} within "
            f"0.3, {np.mean(np.array(lost) <= 1):.0%} within 1"
        )
        rates = np.log2([one.free["rates"][best_of(one.free)] for one in own for _ in one.rows])
        free = np.log2([cell["rates"][best_of(cell)] for one in own for cell in one.rows.values()]) - rates
        lines.append(f"  best rate over that without privacy: standard deviation {free.std():.2f} doublings")
    for title, constant in (("rate that falls to zero", False), ("constant rate", True)):
        own = [one for one in seen if (one.job.schedule == "constant") == constant]
        ranks = ranks_of(own, "weights, all steps")
        error = ranks.std(ddof=1) / math.sqrt(len(ranks))
        lines.append(f"\n{title}: {len(own)} jobs, rank correlation {ranks.mean():.2f} +- {error:.2f}")
    head = "| job | first row | best row | first, advised rate | its best | best | error | DP-SGD | public | free |"
    for title, some in (("jobs of the fit", seen), ("held out", unseen)):
        verdicts = [Verdict.of(one) for one in some]
        lines += [f"\n{title}: {counts(verdicts)}\n", head, "| --- " * 10 + "|", *(one.line() for one in verdicts)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
