"""Study of which predicted error ranks private training: `python -m papers.leaderboard.accuracy_predictors`.

Strategies that are optimised for different workloads and objectives train logistic regression at equal (epsilon,
delta), in the same public order and with the same normal numbers. A cell is a job, an epsilon and an optimizer. In each
cell the rank correlation of a predicted error with the measured accuracy says how well that error chooses a strategy.
Images of MNIST are averaged over 2 x 2 pixels. The last seventh of the training images chooses the learning rate: that
of a seed is best for the other seeds. Trials are kept in FOLDER, so that a run that was cut off goes on; the tables are
printed in Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from factorize.factors.factorization import Factorization
from factorize.privacy import PrivacyTarget
from factorize.privacy.question import SamplingOptions
from factorize.samplings import SAMPLINGS
from factorize.spec import parse_spec
from factorize.training.orders import fixed_order
from papers.leaderboard.many_models import Models, judged, trained
from papers.reproductions.images import Images, load_images
from papers.reproductions.kept_results import KeptResults, solved_once
from papers.reproductions.together import correlated_rows, poisson_batches

FOLDER = Path("build") / "leaderboard"
EPSILONS, DELTA = (4.0, 8.0), 1e-6
RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""The learning rates over 1 - momentum."""
MANY_BATCHES = 256
"""The batches an epoch from where a job is one of those that users have."""
TOLERANCE = 1e-2
COSINE = {"kind": "cosine"}
OPTIMIZERS = {
    "SGD": (0.0, False),
    "SGD, cosine": (0.0, True),
    "momentum": (0.9, False),
    "momentum, cosine": (0.9, True),
}
"""The momentum of an optimizer, and whether its rate falls along a cosine to zero."""
BUFFERED, BLT = {"kind": "buffered_linear", "buffers": 4}, {"kind": "blt", "buffers": 4}
INDEPENDENT, POISSON = "independent noise", "independent noise, secret Poisson batches"
STRATEGIES: dict[str, tuple[dict[str, Any], str, str]] = {
    INDEPENDENT: ({"kind": "identity"}, "SGD", "mean"),
    "buffered, prefix, mean": (BUFFERED, "SGD", "mean"),
    "buffered, prefix, lambda_T": (BUFFERED, "SGD", "lambda_T"),
    "buffered, schedule, mean": (BUFFERED, "SGD, cosine", "mean"),
    "buffered, schedule, lambda_T": (BUFFERED, "SGD, cosine", "lambda_T"),
    "buffered, schedule, last": (BUFFERED, "SGD, cosine", "last"),
    "blt, prefix, mean": (BLT, "SGD", "mean"),
    "blt, prefix, max": (BLT, "SGD", "max"),
    "blt, momentum, mean": (BLT, "momentum", "mean"),
    "blt, momentum, lambda_T": (BLT, "momentum", "lambda_T"),
    "blt, momentum and schedule, lambda_T": (BLT, "momentum, cosine", "lambda_T"),
    POISSON: ({"kind": "identity"}, "SGD", "mean"),
}
"""The mechanism of a strategy, and the optimizer and objective that it is optimised for."""
OBJECTIVES: dict[str, Callable[[np.ndarray], float]] = {
    "mean": lambda errors: float(errors.mean()),
    "max": lambda errors: float(errors.max()),
    "last": lambda errors: float(errors[-1]),
    "lambda_T": lambda errors: float(errors[:-1].sum() / len(errors) + errors[-1]),
}
"""The objectives: squared errors of all steps to one number."""


