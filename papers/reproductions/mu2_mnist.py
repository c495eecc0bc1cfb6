"""R24, Tables 1 and 2: DP-mu^2-FL on MNIST, and what correlated noise changes.

Logistic regression with a constant feature (d = 7850), G = sqrt(2 785), L = 785 / 2, D = 0.1, so S = G + 2 L D = 118.1.
What the text leaves open, as found by reproduction: pixels in [0, 1], K the ball of radius D / 2 around 0, start at 0,
the files' own order, dealt out to the M machines image by image. Losses and accuracies are those of the test images.

With a trusted server, M machines with one sample each are one machine with M samples, and are run so. With an
untrusted one the mean of M machines' noises is normal with variance 1 / M, which is the trusted server's at
rho / sqrt(M): the tables are run in this way, and one entry with every machine drawing its own noise, as a check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from factorize.factors.factorization import Factorization
from factorize.noise.normals import MIN_SEED
from factorize.privacy import PrivacyTarget
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import Order, fixed_order
from papers.algorithms import (
    DIFFERENCED,
    Ball,
    FilteredNoise,
    Machine,
    machine_seeds,
    mu2_recipe,
    mu2_workload,
    trusted_mu2,
    untrusted_mu2,
)
from papers.algorithms.dp_mu2 import Mu2Recipe
from papers.reproductions.comparison import Comparison, mean_and_error
from papers.reproductions.images import CLASSES, Images, load_images
from papers.training import FactorizationNoise, PrivateSums, Run, SoftmaxRegression, ones

TITLE = "Reshef, Levy 2024 (DP-mu^2-FL), Tables 1 and 2: test loss and accuracy on MNIST"

DIAMETER = 0.1
RHOS = (4.0, 8.0, 16.0)
MACHINES = (1, 10, 100)
PUBLISHED = {  # (loss, accuracy in percent) by server, rho and M
    "untrusted": {
        4.0: ((2.256, 69.9), (2.267, 69.4), (2.285, 65.4)),
        8.0: ((2.253, 70.2), (2.259, 70.0), (2.274, 69.8)),
        16.0: ((2.252, 70.4), (2.255, 70.1), (2.264, 70.0)),
    },
    "trusted": {
        4.0: ((2.256, 69.9), (2.256, 69.7), (2.258, 69.5)),
        8.0: ((2.253, 70.2), (2.253, 70.1), (2.257, 69.6)),
        16.0: ((2.252, 70.4), (2.252, 70.3), (2.256, 69.7)),
    },
}

Output = Literal["q", "w", "x"]
OUTPUTS: tuple[Output, ...] = ("q", "w", "x")

Runs = dict[tuple[float, int], list[Run]]
"""The runs, by rho on the mean of the machines and by M."""


@dataclass(frozen=True)
class Federation:
    """M machines that hold the training images in equal shares."""

    images: Images
    machines: int

    @property
    def rounds(self) -> int:
        """The number T of rounds."""
        return len(self.images.train) // self.machines

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weights."""
        return self.images.train.shape[1], CLASSES

    def recipe(self, rho: float, *, trusted: bool) -> Mu2Recipe:
        """Return S and the learning rates, with the paper's constants for features of norm at most sqrt(inputs)."""
        inputs, classes = self.shape
        return mu2_recipe(
            self.rounds,
            machines=self.machines,
            lipschitz=math.sqrt(2 * inputs),
            smoothness=inputs / 2,
            diameter=DIAMETER,
            dimension=inputs * classes,
            mu=rho,
            trusted=trusted,
        )

    def train(self, noise: FilteredNoise | FactorizationNoise, learning_rate: float) -> Run:
        """Run with a trusted server: all machines' samples of a round are one batch."""
        dealt = np.arange(self.rounds * self.machines).reshape(self.rounds, self.machines)
        machine = Machine(self.images.model(), Order(list(dealt)))
        start, ball = np.zeros(self.shape), Ball(DIAMETER / 2)
        found = trusted_mu2([machine], start, PrivateSums(noise), learning_rate=learning_rate, project=ball)
        if isinstance(noise, FactorizationNoise):
            noise.close()  # other settings are compared with the same draws
        return found

    def noise(
        self, factors: Factorization | None, rho: float, clip_norm: float, seed: int, *, samples: int | None = None
    ) -> FilteredNoise | FactorizationNoise:
        """Return the noise of a factorization of the increments; for None the paper's, fresh in every release of q.

        `samples` are those of a round in its mean, by default one of each machine.
        """
        target, options = PrivacyTarget(mu=rho), {"clip_norm": clip_norm, "divisor": samples or self.machines}
        common: dict[str, Any] = {**options, "adjacency": "replace_one", "seed": MIN_SEED + seed}
        if factors is None:
            return FilteredNoise(DIFFERENCED, target, self.shape, steps=self.rounds, **common)
        return FactorizationNoise(factors, target, self.shape, **common)


def run(comparison: Comparison, mnist: Path | None) -> None:
    """Print both tables, the check of the untrusted server, and the factorized variants."""
    images = load_images(mnist, constant=True)
    comparison.remark(
        "noise multiplier 1 / rho of mu-GDP with mu = rho (0.25, 0.125, 0.0625), replace-one, times sens(C) = sqrt(T); "
        "errors are those of one run, since the paper states no number of runs; rounding 0.0005 and 0.05"
    )
    runs: Runs = {}
    means = {server: table(comparison, images, server, runs) for server in ("untrusted", "trusted")}
    fleet(comparison, images)
    claims(comparison, means)
    factorized(comparison, images)


