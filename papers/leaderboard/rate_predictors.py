"""Predictors of accuracy and the best rate: `python -m papers.leaderboard.rate_predictors [--write]`, from the results.

Nothing is trained. Cells of one job are ranked by errors that are computed before the run; the limits of
`factorize.training.learning_rate` are fitted to the accuracies at all rates, by leaving out one job at a time.
`--write` fits them to all jobs of the fit and writes what the package states of the study.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.stats import spearmanr

from factorize.training import learning_rate
from factorize.training.learning_rate import LIMITS, Limits
from papers.leaderboard.rate_jobs import HELD_OUT_JOBS, JUDGED_LISTS, NEWEST_JOBS, SEEN_JOBS
from papers.leaderboard.rate_study import RESULTS, ROWS
from papers.leaderboard.trained_jobs import PREDICTORS, Trained, checked_accuracies, trained_jobs

STATED_FILE = Path(learning_rate.__file__).parent / "rate_study.json"
"""The file of what the package states of the study."""
FIRST_LIMITS = Limits(0.2, 8.0, 0.02, 0.3, 10.0)
"""The limits with which the fit begins."""
SECRET_ROWS = [name for name, (_, sampling) in ROWS.items() if sampling != "fixed"]
INDEPENDENT_ROWS = [name for name in ROWS if name.startswith("independent")]
MAX_POINTS = 6.0
"""The most points that a rate costs in a fit, so that one cell decides nothing."""


def lost(found: Sequence[Trained], limits: Limits) -> np.ndarray:
    """Return the points that each cell loses at the rate of these limits."""
    return np.array([cell.lost_at(cell.advised(one.job, limits)) for one in found for cell in one.rows.values()])


def fitted(found: Sequence[Trained], begin: Limits = FIRST_LIMITS, tries: int = 600) -> Limits:
    """Return the limits about whose rates least is lost, on average over all cells.

    Rates half a doubling away count, too, so that none is near one at which training fails; rows that are far behind
    count less.
    """
    first = np.log(begin)
    pairs = [(one.job, cell) for one in found for cell in one.rows.values()]
    shares = np.concatenate([one.shares for one in found])

    def average(logs: np.ndarray) -> float:
        limits = Limits(*np.exp(logs).tolist())
        points = [np.interp(math.log2(cell.advised(job, limits)), *cell.nearby) for job, cell in pairs]
        return float(np.average(np.minimum(points, MAX_POINTS), weights=shares) + 1e-3 * np.square(logs - first).sum())

    corners = np.vstack([first, first + 0.3 * np.eye(len(first))])
    options = {"maxiter": tries, "initial_simplex": corners}
    return Limits(*np.exp(minimize(average, first, method="Nelder-Mead", options=options).x).tolist())


def left_out(found: Sequence[Trained], begin: Limits) -> np.ndarray:
    """Return what is lost in each cell by limits that are fitted to the other jobs."""
    return np.concatenate([lost([one], fitted([x for x in found if x is not one], begin, 200)) for one in found])


def octaves(found: Sequence[Trained], limits: Limits = LIMITS) -> np.ndarray:
    """Return how many doublings each advised rate is above the best one."""
    pairs = [(cell.advised(one.job, limits), cell.best_rate) for one in found for cell in one.rows.values()]
    return np.log2([advised / best for advised, best in pairs])


@dataclass(frozen=True)
class Verdict:
    """The worth of the row of the least noise in one job; accuracies in percent, each row at its best rate.

    Attributes:
        one: the job.
        first: the row of the least noise.
        best: the most accurate one.
        reached: accuracy of the first at the rate that is advised.
        tried: the same at the best of that rate, half and twice of it, by training accuracy.
        checked: the same at that rate with the check in the run; nan where it was not trained.
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
    tried: float
    checked: float
    own: float
    most: float
    error: float
    dp_sgd: float
    public: float

    @classmethod
    def of(cls, one: Trained, limits: Limits = LIMITS) -> Verdict:
        """Judge a job."""
        found = {name: cell.accuracy for name, cell in one.rows.items()}
        first = min(one.rows, key=lambda name: one.rows[name].noise(one.order))
        best = max(found, key=lambda name: found[name])
        pair = [cell.test[cell.best] for cell in (one.rows[first], one.rows[best])]
        error = math.sqrt(sum(float(values.var(ddof=1)) / len(values) for values in pair))
        cell = one.rows[first]
        rate = cell.advised(one.job, limits)
        reached, tried = (cell.accuracy - cell.lost_at(x) for x in (rate, cell.better([rate, rate / 2, 2 * rate])))
        dp_sgd = max(found[name] for name in INDEPENDENT_ROWS if name in SECRET_ROWS and name in found)
        public = max(found[name] for name in found if name not in SECRET_ROWS)
        checked = checked_accuracies().get(one.job, math.nan)
        return cls(one, first, best, reached, tried, checked, found[first], found[best], error, dp_sgd, public)

    def near(self, accuracy: float, most: float | None = None) -> bool:
        """Return whether an accuracy is within 0.3 points or two errors of another, by default the best one."""
        return (self.most if most is None else most) - accuracy <= max(0.3, 2 * self.error)

    def line(self) -> str:
        """Return a line of a table."""
        numbers = (
            self.reached,
            self.tried,
            self.checked,
            self.own,
            self.most,
            self.error,
            self.dp_sgd,
            self.public,
            self.one.free.accuracy,
        )
        shown = " | ".join(f"{value:.2f}" for value in numbers)
        return f"| {' '.join(map(str, vars(self.one.job).values()))} | {self.first} | {self.best} | {shown} |"