@dataclass(frozen=True)
class TrainingJob:
    """Examples, batch size and epochs of a run."""

    examples: int
    batch: int
    epochs: int

    @property
    def steps(self) -> int:
        """Return the steps of the whole run."""
        return self.epochs * (self.examples // self.batch)


JOBS = [
    TrainingJob(12_800, 50, 8),
    TrainingJob(25_600, 50, 4),
    TrainingJob(51_200, 50, 2),
    TrainingJob(25_600, 100, 8),
    TrainingJob(51_200, 100, 4),
    TrainingJob(12_800, 800, 8),
    TrainingJob(12_800, 200, 4),
]
"""The jobs: five of 2048 steps with 256 batches an epoch and more, and two short ones."""


@dataclass(frozen=True)
class Cell:
    """A job, an epsilon and an optimizer: what was measured, and what was predicted.

    Attributes:
        steps_an_epoch: steps of an epoch of the job.
        optimizer: name of one of OPTIMIZERS.
        accuracies: accuracies on the test images in percent, shape (strategies, seeds).
        predictions: errors of all strategies by workload and objective.
    """

    steps_an_epoch: int
    optimizer: str
    accuracies: np.ndarray
    predictions: dict[str, np.ndarray]

    def judged_by(self, error: str, among: np.ndarray) -> tuple[float, float]:
        """Return how a small predicted error goes with a high accuracy, and the accuracy where it is smallest."""
        predicted, measured = self.predictions[error][among], self.accuracies.mean(axis=1)[among]
        return float(-spearmanr(predicted, measured)[0]), float(measured[predicted.argmin()])


def workload(optimizer: str, n: int) -> dict[str, Any]:
    """Return what an optimizer sums, as plain data."""
    momentum, cosine = OPTIMIZERS[optimizer]
    kind = {"kind": "momentum", "momentum": momentum} if momentum else {"kind": "schedule" if cosine else "prefix"}
    return {**kind, "n": n, **({"learning_rates": COSINE} if cosine else {})}


def spec(name: str, job: TrainingJob) -> dict[str, Any]:
    """Return the spec of a strategy for a job."""
    mechanism, optimizer, objective = STRATEGIES[name]
    n = job.steps
    kinds: dict[str, dict[str, Any]] = {
        "lambda_T": {"kind": "lambda_tau", "tau": n},
        "last": {"kind": "weighted", "weights": [0.1 / n] * (n - 1) + [1.0]},
    }
    apart = {"kind": "fixed_epochs", "epochs": job.epochs}
    parts = {"workload": workload(optimizer, n), "participation": apart, "mechanism": mechanism, "tolerance": TOLERANCE}
    return {**parts, "objective": kinds.get(objective, {"kind": objective})}


def sigma(name: str, factors: Factorization, job: TrainingJob, epsilon: float) -> float:
    """Return the standard deviation per entry of Z, for means."""
    sizes = {"dataset_size": job.examples, "batch_size": job.batch} if name == POISSON else {}
    options = SamplingOptions(clip_norm=1.0, divisor=job.batch, **sizes)
    scheme = SAMPLINGS["poisson" if name == POISSON else "fixed"]
    return float(scheme.calibrate(factors, PrivacyTarget(epsilon=epsilon, delta=DELTA), options).sigma_of_means)


def predicted(factors: Factorization) -> np.ndarray:
    """Return root mean squared errors at sigma 1, one after the other for each optimizer and objective."""
    n = factors.strategy.n
    inverse = factors.rows("C_inv", 0, n)
    applied = (parse_spec({"workload": workload(one, n)}).workload.apply(inverse) for one in OPTIMIZERS)
    errors = [np.einsum("ij,ij->i", rows, rows) for rows in applied]
    return np.sqrt([value(one) for one in errors for value in OBJECTIVES.values()])


def run(images: Images, valid: Images, jobs: list[TrainingJob], seeds: int, folder: Path) -> KeptResults:
    """Train all strategies on all jobs where that is not kept in the folder yet, seed by seed."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"epsilons": EPSILONS, "rates": RATES, "delta": DELTA, "examples": len(images.train)}
    kept = KeptResults(folder / f"accuracy-{len(images.train)}.json", settings)
    for seed, job, name in product(range(seeds), jobs, STRATEGIES):
        if (label := f"{seed} {place(job, name)}") in dict(kept.items()):
            continue
        factors = solved_once(folder, spec(name, job))
        sigmas = np.array([sigma(name, factors, job, one) for one in EPSILONS])
        kept.once(f"sigma {place(job, name)}", sigmas.copy)
        kept.once(f"predicted {place(job, name)}", partial(predicted, factors))
        data = replace(images, train=images.train[: job.examples], train_labels=images.train_labels[: job.examples])
        kept.once(label, partial(trial, data, valid, job, name, factors, sigmas, seed))
        print(label, flush=True)
    return kept


def place(job: TrainingJob, name: str) -> str:
    """Return a label of a job and a strategy."""
    return json.dumps([name, *asdict(job).values()])


def trial(
    data: Images, valid: Images, job: TrainingJob, name: str, factors: Factorization, sigmas: np.ndarray, seed: int
) -> np.ndarray:
    """Return accuracies, validation and test, by epsilon, optimizer and rate, one after the other."""
    epsilon, kind, rate = (one.ravel() for one in np.indices((len(EPSILONS), len(OPTIMIZERS), len(RATES))))
    momentum, cosine = np.array(list(OPTIMIZERS.values()))[kind].T
    falls = np.where(cosine, (1 + np.cos(np.pi * np.arange(job.steps) / job.steps))[:, None] / 2, 1.0)
    rates = np.array(RATES)[rate] * (1 - momentum)
    models = Models(sigmas[epsilon], rates, momentum, 1.0, job.batch, schedule=falls)
    batches: Iterable[np.ndarray] = fixed_order(job.examples, job.batch, epochs=job.epochs, seed=seed)
    if name == POISSON:
        batches = poisson_batches(job.examples, job.batch / job.examples, job.steps, seed)
    noise = correlated_rows(factors, seed, data.train.shape[1] * 10)
    return np.concatenate(judged(valid, trained(data, [batches], [noise], models))).ravel()


def cells(kept: KeptResults, jobs: list[TrainingJob], seeds: int) -> list[Cell]:
    """Return all cells, each job with those of the first seeds that all strategies have; two at least."""
    found, there = [], dict(kept.items())
    for job in jobs:
        labels = [place(job, name) for name in STRATEGIES]
        whole = [seed for seed in range(seeds) if all(f"{seed} {label}" in there for label in labels)]
        if len(whole) < 2:
            continue
        trials = np.array([[there[f"{seed} {label}"] for seed in whole] for label in labels])
        trials = trials.reshape(len(labels), len(whole), 2, len(EPSILONS), len(OPTIMIZERS), len(RATES))
        errors = np.array([there[f"predicted {label}"].reshape(len(OPTIMIZERS), -1) for label in labels])
        scales = np.array([there[f"sigma {label}"] for label in labels])
        for e, (o, optimizer) in product(range(len(EPSILONS)), enumerate(OPTIMIZERS)):
            valid, test = np.moveaxis(trials[:, :, :, e, o], 2, 0)
            others = valid.sum(axis=1, keepdims=True) - valid  # a seed's rate is best for the other seeds
            accuracies = np.take_along_axis(test, others.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
            predictions = {
                f"{whose}, {objective}": scales[:, e] * errors[:, row, column]
                for whose, row in {"running sums": 0, "momentum": 2, "its own optimizer": o}.items()
                for column, objective in enumerate(OBJECTIVES)
            }
            found.append(Cell(job.examples // job.batch, optimizer, accuracies, predictions))
    return found


def report(found: list[Cell]) -> str:
    """Return the tables: what each predicted error is worth, and the accuracies."""
    names = np.array(list(STRATEGIES))
    public, correlated = names != POISSON, (names != POISSON) & (names != INDEPENDENT)
    drawn = np.random.default_rng(0).integers(len(found), size=(10_000, len(found)))

    def interval(values: list[float]) -> str:
        low, high = np.quantile(np.array(values)[drawn].mean(axis=1), (0.025, 0.975))
        return f"{np.mean(values):.2f} ({low:.2f} to {high:.2f})"

    lines = ["| predicted error | rank correlation | of correlated noise alone | accuracy gained |", "| --- " * 4 + "|"]
    for error in found[0].predictions:
        ranks = [interval([one.judged_by(error, part)[0] for one in found]) for part in (public, correlated)]
        picks = [(one.judged_by(error, public)[1], one.judged_by("running sums, mean", public)[1]) for one in found]
        lines.append(f"| {error} | {' | '.join(ranks)} | {interval([pick - usual for pick, usual in picks])} |")
    lines += ["", f"| test accuracy, % | {' | '.join(OPTIMIZERS)} |", "| --- " * (1 + len(OPTIMIZERS)) + "|"]
    for number, name in enumerate(names):
        seeds = [np.mean([one.accuracies[number] for one in found if one.optimizer == kind], 0) for kind in OPTIMIZERS]
        shown = [f"{one.mean():.2f} +- {one.std(ddof=1) / math.sqrt(len(one)):.2f}" for one in seeds]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def halved(images: Images) -> Images:
    """Return images whose pixels are averaged over 2 x 2, with a constant feature for a bias."""

    def smaller(x: np.ndarray) -> np.ndarray:
        side = math.isqrt(x.shape[1]) // 2
        found = x.reshape(len(x), side, 2, side, 2).mean(axis=(2, 4)).reshape(len(x), -1)
        return np.hstack([found, np.ones((len(x), 1), dtype=np.float32)])

    return replace(images, train=smaller(images.train), test=smaller(images.test))


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(prog="python -m papers.leaderboard.accuracy_predictors", description=__doc__)
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="four IDX files; a quick run on digits without")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER", help="for the trials")
    asked = parser.parse_args()
    jobs, seeds = (JOBS, asked.seeds) if asked.mnist else ([TrainingJob(1152, 24, 2)], 2)
    images = halved(load_images(asked.mnist))
    share = len(images.train) // 7
    valid = replace(images, train=images.train[-share:], train_labels=images.train_labels[-share:])
    found = cells(run(images, valid, jobs, seeds, asked.out), jobs, seeds)
    for title, few in (("256 batches an epoch and more", False), ("fewer", True)):
        if part := [one for one in found if (one.steps_an_epoch < MANY_BATCHES) == few]:
            print(f"\n{len(part)} cells with {title}\n\n{report(part)}")


if __name__ == "__main__":
    main()