def table(
    comparison: Comparison, images: Images, server: str, runs: Runs
) -> dict[tuple[float, int], tuple[float, float]]:
    """Print one table and return its means. For M = 1 the servers are the same, and so are the runs."""
    judge, found = images.judge(), {}
    comparison.heading(f"{server} server: test loss, then accuracy in %")
    for m, machines in enumerate(MACHINES):
        group = Federation(images, machines)
        for rho in RHOS[:1] if comparison.quick else RHOS:
            recipe = group.recipe(rho, trusted=server == "trusted")
            strength = rho if server == "trusted" else rho / math.sqrt(machines)
            seeds = range(2 if comparison.quick else 3 if machines == 1 else 5)
            if (strength, machines) not in runs:
                runs[strength, machines] = [
                    group.train(group.noise(None, strength, recipe.clip_norm, seed), recipe.learning_rate)
                    for seed in seeds
                ]
            found[rho, machines] = entry(
                comparison,
                f"{server}, rho {rho:g}, M = {machines}",
                PUBLISHED[server][rho][m],
                judge,
                runs[strength, machines],
            )
    return found


def entry(
    comparison: Comparison,
    name: str,
    published: tuple[float, float] | None,
    judge: SoftmaxRegression,
    runs: list[Run],
) -> tuple[float, float]:
    """Print loss and accuracy, with the error of one run more, and return their means."""
    loss, spread = mean_and_error([judge.loss(run.weights) for run in runs])
    accuracy, scatter = mean_and_error([100 * judge.accuracy(run.weights) for run in runs])
    one_more = math.sqrt(len(runs) + 1)
    first, second = published or (None, None)
    comparison.row(f"{name}: loss", first, loss, error=spread * one_more, tolerance=0.0005)
    comparison.row(f"{name}: accuracy", second, accuracy, error=scatter * one_more, tolerance=0.05)
    return loss, accuracy


def fleet(comparison: Comparison, images: Images) -> None:
    """Run one entry of the untrusted table with machines that each draw their own noise."""
    machines = 10 if comparison.quick else 100
    group = Federation(images, machines)
    recipe = group.recipe(RHOS[0], trusted=False)
    rounds = group.rounds
    members = [
        Machine(
            SoftmaxRegression(images.train[i::machines][:rounds], images.train_labels[i::machines][:rounds], CLASSES),
            fixed_order(rounds, 1),
            PrivateSums(group.noise(None, RHOS[0], recipe.clip_norm, seed, samples=1)),
        )
        for i, seed in enumerate(machine_seeds(MIN_SEED, machines))
    ]
    done = untrusted_mu2(members, np.zeros(group.shape), learning_rate=recipe.learning_rate, project=Ball(DIAMETER / 2))
    comparison.heading(f"untrusted server, rho 4, M = {machines}: every machine with its own noise, one run")
    judge = images.judge()
    comparison.row("loss", None, judge.loss(done.weights))
    comparison.row("accuracy", None, 100 * judge.accuracy(done.weights))


def claims(comparison: Comparison, means: dict[str, dict[tuple[float, int], tuple[float, float]]]) -> None:
    """Judge what the text says of the tables, by the loss."""
    rhos = RHOS[:1] if comparison.quick else RHOS
    for server, found in means.items():
        losses = np.array([[found[rho, m][0] for m in MACHINES] for rho in rhos])
        if len(rhos) > 1:
            comparison.claim(f"{server}: the loss falls with rho", bool((np.diff(losses, axis=0) < 0).all()))
        comparison.claim(f"{server}: the loss rises with M", bool((np.diff(losses, axis=1) > -1e-4).all()))
    worse = [means["untrusted"][rho, m][0] - means["trusted"][rho, m][0] for rho in rhos for m in MACHINES[1:]]
    comparison.claim("a trusted server is better for every M > 1", min(worse) > 0)


def factorized(comparison: Comparison, images: Images) -> None:
    """Print the same with C optimised for q, w and x, at the paper's learning rate and at 1 / (4 L T)."""
    judge, rho = images.judge(), RHOS[0]
    for machines in MACHINES[2:] if comparison.quick else MACHINES[1:]:
        group = Federation(images, machines)
        recipe = group.recipe(rho, trusted=True)
        made: dict[str, Factorization | None] = {"independent": None}
        made.update({f"C for {output}": strategy(group.rounds, output) for output in OUTPUTS})
        for label, rate in (("paper", recipe.learning_rate), ("1/(4LT)", recipe.factorized_learning_rate)):
            comparison.heading(
                f"trusted server, rho 4, M = {machines}, learning rate {rate:.3g} ({label}): correlated noise"
            )
            for name, factors in made.items():
                seeds = range(2 if comparison.quick else 3)
                sources = [group.noise(factors, rho, recipe.clip_norm, seed) for seed in seeds]
                runs = [group.train(source, rate) for source in sources]
                entry(comparison, name, None, judge, runs)
                comparison.remark(f"    sens(C) times multiplier: {sources[0].calibration.sensitivity.value / rho:.4g}")


def strategy(rounds: int, output: Output) -> Factorization:
    """Return the streaming optimum for R24's estimate q (running sums), iterate w or output x."""
    workload = ones(rounds) if output == "q" else mu2_workload(rounds, output)
    return solve(parse_spec({"workload": workload, "mechanism": {"kind": "buffered_linear", "buffers": 6}}))