def counts(found: Sequence[Verdict]) -> dict[str, int]:
    """Return in how many jobs each key holds."""
    large = [one for one in found if one.one.job.epsilon >= 4]
    return {
        "jobs": len(found),
        "first_near_best": sum(one.near(one.own) for one in found),
        "first_near_best_at_advised_rate": sum(one.near(one.reached) for one in found),
        "first_near_best_at_half_or_twice_too": sum(one.near(one.tried) for one in found),
        "checked": sum(not math.isnan(one.checked) for one in found),
        "first_near_best_checked": sum(one.near(one.checked) for one in found),
        "dp_sgd_ahead": sum(not one.near(one.own, one.dp_sgd) for one in found),
        "more_than_1_behind_dp_sgd_at_advised_rate": sum(one.reached < one.dp_sgd - 1 for one in found),
        "more_than_1_behind_dp_sgd_at_half_or_twice_too": sum(one.tried < one.dp_sgd - 1 for one in found),
        "more_than_1_behind_dp_sgd_checked": sum(one.checked < one.dp_sgd - 1 for one in found),
        "ahead_of_dp_sgd_at_advised_rate": sum(one.reached > one.dp_sgd for one in found),
        "public_order_ahead_of_dp_sgd": sum(one.public > one.dp_sgd for one in found),
        "jobs_of_epsilon_4_and_more": len(large),
        "public_order_ahead_of_dp_sgd_there": sum(one.public > one.dp_sgd for one in large),
    }


def stated(limits: Limits = LIMITS, path: Path = RESULTS) -> dict[str, Any]:
    """Return what the package states of the study, as plain data."""
    lists = (SEEN_JOBS, HELD_OUT_JOBS, NEWEST_JOBS, sum(JUDGED_LISTS, []))
    fit, unseen, newest, fresh = (trained_jobs(jobs, path) for jobs in lists)
    numbers = {
        "steps": [one.job.steps for one in fit],
        "parameters": [one.free.numbers["parameters"] for one in fit],
        "epsilon": [one.job.epsilon for one in fit],
    }
    ranks = {
        name: round(float(np.mean([one.rank(one.order) for one in fit if (one.job.schedule == "constant") == flat])), 2)
        for name, flat in (("falling", False), ("constant", True))
    }
    judged = {
        name: counts([Verdict.of(one, limits) for one in jobs])
        for name, jobs in {"fitted": fit, "unseen": unseen, "newest": newest, "fresh": fresh}.items()
    }
    return {
        "limits": limits._asdict(),
        "ranked_by": ranked_by(ranks, judged),
        "spread": round(float(np.exp2(np.quantile(np.abs(octaves(fresh, limits)), 2 / 3))), 1),
        "trained": {name: [min(values), max(values)] for name, values in numbers.items()},
        "ranks": ranks,
        **judged,
    }


def ranked_by(ranks: dict[str, float], judged: dict[str, dict[str, int]]) -> str:
    """Return what orders the rows of a recommendation, and how well its first row trained, in one sentence."""
    seen = {name: sum(judged[part][name] for part in ("fitted", "unseen", "newest")) for name in judged["fresh"]}
    near, behind = (
        [jobs[name] for jobs in (seen, judged["fresh"])]
        for name in ("first_near_best_checked", "more_than_1_behind_dp_sgd_checked")
    )
    return (
        "the error of the job's own optimizer at this privacy, with that of the last step beside the mean where the "
        "rate is constant; in our study (docs/choose.md), each row at its best rate, its rank correlation with "
        f"accuracy was {ranks['falling']:.2f} for rates that fall to zero and {ranks['constant']:.2f} for constant "
        "ones; at the rate that is stated here, with the check that the code makes, the first row was within 0.3 "
        f"points or two standard errors of the best row at its best rate in {near[0]} of {seen['checked']} jobs by "
        f"which the rule was chosen, and in {near[1]} of {judged['fresh']['checked']} new ones; it was more than 1 "
        f"point behind DP-SGD with secret batches at its best rate in {behind[0]} and {behind[1]}"
    )


