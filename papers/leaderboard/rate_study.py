"""Study of learning rates: `python -m papers.leaderboard.rate_study [--mnist FOLDER] [--quick]`.

Private training at equal (epsilon, delta), every kind of noise and batches at its own best learning rate. A cell is a
training job with one row: a mechanism with its sampling. All rates and seeds of a cell are trained at once; the grid of
rates goes on until the best one by training accuracy is not at an end. Every cell is one line of a JSON file, with all
that was measured and the numbers that predictors are made of. A run that was cut off goes on with the cells that are
not there yet. Jobs on MNIST (2 x 2 pixels averaged) need its four files; the others are made here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.signal import lfilter

from factorize.errors import FactorizeError
from factorize.factors.factorization import Factorization
from factorize.privacy import PrivacyTarget
from factorize.privacy.question import SamplingOptions
from factorize.samplings import SAMPLINGS
from factorize.training.learning_rate import LIMITS
from factorize.training.orders import fixed_order
from factorize.training.rate_check import ArrayRateCheck
from papers.leaderboard.layered_models import Mapped, Network, convolution, logistic, perceptron, trained, transformer
from papers.leaderboard.rate_data import JUDGED_EXAMPLES, Data, data_of
from papers.leaderboard.rate_jobs import HELD_OUT_JOBS, JUDGED_LISTS, NEWEST_JOBS, QUICK_JOBS, SEEN_JOBS, RateJob
from papers.leaderboard.systems import SAMPLERS
from papers.reproductions.kept_results import solved_once
from papers.reproductions.together import correlated_rows, poisson_batches

RESULTS = Path(__file__).parent / "results" / "rates.jsonl"
FACTORS_FOLDER = Path("build") / "leaderboard"
DELTA, CLIP_NORM = 1e-6, 1.0
SEEDS = 4
GRID, MORE_RATES = 7, 3
"""The learning rates that a cell begins with, each twice the one before, and those that are added at an end."""
DECAYS = (0.0, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""The shares of the weights that a step of rate 1 takes away, as a curvature does; errors are kept for each."""


BUFFERED = {"kind": "buffered_linear", "buffers": 4}
ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "without privacy": ({"kind": "identity"}, "fixed"),
    "independent, public order": ({"kind": "identity"}, "fixed"),
    "buffered_linear, public order": (BUFFERED, "fixed"),
    "independent, Poisson": ({"kind": "identity"}, "poisson"),
    "independent, random allocation": ({"kind": "identity"}, "random_allocation"),
    "banded, cyclic Poisson": ({"kind": "banded", "bands": 4}, "cyclic_poisson"),
    "blt, balls in bins": ({"kind": "blt", "buffers": 2, "normalization": "fitted"}, "balls_in_bins"),
}
"""The mechanism and sampling of each row."""
NO_PRIVACY = "without privacy"


def network_of(job: RateJob, data: Data) -> Network:
    """Return the job's network."""
    _, positions, inputs = data[0].shape
    classes, width = int(data[1].max()) + 1, job.model.split()[0]
    kind = job.model.split()[-1]
    if kind == "logistic":
        return logistic(positions * inputs, classes)
    if kind == "perceptron":
        return perceptron(inputs, classes, {"narrow": 12, "wide": 48, "broad": 64}.get(width, 24))
    if kind == "convolution":
        return convolution(inputs, classes, 32 if width == "wide" else 16)
    return transformer(inputs, classes, 16 if width == "wide" else 12, positions)


