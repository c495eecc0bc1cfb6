"""K23, Figure 3 (a, b): DP-MF, DP-MF+ and DP-SGD with amplification by sampling, on MNIST, T = 2048.

Logistic regression without a bias, clip norm 1, learning rate 0.5, delta = 1e-6, one epoch with batches of 29 or 16
with batches of 469 (the last of an epoch has 437 and the same divisor). DP-MF and DP-MF+ go through the data in one
fixed order and count on no sampling; DP-SGD samples every example independently. Its noise was accounted by RDP; the
tighter accounting by loss distributions is printed beside it. tau < T makes Lambda_tau S block diagonal: DP-MF+ is then
DP-MF restarted every tau steps, and its noise adds up over the restarts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from factorize.factors.factorization import Factorization
from factorize.privacy import PrivacyTarget, calibrate
from factorize.training.orders import Order
from papers.reproductions.accounting import multipliers
from papers.reproductions.comparison import Comparison
from papers.reproductions.correlated_figure import SAMPLED_METHODS, Accuracies, draw, judge
from papers.reproductions.images import CLASSES, Images, load_images
from papers.reproductions.kept_results import KeptResults, solved_once
from papers.reproductions.together import correlated_rows, poisson_batches, train
from papers.training import PlainSums, Sgd, dp_ftrl, method_spec, ones

TITLE = "Koloskova et al. 2023, Figure 3 (a, b): test accuracy on MNIST over epsilon, 1 and 16 epochs, T = 2048"

EPSILONS = (0.01, 0.031, 0.1, 0.31, 1.0, 3.1, 10.0, 31.0, 100.0)
TAUS = (2, 8, 32, 128, 512, 2048)
DELTA, CLIP, RATE, STEPS = 1e-6, 1.0, 0.5, 2048
FREE_RATES = (0.02, 0.05, 0.1, 0.2, 0.5)
TRIALS = 15


def run(comparison: Comparison, mnist: Path | None) -> None:
    """Print accuracies with standard errors for both settings, judge the text, draw the figure."""
    images = load_images(mnist)
    steps, taus = (64, (2, 8, 64)) if comparison.quick else (STEPS, TAUS)
    epsilons = (10.0,) if comparison.quick else EPSILONS
    comparison.remark(
        f"{steps} steps, clip norm 1, learning rate 0.5, delta 1e-6, zero-out; {2 if comparison.quick else TRIALS} "
        "trials per point (the paper: 5), which share their normal numbers over epsilon and method"
    )
    found = {}
    settings = {"steps": steps, "taus": taus, "epsilons": epsilons, "examples": len(images.train), "rate": RATE}
    kept = KeptResults(comparison.path(".trials.json"), {**settings, "clip": CLIP, "delta": DELTA})
    for epochs in (1, 16):
        found[epochs] = one_setting(comparison, images, kept, steps, taus, epsilons, epochs)
    judge(comparison, found, epsilons, taus)
    draw(comparison, found, epsilons, taus)


def one_setting(
    comparison: Comparison,
    images: Images,
    kept: KeptResults,
    steps: int,
    taus: tuple[int, ...],
    epsilons: tuple[float, ...],
    epochs: int,
) -> Accuracies:
    """Train every method at every epsilon and print the table."""
    order = data_order(len(images.train), steps, epochs)
    batch = len(order[0])
    targets = [PrivacyTarget(epsilon=epsilon, delta=DELTA) for epsilon in epsilons]
    trials = range(2 if comparison.quick else TRIALS)
    comparison.heading(f"{epochs} epoch{'s' if epochs > 1 else ''}, batches of {batch}: test accuracy, %")
    probability = batch / len(images.train)
    pairs = kept.once(
        f"{epochs} epochs, noise multipliers",  # this takes minutes of accounting
        lambda: np.ravel([multipliers(one, DELTA, probability=probability, steps=steps) for one in epsilons]),
    ).reshape(-1, 2)
    used = {name: pairs[:, i].tolist() for i, name in enumerate(SAMPLED_METHODS)}
    both = pairs.T * CLIP / batch  # the pair is by RDP, by PLD
    fixed = strategies(comparison.folder, steps, taus, epochs)
    sigmas = {}
    for name, factors in fixed.items():
        calibrated = [calibrate(factors.certificate.sensitivity, one, clip_norm=CLIP) for one in targets]
        used[name] = [one.noise_multiplier for one in calibrated]
        sigmas[name] = np.array([one.sigma_of_sums for one in calibrated]) / batch
    found: dict[str, list[np.ndarray]] = {name: [] for name in (*fixed, *SAMPLED_METHODS)}
    for seed in trials:  # seeds are outermost: a run that is cut off has as many of every method
        for name, factors in fixed.items():
            label = f"{epochs} epochs, {name}, seed {seed}"
            run = partial(accuracies, images, list(order), factors, sigmas[name], batch, seed)
            found[name].append(kept.once(label, run))
        label = f"{epochs} epochs, DP-SGD, seed {seed}"
        run = partial(sampled, images, steps, batch, both.ravel(), seed)
        for name, part in zip(SAMPLED_METHODS, np.split(kept.once(label, run), 2), strict=True):
            found[name].append(part)
    runs = {name: np.array(values) for name, values in found.items()}
    for name, values in runs.items():
        report(comparison, name, epsilons, used[name], values)
    runs["non-private"] = np.full((len(trials), len(epsilons)), freely(comparison, images, order))
    return runs


def freely(comparison: Comparison, images: Images, order: Order) -> float:
    """Print the accuracy without clipping and noise, and return it at the rate with the best training accuracy."""
    free = {rate: without_privacy(images, order, rate) for rate in FREE_RATES}
    best = max(free, key=lambda rate: free[rate][0])
    comparison.row(f"without clipping and noise, learning rate {RATE:g}", None, free[RATE][1])
    comparison.row(f"without clipping and noise, learning rate {best:g} (best on training data)", None, free[best][1])
    return free[best][1]


def without_privacy(images: Images, order: Order, rate: float) -> tuple[float, float]:
    """Train without clipping and noise and return training and test accuracy in percent."""
    start, sums = np.zeros((images.train.shape[1], CLASSES)), PlainSums(divisor=len(order[0]))
    done = dp_ftrl(images.model(), start, order, sums, optimizer=Sgd(learning_rate=rate))
    return 100 * images.model().accuracy(done.weights), 100 * images.judge().accuracy(done.weights)


def data_order(examples: int, steps: int, epochs: int) -> Order:
    """Return the fixed order of so many epochs; the last batch of an epoch may be smaller."""
    per_epoch = steps // epochs
    batch = examples // per_epoch if epochs == 1 else -(-examples // per_epoch)
    cut = np.arange(min(examples, batch * per_epoch))
    return Order([cut[i * batch : (i + 1) * batch] for i in range(per_epoch)], epochs=epochs)


def strategies(folder: Path, steps: int, taus: tuple[int, ...], epochs: int) -> dict[str, Factorization]:
    """Return the certified optima of DP-MF and of DP-MF+ for each tau."""
    specs = {"DP-MF": method_spec("dp_mf", ones(steps), epochs=epochs)}
    specs |= {f"DP-MF+, tau = {tau}": method_spec("dp_mf_plus", ones(steps), epochs=epochs, tau=tau) for tau in taus}
    return {name: solved_once(folder, {**spec, "tolerance": 1e-4}) for name, spec in specs.items()}


def accuracies(
    images: Images, order: list[np.ndarray], factors: Factorization, sigmas: np.ndarray, batch: int, seed: int
) -> np.ndarray:
    """Train on the fixed order at each noise scale and return the test accuracies in percent."""
    noise = correlated_rows(factors, seed, images.train.shape[1] * CLASSES)
    return judged(images, order, noise, sigmas, batch)


def sampled(images: Images, steps: int, batch: int, sigmas: np.ndarray, seed: int) -> np.ndarray:
    """Train on Poisson samples with independent noise."""
    size = images.train.shape[1] * CLASSES
    noise = np.random.default_rng(seed).standard_normal((steps, size), dtype=np.float32)
    examples = len(images.train)
    return judged(images, list(poisson_batches(examples, batch / examples, steps, seed)), noise, sigmas, batch)


def judged(images: Images, batches: list[np.ndarray], noise: np.ndarray, sigmas: np.ndarray, batch: int) -> np.ndarray:
    weights = train(
        images.train,
        images.train_labels,
        batches,
        noise,
        sigmas,
        batch_size=batch,
        clip_norm=CLIP,
        learning_rate=RATE,
    )
    test = images.judge()
    return 100 * np.array([test.accuracy(one) for one in weights])


def report(
    comparison: Comparison, name: str, epsilons: tuple[float, ...], used: list[float], found: np.ndarray
) -> None:
    """Print one method at every epsilon, with its noise multipliers."""
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    for i, epsilon in enumerate(epsilons):
        label = f"{name}: eps {epsilon:g}, noise multiplier {used[i]:.4g}"
        comparison.row(label, None, found[:, i].mean(), error=float(error[i]))
