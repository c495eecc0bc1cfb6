"""K23, Figure 3 (a, b): DP-MF, DP-MF+ and DP-SGD with amplification by sampling, on MNIST, T = 2048.

Logistic regression without a bias, clip norm 1, learning rate 0.5, delta = 1e-6, one epoch with batches of 29 or 16
with batches of 469 (the last of an epoch has 437 and the same divisor). DP-MF and DP-MF+ go through the data in one
fixed order and count on no sampling; DP-SGD samples every example independently. Its noise was accounted by RDP; the
tighter accounting by loss distributions is printed beside it. tau < T makes Lambda_tau S block diagonal: DP-MF+ is then
DP-MF restarted every tau steps, and its noise adds up over the restarts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.papers.accounting import multipliers
from benchmarks.papers.comparison import Comparison
from benchmarks.papers.images import CLASSES, Images, load_images
from benchmarks.papers.together import correlated_rows, poisson_batches, train
from factorize.factorization import Factorization
from factorize.privacy import PrivacyTarget, calibrate
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import PlainSums, Sgd, dp_ftrl, method_spec, ones
from factorize.training.orders import Order

TITLE = "Koloskova et al. 2023, Figure 3 (a, b): test accuracy on MNIST over epsilon, 1 and 16 epochs, T = 2048"

EPSILONS = (0.01, 0.031, 0.1, 0.31, 1.0, 3.1, 10.0, 31.0, 100.0)
TAUS = (2, 8, 32, 128, 512, 2048)
DELTA, CLIP, RATE, STEPS = 1e-6, 1.0, 0.5, 2048
FREE_RATES = (0.02, 0.05, 0.1, 0.2, 0.5)
TRIALS = 3

Accuracies = dict[str, np.ndarray]
"""Of each method: percent, shape (trials, epsilons)."""


def run(comparison: Comparison, mnist: Path | None) -> None:
    """Print accuracies with standard errors for both settings, judge the text, draw the figure."""
    images = load_images(mnist)
    steps, taus = (64, (2, 8, 64)) if comparison.quick else (STEPS, TAUS)
    epsilons = (0.1, 1.0) if comparison.quick else EPSILONS
    comparison.remark(
        f"{steps} steps, clip norm 1, learning rate 0.5, delta 1e-6, zero-out; {2 if comparison.quick else TRIALS} "
        "trials per point (the paper: 5), which share their normal numbers over epsilon and method"
    )
    found = {}
    for epochs in (1, 16):
        found[epochs] = one_setting(comparison, images, steps, taus, epsilons, epochs)
    claims(comparison, found, epsilons, taus)
    draw(comparison, found, epsilons, taus)


def one_setting(
    comparison: Comparison,
    images: Images,
    steps: int,
    taus: tuple[int, ...],
    epsilons: tuple[float, ...],
    epochs: int,
) -> Accuracies:
    """Train every method at every epsilon and print the table."""
    examples = len(images.train)
    order = data_order(examples, steps, epochs)
    batch = len(order[0])
    targets = [PrivacyTarget(epsilon=epsilon, delta=DELTA) for epsilon in epsilons]
    trials = range(2 if comparison.quick else TRIALS)
    comparison.heading(f"{epochs} epoch{'s' if epochs > 1 else ''}, batches of {batch}: test accuracy, %")
    found: Accuracies = {}
    for name, factors in strategies(steps, taus, epochs):
        calibrated = [calibrate(factors.certificate.sensitivity, one, clip_norm=CLIP) for one in targets]
        sigmas = np.array([one.sigma for one in calibrated]) / batch
        found[name] = np.array([accuracies(images, list(order), factors, sigmas, batch, seed) for seed in trials])
        report(comparison, name, epsilons, [one.noise_multiplier for one in calibrated], found[name])
    pairs = [multipliers(epsilon, DELTA, probability=batch / examples, steps=steps) for epsilon in epsilons]
    both = np.array(pairs).T * CLIP / batch  # by RDP, by PLD
    trained = np.array([sampled(images, steps, batch, both.ravel(), seed) for seed in trials])
    for i, name in enumerate(("DP-SGD, RDP", "DP-SGD, PLD")):
        found[name] = trained[:, i * len(epsilons) : (i + 1) * len(epsilons)]
        report(comparison, name, epsilons, [pair[i] for pair in pairs], found[name])
    free = {rate: without_privacy(images, order, rate) for rate in FREE_RATES}
    best = max(free, key=lambda rate: free[rate])
    comparison.row(f"without clipping and noise, learning rate {RATE:g}", None, free[RATE])
    comparison.row(f"without clipping and noise, learning rate {best:g} (best)", None, free[best])
    found["non-private"] = np.full((len(trials), len(epsilons)), free[best])
    return found


def without_privacy(images: Images, order: Order, rate: float) -> float:
    """Train without clipping and noise and return the test accuracy in percent."""
    start, sums = np.zeros((images.train.shape[1], CLASSES)), PlainSums(batch_size=len(order[0]))
    done = dp_ftrl(images.model(), start, order, sums, optimizer=Sgd(learning_rate=rate))
    return 100 * images.judge().accuracy(done.weights)


def data_order(examples: int, steps: int, epochs: int) -> Order:
    """Return the fixed order of so many epochs; the last batch of an epoch may be smaller."""
    per_epoch = steps // epochs
    batch = examples // per_epoch if epochs == 1 else -(-examples // per_epoch)
    cut = np.arange(min(examples, batch * per_epoch))
    return Order([cut[i * batch : (i + 1) * batch] for i in range(per_epoch)], epochs=epochs)


def strategies(steps: int, taus: tuple[int, ...], epochs: int) -> list[tuple[str, Factorization]]:
    """Return the certified optima of DP-MF and of DP-MF+ for each tau."""
    specs = {"DP-MF": method_spec("dp_mf", ones(steps), epochs=epochs)}
    specs |= {f"DP-MF+, tau = {tau}": method_spec("dp_mf_plus", ones(steps), epochs=epochs, tau=tau) for tau in taus}
    return [(name, solve(parse_spec({**spec, "tolerance": 1e-4}))) for name, spec in specs.items()]


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
    judge = images.judge()
    return 100 * np.array([judge.accuracy(one) for one in weights])


def report(
    comparison: Comparison, name: str, epsilons: tuple[float, ...], used: list[float], found: np.ndarray
) -> None:
    """Print one method at every epsilon, with its noise multipliers."""
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    for i, epsilon in enumerate(epsilons):
        label = f"{name}: eps {epsilon:g}, noise multiplier {used[i]:.4g}"
        comparison.row(label, None, found[:, i].mean(), error=float(error[i]))


def claims(
    comparison: Comparison, found: dict[int, Accuracies], epsilons: tuple[float, ...], taus: tuple[int, ...]
) -> None:
    """Judge what the text says of the figure. A tie is two standard errors, or a quarter of a point."""
    last = f"DP-MF+, tau = {taus[-1]}"
    for epochs, runs in found.items():
        label = f"{epochs} epoch{'s' if epochs > 1 else ''}"
        means = {name: values.mean(axis=0) for name, values in runs.items()}
        by_tau = [f"DP-MF+, tau = {tau}" for tau in taus]
        steps = [at_least(runs[b], runs[a]) for a, b in zip(by_tau, by_tau[1:], strict=False)]
        comparison.claim(f"{label}: DP-MF+ improves with tau at every epsilon", bool(np.all(steps)))
        where_not(comparison, np.all(steps, axis=0), epsilons)
        better = at_least(runs[last], runs["DP-MF"])
        comparison.claim(f"{label}: DP-MF+ with tau = T is not below DP-MF", bool(better.all()))
        where_not(comparison, better, epsilons)
        for name, first in (("DP-MF", {1: 0.31, 16: 31.0}[epochs]), (last, {1: 0.031, 16: 0.0}[epochs])):
            base = runs["DP-SGD, RDP"]
            expected = np.array(epsilons) >= first
            as_told = np.where(expected, at_least(runs[name], base), at_least(base, runs[name]))
            comparison.claim(
                f"{label}: {name} is above DP-SGD (RDP) from eps {first:g} on, not below it", bool(as_told.all())
            )
            where_not(comparison, as_told, epsilons)
            for accounting in ("RDP", "PLD"):
                wins = means[name] > means[f"DP-SGD, {accounting}"]
                comparison.remark(f"    mean above DP-SGD ({accounting}) at eps {listed(epsilons, wins)}")
        private = max(float(values.max()) for name, values in means.items() if name != "non-private")
        comparison.claim(
            f"{label}: no private run reaches the accuracy without privacy", private < means["non-private"][0]
        )


def at_least(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return where the mean of one is not below that of the other by more than a tie."""
    gain = one.mean(axis=0) - other.mean(axis=0)
    error = np.sqrt((one.var(axis=0, ddof=1) + other.var(axis=0, ddof=1)) / len(one))
    return np.asarray(gain >= -np.maximum(0.25, 2 * error))


