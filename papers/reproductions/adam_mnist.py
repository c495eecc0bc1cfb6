"""Private Adam on MNIST at equal (epsilon, delta): correlated beside independent noise, 5 seeds.

Logistic regression with a bias, 8 epochs of 60 batches of 1000, clip norm 1, delta = 1e-5, zero-out. Adam
(beta 0.9 and 0.999) takes the noisy gradients as they are. Correlated noise is that of the certified optimum for Adam's
iterate, or for running sums, in one fixed order and without any sampling; independent noise is C = I in the same order,
and C = I under Poisson sampling with its amplification (loss distributions). Every method has the learning rate with
the best training accuracy at each epsilon; that choice is not private. No paper prints these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from factorize.factors.factorization import Factorization
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training.orders import fixed_order
from papers.reproductions.comparison import Comparison
from papers.reproductions.images import CLASSES, Images, load_images
from papers.reproductions.kept_results import KeptResults
from papers.reproductions.together import clipped_sum, correlated_rows, poisson_batches

TITLE = "Private Adam on MNIST at equal (epsilon, delta): correlated beside independent noise"

EPSILONS = (0.5, 2.0, 8.0)
RATES = (0.001, 0.003, 0.01, 0.03)
EPOCHS, BATCH, SEEDS = 8, 1000, 5
DELTA, CLIP, BETAS, FLOOR = 1e-5, 1.0, (0.9, 0.999), 1e-8
POISSON = "independent noise, Poisson sampling"
FIXED_METHODS = {
    "independent noise, fixed order": ({"kind": "prefix"}, {"kind": "identity"}),
    "optimum for running sums": ({"kind": "prefix"}, {"kind": "auto"}),
    "optimum for Adam's iterate": ({"kind": "adam", "beta": BETAS[0], "output": "iterate"}, {"kind": "auto"}),
}


def run(comparison: Comparison, mnist: Path | None) -> None:
    """Print test accuracies with standard errors for every method and epsilon."""
    images = load_images(mnist, constant=True)
    examples, epochs, batch = len(images.train), *((2, 144) if comparison.quick else (EPOCHS, BATCH))
    epsilons = EPSILONS[1:2] if comparison.quick else EPSILONS
    seeds, steps = range(2 if comparison.quick else SEEDS), epochs * (examples // batch)
    kept = KeptResults(
        comparison.path(".trials.json"),
        {"examples": examples, "epochs": epochs, "batch": batch, "epsilons": epsilons, "rates": RATES, "delta": DELTA},
    )
    comparison.remark(
        f"{steps} steps in {epochs} epochs, batches of {batch}, delta {DELTA:g}, zero-out, {len(seeds)} seeds, rates "
        f"{', '.join(f'{rate:g}' for rate in RATES)}"
    )
    found = {}
    for name in (*FIXED_METHODS, *(() if comparison.quick else (POISSON,))):
        factors = strategy(name, steps, epochs)
        sigmas = scales(factors, name, batch, examples, epsilons)
        one = partial(trial, images, factors, sigmas, epochs, batch, sampled=name == POISSON)
        accuracies = [kept.once(f"{name}, seed {seed}", partial(one, seed)) for seed in seeds]
        shape = (len(seeds), len(epsilons), len(RATES), 2)
        found[name] = report(comparison, name, epsilons, sigmas * batch / CLIP, np.reshape(accuracies, shape))
    independent, *correlated = (found[name] for name in FIXED_METHODS)
    for name, own in zip(list(FIXED_METHODS)[1:], correlated, strict=True):
        gain = (own - independent).mean(axis=0)
        error = (own - independent).std(axis=0, ddof=1) / np.sqrt(len(seeds))
        text = f"{name}: better than independent noise in the same order, at every epsilon"
        holds = bool((gain > 2 * error).all())
        comparison.claim(text, holds, tied=not holds and bool((gain > -2 * error).all()))


def strategy(name: str, steps: int, epochs: int) -> Factorization:
    """Return the factorization of a method."""
    workload, mechanism = FIXED_METHODS.get(name, ({"kind": "prefix"}, {"kind": "identity"}))
    spec = {"workload": {**workload, "n": steps}, "participation": {"kind": "fixed_epochs", "epochs": epochs}}
    return solve(parse_spec({**spec, "mechanism": mechanism, "tolerance": 1e-3}))


def scales(factors: Factorization, name: str, batch: int, examples: int, epsilons: Sequence[float]) -> np.ndarray:
    """Return the standard deviation of Z at each epsilon, for means."""
    given: dict[str, Any] = {"clip_norm": CLIP, "divisor": batch}
    if name == POISSON:
        given |= {"sampling": "poisson", "dataset_size": examples, "batch_size": batch}
    return np.array([factors.calibrate(epsilon=one, delta=DELTA, **given).sigma_of_means for one in epsilons])


def trial(
    images: Images, factors: Factorization, sigmas: np.ndarray, epochs: int, batch: int, seed: int, *, sampled: bool
) -> np.ndarray:
    """Return training and test accuracy in percent at each epsilon and rate, shape (epsilons x rates x 2,)."""
    examples, size, steps = images.train.shape[0], images.train.shape[1] * CLASSES, factors.strategy.n
    batches: Iterable[np.ndarray] = fixed_order(examples, batch, epochs=epochs, seed=seed)
    if sampled:
        batches = poisson_batches(examples, batch / examples, steps, seed)
    noise = correlated_rows(factors, seed, size)
    weights = adam(images, batches, noise, np.repeat(sigmas, len(RATES)), np.tile(RATES, len(sigmas)), batch)
    judges = images.model(), images.judge()
    found = [[100 * judge.accuracy(one) for judge in judges] for one in weights]
    return np.array(found).reshape(-1)


def adam(
    images: Images,
    batches: Iterable[np.ndarray],
    noise: Iterable[np.ndarray],
    sigmas: np.ndarray,
    rates: np.ndarray,
    divisor: int,
) -> np.ndarray:
    """Train logistic regression from zero by Adam, once for each scale and rate: one matrix product for all.

    Args:
        images: data.
        batches: batches of each step.
        noise: C^-1 Z of each step, inputs x classes numbers.
        sigmas: standard deviation per entry of Z, one for each run.
        rates: learning rates, one for each run.
        divisor: divisor of the means.

    Returns:
        Weights, shape (runs, inputs, classes).
    """
    x, inputs, runs = images.train, images.train.shape[1], len(sigmas)
    lengths = np.linalg.norm(x, axis=1)
    weights, first, second = (np.zeros((inputs, runs, CLASSES), dtype=np.float32) for _ in range(3))
    scales, speeds = (values.astype(np.float32)[None, :, None] for values in (sigmas, rates))
    for step, (batch, row) in enumerate(zip(batches, noise, strict=True), start=1):
        total = clipped_sum(x[batch], images.train_labels[batch], lengths[batch], weights, CLIP)
        gradient = total / divisor
        gradient += scales * row.reshape(inputs, 1, CLASSES)
        first += (1 - BETAS[0]) * (gradient - first)
        second += (1 - BETAS[1]) * (gradient * gradient - second)
        roots = np.sqrt(second / (1 - BETAS[1] ** step)) + FLOOR
        weights -= speeds / (1 - BETAS[0] ** step) * first / roots
    return np.moveaxis(weights, 1, 0)


def report(
    comparison: Comparison, name: str, epsilons: Sequence[float], used: np.ndarray, accuracies: np.ndarray
) -> np.ndarray:
    """Print a row for each epsilon, at the learning rate with the best training accuracy; return (seeds, epsilons)."""
    comparison.heading(f"{name}: test accuracy, %")
    chosen = accuracies[..., 0].mean(axis=0).argmax(axis=1)
    found = np.stack([accuracies[:, i, best, 1] for i, best in enumerate(chosen)], axis=1)
    errors = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    for i, epsilon in enumerate(epsilons):
        label = f"eps {epsilon:g}, noise multiplier {used[i]:.4g}, rate {RATES[chosen[i]]:g}"
        comparison.row(label, None, found[:, i].mean(), error=float(errors[i]))
    return found
