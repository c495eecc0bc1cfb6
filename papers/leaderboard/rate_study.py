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
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from scipy.signal import lfilter

from factorize.errors import FactorizeError
from factorize.factorization import Factorization
from factorize.privacy import PrivacyTarget
from factorize.privacy_question import SamplingOptions
from factorize.samplings import SAMPLINGS
from factorize.training import schedule_rates
from factorize.training.learning_rate import LIMITS
from factorize.training.orders import fixed_order
from factorize.training.rate_check import ArrayRateCheck
from papers.leaderboard.accuracy_predictors import halved
from papers.leaderboard.layered_models import Mapped, Network, convolution, logistic, perceptron, trained, transformer
from papers.leaderboard.made_table import made_table
from papers.leaderboard.systems import BINNED
from papers.reproductions.images import load_images
from papers.reproductions.kept_results import solved_once
from papers.reproductions.together import correlated_rows, poisson_batches

RESULTS = Path(__file__).parent / "results" / "rates.jsonl"
SOLVED = Path("build") / "leaderboard"
DELTA, CLIP_NORM = 1e-6, 1.0
SEEDS = 4
GRID, MORE = 7, 3
"""Learning rates that a cell begins with, each twice the one before, and those that are added at an end."""
JUDGED = 3000
"""Training examples, and test examples, by which a model is judged."""
DECAYS = (0.0, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Shares of the weights that a step of rate 1 takes away, as a curvature does; errors are kept for each."""


@dataclass(frozen=True)
class RateJob:
    """A training job.

    Attributes:
        optimizer: `sgd`, `momentum`, `adam` or `adamw`.
        schedule: `constant`, `cosine` or `warmup_cosine`.
        model: of MODELS.
        data: of DATA.
        batch: examples of a step.
        bins: batches of an epoch.
        epochs: passes over the data.
        epsilon: with DELTA.
        weight_decay: of AdamW; `recommend` writes 0 into its code, where nobody names one.
    """

    optimizer: str
    schedule: str
    model: str
    data: str
    batch: int
    bins: int
    epochs: int
    epsilon: float
    weight_decay: float = 0.01

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.bins * self.epochs

    @property
    def momentum(self) -> float:
        """By which gradients are averaged."""
        return 0.0 if self.optimizer == "sgd" else 0.9

    @property
    def rates(self) -> dict[str, Any] | None:
        """The schedule as specs have it."""
        if self.schedule == "constant":
            return None
        warmup = {"warmup": max(1, self.steps // 10)} if self.schedule == "warmup_cosine" else {}
        return {"kind": self.schedule, **warmup}

    @property
    def relative_rates(self) -> np.ndarray:
        """The learning rate of each step over the largest."""
        return np.ones(self.steps) if self.rates is None else np.array(schedule_rates(self.rates, self.steps))

    @property
    def workload(self) -> dict[str, Any]:
        """What the optimizer sums, as a recommendation has it."""
        kind: dict[str, Any] = {"kind": "schedule" if self.rates else "prefix"}
        if self.momentum:
            kind = {"kind": "momentum", "momentum": self.momentum}
        return {**kind, "n": self.steps, **({"learning_rates": self.rates} if self.rates else {})}


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
"""Mechanism and sampling of each row."""
FREE = "without privacy"

SMALL, MIDDLE, LONG, LONGEST = (200, 40, 8), (200, 100, 5), (50, 500, 4), (25, 1000, 4)
"""Batch, batches of an epoch, epochs: 320, 500, 2000 and 4000 steps."""
SEEN = [
    RateJob("adamw", "warmup_cosine", "convolution", "sequences", *MIDDLE, 3.0),
    RateJob("momentum", "cosine", "logistic", "mnist", *MIDDLE, 3.0),
    RateJob("adam", "constant", "logistic", "mnist", *SMALL, 2.0),
    RateJob("sgd", "constant", "logistic", "mnist", *SMALL, 3.0),
    RateJob("adamw", "cosine", "perceptron", "mnist", *MIDDLE, 8.0),
    RateJob("momentum", "warmup_cosine", "perceptron", "mnist", *MIDDLE, 2.0),
    RateJob("sgd", "cosine", "perceptron", "mnist", 300, 60, 10, 4.0),
    RateJob("adam", "cosine", "logistic", "table", *SMALL, 1.0),
    RateJob("momentum", "constant", "logistic", "table", *SMALL, 10.0),
    RateJob("adam", "cosine", "logistic", "mnist", *LONG, 4.0),
    RateJob("momentum", "cosine", "perceptron", "table", *SMALL, 4.0),
    RateJob("adam", "constant", "perceptron", "mnist", *SMALL, 8.0),
    RateJob("sgd", "cosine", "logistic", "mnist", *LONG, 2.0),
    RateJob("adamw", "cosine", "perceptron", "mnist", *LONG, 2.0),
    RateJob("sgd", "constant", "perceptron", "mnist", *MIDDLE, 10.0),
    RateJob("adamw", "warmup_cosine", "perceptron", "mnist", 500, 100, 10, 3.0),
    RateJob("sgd", "warmup_cosine", "convolution", "sequences", *SMALL, 8.0),
    RateJob("adamw", "cosine", "convolution", "sequences", *SMALL, 1.0),
    RateJob("momentum", "constant", "convolution", "sequences", *SMALL, 3.0),
    RateJob("adamw", "warmup_cosine", "wide perceptron", "mnist", 250, 80, 6, 2.5),
    RateJob("sgd", "cosine", "logistic", "whole mnist", 200, 50, 6, 5.0),
    RateJob("adam", "cosine", "wide perceptron", "table", 150, 100, 6, 6.0),
    RateJob("sgd", "warmup_cosine", "wide perceptron", "table", 100, 150, 4, 2.5),
    RateJob("momentum", "cosine", "wide perceptron", "table", 60, 300, 3, 6.0),
    RateJob("adamw", "constant", "logistic", "table", 40, 250, 6, 5.0),
    RateJob("adamw", "warmup_cosine", "logistic", "digits", 36, 40, 10, 5.0),
    RateJob("adamw", "warmup_cosine", "transformer", "short sequences", 100, 40, 8, 8.0),
    RateJob("momentum", "warmup_cosine", "wide perceptron", "mnist", 400, 60, 8, 1.5),
    RateJob("adamw", "cosine", "logistic", "long sequences", 150, 100, 4, 5.0),
    RateJob("momentum", "cosine", "wide convolution", "long sequences", 100, 90, 4, 6.0),
    RateJob("adam", "constant", "logistic", "whole mnist", 250, 40, 8, 1.5),
    RateJob("adamw", "warmup_cosine", "wide convolution", "long sequences", 100, 90, 4, 2.5),
    RateJob("momentum", "constant", "logistic", "whole mnist", 150, 80, 5, 2.5),
    RateJob("adam", "warmup_cosine", "logistic", "mnist", 60, 300, 5, 1.5),
    RateJob("sgd", "constant", "logistic", "long sequences", 100, 100, 5, 5.0),
    RateJob("adamw", "cosine", "wide perceptron", "mnist", 150, 120, 10, 5.0),
    RateJob("adam", "constant", "wide perceptron", "table", 200, 80, 4, 2.5),
    RateJob("sgd", "cosine", "wide perceptron", "mnist", 100, 200, 4, 1.5),
    RateJob("momentum", "warmup_cosine", "logistic", "mnist", 300, 64, 12, 6.0),
]
"""The jobs that predictors and their constants were fitted on, in the order in which they are trained."""
HELD_OUT = [
    RateJob("adamw", "warmup_cosine", "logistic", "mnist", *LONGEST, 8.0),
    RateJob("sgd", "cosine", "logistic", "digits", 30, 48, 6, 3.0),
    RateJob("adam", "cosine", "perceptron", "digits", 48, 30, 12, 8.0),
    RateJob("momentum", "constant", "perceptron", "digits", 24, 60, 6, 6.0),
    RateJob("adamw", "constant", "perceptron", "table", 150, 60, 6, 3.0, 0.0),
    RateJob("sgd", "constant", "logistic", "plain sequences", 120, 60, 5, 1.0),
    RateJob("momentum", "warmup_cosine", "convolution", "plain sequences", 120, 60, 6, 2.0),
    RateJob("adam", "warmup_cosine", "narrow perceptron", "mnist", 120, 80, 5, 2.0),
    RateJob("adamw", "cosine", "narrow perceptron", "whole mnist", 120, 60, 6, 6.0, 0.0),
    RateJob("sgd", "warmup_cosine", "narrow perceptron", "mnist", 100, 100, 4, 4.0),
    RateJob("adam", "constant", "logistic", "plain sequences", 100, 60, 6, 4.0),
    RateJob("momentum", "constant", "wide perceptron", "mnist", 200, 50, 6, 1.0),
    RateJob("adamw", "warmup_cosine", "logistic", "table", 80, 120, 4, 2.0, 0.0),
    RateJob("sgd", "constant", "wide perceptron", "table", 120, 100, 4, 6.0),
    RateJob("adam", "cosine", "convolution", "plain sequences", 100, 60, 5, 0.5),
    RateJob("adamw", "cosine", "logistic", "whole mnist", 200, 50, 8, 10.0, 0.0),
    RateJob("momentum", "cosine", "logistic", "plain sequences", 100, 70, 5, 0.5),
    RateJob("adamw", "constant", "convolution", "sequences", 150, 50, 6, 5.0, 0.0),
    RateJob("adam", "cosine", "transformer", "short sequences", 100, 40, 8, 2.0),
    RateJob("momentum", "cosine", "logistic", "mnist", *LONGEST, 4.0),
]
"""Jobs that no constant was fitted on, and by which no form was chosen, in the order in which they are trained."""
NEWEST = [
    RateJob("sgd", "constant", "logistic", "text", 150, 80, 4, 2.0, 0.0),
    RateJob("adam", "cosine", "logistic", "mixture", 120, 60, 6, 0.7, 0.0),
    RateJob("momentum", "constant", "convolution", "few symbols", 150, 60, 5, 2.5, 0.0),
    RateJob("adamw", "warmup_cosine", "perceptron", "noisy mnist", 150, 60, 6, 2.2, 0.0),
    RateJob("sgd", "cosine", "perceptron", "mixture", 100, 100, 4, 3.5, 0.0),
    RateJob("adam", "constant", "perceptron", "text", 100, 80, 4, 3.0, 0.0),
    RateJob("momentum", "warmup_cosine", "logistic", "text", 60, 200, 3, 1.5, 0.0),
    RateJob("adamw", "constant", "narrow perceptron", "mixture", 100, 70, 5, 6.0, 0.0),
    RateJob("sgd", "warmup_cosine", "convolution", "few symbols", 120, 70, 5, 7.0, 0.0),
    RateJob("adam", "constant", "logistic", "noisy mnist", 150, 60, 6, 7.0, 0.0),
    RateJob("momentum", "constant", "logistic", "mixture", 100, 80, 4, 4.0, 0.0),
    RateJob("adamw", "cosine", "logistic", "text", 80, 120, 4, 1.0, 0.0),
    RateJob("sgd", "cosine", "logistic", "noisy mnist", 100, 90, 4, 0.8, 0.0),
    RateJob("adam", "warmup_cosine", "convolution", "few symbols", 100, 80, 4, 4.0, 0.0),
    RateJob("momentum", "cosine", "perceptron", "text", 120, 100, 4, 6.0, 0.0),
    RateJob("adamw", "cosine", "convolution", "few symbols", 120, 60, 5, 9.0, 0.0),
    RateJob("sgd", "constant", "broad perceptron", "mnist", 160, 60, 6, 1.2, 0.0),
    RateJob("momentum", "cosine", "narrow perceptron", "noisy mnist", 80, 150, 4, 5.0, 0.0),
    RateJob("adamw", "warmup_cosine", "wide perceptron", "mixture", 60, 250, 4, 4.5, 0.0),
    RateJob("adam", "cosine", "broad perceptron", "mnist", 150, 80, 5, 1.8, 0.0),
    RateJob("sgd", "cosine", "convolution", "three symbols", 120, 70, 5, 3.0, 0.0),
    RateJob("adam", "constant", "convolution", "three symbols", 100, 80, 4, 5.0, 0.0),
    RateJob("adamw", "warmup_cosine", "logistic", "broad mixture", 100, 60, 6, 1.5, 0.0),
    RateJob("momentum", "constant", "perceptron", "broad mixture", 120, 80, 4, 5.0, 0.0),
]
"""Jobs on other data, listed before any was trained: those that the rule before this one was judged by."""
FRESH = [
    RateJob("adam", "cosine", "wide perceptron", "long text", 120, 90, 4, 4.0, 0.0),
    RateJob("sgd", "warmup_cosine", "logistic", "long text", 100, 80, 5, 2.5, 0.0),
    RateJob("momentum", "cosine", "convolution", "three symbols", 80, 120, 4, 8.0, 0.0),
    RateJob("adamw", "constant", "narrow perceptron", "digits", 30, 48, 8, 6.0, 0.0),
    RateJob("sgd", "constant", "perceptron", "noisy mnist", 150, 70, 5, 2.0, 0.0),
    RateJob("adam", "warmup_cosine", "broad perceptron", "broad mixture", 100, 120, 4, 3.0, 0.0),
    RateJob("momentum", "warmup_cosine", "narrow perceptron", "long text", 80, 130, 4, 4.5, 0.0),
    RateJob("adamw", "cosine", "logistic", "three symbols", 100, 90, 4, 1.2, 0.0),
]
"""Jobs that were listed before any was trained, and trained after the present rule was chosen."""
QUICK = [RateJob("adamw", "cosine", "perceptron", "digits", 24, 10, 3, 8.0)]
"""The job of the quick form."""

SEQUENCES = {"sequences": (12, 16, 10), "long sequences": (16, 12, 12, 5), "plain sequences": (10, 8, 5, 3)}
SEQUENCES |= {"few symbols": (20, 4, 6, 6), "three symbols": (24, 3, 5, 8)}
"""Length, symbols, classes and length of the motif of those that are seen through windows."""
Data = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def made_sequences(length: int, symbols: int, classes: int, motif: int = 4) -> Data:
    """Return sequences of symbols that hide the motif of their class, four fifths of it on average, one-hot."""
    luck, examples = np.random.default_rng(0), 43_000
    motifs = luck.integers(0, symbols, (classes, motif))
    labels = luck.integers(0, classes, examples)
    x = luck.integers(0, symbols, (examples, length))
    places = luck.integers(0, length - motif + 1, examples)
    for i in range(motif):
        kept = luck.random(examples) < 0.8
        x[np.arange(examples)[kept], (places + i)[kept]] = motifs[labels[kept], i]
    hot = np.eye(symbols, dtype=np.float32)[x]
    return parted(hot, labels, 40_000)


def next_letters(before: int = 4, apart: int = 9) -> Data:
    """Return letters of Python's own help texts, or a space, by the ones before them, one-hot."""
    text = re.sub("[^a-z]+", " ", " ".join(topics[name] for name in sorted(topics)).lower())
    letters = np.frombuffer(text.encode(), np.uint8) % 32  # a space is 0
    places = np.arange(before, len(letters), apart)
    hot = np.eye(27, dtype=np.float32)[letters[places[:, None] - np.arange(before, 0, -1)]]
    luck = np.random.default_rng(1).permutation(len(places))
    return parted(hot.reshape(len(places), 1, -1)[luck], letters[places][luck], len(places) - JUDGED)


def mixture(inputs: int = 30, classes: int = 8, parts: int = 3, examples: int = 33_000) -> Data:
    """Return a mixture of normal distributions, each class three of them, whose examples have a norm of about 1."""
    luck = np.random.default_rng(2)
    means = luck.normal(0, 0.5, (classes * parts, inputs))
    drawn = luck.integers(0, classes * parts, examples)
    x = (means[drawn] + luck.normal(size=(examples, inputs))) / (1.25 * inputs) ** 0.5
    return parted(x[:, None].astype(np.float32), drawn % classes, examples - JUDGED)


def windows(x: torch.Tensor, width: int = 4) -> torch.Tensor:
    """Return the windows of neighbouring symbols as positions, from one-hot symbols and a constant."""
    count = x.shape[1] - width + 1
    return torch.cat([x[:, i : i + count, :-1] for i in range(width)] + [x[:, :count, -1:]], dim=2)


def parted(features: np.ndarray, labels: np.ndarray, train: int) -> Data:
    """Return training and test data as tensors, with a constant in the last column."""
    x = torch.cat([torch.as_tensor(features), torch.ones(*features.shape[:-1], 1)], dim=-1)
    y = torch.as_tensor(labels.astype(np.int64))
    return x[:train], y[:train], x[train:], y[train:]


@cache
def data_of(name: str, mnist: Path | None) -> Data:
    """Return training features (examples, positions, inputs) and labels, and those of the test."""
    if name in SEQUENCES:
        x, y, test, judged = made_sequences(*SEQUENCES[name])
        return windows(x), y, windows(test), judged
    if name == "short sequences":
        return made_sequences(8, 12, 8)
    if name.endswith("text"):
        return next_letters(*((7, 11) if name == "long text" else ()))
    if name.endswith("mixture"):
        return mixture(*((80, 5, 4) if name == "broad mixture" else ()))
    if name == "table":
        table = made_table()
        tensors = (table.train, table.train_labels, table.test, table.test_labels)
    else:
        images = load_images(None if name == "digits" else mnist, constant="whole" in name or name == "digits")
        images = halved(images) if name in ("mnist", "noisy mnist") else images
        tensors = (images.train, images.train_labels, images.test, images.test_labels)
        if name == "noisy mnist":
            luck = np.random.default_rng(3)
            wrong = luck.random(len(tensors[1])) < 0.2
            tensors = (tensors[0], np.where(wrong, luck.integers(0, 10, len(wrong)), tensors[1]), *tensors[2:])
    x, y, test, judged = (torch.as_tensor(one) for one in tensors)
    return x[:, None], y.long(), test[:, None], judged.long()


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
    if sampling in BINNED:
        key = hashlib.sha256(f"rates {seed}".encode()).digest()
        drawn = BINNED[sampling](examples, job.bins, job.epochs, key, overflow="unlimited")
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
        spec["participation"] = {"kind": "single"}  # whose law counts the largest column for all
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
    return 2.0**-9 if row == FREE or row.startswith("independent") else 2.0**-6


def runs_of(
    job: RateJob, row: str, factors: Factorization, sigma: float, mnist: Path | None
) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return what trains a cell at learning rates, with a check or none (`trained`).

    Its answer is the accuracies in training and in the test, shape (seeds, rates).
    """
    data, examples = data_of(job.data, mnist), job.batch * job.bins
    network, seeds = network_of(job, data), range(SEEDS)
    noise = None if row == FREE else [correlated_rows(factors, seed, network.size) for seed in seeds]
    batches = [batches_of(job, ROWS[row][1], ROWS[row][0].get("bands", 1), seed) for seed in seeds]
    kind = job.optimizer if job.optimizer.startswith("adam") else "sgd"
    numbers = {"sigma": sigma, "clip_norm": None if row == FREE else CLIP_NORM, "divisor": job.batch}
    pair = (data[0][:examples], data[1][:examples])

    def run(
        rates: np.ndarray, check: Callable[[torch.Tensor], ArrayRateCheck] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        mapped = Mapped(kind, rates, job.relative_rates, job.momentum, job.weight_decay)
        found = trained(network, pair, batches, noise, mapped, **numbers, check=check)
        train, test = (network.accuracies(found, x[:JUDGED], y[:JUDGED]) for x, y in (pair, data[2:]))
        return train, test

    return run


def measure(job: RateJob, row: str, mnist: Path | None, folder: Path) -> dict[str, Any]:
    """Train one cell and return its line."""
    begun = time.process_time()
    sampling = ROWS[row][1]
    factors = factors_of(job, row, folder)
    sigma = 0.0 if row == FREE else sigma_of(job, sampling, factors)
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
        return most * 2.0 ** np.arange(1, MORE + 1)
    if best == least:
        return np.asarray(least * 2.0 ** np.arange(-MORE, 0))
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
    path = asked.out or (SOLVED / "rates-quick.jsonl" if asked.quick else RESULTS)
    jobs = QUICK if asked.quick else HELD_OUT + NEWEST + FRESH if asked.held_out else SEEN
    for cell in run(jobs, path, asked.mnist, SOLVED):
        print(told(cell), flush=True)


if __name__ == "__main__":
    main()