def batches_of(job: RateJob, sampling: str, bands: int, seed: int) -> Sequence[np.ndarray]:
    """Return the batches of a run."""
    examples = job.batch * job.bins
    if sampling in SAMPLERS:
        key = hashlib.sha256(f"rates {seed}".encode()).digest()
        drawn = SAMPLERS[sampling](examples, job.bins, job.epochs, key, overflow="unlimited")
        return [drawn[step] for step in range(job.steps)]
    if sampling == "fixed":
        return list(fixed_order(examples, job.batch, epochs=job.epochs, seed=seed))
    found = poisson_batches(examples // bands, job.batch / (examples // bands), job.steps, seed)
    return [batch * bands + step % bands for step, batch in enumerate(found)]


def sigma_of(job: RateJob, sampling: str, factors: Factorization) -> float:
    """Return the standard deviation per entry of Z, for means."""
    sizes = {"dataset_size": job.batch * job.bins, "batch_size": job.batch} if "poisson" in sampling else {}
    asked = SamplingOptions(clip_norm=CLIP_NORM, divisor=job.batch, **sizes)
    found = SAMPLINGS[sampling].calibrate(factors, PrivacyTarget(epsilon=job.epsilon, delta=DELTA), asked)
    return float(found.sigma_of_means)


def factors_of(job: RateJob, row: str, folder: Path) -> Factorization:
    """Return the factors of a row, solved once."""
    mechanism, sampling = ROWS[row]
    apart: dict[str, Any] = {"kind": "fixed_epochs", "epochs": job.epochs}
    spec = {"workload": job.workload, "participation": apart, "mechanism": mechanism, "tolerance": 1e-2}
    if sampling == "cyclic_poisson":
        spec["participation"] = {"kind": "single"}  # its law counts the largest column for all
    if sampling == "balls_in_bins":
        spec["sampling"] = {"kind": "balls_in_bins", "epsilon": job.epsilon, "delta": DELTA}
    return solved_once(folder, spec)


def errors_of(job: RateJob, factors: Factorization) -> dict[str, Any]:
    """Return what predictors are made of, at sigma 1: the noise of single steps, and that of weights by decay.

    The weights follow w <- w - r (m + h w) with the averages m of the noise alone: h is one of DECAYS, r the relative
    rate of the step. `last` and `mean` are root mean squares over the coordinates of Z, of the last step and of all.
    """
    n, rates = job.steps, job.relative_rates
    inverse = factors.rows("C_inv", 0, n)
    decays = np.array(DECAYS)[:, None]
    weights, average, squares = np.zeros((len(DECAYS), n)), np.zeros(n), np.zeros((n, len(DECAYS)))
    for step in range(n):
        average = job.momentum * average + (1 - job.momentum) * inverse[step]
        weights -= rates[step] * (average + decays * weights)
        squares[step] = np.einsum("hn,hn->h", weights, weights)
    single = np.einsum("ij,ij->i", inverse, inverse)
    return {
        "single": round(float(single.mean() ** 0.5), 6),
        "last": np.round(squares[-1] ** 0.5, 5).tolist(),
        "mean": np.round(squares.mean(axis=0) ** 0.5, 5).tolist(),
    }


def adam_noise(job: RateJob, factors: Factorization, sigma: float, size: int) -> float:
    """Return the noise of the weights through Adam itself over what it moves them by a signal, at sigma 1.

    Adam sees the noise of 400 coordinates alone, and in second moments the usual gradients beside it. The answer is a
    root mean square over coordinates and steps, over the mean of the sums of what Adam multiplies gradients by.
    """
    z = sigma * correlated_rows(factors, SEEDS, 400).astype(float)
    since = np.arange(1, job.steps + 1)[:, None]
    first, second = (
        lfilter([1 - beta], [1, -beta], x, axis=0) / (1 - beta**since) for beta, x in ((0.9, z), (0.999, z**2))
    )
    scales = job.relative_rates[:, None] / np.sqrt(second + LIMITS.mean**2 / size)
    weights, moved = np.cumsum(scales * first, axis=0), np.cumsum(scales, axis=0)
    return round(float(np.sqrt(np.mean(weights**2)) / moved.mean() / sigma), 6)


def first_rate(job: RateJob, row: str) -> float:
    """Return the least learning rate that a cell begins with; the grid goes on where this is not low enough."""
    if not job.optimizer.startswith("adam"):
        return 0.125 * (1 - job.momentum)
    return 2.0**-9 if row == NO_PRIVACY or row.startswith("independent") else 2.0**-6


def runs_of(
    job: RateJob, row: str, factors: Factorization, sigma: float, mnist: Path | None
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return what trains a cell at learning rates, with a check or none (`trained`).

    Its answer is the accuracies in training and in the test, shape (seeds, rates).
    """
    data, examples = data_of(job.data, mnist), job.batch * job.bins
    network, seeds = network_of(job, data), range(SEEDS)
    noise = None if row == NO_PRIVACY else [correlated_rows(factors, seed, network.size) for seed in seeds]
    batches = [batches_of(job, ROWS[row][1], ROWS[row][0].get("bands", 1), seed) for seed in seeds]
    kind = job.optimizer if job.optimizer.startswith("adam") else "sgd"
    numbers = {"sigma": sigma, "clip_norm": None if row == NO_PRIVACY else CLIP_NORM, "divisor": job.batch}
    pair = (data[0][:examples], data[1][:examples])

    def run(
        rates: np.ndarray, check: Callable[[torch.Tensor], ArrayRateCheck] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        mapped = Mapped(kind, rates, job.relative_rates, job.momentum, job.weight_decay)
        found = trained(network, pair, batches, noise, mapped, **numbers, check=check)
        train, test = (network.accuracies(found, x[:JUDGED_EXAMPLES], y[:JUDGED_EXAMPLES]) for x, y in (pair, data[2:]))
        return train, test

    return run


def measure(job: RateJob, row: str, mnist: Path | None, folder: Path) -> dict[str, Any]:
    """Train one cell and return its line."""
    begun = time.process_time()
    sampling = ROWS[row][1]
    factors = factors_of(job, row, folder)
    sigma = 0.0 if row == NO_PRIVACY else sigma_of(job, sampling, factors)
    network = network_of(job, data_of(job.data, mnist))
    kind = job.optimizer if job.optimizer.startswith("adam") else "sgd"
    run = runs_of(job, row, factors, sigma, mnist)
    done: dict[float, tuple[list[float], list[float]]] = {}
    rates = first_rate(job, row) * 2.0 ** np.arange(GRID)
    while len(rates):
        train, test = run(rates)
        for i, rate in enumerate(rates.tolist()):
            done[rate] = (np.round(train[:, i], 2).tolist(), np.round(test[:, i], 2).tolist())
        rates = more_rates({rate: float(np.mean(values[0])) for rate, values in done.items()})
    listed = sorted(done)
    return {
        "job": asdict(job),
        "row": row,
        "parameters": network.size,
        "sigma": round(sigma, 8),
        **errors_of(job, factors),
        **({"adam": adam_noise(job, factors, sigma, network.size)} if sigma and kind.startswith("adam") else {}),
        "rates": listed,
        "train": [done[rate][0] for rate in listed],
        "test": [done[rate][1] for rate in listed],
        "seconds": round(time.process_time() - begun, 1),
    }


def more_rates(accuracies: dict[float, float]) -> np.ndarray:
    """Return the rates to go on with: beyond the end at which the best one is, or none; twelve doublings at most."""
    least, best, most = min(accuracies), max(accuracies, key=lambda rate: accuracies[rate]), max(accuracies)
    if most / least > 2.0**13:
        return np.array([])
    if best == most:
        return most * 2.0 ** np.arange(1, MORE_RATES + 1)
    if best == least:
        return np.asarray(least * 2.0 ** np.arange(-MORE_RATES, 0))
    return np.array([])


def cells(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(jobs: Sequence[RateJob], path: Path, mnist: Path | None, folder: Path) -> Iterator[dict[str, Any]]:
    """Train the cells of these jobs that a file does not have yet, and write each when it is done."""
    folder.mkdir(parents=True, exist_ok=True)
    there = {(RateJob(**cell["job"]), cell["row"]) for cell in cells(path)}
    for job in jobs:
        for row in ROWS:
            if (job, row) in there or ("mnist" in job.data and mnist is None):
                continue
            try:
                cell = measure(job, row, mnist, folder)
            except FactorizeError as error:  # a sampling that such a job cannot have
                print(f"left out: {row} of {job}: {error}", flush=True)
                continue
            with path.open("a") as file:
                file.write(json.dumps(cell) + "\n")
            yield cell


def told(cell: dict[str, Any]) -> str:
    """Return one line on a cell: its best rate, and the test accuracy there with its standard error."""
    best = int(np.mean(cell["train"], axis=1).argmax())
    test = np.array(cell["test"][best])
    job = " ".join(str(value) for value in cell["job"].values())
    error = test.std(ddof=1) / len(test) ** 0.5
    return f"{job}: {cell['row']}: {test.mean():.2f} +- {error:.2f} at {cell['rates'][best]:g} ({cell['seconds']} s)"


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(prog="python -m papers.leaderboard.rate_study", description=__doc__)
    parser.add_argument("--mnist", type=Path, metavar="FOLDER", help="folder of MNIST's four IDX files, .gz or not")
    parser.add_argument("--quick", action="store_true", help="one small job on scikit-learn's digits, written to --out")
    parser.add_argument("--held-out", action="store_true", help="the jobs that no constant was fitted on")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines; by default the results that are shipped")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    path = asked.out or (FACTORS_FOLDER / "rates-quick.jsonl" if asked.quick else RESULTS)
    new = HELD_OUT_JOBS + NEWEST_JOBS + sum(JUDGED_LISTS, [])
    jobs = QUICK_JOBS if asked.quick else new if asked.held_out else SEEN_JOBS
    for cell in run(jobs, path, asked.mnist, FACTORS_FOLDER):
        print(told(cell), flush=True)


if __name__ == "__main__":
    main()
