"""Past S24's Figure 1, in its own setting on MNIST: two ways that the paper does not have, at the same (0.1, 1e-6).

One epoch with momentum 0.9 and C the optimum for that workload under `lambda_tau` with tau = T, where the paper's C is
the optimum for the mean squared error; and full-batch DP-GD, which passes over the data once in every step and has
independent noise for all its steps. Both choose by training accuracy, with seeds that are not used again.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from factorize.privacy import PrivacyTarget
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import fixed_order
from papers.reproductions.comparison import Comparison, mean_and_error
from papers.reproductions.images import CLASSES, Images, load_images
from papers.reproductions.kept_results import KeptResults
from papers.reproductions.srg_mnist import CLIPS, EASY, MOMENTUM, RATES, TARGET, Setting
from papers.reproductions.together import train

TITLE = "Past Choquette-Choo et al. 2024 (DP-SRG), Figure 1: lambda_T and full-batch DP-GD on MNIST at (0.1, 1e-6)"

BEST_PUBLISHED = 83.753
"""DP-SRG-MEMF, true: the best private number of the figure."""
LENGTHS = (64, 256)
GD_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
GD_CLIP = 1.0

Kept = tuple[float, float]
"""Training and test accuracy in percent."""


def run(comparison: Comparison, mnist: Path | None) -> None:
    """Print both beside the best number of the paper."""
    images = load_images(mnist)
    target = EASY if comparison.quick else TARGET
    comparison.remark(f"zero-out, noise multiplier {target.noise_multiplier:.4f} for sens(C) = 1; logistic regression")
    settings = {"examples": len(images.train), "quick": comparison.quick, "clips": CLIPS, "rates": RATES}
    settings |= {"lengths": LENGTHS, "steps": GD_RATES, "clip": GD_CLIP}
    kept = KeptResults(comparison.path(".trials.json"), settings)
    comparison.heading("test accuracy, %")
    found = {
        "lambda_T, one epoch": one_epoch(comparison, images, kept, target, batch=500 if mnist else 30),
        "DP-GD, full batch": full_batches(comparison, images, kept, target),
    }
    for name, (mean, error) in found.items():
        lead = mean - BEST_PUBLISHED
        text = f"{name} is ahead of the best private number of the figure, by {lead:+.2f} +- {error:.2f}"
        comparison.claim(text, lead > 2 * error, tied=abs(lead) <= 2 * error)


def one_epoch(
    comparison: Comparison, images: Images, kept: KeptResults, target: PrivacyTarget, *, batch: int
) -> tuple[float, float]:
    """Return mean and standard error of SGD with momentum and the optimum for it under lambda_tau, tau = T."""
    order = fixed_order(len(images.train), batch)
    setting, steps = Setting(images.model(), images.judge(), order, batch, target), len(order)
    workload = {"kind": "momentum", "n": steps, "momentum": MOMENTUM}
    objective, mechanism = {"kind": "lambda_tau", "tau": steps}, {"kind": "dense"}
    factors = solve(parse_spec({"workload": workload, "objective": objective, "mechanism": mechanism}))
    seeds, tuning = (range(1000, 1002), range(1)) if comparison.quick else (range(1000, 1040), range(4))

    def once(clip: float, rate: float, seed: int, *, training: bool) -> float:
        label = f"lambda_T, clip norm {clip:g}, rate {rate:g}, seed {seed}, {'training' if training else 'test'}"
        name = "DP-MEMF, lambda_T"
        return float(
            kept.once(label, lambda: np.array([setting.accuracy(name, factors, clip, rate, seed, training=training)]))[
                0
            ]
        )

    grid = [(clip, rate) for clip in CLIPS for rate in (RATES[::2] if comparison.quick else RATES)]
    swept = {at: float(np.mean([once(*at, seed, training=True) for seed in tuning])) for at in grid}
    clip, rate = max(swept, key=lambda at: swept[at])
    mean, error = mean_and_error([once(clip, rate, seed, training=False) for seed in seeds])
    comparison.row("DP-MEMF, lambda_T", None, mean, error=error)
    comparison.remark(f"    {steps} steps of {batch}, {len(seeds)} seeds; clip norm {clip:g}, rate {rate / clip:g}")
    return mean, error


def full_batches(
    comparison: Comparison, images: Images, kept: KeptResults, target: PrivacyTarget
) -> tuple[float, float]:
    """Return mean and standard error of DP-GD with the number of steps and the rate of the best training accuracy."""
    lengths = (16,) if comparison.quick else LENGTHS
    seeds, tuning = (range(1000, 1002), range(1)) if comparison.quick else (range(1000, 1010), range(2))

    def once(steps: int, rates: tuple[float, ...], seed: int) -> np.ndarray:
        label = f"DP-GD, {steps} steps, rates {', '.join(f'{rate:g}' for rate in rates)}, seed {seed}"
        return kept.once(label, lambda: descended(images, target, steps, rates, seed).ravel()).reshape(-1, 2)

    swept = {}
    for steps in lengths:
        training = np.mean([once(steps, GD_RATES, seed)[:, 0] for seed in tuning], axis=0)
        swept |= {(steps, rate): float(value) for rate, value in zip(GD_RATES, training, strict=True)}
    steps, rate = max(swept, key=lambda at: swept[at])
    mean, error = mean_and_error([float(once(steps, (rate,), seed)[0, 1]) for seed in seeds])
    comparison.row("DP-GD, full batch", None, mean, error=error)
    comparison.remark(
        f"    {steps} steps (of {', '.join(str(one) for one in lengths)}), rate {rate:g} (of "
        f"{', '.join(f'{one:g}' for one in GD_RATES)}), clip norm {GD_CLIP:g}, {len(seeds)} seeds"
    )
    return mean, error


def descended(images: Images, target: PrivacyTarget, steps: int, rates: tuple[float, ...], seed: int) -> np.ndarray:
    """Return training and test accuracy in percent of DP-GD at each rate, shape (rates, 2)."""
    examples = len(images.train)
    generator = np.random.default_rng(seed)
    size = images.train.shape[1] * CLASSES
    # C = I, and every example is in every step: sens(C) = sqrt(T)
    sigma = target.noise_multiplier * math.sqrt(steps) * GD_CLIP / examples
    weights = train(
        images.train,
        images.train_labels,
        (slice(None) for _ in range(steps)),
        (generator.standard_normal(size, dtype=np.float32) for _ in range(steps)),
        np.full(len(rates), sigma),
        batch_size=examples,
        clip_norm=GD_CLIP,
        learning_rate=np.array(rates, dtype=np.float32),
    )
    judges = images.model(), images.judge()
    return np.array([[100 * judge.accuracy(one) for judge in judges] for one in weights])
