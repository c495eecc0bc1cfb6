"""The leaderboard: every system at every epsilon and number of epochs, at rates chosen by one rule, with ten seeds.

The rule: each system has, at each point, the learning rate with the best training accuracy, mean over two seeds that
are not used again. Everything else is given: clip norm 1, the batch size, the accountants.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.papers.images import Images
from benchmarks.papers.kept_results import KeptResults
from benchmarks.papers.together import correlated_rows
from benchmarks.training.convolutional import ConvolutionalNetwork
from benchmarks.training.many_models import Kind, LogisticRegression, Models, judged, trained
from benchmarks.training.systems import FREE, SYSTEMS, Preparation, Prepared, Setting
from factorize.privacy import PrivacyTarget

LOGISTIC = "logistic regression"
KINDS: dict[str, type[Kind]] = {LOGISTIC: LogisticRegression, "convolutional network": ConvolutionalNetwork}
"""Of models."""


@dataclass(frozen=True)
class Grid:
    """What is run on one data set.

    Attributes:
        batch: examples of a step.
        epsilons: of the targets.
        epochs: passes over the data.
        delta: of all targets.
        rates: learning rates to choose from.
        seeds: of the results; the two of the choice come before them.
        systems: names, of SYSTEMS.
        few: names of those that are run at the largest number of epochs, where that is not all.
        clip_norm: of all.
        model: name, of KINDS.
    """

    batch: int
    epsilons: tuple[float, ...]
    epochs: tuple[int, ...]
    delta: float = 1e-6
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    seeds: int = 10
    systems: tuple[str, ...] = tuple(system.name for system in SYSTEMS)
    few: tuple[str, ...] = ()
    clip_norm: float = 1.0
    model: str = LOGISTIC

    def runs(self, system: str, epochs: int) -> bool:
        """Whether a system is run at a number of epochs."""
        return system in (self.few if self.few and epochs == max(self.epochs) else self.systems)


CHOOSING_SEEDS = 2
ORDER = {name: place for place, name in enumerate((*(system.name for system in SYSTEMS), FREE))}
"""Of the rows."""


def run(images: Images, grid: Grid, kept: KeptResults) -> None:
    """Train every system that the grid names, where that is not kept yet."""
    preparation = Preparation()
    for epochs in grid.epochs:
        without_privacy(images, grid, kept, epochs)
        for system in SYSTEMS:
            if grid.runs(system.name, epochs):
                ready = [preparation.prepared(system, setting) for setting in settings(images, grid, epochs)]
                measured(images, grid, kept, [one for one in ready if one is not None])


def results(grid: Grid, kept: KeptResults) -> list[dict[str, Any]]:
    """Return what is kept as plain data: one entry for each system, number of epochs and epsilon."""
    rows = []
    for label, found in kept.items():
        point = json.loads(label)
        if point["part"] == "result" and point["epochs"] in grid.epochs:
            train = kept.found(json.dumps({**point, "part": "choice"})).reshape(-1, len(grid.rates))
            each = zip(point["epsilons"], point["sigmas"], train, found.reshape(-1, grid.seeds), strict=True)
            for epsilon, sigma, training, values in each:
                chosen = {"rate": grid.rates[training.argmax()], "training": float(training.max())}
                where = {"system": point["system"], "epochs": point["epochs"], "epsilon": epsilon, "sigma": sigma}
                rows.append({**where, **chosen, **summary(values)})
    return sorted(rows, key=lambda row: (row["epochs"], ORDER[row["system"]], row["epsilon"] or 0.0))


def settings(images: Images, grid: Grid, epochs: int) -> list[Setting]:
    """Return the points of one number of epochs."""
    targets = [PrivacyTarget(epsilon=epsilon, delta=grid.delta) for epsilon in grid.epsilons]
    return [Setting(len(images.train), grid.batch, epochs, target, grid.clip_norm) for target in targets]


def measured(images: Images, grid: Grid, kept: KeptResults, points: Sequence[Prepared]) -> None:
    """Choose rates and train one system at all epsilons of one number of epochs."""
    groups: dict[str, list[Prepared]] = {}
    for one in points:  # models are trained together where they share batches and noise but for its scale
        groups.setdefault(one.factors.digest, []).append(one)
    for group in groups.values():
        epsilons, sigmas = zip(*((one.setting.target.epsilon, one.calibration.sigma) for one in group), strict=True)
        at = {"system": group[0].system.name, "epochs": group[0].setting.epochs}
        train_at(images, grid, kept, group[0], {**at, "epsilons": epsilons, "sigmas": sigmas}, grid.clip_norm)


def without_privacy(images: Images, grid: Grid, kept: KeptResults, epochs: int) -> None:
    """Train in DP-SGD's fixed order without noise and clipping, at the rate of the same rule."""
    private = next(system for system in SYSTEMS if system.sampling == "fixed" and not system.whole)
    one = Preparation().prepared(private, settings(images, grid, epochs)[-1])
    assert one is not None  # it fits everywhere
    at = {"system": FREE, "epochs": epochs, "epsilons": [None], "sigmas": [0.0]}
    train_at(images, grid, kept, one, at, math.inf)


def train_at(
    images: Images, grid: Grid, kept: KeptResults, one: Prepared, at: dict[str, Any], clip_norm: float
) -> None:
    """Choose a rate for each scale by the rule, and train at it with the other seeds.

    Args:
        images: data.
        grid: with rates and seeds.
        kept: takes training accuracies of the choice, shape (scales x rates,), and test accuracies, (scales x seeds,).
        one: a system, whose batches and noise are those of all scales.
        at: what is trained: system, epochs, epsilons, and sigmas, the scales.
        clip_norm: bound on an example's gradient.
    """
    sigmas = np.array(at["sigmas"])
    named = {**at, "sigmas": [float(f"{sigma:.6g}") for sigma in sigmas]}
    count, choices, kind = len(sigmas), len(grid.rates), KINDS[grid.model]()

    def choice() -> np.ndarray:
        rates = np.tile(grid.rates, count)
        train, _ = _runs(images, one, kind, np.repeat(sigmas, choices), rates, range(CHOOSING_SEEDS), clip_norm)
        return train.mean(axis=0)

    train = kept.once(json.dumps({**named, "part": "choice"}), choice).reshape(count, choices)
    rates = np.array(grid.rates)[train.argmax(axis=1)]

    def result() -> np.ndarray:
        seeds = range(CHOOSING_SEEDS, CHOOSING_SEEDS + grid.seeds)
        return _runs(images, one, kind, sigmas, rates, seeds, clip_norm)[1].T.ravel()

    found = kept.once(json.dumps({**named, "part": "result"}), result).reshape(count, grid.seeds)
    for epsilon, rate, values in zip(at["epsilons"], rates, found, strict=True):
        where = f"{at['system']}, {at['epochs']} epochs, epsilon {epsilon or 'infinity'}"
        print(f"  {where:<64}{values.mean():8.2f}  rate {rate:g}", flush=True)


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