def where_not(comparison: Comparison, holds: np.ndarray, epsilons: tuple[float, ...]) -> None:
    """Print where a statement does not hold."""
    if not holds.all():
        comparison.remark(f"    not at eps {listed(epsilons, ~holds)}")


def listed(epsilons: tuple[float, ...], chosen: np.ndarray) -> str:
    """Return the chosen epsilons with commas."""
    return ", ".join(f"{epsilon:g}" for epsilon, one in zip(epsilons, chosen, strict=True) if one) or "none"


def draw(
    comparison: Comparison, found: dict[int, Accuracies], epsilons: tuple[float, ...], taus: tuple[int, ...]
) -> None:
    """Draw accuracy over epsilon with standard errors, one panel for each number of epochs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shades = plt.get_cmap("viridis")(np.linspace(0.85, 0.1, len(taus)))
    figure, panels = plt.subplots(1, 2, figsize=(10.5, 4), sharey=True, layout="constrained")
    for panel, (epochs, runs) in zip(panels, found.items(), strict=True):
        for name, values in runs.items():
            style = {"DP-MF": "k--", "DP-SGD, RDP": "r-", "DP-SGD, PLD": "r:", "non-private": "0.6"}.get(name, "-")
            tau = name.rpartition("= ")[2]
            colour = {"color": shades[taus.index(int(tau))]} if "tau" in name else {}
            if name == "non-private":
                panel.axhline(values.mean(), color=style, linewidth=1, label=name)
                continue
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
            panel.errorbar(
                epsilons, values.mean(axis=0), error, fmt=style, label=name, linewidth=1.4, capsize=2, **colour
            )
        panel.set(xscale="log", xlabel="epsilon", title=f"{epochs} epoch{'s' if epochs > 1 else ''}")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(comparison.path(".png"), dpi=150)
    plt.close(figure)
    comparison.remark(f"picture: {comparison.path('.png')}")