def report(path: Path = RESULTS) -> str:
    """Return the tables."""
    lists = (SEEN_JOBS, HELD_OUT_JOBS, NEWEST_JOBS, *JUDGED_LISTS)
    (seen, unseen, newest, fresh, last, drawn, judges), lines = (trained_jobs(jobs, path) for jobs in lists), []
    kinds = {
        "SGD and momentum": [one for one in seen if not one.adaptive],
        "Adam and AdamW": [one for one in seen if one.adaptive],
        "rate that falls to zero": [one for one in seen if one.job.schedule != "constant"],
        "constant rate": [one for one in seen if one.job.schedule == "constant"],
    }
    for title, own in kinds.items():
        lines += [f"\n{title}: {len(own)} jobs, {sum(len(one.rows) for one in own)} cells"]
        for predictor in PREDICTORS:
            ranks = np.array([one.rank(predictor) for one in own])
            error = ranks.std(ddof=1) / math.sqrt(len(ranks))
            lines.append(f"  noise of {predictor}: rank correlation {ranks.mean():.2f} +- {error:.2f}")
        halves = [
            spearmanr(*(cells.mean(axis=1) for cells in (best[:, :2], best[:, 2:])))[0]
            for best in (np.array([cell.test[cell.best] for cell in one.rows.values()]) for one in own)
        ]
        lines.append(f"  accuracies of two seeds with those of two others: {np.mean(halves):.2f}")
        pairs = [(cell.best_rate, one.free.best_rate) for one in own for cell in one.rows.values()]
        free = np.log2([best / other for best, other in pairs])
        lines.append(f"  best rate over that without privacy: standard deviation {free.std():.2f} doublings")
    parts = {
        "the fit itself": lost(seen, LIMITS),
        "jobs left out": left_out(seen, LIMITS),
        "held out": lost(unseen, LIMITS),
        "newest": lost(newest, LIMITS),
        "fresh": lost(fresh, LIMITS),
        "last and drawn": lost(last + drawn, LIMITS),
        "judges": lost(judges, LIMITS),
    }
    for title, points in parts.items():
        lines.append(
            f"\n{title}: a rate loses {points.mean():.2f} points, {np.mean(points <= 0.3):.0%} within 0.3, "
            f"{np.mean(points <= 1):.0%} within 1"
        )
    columns = "first, advised rate | half or twice | with the check | its best | best | error | DP-SGD | public | free"
    head = f"| job | first row | best row | {columns} |"
    named = checked_accuracies(named=True)
    groups = {
        "jobs of the fit": seen,
        "held out": unseen,
        "newest": newest,
        "fresh": fresh,
        "last": last,
        "drawn": drawn,
        "judges": judges,
    }
    for title, some in groups.items():
        verdicts = [Verdict.of(one) for one in some]
        lines += [f"\n{title}: {counts(verdicts)}\n", head, "| --- " * 12 + "|", *(one.line() for one in verdicts)]
        pairs = [(one, replace(one, checked=named[one.one.job])) for one in verdicts if one.one.job in named]
        for what, place in (("without it", 0), ("with the caller's rate", 1)) if pairs else ():
            own = [pair[place] for pair in pairs]
            behind = np.mean([one.most - one.checked for one in own])
            rates = [one.one.rows[one.first] for one in own]
            free = [one.one.free.best_rate if place else None for one in own]
            advised = [cell.advised(one.one.job, free=x) for cell, one, x in zip(rates, own, free, strict=True)]
            away = np.log2(advised) - np.log2([cell.best_rate for cell in rates])
            found = counts(own)
            lines.append(
                f"{what}, with the check: {found['first_near_best_checked']} of {len(own)} near, {behind:.2f} points "
                f"behind, {found['more_than_1_behind_dp_sgd_checked']} more than 1 behind DP-SGD, "
                f"{np.sqrt(np.mean(away**2)):.2f} doublings from the best rate"
            )
    return "\n".join(lines)


def main() -> None:
    """Print the tables, or fit and write what the package states."""
    parser = argparse.ArgumentParser(prog="python -m papers.leaderboard.rate_predictors", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"fit, and write {STATED_FILE.name} of the package")
    if parser.parse_args().write:
        limits = Limits(*(float(f"{value:.3g}") for value in fitted(trained_jobs(SEEN_JOBS))))
        STATED_FILE.write_text(json.dumps(stated(limits), indent=1) + "\n")
    else:
        print(report())


if __name__ == "__main__":
    main()
