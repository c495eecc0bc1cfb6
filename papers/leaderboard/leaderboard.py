"""The leaderboard: every system at every epsilon and number of epochs, at rates chosen by one rule, with ten seeds.

The rule: each system has, at each point, the learning rate with the best training accuracy, mean over two seeds that
are not used again. Where the best rate is at an end of those that were tried, the next of RATES is tried, too, until it
is not. Everything else is given: clip norm 1, the batch size, the accountants.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from factorize.privacy import PrivacyTarget
from papers.leaderboard.convolutional import ConvolutionalNetwork
from papers.leaderboard.many_models import Kind, LogisticRegression, Models, judged, trained
from papers.leaderboard.systems import NO_PRIVACY, SYSTEMS, Preparation, Prepared, Setting
from papers.reproductions.images import Images
from papers.reproductions.kept_results import KeptResults
from papers.reproductions.together import correlated_rows

RATES = tuple(float(f"{digit}e{power}") for power in range(-3, 4) for digit in (1, 3))[:-1]
"""All learning rates there are, 0.001 to 1000."""
LOGISTIC = "logistic regression"
KINDS: dict[str, type[Kind]] = {LOGISTIC: LogisticRegression, "convolutional network": ConvolutionalNetwork}
"""The kinds of models, by name."""


@dataclass(frozen=True)
class Grid:
    """The grid that is run on one data set.

    Attributes:
        batch: examples of a step.
        epsilons: epsilons of the targets.
        epochs: passes over the data.
        delta: delta of all targets.
        rates: learning rates that are always tried, in order.
        limits: no rate beyond these is tried.
        seeds: seeds of the results; the two of the choice come before them.
        systems: names, of SYSTEMS.
        clip_norm: clip norm of all.
        model: name, of KINDS.
    """

    batch: int
    epsilons: tuple[float, ...]
    epochs: tuple[int, ...]
    delta: float = 1e-6
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    limits: tuple[float, float] = (RATES[0], RATES[-1])
    seeds: int = 10
    systems: tuple[str, ...] = tuple(system.name for system in SYSTEMS)
    clip_norm: float = 1.0
    model: str = LOGISTIC

    def next_rate(self, found: Mapping[float, float]) -> float | None:
        """Return the rate to try after those with these training accuracies; None where the best is not at an end."""
        tried, best = sorted(found), best_rate(found)
        beyond: list[float] = []
        if best == tried[-1]:
            beyond = [rate for rate in RATES if tried[-1] < rate <= self.limits[1]]
        elif best == tried[0] and found[best] > found[tried[1]]:
            beyond = [rate for rate in RATES[::-1] if self.limits[0] <= rate < tried[0]]
        return beyond[0] if beyond else None


def best_rate(found: Mapping[float, float]) -> float:
    """Return the rate with the best training accuracy, the smallest of equals."""
    return max(sorted(found), key=lambda rate: found[rate])


CHOOSING_SEEDS = 2
ORDER = {name: place for place, name in enumerate((*(system.name for system in SYSTEMS), NO_PRIVACY))}
"""The order of the rows."""


def run(images: Images, grid: Grid, kept: KeptResults, solved: Path) -> None:
    """Train every system that the grid names, where that is not kept yet; `solved` is the folder for factors."""
    solved.mkdir(parents=True, exist_ok=True)
    preparation = Preparation(solved)
    for epochs in grid.epochs:
        without_privacy(images, grid, kept, epochs, preparation)
        for system in SYSTEMS:
            if system.name in grid.systems:
                ready = [preparation.prepared(system, setting) for setting in settings(images, grid, epochs)]
                measured(images, grid, kept, [one for one in ready if one is not None])


def results(grid: Grid, kept: KeptResults) -> list[dict[str, Any]]:
    """Return what is kept as plain data: one entry for each system, number of epochs and epsilon."""
    choices: dict[str, dict[float, float]] = {}
    found: dict[tuple[str, float], np.ndarray] = {}
    for label, values in kept.items():
        point = json.loads(label)
        part, rate = point.pop("part"), point.pop("rate")
        if part == "choice":
            choices.setdefault(json.dumps(point), {})[rate] = float(values[0])
        else:
            found[json.dumps(point), rate] = values
    rows = []
    for where, training in choices.items():
        point, rate = json.loads(where), best_rate(training)
        asked = point["epochs"] in grid.epochs and point["epsilon"] in (None, *grid.epsilons)
        if asked and point["system"] in (NO_PRIVACY, *grid.systems) and (where, rate) in found:
            chosen = {"rate": rate, "tried": [min(training), max(training)], "training": training[rate]}
            rows.append({**point, **chosen, **summary(found[where, rate])})
    return sorted(rows, key=lambda row: (row["epochs"], ORDER[row["system"]], row["epsilon"] or 0.0))


def settings(images: Images, grid: Grid, epochs: int) -> list[Setting]:
    """Return the points of one number of epochs."""
    targets = [PrivacyTarget(epsilon=epsilon, delta=grid.delta) for epsilon in grid.epsilons]
    return [Setting(len(images.train), grid.batch, epochs, target, grid.clip_norm) for target in targets]


def measured(images: Images, grid: Grid, kept: KeptResults, points: Sequence[Prepared]) -> None:
    """Choose rates and train one system at all epsilons of one number of epochs."""
    groups: dict[str, list[Prepared]] = {}
    for one in points:  # models that share batches and noise but for its scale are trained together
        groups.setdefault(one.factors.digest, []).append(one)
    for group in groups.values():
        scales = {one.setting.target.epsilon: one.calibration.sigma_of_means for one in group}
        train_at(images, grid, kept, group[0], group[0].system.name, scales, grid.clip_norm)


def without_privacy(images: Images, grid: Grid, kept: KeptResults, epochs: int, preparation: Preparation) -> None:
    """Train in DP-SGD's fixed order without noise and clipping, at the rate of the same rule."""
    private = next(system for system in SYSTEMS if system.sampling == "fixed" and not system.whole)
    one = preparation.prepared(private, settings(images, grid, epochs)[-1])
    assert one is not None  # it fits everywhere
    train_at(images, grid, kept, one, NO_PRIVACY, {None: 0.0}, math.inf)


def train_at(
    images: Images,
    grid: Grid,
    kept: KeptResults,
    one: Prepared,
    name: str,
    scales: Mapping[float | None, float],
    clip_norm: float,
) -> None:
    """Choose a rate for each scale by the rule, and train at it with the other seeds.

    Args:
        images: data.
        grid: the grid with rates and seeds.
        kept: takes training accuracies of the choice and test accuracies of every seed.
        one: a system, whose batches and noise are those of all scales.
        name: name of the system.
        scales: sigma of each epsilon.
        clip_norm: bound on an example's gradient.
    """
    kind = KINDS[grid.model]()

    def measured_at(part: str, pairs: list[tuple[float | None, float]]) -> list[np.ndarray]:
        """Return what is kept, or is now trained, of these epsilons and rates."""
        labels = {_label(name, one, epsilon, scales[epsilon], part, rate): (epsilon, rate) for epsilon, rate in pairs}

        def compute(missing: list[str]) -> Iterable[np.ndarray]:
            sigmas, rates = np.array([(scales[labels[label][0]], labels[label][1]) for label in missing]).T
            seeds = range(CHOOSING_SEEDS) if part == "choice" else range(CHOOSING_SEEDS, CHOOSING_SEEDS + grid.seeds)
            train, test = _runs(images, one, kind, sigmas, rates, seeds, clip_norm)
            return train.mean(axis=0, keepdims=True).T if part == "choice" else test.T

        return kept.all_of(list(labels), compute)

    tried: dict[float | None, dict[float, float]] = {epsilon: {} for epsilon in scales}
    pairs = [(epsilon, rate) for epsilon in scales for rate in grid.rates]
    while pairs:
        for (epsilon, rate), values in zip(pairs, measured_at("choice", pairs), strict=True):
            tried[epsilon][rate] = float(values[0])
        beyond = {epsilon: grid.next_rate(found) for epsilon, found in tried.items()}
        pairs = [(epsilon, rate) for epsilon, rate in beyond.items() if rate is not None]
    chosen = [(epsilon, best_rate(found)) for epsilon, found in tried.items()]
    for (epsilon, rate), values in zip(chosen, measured_at("result", chosen), strict=True):
        where = f"{name}, {one.setting.epochs} epochs, epsilon {epsilon or 'infinity'}"
        print(f"  {where:<64}{values.mean():8.2f}  rate {rate:g}", flush=True)


def _label(name: str, one: Prepared, epsilon: float | None, sigma: float, part: str, rate: float) -> str:
    point = {"system": name, "epochs": one.setting.epochs, "epsilon": epsilon, "sigma": float(f"{sigma:.6g}")}
    return json.dumps({**point, "part": part, "rate": rate})


def _runs(
    images: Images, one: Prepared, kind: Kind, scales: np.ndarray, rates: np.ndarray, seeds: range, clip_norm: float
) -> tuple[np.ndarray, np.ndarray]:
    """Train and return training and test accuracies, each of shape (seeds, models)."""
    noise = [correlated_rows(one.factors, seed, kind.size(images)) for seed in seeds]
    batches = [one.batches(seed) for seed in seeds]
    models = Models(scales, rates, one.system.momentum, clip_norm, one.system.batch(one.setting))
    return judged(images, trained(images, batches, noise, models, kind), kind)


def summary(values: np.ndarray) -> dict[str, Any]:
    """Return mean, standard error and the values themselves."""
    error = float(values.std(ddof=1) / math.sqrt(len(values)))
    return {"mean": float(values.mean()), "error": error, "accuracies": [round(float(one), 3) for one in values]}
